package git

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Person is an author or committer; CommitInfo says who made a commit.
type (
	Person     = state.Person
	CommitInfo = state.CommitInfo
)

// FS gives the tree of a commit that was fetched.
func (m *Mirror) FS(commit string) (fs.FS, error) { return newTreeFS(m.store, commit) }

// CommitInfo reads a commit.
func (m *Mirror) CommitInfo(commit string) (CommitInfo, error) { return commitInfo(m.store, commit) }

// Parent gives the first parent, "" for a root commit.
func (m *Mirror) Parent(commit string) (string, error) { return firstParent(m.store, commit) }

// FirstParents gives tip and its first-parent ancestors, newest first, at most n.
func (m *Mirror) FirstParents(tip string, n int) ([]string, error) {
	var out []string
	for at := tip; at != "" && len(out) < n; {
		out = append(out, at)
		next, err := m.Parent(at)
		if err != nil {
			return nil, err
		}
		at = next
	}
	return out, nil
}

// IsAncestor tells whether old is new or one of its ancestors. A commit that the mirror doesn't have is nobody's
// ancestor: nothing that is fetched leaves out history.
func (m *Mirror) IsAncestor(old, now string) (bool, error) { return isAncestor(m.store, old, now) }

func isAncestor(s *store, old, now string) (bool, error) {
	if old == now {
		return true, nil
	}
	op := opf("compare %s with %s", short(old), short(now))
	from, err := commitOf(s, op, now)
	if err != nil {
		return false, err
	}
	found := false
	err = s.view(op, func(st storage.Storer) error {
		want := plumbing.NewHash(old)
		if _, err := object.GetCommit(st, want); errors.Is(err, plumbing.ErrObjectNotFound) {
			return nil
		}
		seen := map[plumbing.Hash]bool{from.Hash: true}
		queue := append([]plumbing.Hash(nil), from.ParentHashes...)
		for len(queue) > 0 && !found {
			h := queue[0]
			queue = queue[1:]
			if seen[h] {
				continue
			}
			seen[h] = true
			found = h == want
			c, err := object.GetCommit(st, h)
			if err != nil {
				return err
			}
			queue = append(queue, c.ParentHashes...)
		}
		return nil
	})
	return found, err
}

func firstParent(s *store, commit string) (string, error) {
	c, err := commitOf(s, opf("read parent of %s", short(commit)), commit)
	if err != nil || len(c.ParentHashes) == 0 {
		return "", err
	}
	return c.ParentHashes[0].String(), nil
}

func commitInfo(s *store, commit string) (CommitInfo, error) {
	c, err := commitOf(s, opf("read commit %s", short(commit)), commit)
	if err != nil {
		return CommitInfo{}, err
	}
	subject, _, _ := strings.Cut(strings.TrimLeft(c.Message, "\n"), "\n")
	out := CommitInfo{
		Hash: c.Hash.String(), Subject: subject, Message: c.Message, When: c.Committer.When.UTC(),
		Author:    Person{Name: c.Author.Name, Email: c.Author.Email},
		Committer: Person{Name: c.Committer.Name, Email: c.Committer.Email},
	}
	for _, p := range c.ParentHashes {
		out.Parents = append(out.Parents, p.String())
	}
	return out, nil
}
