package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Branch writes a branch that Ichor owns, by compare-and-swap: a commit names the tip that its author saw, and the
// server refuses it when the branch is elsewhere. Nothing is ever forced over a tip that wasn't seen. It has a store
// of its own beside the mirror's, so that a check never waits for a push. Safe for concurrent use.
type Branch struct {
	name   string
	ref    plumbing.ReferenceName
	remote *remote
	store  *store
	limits Limits
	author Person

	mu  sync.Mutex // orders network use
	tip plumbing.Hash
}

// BranchOptions of OpenBranch.
type BranchOptions struct {
	// Auth to push with; a credential that may write to this branch alone is best. Nil is the mirror's.
	Auth *Auth
	// Author of the commits, default "Ichor <ichor@localhost>".
	Author Person
}

// Branch opens the writer of a branch. name must not be a branch that is also watched.
func (m *Mirror) Branch(name string, o BranchOptions) (*Branch, error) {
	op := opf("open branch %s", name)
	ref := plumbing.NewBranchReferenceName(name)
	if err := ref.Validate(); err != nil || name == "" {
		return nil, failAs(op, ClassConfig, fmt.Errorf("%q is not a branch name", clip(name, 80)))
	}
	auth := m.opts.Auth
	if o.Auth != nil {
		auth = *o.Auth
	}
	r, err := newRemote(m.opts, auth)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(m.opts.Dir, "branch-"+strings.NewReplacer("/", "-").Replace(name)+".git")
	s, err := openStore(dir, m.opts.Limits.Packs)
	if err != nil {
		return nil, err
	}
	if o.Author == (Person{}) {
		o.Author = Person{Name: "Ichor", Email: "ichor@localhost"}
	}
	return &Branch{name: name, ref: ref, remote: r, store: s, limits: m.opts.Limits, author: o.Author}, nil
}

// Name of the branch.
func (b *Branch) Name() string { return b.name }

// Close closes the store.
func (b *Branch) Close() error {
	b.store.close()
	return nil
}

// Tip is where the branch is; Change is a change of one file.
type (
	Tip    = state.BranchTip
	Change = state.FileChange
)

// Tip fetches the branch and says where it is. ErrAbsent when the server doesn't have it.
func (b *Branch) Tip(ctx context.Context) (Tip, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, err := b.fetch(ctx)
	if err != nil {
		return Tip{}, err
	}
	if h.IsZero() {
		return Tip{}, failAs(opf("read branch %s", b.name), ClassGone, fmt.Errorf("%w: %s", ErrAbsent, b.name))
	}
	return b.describe(h)
}

func (b *Branch) describe(h plumbing.Hash) (Tip, error) {
	t := Tip{Hash: h.String()}
	for at := t.Hash; at != ""; t.Commits++ {
		t.Root = at
		next, err := firstParent(b.store, at)
		if err != nil {
			return Tip{}, err
		}
		at = next
	}
	return t, nil
}

// fetch brings the store to the server's tip and gives it, zero when absent. The store is a cache: when it is broken
// or has become large it is made anew, at most once a call.
func (b *Branch) fetch(ctx context.Context) (plumbing.Hash, error) {
	op := opf("fetch branch %s", b.name)
	for again := false; ; again = true {
		if b.store.broken() || again {
			if err := b.store.reset(); err != nil {
				return plumbing.ZeroHash, fail(op, err)
			}
			b.tip = plumbing.ZeroHash
		}
		h, err := b.fetchOnce(ctx, op)
		if ClassOf(err) == ClassCorrupt && !again && ctx.Err() == nil {
			continue
		}
		if err == nil {
			err = b.store.consolidate()
		}
		return h, err
	}
}

