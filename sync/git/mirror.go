package git

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/storage"
)

// Mirror is a bare copy of the parts of a repository that Ichor looks at. It is safe for concurrent use.
type Mirror struct {
	opts   Options
	remote *remote
	store  *store

	// net orders fetches; reads go on meanwhile.
	net sync.Mutex
	// tips that were seen, by private ref: they outlive a store that was made anew. Guarded by net.
	tips map[plumbing.ReferenceName]plumbing.Hash
	// listed are the server's refs at the last look at a branch; merges are answers of MergePull. Guarded by net.
	listed map[string]plumbing.Hash
	merges map[int]mergeMemo
	// healed is when the store was last made anew, so that it happens once and not in a loop.
	healed time.Time
}

// healPause is the least time between two fresh starts of a broken store.
const healPause = 10 * time.Minute

// Private namespace: nothing a server calls its own ever lands on these.
const (
	headsPrefix  = "refs/ichor/heads/"
	pullsPrefix  = "refs/ichor/pr/"
	mergesPrefix = "refs/ichor/merge/"
	commitPrefix = "refs/ichor/commit/"
)

// Open opens or makes the mirror. It does not reach for the network; a wrong URL or CA file is an error here.
func Open(_ context.Context, o Options) (*Mirror, error) {
	o = o.withDefaults()
	r, err := newRemote(o, o.Auth)
	if err != nil {
		return nil, err
	}
	s, err := openStore(filepath.Join(o.Dir, "mirror.git"), o.Limits.Packs)
	if err != nil {
		return nil, err
	}
	m := &Mirror{opts: o, remote: r, store: s, tips: map[plumbing.ReferenceName]plumbing.Hash{}, merges: map[int]mergeMemo{}}
	return m, m.rememberTips()
}

// Close closes the store. FS values of it fail afterwards.
func (m *Mirror) Close() error {
	m.net.Lock()
	defer m.net.Unlock()
	m.store.close()
	return nil
}

func (m *Mirror) rememberTips() error {
	return m.store.view("read mirror's refs", func(st storage.Storer) error {
		it, err := st.IterReferences()
		if err != nil {
			return err
		}
		return it.ForEach(func(r *plumbing.Reference) error {
			if r.Type() == plumbing.HashReference && strings.HasPrefix(r.Name().String(), "refs/ichor/") {
				m.tips[r.Name()] = r.Hash()
			}
			return nil
		})
	})
}

// MoveKind says how a branch moved between two looks at it.
type MoveKind string

// Kinds of move.
const (
	// MoveFirst: the branch is seen for the first time.
	MoveFirst MoveKind = "first"
	// MoveUnchanged: the tip is the one of before.
	MoveUnchanged MoveKind = "unchanged"
	// MoveFastForward: the new tip descends from the old one.
	MoveFastForward MoveKind = "fast-forward"
	// MoveRewrite: it does not: a force push, or another branch under the same name.
	MoveRewrite MoveKind = "rewrite"
	// MoveGone: the server has no such branch. Nothing was forgotten.
	MoveGone MoveKind = "gone"
)

// Move is what a fetch found. Old is "" at the first look, New is "" when the branch is gone. Default is the server's
// default branch, "" where it isn't said; Heads are all its branches with their hashes, from the same listing.
type Move struct {
	Old, New string
	Kind     MoveKind
	Default  string
	Heads    map[string]string
}

// FetchBranch brings the branch up to date, proves that the tip's commit and its whole tree can be read, and only then
// records it. On an error the old tip stays recorded.
func (m *Mirror) FetchBranch(ctx context.Context, branch string) (Move, error) {
	m.net.Lock()
	defer m.net.Unlock()
	op := opf("fetch branch %s", branch)
	public := plumbing.NewBranchReferenceName(branch)
	if err := public.Validate(); err != nil {
		return Move{}, failAs(op, ClassConfig, fmt.Errorf("%q is not a branch name", clip(branch, 80)))
	}
	private := privateHead(branch)
	var mv Move
	err := m.healing(ctx, op, func() error {
		mv = Move{}
		hash, a, err := m.fetchRef(ctx, op, public, private, m.opts.Limits.branch())
		if err != nil {
			return err
		}
		mv, err = m.moveOf(m.tips[private], hash)
		mv.Default, mv.Heads = a.head, a.heads()
		m.listed = a.refs
		return err
	})
	if err != nil {
		return Move{}, err
	}
	if mv.New != "" {
		m.tips[private] = plumbing.NewHash(mv.New)
	}
	return mv, m.bound(ctx, op)
}

