package git

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"
)

// fetchRef brings one ref into the private namespace. The zero hash means that the server doesn't have it.
func (m *Mirror) fetchRef(ctx context.Context, op string, from, private plumbing.ReferenceName, lim packLimits) (plumbing.Hash, *advert, error) {
	var tip plumbing.Hash
	seen := &advert{}
	choose := func(a *advert) ([]plumbing.Hash, error) {
		tip, seen = a.refs[from.String()], a
		if tip.IsZero() || m.has(tip) {
			return nil, nil
		}
		return []plumbing.Hash{tip}, nil
	}
	err := m.receive(ctx, op, choose, lim)
	if ClassOf(err) == ClassEmpty && !m.tips[private].IsZero() {
		return plumbing.ZeroHash, &advert{}, nil // it was not empty before: the branch is gone
	}
	if err != nil {
		return plumbing.ZeroHash, &advert{}, err
	}
	if tip.IsZero() {
		return plumbing.ZeroHash, seen, nil
	}
	if m.tips[private] == tip && m.recorded(private) == tip {
		return tip, seen, nil // proved when it was recorded; store.broken looks for damage since
	}
	return tip, seen, m.record(op, private, tip)
}

// record proves that the commit and its tree are whole and sets the private ref.
func (m *Mirror) record(op string, private plumbing.ReferenceName, tip plumbing.Hash) error {
	if err := m.readable(op, tip); err != nil {
		return err
	}
	return m.store.view(op, func(st storage.Storer) error {
		return st.SetReference(plumbing.NewHashReference(private, tip))
	})
}

// receive fetches what choose wants into the store, scanned before it is taken in. The network is used outside the
// store's lock.
func (m *Mirror) receive(ctx context.Context, op string, choose func(*advert) ([]plumbing.Hash, error), lim packLimits) error {
	// The function may still run when a deadline has ended the wait for it, so it looks at nothing that net guards.
	tips := slices.Collect(maps.Values(m.tips))
	return receivePack(ctx, op, m.remote, m.store, func(a *advert) ([]plumbing.Hash, []plumbing.Hash, error) {
		wants, err := choose(a)
		if err != nil || len(wants) == 0 {
			return nil, nil, err
		}
		haves, err := m.haves(op, tips)
		return wants, haves, err
	}, lim)
}

func receivePack(ctx context.Context, op string, r *remote, s *store,
	choose func(*advert) (wants, haves []plumbing.Hash, err error), lim packLimits,
) error {
	tmp, err := os.CreateTemp(s.dir, "tmp_fetch_*")
	if err != nil {
		return storeFault(op, err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // swept at the next start
	defer tmp.Close()           //nolint:errcheck // only read from here on
	if err := r.fetch(ctx, choose, tmp, lim.pack); err != nil {
		return fail(op, err)
	}
	fi, err := tmp.Stat()
	if err != nil || fi.Size() == 0 {
		return storeFault(op, err)
	}
	if err := scanPack(tmp, fi.Size(), lim); err != nil {
		return fail(op, err)
	}
	if err := s.addPack(op, tmp); err != nil {
		if lim.count > 0 && ctx.Err() == nil && !isDisk(err) {
			return failAs(op, ClassMalformed, err) // the same bytes will not be better at the next look
		}
		return err
	}
	return nil
}

// haves are commits that the server needn't send: the tips and the newest of their ancestors. go-git has no
// negotiation, so they are all sent at once.
func (m *Mirror) haves(op string, tips []plumbing.Hash) ([]plumbing.Hash, error) {
	const perTip, most = 50, 1000
	seen := map[plumbing.Hash]bool{}
	err := m.store.view(op, func(st storage.Storer) error {
		for _, tip := range tips {
			c, err := object.GetCommit(st, tip)
			for i := 0; err == nil && i < perTip && len(seen) < most && !seen[c.Hash]; i++ {
				seen[c.Hash] = true
				if len(c.ParentHashes) == 0 {
					break
				}
				c, err = object.GetCommit(st, c.ParentHashes[0])
			}
			if err != nil && !errors.Is(err, plumbing.ErrObjectNotFound) {
				return err
			}
		}
		return nil
	})
	out := make([]plumbing.Hash, 0, len(seen))
	for h := range seen {
		out = append(out, h)
	}
	plumbing.HashesSort(out)
	return out, err
}

func (m *Mirror) has(h plumbing.Hash) bool {
	found := false
	_ = m.store.view("look for commit", func(st storage.Storer) error {
		_, err := object.GetCommit(st, h)
		found = err == nil
		return nil
	})
	return found
}

func (m *Mirror) recorded(ref plumbing.ReferenceName) plumbing.Hash {
	var h plumbing.Hash
	_ = m.store.view("read ref", func(st storage.Storer) error {
		r, err := st.Reference(ref)
		if err == nil {
			h = r.Hash()
		}
		return nil
	})
	return h
}

// readable proves that a commit, its trees and its blobs are all there.
func (m *Mirror) readable(op string, h plumbing.Hash) error {
	return m.store.view(op, func(st storage.Storer) error {
		c, err := object.GetCommit(st, h)
		if err != nil {
			return err
		}
		return wholeTree(st, c.TreeHash, map[plumbing.Hash]bool{}, 0)
	})
}

// maxDepth of folders.
const maxDepth = 128

func wholeTree(st storage.Storer, tree plumbing.Hash, seen map[plumbing.Hash]bool, depth int) error {
	if seen[tree] {
		return nil
	}
	seen[tree] = true
	if depth > maxDepth {
		return fmt.Errorf("%w: folders nest deeper than %d", errLimits, maxDepth)
	}
	t, err := getTree(st, tree)
	if err != nil {
		return fmt.Errorf("read tree %s: %w", tree, err)
	}
	for _, e := range t.Entries {
		switch e.Mode {
		case filemode.Dir:
			err = wholeTree(st, e.Hash, seen, depth+1)
		case filemode.Submodule:
			// Its commit lies in another repository.
		default:
			if !seen[e.Hash] {
				seen[e.Hash] = true
				err = st.HasEncodedObject(e.Hash)
			}
		}
		if errors.Is(err, errLimits) {
			return err // the names of all folders on the way would hide what it says
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", clip(e.Name, 80), err)
		}
	}
	return nil
}

func short(sha string) string { return sha[:min(12, len(sha))] }
