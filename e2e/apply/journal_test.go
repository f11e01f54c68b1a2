package apply_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/branch"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// onGit makes the status branch's file the journal's store, as the daemon does.
type onGit struct{ inv *branch.Inventory }

func (s onGit) Read(ctx context.Context) ([]byte, string, error) {
	data, rev, err := s.inv.Read(ctx)
	return data, rev, sameKind(err)
}

func (s onGit) Write(ctx context.Context, data []byte, prev string) (string, error) {
	rev, err := s.inv.Write(ctx, data, prev)
	return rev, sameKind(err)
}

func sameKind(err error) error {
	for from, to := range map[error]error{
		branch.ErrAbsent: journal.ErrAbsent, branch.ErrNoFile: journal.ErrNoFile, branch.ErrMoved: journal.ErrMoved, branch.ErrForeign: journal.ErrForeign,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w (%w)", to, err)
		}
	}
	return err
}

// gitJournal is an Ichor of its own: mirror, status branch, state folder.
func gitJournal(t *testing.T, url string, takeOver bool) *journal.Journal {
	t.Helper()
	dir := t.TempDir()
	m, err := git.Open(t.Context(), git.Options{Dir: filepath.Join(dir, "mirror"), URL: url})
	must(t, err)
	t.Cleanup(func() { _ = m.Close() })
	b, err := m.Branch("ichor/status", git.BranchOptions{})
	must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	w, err := branch.New(b, branch.Options{StateFile: filepath.Join(dir, "status-branch.json")})
	must(t, err)
	j, err := journal.Open(journal.Options{Store: onGit{w.Inventory()}, Dir: dir, Keys: [][]byte{[]byte("key")}, TakeOver: takeOver})
	must(t, err)
	t.Cleanup(j.Close)
	return j
}

// TestTwoIchorsOnGit: several start at once on one real repository. One holds; the fence keeps the others, and the one
// that was replaced, from announcing anything.
func TestTwoIchorsOnGit(t *testing.T) {
	srv := gittest.Start(t)
	var js []*journal.Journal
	for range 4 {
		js = append(js, gitJournal(t, srv.URL, false))
	}
	errs := make([]error, len(js))
	var wg sync.WaitGroup
	for i, j := range js {
		wg.Go(func() { errs[i] = j.Take(t.Context(), time.Now()) })
	}
	wg.Wait()
	var holder *journal.Journal
	for i, j := range js {
		switch {
		case errs[i] == nil && holder == nil:
			holder = j
		case errs[i] == nil:
			t.Fatal("two holders")
		case !errors.Is(errs[i], journal.ErrHeld) && !errors.Is(errs[i], journal.ErrFenced) && !errors.Is(errs[i], journal.ErrUnsettled):
			t.Fatalf("another error: %v", errs[i])
		}
	}
	if holder == nil {
		t.Fatal("no holder")
	}
	intend := func(j *journal.Journal, machine string) error {
		_, err := j.Intend(t.Context(), time.Now(), "c", state.Intent{Act: state.ActReboot, Machine: machine}, nil)
		return err
	}
	must(t, intend(holder, "cp1"))
	for _, j := range js {
		if j != holder {
			if err := intend(j, "cp2"); !errors.Is(err, journal.ErrNotHolder) {
				t.Fatalf("one that does not hold: %v", err)
			}
		}
	}
	next := gitJournal(t, srv.URL, true)
	must(t, next.Take(t.Context(), time.Now()))
	if err := intend(holder, "cp2"); !errors.Is(err, journal.ErrFenced) {
		t.Fatalf("the old holder: %v", err)
	}
	if c := next.Cluster("c"); len(c.Intents) != 1 || c.Intents[0].Machine != "cp1" {
		t.Fatalf("the new holder knows %+v", c)
	}

	// The branch deleted under the holder: it is put back, with the epoch that it had.
	srv.Git("update-ref", "-d", "refs/heads/ichor/status")
	st, err := next.Load(t.Context(), time.Now())
	must(t, err)
	if st.State != journal.Known || !st.Mine || st.Holder.Epoch != 2 {
		t.Fatalf("after the deletion: %+v", st)
	}
	must(t, intend(next, "cp3"))
	reader := gitJournal(t, srv.URL, false)
	if st, err = reader.Load(t.Context(), time.Now()); err != nil || st.State != journal.Known || len(reader.Cluster("c").Intents) != 2 {
		t.Fatalf("another one reads: %+v, %v", st, err)
	}
}
