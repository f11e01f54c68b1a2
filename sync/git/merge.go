package git

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"
)

// Merge is what to look at for a pull request, so that what is checked is what a merge would give.
type Merge struct {
	// Commit whose files are checked: the head, where it holds all of base; else the server's merge commit of the two; else,
	// with Why, the head alone.
	Commit string
	// Against is what its files are compared with: base, or, with Why, the commit at which head branched off.
	Against string
	// Why the result of a merge is not known, "" it is.
	Why string
}

// mergeMemo keeps an answer while what it came from stays.
type mergeMemo struct {
	base, head string
	listed     plumbing.Hash
	merge      Merge
}

// MergePull says what to look at for a pull request whose head was fetched, on a base that was fetched. It believes a merge
// commit of the server only when its parents are exactly base and head: it is made in the background, and may be of
// an older base.
func (m *Mirror) MergePull(ctx context.Context, number int, base, head string) (Merge, error) {
	m.net.Lock()
	defer m.net.Unlock()
	op := opf("find the merge of pull request %d", number)
	var listed plumbing.Hash
	from := plumbing.ReferenceName("")
	if m.opts.MergeRef != "" {
		from = plumbing.ReferenceName(fmt.Sprintf(m.opts.MergeRef, number))
		listed = m.listed[from.String()]
	}
	if memo, ok := m.merges[number]; ok && memo.base == base && memo.head == head && memo.listed == listed {
		return memo.merge, nil
	}
	out, err := m.mergeOf(ctx, op, number, base, head, from, listed)
	if err != nil {
		return Merge{}, fail(op, err)
	}
	m.merges[number] = mergeMemo{base, head, listed, out}
	return out, nil
}

func (m *Mirror) mergeOf(ctx context.Context, op string, number int, base, head string, from plumbing.ReferenceName, listed plumbing.Hash) (Merge, error) {
	fork, err := mergeBase(m.store, op, base, head)
	long := errors.Is(err, errTooMuchHistory)
	if err != nil && !long {
		return Merge{}, err
	}
	if fork == base {
		return Merge{Commit: head, Against: base}, nil
	}
	alone := Merge{Commit: head, Against: fork}
	if fork == "" {
		alone.Against = base
	}
	switch {
	case from == "" && long:
		alone.Why = fmt.Sprintf("more than %d commits lie between it and its base", maxWalk)
		return alone, nil
	case from == "":
		alone.Why = "this forge makes no merge commits"
		return alone, nil
	case listed.IsZero():
		alone.Why = "the forge has no merge commit of it (it may conflict with its base)"
		return alone, nil
	}
	private := plumbing.ReferenceName(fmt.Sprintf("%s%d", mergesPrefix, number))
	at := listed
	if m.tips[private] != listed || m.recorded(private) != listed {
		if at, _, err = m.fetchRef(ctx, op, from, private, m.opts.Limits.pull()); err != nil {
			switch ClassOf(err) {
			case ClassLimits, ClassMalformed:
				alone.Why = "the forge's merge commit can't be taken in"
				return alone, nil
			}
			return Merge{}, err
		}
		if !at.IsZero() {
			m.tips[private] = at
		}
	}
	if at.IsZero() {
		alone.Why = "the forge's merge commit is gone again"
		return alone, nil
	}
	c, err := commitOf(m.store, op, at.String())
	if err != nil {
		return Merge{}, err
	}
	if len(c.ParentHashes) != 2 || c.ParentHashes[0].String() != base || c.ParentHashes[1].String() != head {
		alone.Why = "the forge's merge commit is not of this base and head (it is made in the background)"
		return alone, nil
	}
	return Merge{Commit: at.String(), Against: base}, nil
}

// maxWalk is how many commits are looked at for a merge base, some half a second's worth: a stranger can bring hundreds of
// thousands, and each move of the branch looks again.
const maxWalk = 30_000

var errTooMuchHistory = errors.New("too many commits to find a merge base")

// Marks of commits on the way to a merge base, as in git's own walk.
const (
	ofOne = 1 << iota
	ofTwo
	stale
)

// mergeBase gives a newest common ancestor of two commits, "" where they have none; errTooMuchHistory where maxWalk commits
// don't tell. It walks from the newest commits down
// and stops where only common history is left, so that a long history costs nothing.
func mergeBase(s *store, op, one, two string) (string, error) {
	if one == two {
		return one, nil
	}
	var out string
	long := false
	err := s.view(op, func(st storage.Storer) error {
		w := &walk{st: st, marks: map[plumbing.Hash]int{}}
		if err := w.mark(plumbing.NewHash(one), ofOne); err != nil {
			return err
		}
		if err := w.mark(plumbing.NewHash(two), ofTwo); err != nil {
			return err
		}
		var found []*object.Commit
		// Dates can lie: where more than one was found, only the whole walk tells which of them lie below another.
		for len(w.queue) > 0 && (len(found) > 1 || w.fresh()) {
			if long = len(w.marks) > maxWalk; long {
				return nil
			}
			c := heap.Pop(&w.queue).(*object.Commit)
			flags := w.marks[c.Hash]
			if flags == ofOne|ofTwo {
				w.marks[c.Hash] |= stale
				flags |= stale
				found = append(found, c)
			}
			for _, p := range c.ParentHashes {
				if err := w.mark(p, flags); err != nil {
					return err
				}
			}
		}
		for _, c := range found {
			// One that was marked stale after it was found is an ancestor of another one; the first left is the newest.
			if out == "" && !w.below[c.Hash] {
				out = c.Hash.String()
			}
		}
		return nil
	})
	if err == nil && long {
		err = errTooMuchHistory
	}
	return out, err
}

// walk goes through history, newest first.
type walk struct {
	st    storage.Storer
	queue byDate
	marks map[plumbing.Hash]int
	// below are commits that were reached from a common one.
	below map[plumbing.Hash]bool
}

// mark adds flags to a commit, and has it looked at again when it got new ones.
func (w *walk) mark(h plumbing.Hash, flags int) error {
	if flags&stale != 0 {
		if w.below == nil {
			w.below = map[plumbing.Hash]bool{}
		}
		w.below[h] = true
	}
	if w.marks[h]&flags == flags {
		return nil
	}
	c, err := object.GetCommit(w.st, h)
	if err != nil {
		return err
	}
	w.marks[h] |= flags
	heap.Push(&w.queue, c)
	return nil
}

// fresh tells whether anything in the queue is not common history yet.
func (w *walk) fresh() bool {
	for _, c := range w.queue {
		if w.marks[c.Hash]&stale == 0 {
			return true
		}
	}
	return false
}

// byDate is a heap, the newest commit first. Dates decide in which order commits are looked at, never what is found.
type byDate []*object.Commit

func (q byDate) Len() int { return len(q) }
func (q byDate) Less(i, j int) bool {
	a, b := q[i].Committer.When, q[j].Committer.When
	if !a.Equal(b) {
		return a.After(b)
	}
	return bytes.Compare(q[i].Hash[:], q[j].Hash[:]) < 0
}
func (q byDate) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *byDate) Push(x any)   { *q = append(*q, x.(*object.Commit)) }
func (q *byDate) Pop() any {
	old := *q
	c := old[len(old)-1]
	*q = old[:len(old)-1]
	return c
}