func (b *Branch) fetchOnce(ctx context.Context, op string) (plumbing.Hash, error) {
	var tip plumbing.Hash
	have := b.tip // the function may still run when a deadline has ended the wait for it
	choose := func(a *advert) (wants, haves []plumbing.Hash, err error) {
		tip = a.refs[b.ref.String()]
		if tip.IsZero() || tip == have {
			return nil, nil, nil
		}
		if _, err := commitOf(b.store, op, tip.String()); err == nil {
			return nil, nil, nil
		}
		if !have.IsZero() {
			haves = []plumbing.Hash{have}
		}
		return []plumbing.Hash{tip}, haves, nil
	}
	err := receivePack(ctx, op, b.remote, b.store, choose, b.limits.branch())
	if ClassOf(err) == ClassEmpty {
		return plumbing.ZeroHash, nil
	}
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if tip.IsZero() {
		return plumbing.ZeroHash, nil
	}
	return tip, b.settle(op, tip)
}

// settle records a tip whose tree is whole.
func (b *Branch) settle(op string, tip plumbing.Hash) error {
	if tip == b.tip {
		return nil
	}
	err := b.store.view(op, func(st storage.Storer) error {
		c, err := object.GetCommit(st, tip)
		if err != nil {
			return err
		}
		if err := wholeTree(st, c.TreeHash, map[plumbing.Hash]bool{}, 0); err != nil {
			return err
		}
		return st.SetReference(plumbing.NewHashReference(privateHead(b.name), tip))
	})
	if err == nil {
		b.tip = tip
	}
	return err
}

// ReadFile reads a file at a tip that was fetched. ErrNoFile when it isn't there.
func (b *Branch) ReadFile(_ context.Context, tip, path string) ([]byte, error) {
	var out []byte
	err := b.atFile(tip, path, func(st storage.Storer, e *object.TreeEntry) (err error) {
		out, err = readBlob(st, e.Hash)
		return err
	})
	return out, err
}

// FileHash gives the blob hash of a file at a tip, which changes exactly with its content. ErrNoFile.
func (b *Branch) FileHash(_ context.Context, tip, path string) (string, error) {
	var out string
	err := b.atFile(tip, path, func(_ storage.Storer, e *object.TreeEntry) error {
		out = e.Hash.String()
		return nil
	})
	return out, err
}

func (b *Branch) atFile(tip, path string, fn func(storage.Storer, *object.TreeEntry) error) error {
	op := opf("read %s of branch %s", path, b.name)
	c, err := commitOf(b.store, op, tip)
	if err != nil {
		return err
	}
	return b.store.view(op, func(st storage.Storer) error {
		t, err := object.GetTree(st, c.TreeHash)
		if err != nil {
			return err
		}
		e, err := t.FindEntry(path)
		if errors.Is(err, object.ErrEntryNotFound) || errors.Is(err, object.ErrDirectoryNotFound) ||
			(err == nil && !e.Mode.IsFile()) {
			return fmt.Errorf("%w: %s", ErrNoFile, path)
		}
		if err != nil {
			return err
		}
		return fn(st, e)
	})
}

// Files lists the files below a folder ("" is all) at a tip, sorted, with slashes.
func (b *Branch) Files(_ context.Context, tip, dir string) ([]string, error) {
	op := opf("list branch %s", b.name)
	c, err := commitOf(b.store, op, tip)
	if err != nil {
		return nil, err
	}
	var out []string
	err = b.store.view(op, func(st storage.Storer) error {
		t, err := object.GetTree(st, c.TreeHash)
		if err != nil {
			return err
		}
		out = nil
		return t.Files().ForEach(func(f *object.File) error {
			if dir == "" || strings.HasPrefix(f.Name, dir+"/") {
				out = append(out, f.Name)
			}
			return nil
		})
	})
	sort.Strings(out)
	return out, err
}

// EverHad tells whether a file was on the branch at tip or at any first-parent commit below it.
func (b *Branch) EverHad(_ context.Context, tip, path string) (bool, error) {
	for at := tip; at != ""; {
		err := b.atFile(at, path, func(storage.Storer, *object.TreeEntry) error { return nil })
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, ErrNoFile) {
			return false, err
		}
		if at, err = firstParent(b.store, at); err != nil {
			return false, err
		}
	}
	return false, nil
}

// CommitInfo reads a commit of the branch.
func (b *Branch) CommitInfo(_ context.Context, commit string) (CommitInfo, error) {
	return commitInfo(b.store, commit)
}