// privateHead is where a branch is recorded. Slashes are escaped: a server may replace branch a by a/b, and a file can't
// become a folder while it is there.
func privateHead(branch string) plumbing.ReferenceName {
	return plumbing.ReferenceName(headsPrefix + strings.ReplaceAll(strings.ReplaceAll(branch, "%", "%25"), "/", "%2F"))
}

func (m *Mirror) moveOf(old, now plumbing.Hash) (Move, error) {
	mv := Move{Old: hashText(old), New: hashText(now)}
	switch {
	case now.IsZero():
		mv.Kind = MoveGone
	case old.IsZero():
		mv.Kind = MoveFirst
	case old == now:
		mv.Kind = MoveUnchanged
	default:
		ff, err := m.IsAncestor(mv.Old, mv.New)
		if err != nil {
			return mv, err
		}
		mv.Kind = MoveRewrite
		if ff {
			mv.Kind = MoveFastForward
		}
	}
	return mv, nil
}

func hashText(h plumbing.Hash) string {
	if h.IsZero() {
		return ""
	}
	return h.String()
}

// FetchPull fetches the head of a pull request under the limits for strangers. sha is what the forge said; the server
// may be behind or ahead of it, then it is ErrMoved, and the next pass looks again.
func (m *Mirror) FetchPull(ctx context.Context, number int, sha string) error {
	m.net.Lock()
	defer m.net.Unlock()
	op := opf("fetch pull request %d", number)
	if !plumbing.IsHash(sha) {
		return failAs(op, ClassUnknownRevision, fmt.Errorf("%w: %q is not a full commit hash", ErrUnknownRevision, sha))
	}
	private := plumbing.ReferenceName(fmt.Sprintf("%s%d", pullsPrefix, number))
	err := m.healing(ctx, op, func() error {
		if want := plumbing.NewHash(sha); m.tips[private] == want && m.recorded(private) == want {
			return nil // proved when it was recorded
		}
		from := plumbing.ReferenceName(fmt.Sprintf(m.opts.PullRef, number))
		hash, _, err := m.fetchRef(ctx, op, from, private, m.opts.Limits.pull())
		switch {
		case err != nil:
			return err
		case hash.IsZero():
			return failAs(op, ClassGone, fmt.Errorf("%w: %s", ErrAbsent, from))
		case hash.String() != sha:
			return failAs(op, ClassRaced, fmt.Errorf("%w: its head is %s, not %s", ErrMoved, hash, sha))
		}
		m.tips[private] = hash
		return nil
	})
	return errors.Join(err, m.bound(ctx, op))
}

// Object is a file as a forge lists it: its hash and size in bytes.
type Object struct {
	Hash string
	Size int64
}

// PullFits tells, before anything is fetched, whether the files that a pull request brings, beyond what the mirror has, are
// within the limits for strangers: nil, or an error of class limits. complete is false where the list was cut.
func (m *Mirror) PullFits(number int, list []Object, complete bool) error {
	op := opf("weigh pull request %d", number)
	lim := m.opts.Limits.pull()
	var count, total int64
	seen := map[plumbing.Hash]bool{}
	return m.store.view(op, func(st storage.Storer) error {
		for _, o := range list {
			h := plumbing.NewHash(o.Hash)
			if seen[h] || st.HasEncodedObject(h) == nil {
				continue
			}
			seen[h] = true
			count, total = count+1, total+max(o.Size, 0)
			switch {
			case o.Size > lim.object:
				return fmt.Errorf("%w: a file has %d bytes, more than %d", errLimits, o.Size, lim.object)
			case total > lim.total:
				return fmt.Errorf("%w: its files have more than %d bytes", errLimits, lim.total)
			case count > int64(lim.count):
				return fmt.Errorf("%w: it brings more than %d files", errLimits, lim.count)
			}
		}
		if !complete && len(seen) == len(list) && len(list) > 0 {
			// All that is listed is new, and the list is longer than what a forge gives.
			return fmt.Errorf("%w: it brings more than %d files", errLimits, len(list))
		}
		return nil
	})
}

// Has tells whether a commit is in the store.
func (m *Mirror) Has(commit string) bool {
	return plumbing.IsHash(commit) && m.has(plumbing.NewHash(commit))
}

// KeepPulls forgets the heads of pull requests that are not in open. Their objects go when the store is made anew.
func (m *Mirror) KeepPulls(open []int) error {
	keep := map[plumbing.ReferenceName]bool{}
	for _, n := range open {
		keep[plumbing.ReferenceName(fmt.Sprintf("%s%d", pullsPrefix, n))] = true
	}
	merges := map[plumbing.ReferenceName]bool{}
	for _, n := range open {
		merges[plumbing.ReferenceName(fmt.Sprintf("%s%d", mergesPrefix, n))] = true
	}
	m.net.Lock()
	maps.DeleteFunc(m.merges, func(n int, _ mergeMemo) bool { return !slices.Contains(open, n) })
	m.net.Unlock()
	err := m.keep("forget closed pull requests", pullsPrefix, keep)
	return errors.Join(err, m.keep("forget merges of closed pull requests", mergesPrefix, merges))
}

