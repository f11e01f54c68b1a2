package rehearse

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"ichor.maesh.dev/ichor/sync/git"
)

// UsageError is a mistake in how the command was called.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

func usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// source is what is rehearsed: two states of a repository, and what people call them.
type source struct {
	base, head         fs.FS // base is nil where there is none
	baseName, headName string
	// parent is HEAD's parent, for a folder in which nothing changed; nil where there is none.
	parent fs.FS
}

// open reads the states. A folder is compared with HEAD, a revision with its first parent, as "ichor check" does.
func (o Options) open() (source, error) {
	var s source
	if info, err := os.Stat(o.Dir); err != nil || !info.IsDir() {
		return s, usagef("%s is no folder: name the one with the manifests", o.Dir)
	}
	repo, err := git.OpenLocal(o.Dir)
	switch {
	case errors.Is(err, git.ErrNoRepository) && (o.Rev != "" || o.Base != ""):
		return s, usagef("%s is in no Git repository: --rev and --base need one", o.Dir)
	case errors.Is(err, git.ErrNoRepository):
		s.head, s.headName = os.DirFS(o.Dir), "the files in "+o.Dir
		return s, nil
	case err != nil:
		return s, fmt.Errorf("open repository of %s: %w", o.Dir, err)
	}
	if o.Rev == "" {
		s.head, s.headName = os.DirFS(o.Dir), "the files in "+o.Dir
	} else if s.head, s.headName, err = commit(repo, o.Rev); err != nil {
		return s, err
	}
	return s, s.openBase(repo, o)
}

func (s *source) openBase(repo *git.Local, o Options) (err error) {
	switch {
	case o.Base != "":
		s.base, s.baseName, err = commit(repo, o.Base)
	case o.Rev != "":
		s.base, s.baseName, err = parentOf(repo, o.Rev)
	default:
		if _, err := repo.Resolve("HEAD"); err != nil {
			return nil //nolint:nilerr // a repository without a commit: nothing to begin with
		}
		if s.base, s.baseName, err = commit(repo, "HEAD"); err == nil {
			s.parent, _, err = parentOf(repo, "HEAD")
		}
	}
	return err
}

// commit gives the tree of a revision, under the folder that the command was given.
func commit(repo *git.Local, rev string) (fs.FS, string, error) {
	sha, err := repo.Resolve(rev)
	if errors.Is(err, git.ErrUnknownRevision) {
		return nil, "", usagef("unknown revision %q", rev)
	}
	if err != nil {
		return nil, "", fmt.Errorf("find revision %s: %w", rev, err)
	}
	tree, err := repo.FS(sha)
	if err != nil {
		return nil, "", fmt.Errorf("open the tree of %s: %w", rev, err)
	}
	name := rev
	if len(sha) > 8 && rev != sha {
		name = fmt.Sprintf("%s (%s)", rev, sha[:8])
	}
	if p := repo.Prefix(); p != "" && p != "." {
		if info, err := fs.Stat(tree, p); err != nil || !info.IsDir() {
			return embed.FS{}, name, nil // the folder is new: there it has nothing
		}
		if tree, err = fs.Sub(tree, p); err != nil {
			return nil, "", fmt.Errorf("open folder %s of %s: %w", p, rev, err)
		}
	}
	return tree, name, nil
}

// parentOf gives the first parent, nil where there is none.
func parentOf(repo *git.Local, rev string) (fs.FS, string, error) {
	sha, err := repo.Resolve(rev)
	if err != nil {
		return nil, "", usagef("unknown revision %q", rev)
	}
	parent, err := repo.FirstParent(sha)
	if err != nil {
		return nil, "", fmt.Errorf("find the parent of %s: %w", rev, err)
	}
	if parent == "" {
		return nil, "", nil
	}
	tree, _, err := commit(repo, parent)
	return tree, fmt.Sprintf("%s's parent (%s)", rev, parent[:8]), err
}
