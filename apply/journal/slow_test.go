package journal

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// silent is a branch whose server takes what is sent and never answers: each call fails after a minute.
type silent struct {
	*branch
	on bool
}

func (s *silent) Read(ctx context.Context) ([]byte, string, error) {
	if s.on {
		time.Sleep(time.Minute)
		return nil, "", errDown
	}
	return s.branch.Read(ctx)
}

func (s *silent) Write(ctx context.Context, data []byte, prev string) (string, error) {
	if s.on {
		time.Sleep(time.Minute)
		return "", errDown
	}
	return s.branch.Write(ctx, data, prev)
}

// TestTheWaitForASilentServerCounts: the right to write to nodes ends with the time, also with that spent in a call to a
// server that does not answer.
func TestTheWaitForASilentServerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &silent{branch: &branch{}}
		j := newJournal(t, b, t.TempDir(), func(o *Options) { o.Every = 10 * time.Second })
		take(t, j, time.Now())
		if err := j.Holding(time.Now()); err != nil {
			t.Fatal(err)
		}
		b.on = true
		err := j.Note(t.Context(), time.Now(), func(inv *state.Inventory) error {
			Of(inv, "prod").AttemptedCommit = "c"
			return nil
		})
		if !errors.Is(err, ErrNotHolder) {
			t.Errorf("a note after two minutes of silence: %v", err)
		}
		if got := j.Cluster("prod").AttemptedCommit; got != "" {
			t.Errorf("it was kept all the same: %q", got)
		}
	})
}

// TestReadersDontWaitForASilentServer: every cluster's loop asks the journal in each pass; none may stand still because
// the Git server does.
func TestReadersDontWaitForASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &silent{branch: &branch{}}
		j := newJournal(t, b, t.TempDir(), func(o *Options) { o.Every = 10 * time.Second })
		take(t, j, time.Now())
		if err := j.Update(t.Context(), time.Now(), func(inv *state.Inventory) error {
			Of(inv, "prod").AttemptedCommit = "c"
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		b.on = true
		done := make(chan error)
		go func() {
			_, err := j.Load(t.Context(), time.Now())
			done <- err
		}()
		synctest.Wait() // Load is in its call
		start := time.Now()
		if got := j.Cluster("prod").AttemptedCommit; got != "c" {
			t.Errorf("the cluster's part: %q", got)
		}
		if err := j.Holding(time.Now()); err != nil {
			t.Errorf("the right to write: %v", err)
		}
		if !j.Status().Mine || j.Inventory() == nil {
			t.Errorf("the status: %+v", j.Status())
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("readers waited %s", waited)
		}
		if err := <-done; err == nil {
			t.Error("the server was not silent")
		}
		// The right ends with the time, whoever is asked.
		time.Sleep(time.Minute)
		if err := j.Holding(time.Now()); !errors.Is(err, ErrNotHolder) {
			t.Errorf("two minutes later: %v", err)
		}
	})
}