// IsAncestor tells whether old is now or among its ancestors.
func (b *Branch) IsAncestor(_ context.Context, old, now string) (bool, error) {
	return isAncestor(b.store, old, now)
}

// Commit makes a commit with the changes on top of parent ("" makes the branch, as an orphan) and moves the branch
// from parent to it. It is done only when the server lists the new commit. ErrMoved: the branch isn't at parent (any
// more), read the tip and build again. ErrProtected: a rule of the server refuses; its text is in the error.
// ErrUnknownOutcome: the reply was lost and the server couldn't be asked. Changes that change nothing give parent.
func (b *Branch) Commit(ctx context.Context, parent string, changes []Change, message string, when time.Time) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	op := opf("write branch %s", b.name)
	n, err := b.build(op, parent, changes, message, when)
	if err != nil || n.hash == plumbing.NewHash(parent) {
		return parent, err
	}
	return b.publish(ctx, op, plumbing.NewHash(parent), n)
}

// Compact replaces the history by one orphan commit with the tip's tree without the paths that keep refuses (nil keeps
// all). It is the only push that isn't a fast-forward, and still a compare-and-swap: only over the tip that is given.
func (b *Branch) Compact(ctx context.Context, tip string, keep func(path string) bool, message string, when time.Time) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	op := opf("compact branch %s", b.name)
	n, err := b.buildCompact(op, tip, keep, message, when)
	if err != nil {
		return "", err
	}
	return b.publish(ctx, op, plumbing.NewHash(tip), n)
}

// publish pushes and then asks: what the server lists is the only proof (facts 3.2, E2).
func (b *Branch) publish(ctx context.Context, op string, old plumbing.Hash, n *fresh) (string, error) {
	pack, err := n.pack()
	if err != nil {
		return "", fail(op, err)
	}
	said, perr := b.remote.push(ctx, b.ref, old, n.hash, bytes.NewReader(pack))
	switch ClassOf(fail(op, perr)) {
	case ClassCredential, ClassAccess, ClassTrust, ClassRedirect, ClassRaced:
		return "", fail(op, perr) // refused before anything was sent
	}
	at, err := b.listed(ctx)
	if err != nil {
		return "", failAs(op, ClassTransient, errors.Join(ErrUnknownOutcome, perr, err))
	}
	switch {
	case at == n.hash:
	case at == old && perr == nil:
		return "", failAs(op, ClassTransient, errors.New("server took the push and still lists the old tip"))
	case at == old && refusedByServer(perr):
		return "", failAs(op, ClassProtected, fmt.Errorf("%w: %s %s", ErrProtected, clip(perr.Error(), 200), said))
	case at == old:
		return "", fail(op, perr)
	default:
		// Somebody's commit is there. It may lie on top of ours.
		tip, err := b.fetch(ctx)
		if err != nil {
			return "", failAs(op, ClassTransient, errors.Join(ErrUnknownOutcome, err))
		}
		if ours, err := isAncestor(b.store, n.hash.String(), tip.String()); err != nil || !ours {
			return "", failAs(op, ClassRaced, fmt.Errorf("%w: it is at %s", ErrMoved, hashText(tip)))
		}
		return n.hash.String(), nil
	}
	// The objects are put into the store as they were sent; when that fails the next fetch brings them.
	if err := b.store.addPack(op, bytes.NewReader(pack)); err == nil {
		_ = b.settle(op, n.hash)
		_ = b.store.consolidate()
	}
	return n.hash.String(), nil
}

// listed asks the server where the branch is, zero when absent. It has time of its own: the push may have used up the
// caller's.
func (b *Branch) listed(ctx context.Context) (plumbing.Hash, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.remote.timeout)
	defer cancel()
	a, err := b.remote.list(ctx)
	if ClassOf(err) == ClassEmpty {
		return plumbing.ZeroHash, nil
	}
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return a.refs[b.ref.String()], nil
}

// refusedByServer tells a report of receive-pack ("ng <ref> <reason>") from trouble on the way.
func refusedByServer(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "command error on ") || strings.Contains(text, "unpack error: ")
}