// KeepBranches forgets all branches but these.
func (m *Mirror) KeepBranches(names []string) error {
	keep := map[plumbing.ReferenceName]bool{}
	for _, n := range names {
		keep[privateHead(n)] = true
	}
	return m.keep("forget branches", headsPrefix, keep)
}

func (m *Mirror) keep(op, prefix string, keep map[plumbing.ReferenceName]bool) error {
	m.net.Lock()
	defer m.net.Unlock()
	for ref := range m.tips {
		if !strings.HasPrefix(ref.String(), prefix) || keep[ref] {
			continue
		}
		delete(m.tips, ref)
		if err := m.store.view(op, func(st storage.Storer) error { return st.RemoveReference(ref) }); err != nil {
			return err
		}
	}
	return nil
}

// FetchCommit makes one commit readable: it is there already, or the server is asked for it by hash, which not every
// server allows (ClassUnsupported then).
func (m *Mirror) FetchCommit(ctx context.Context, sha string) error {
	m.net.Lock()
	defer m.net.Unlock()
	op := opf("fetch commit %s", short(sha))
	if !plumbing.IsHash(sha) {
		return failAs(op, ClassUnknownRevision, fmt.Errorf("%w: %q is not a full commit hash", ErrUnknownRevision, sha))
	}
	want := plumbing.NewHash(sha)
	return m.healing(ctx, op, func() error {
		if m.readable(op, want) == nil {
			return nil
		}
		choose := func(a *advert) ([]plumbing.Hash, error) {
			for _, h := range a.refs {
				if h == want {
					return []plumbing.Hash{want}, nil
				}
			}
			if !a.caps.Supports(capability.AllowReachableSHA1InWant) && !a.caps.Supports(capability.AllowTipSHA1InWant) {
				return nil, failAs(op, ClassUnsupported, errors.New("server does not support exact SHA1 requests"))
			}
			return []plumbing.Hash{want}, nil
		}
		if err := m.receive(ctx, op, choose, m.opts.Limits.branch()); err != nil {
			return err
		}
		return m.record(op, plumbing.ReferenceName(commitPrefix+sha), want)
	})
}

// Refs is what a server lists.
type Refs struct {
	// Heads by branch name, with their hashes.
	Heads map[string]string
	// Default branch, "" where it isn't said.
	Default string
}

// LsRemote lists the branches, the cheapest look that Git has. An empty repository has none.
func (m *Mirror) LsRemote(ctx context.Context) (Refs, error) {
	op := "list refs"
	a, err := m.remote.list(ctx)
	if ClassOf(err) == ClassEmpty {
		return Refs{Heads: map[string]string{}}, nil
	}
	if err != nil {
		return Refs{}, fail(op, err)
	}
	return Refs{Heads: a.heads(), Default: a.head}, nil
}

// healing runs fn, and once more on a fresh store when the store turns out to be broken.
func (m *Mirror) healing(ctx context.Context, op string, fn func() error) error {
	if m.store.broken() {
		if err := m.heal(op); err != nil {
			return err
		}
	}
	err := fn()
	if ClassOf(err) != ClassCorrupt || ctx.Err() != nil {
		return fail(op, err)
	}
	if err := m.heal(op); err != nil {
		return err
	}
	return fail(op, fn())
}

func (m *Mirror) heal(op string) error {
	if !m.healed.IsZero() && time.Since(m.healed) < healPause {
		return failAs(op, ClassCorrupt, fmt.Errorf("store %s is broken again after a fresh start", m.store.dir))
	}
	m.healed = time.Now()
	clear(m.merges) // their commits go with the store
	return fail(op, m.store.reset())
}

// bound joins packs and keeps the store under its size.
func (m *Mirror) bound(ctx context.Context, op string) error {
	if err := m.store.consolidate(); err != nil {
		return err
	}
	n, err := m.store.bytes()
	if err != nil || n <= m.opts.Limits.StoreBytes || ctx.Err() != nil {
		return storeFault(op, err)
	}
	if !m.healed.IsZero() && time.Since(m.healed) < healPause {
		return failAs(op, ClassLimits, fmt.Errorf("%w: the store takes %d bytes even when fresh", errLimits, n))
	}
	return m.heal(op)
}

// StoreBytes is the size of the mirror on disk.
func (m *Mirror) StoreBytes() (int64, error) { return m.store.bytes() }
