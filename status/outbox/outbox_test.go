package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/outbox"
	"ichor.maesh.dev/ichor/sync/forge"
)

// hostile is a forge that does to each post what next says: take it and answer well, take it and lose the reply,
// refuse it in one of the known ways. Statuses are append-only, as GitHub's are.
type hostile struct {
	mu      sync.Mutex
	posts   []string // "sha context state description"
	at      []time.Time
	newest  map[string]state.CommitStatus
	next    []fault
	reads   int
	readErr []error
}

type fault struct {
	take bool
	err  error
	hang bool
}

func (h *hostile) PostStatus(ctx context.Context, sha string, s state.CommitStatus) error {
	h.mu.Lock()
	f := fault{take: true}
	if len(h.next) > 0 {
		f, h.next = h.next[0], h.next[1:]
	}
	if f.take {
		h.posts = append(h.posts, fmt.Sprintf("%s %s %s %s", sha, s.Context, s.State, s.Description))
		h.at = append(h.at, time.Now())
		if h.newest == nil {
			h.newest = map[string]state.CommitStatus{}
		}
		h.newest[sha+s.Context] = s
	}
	h.mu.Unlock()
	if f.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.err
}

func (h *hostile) Statuses(_ context.Context, sha string) ([]state.CommitStatus, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	if len(h.readErr) > 0 {
		err := h.readErr[0]
		h.readErr = h.readErr[1:]
		if err != nil {
			return nil, err
		}
	}
	var out []state.CommitStatus
	for k, s := range h.newest {
		if strings.HasPrefix(k, sha) {
			out = append(out, s)
		}
	}
	return out, nil
}

func (h *hostile) took() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.posts, "; ")
}

func errKind(k forge.Kind) error { return &forge.Error{Op: "post", Kind: k, Err: errors.New("x")} }

func st(s state.CommitState, d string) state.CommitStatus {
	return state.CommitStatus{Context: "ichor/check", State: s, Description: d}
}

// box starts an outbox in a bubble. stop ends it as a kill would: without a last word.
type box struct {
	t    *testing.T
	b    *outbox.Outbox
	stop func()
}

func start(t *testing.T, dir string, f outbox.Poster, change ...func(*outbox.Options)) *box {
	t.Helper()
	o := outbox.Options{}
	for _, c := range change {
		c(&o)
	}
	b, err := outbox.New(dir, f, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Run(ctx) }()
	return &box{t, b, func() { cancel(); <-done }}
}

func (x *box) set(sha string, s state.CommitStatus, prio ...outbox.Priority) {
	x.t.Helper()
	p := outbox.Normal
	if len(prio) > 0 {
		p = prio[0]
	}
	if err := x.b.Set(sha, s, p); err != nil {
		x.t.Fatal(err)
	}
}

func (x *box) flush(within time.Duration) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), within)
	defer cancel()
	if err := x.b.Flush(ctx); err != nil {
		x.t.Fatal(err, x.b.Health())
	}
}

func wantPosts(t *testing.T, h *hostile, want ...string) {
	t.Helper()
	if got := h.took(); got != strings.Join(want, "; ") {
		t.Fatalf("the forge took\n %s\nwant\n %s", got, strings.Join(want, "; "))
	}
}

func TestTheSameStatusIsPostedOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h)
		for range 1000 {
			x.set("s1", st(state.StateSuccess, "fine"))
		}
		x.flush(time.Minute)
		for range 1000 {
			x.set("s1", st(state.StateSuccess, "fine"))
		}
		x.stop()
		x = start(t, dir, h)
		x.set("s1", st(state.StateSuccess, "fine"))
		x.flush(time.Minute)
		wantPosts(t, h, "s1 ichor/check success fine")
		x.stop()
	})
}

func TestRedGreenRedIsThree(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h)
		for _, s := range []state.CommitState{state.StateFailure, state.StateSuccess, state.StateFailure} {
			x.set("s1", st(s, "d"))
			x.flush(time.Minute)
		}
		wantPosts(t, h, "s1 ichor/check failure d", "s1 ichor/check success d", "s1 ichor/check failure d")
		for i := 1; i < 3; i++ {
			if gap := h.at[i].Sub(h.at[i-1]); gap < time.Second {
				t.Errorf("posts %s apart", gap)
			}
		}
		x.stop()
	})
}

func TestWhatIsQueuedIsReplaced(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h)
		x.set("s0", st(state.StateSuccess, "first")) // starts the pace
		x.flush(time.Minute)
		x.set("s1", st(state.StatePending, "a"))
		x.set("s1", st(state.StatePending, "b"))
		x.set("s1", st(state.StateSuccess, "c"))
		x.set("s0", st(state.StateFailure, "other"))
		x.set("s0", st(state.StateSuccess, "first")) // back to what is shown: nothing to do
		x.flush(time.Minute)
		wantPosts(t, h, "s0 ichor/check success first", "s1 ichor/check success c")
		x.stop()
	})
}

func TestFinalGoesBeforePendingAndTheHeadBeforeOthers(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h)
		x.set("s0", st(state.StateSuccess, "x"))
		x.flush(time.Minute)
		x.set("old", st(state.StateSuccess, ""), outbox.Low)
		x.set("wait", st(state.StatePending, ""), outbox.High)
		x.set("pr1", st(state.StateFailure, ""))
		x.set("pr2", st(state.StateSuccess, ""))
		x.set("head", st(state.StateSuccess, ""), outbox.High)
		x.flush(time.Minute)
		wantPosts(t, h, "s0 ichor/check success x", "head ichor/check success ", "pr1 ichor/check failure ",
			"pr2 ichor/check success ", "old ichor/check success ", "wait ichor/check pending ")
		x.stop()
	})
}

// The reply is lost after the status was taken, by an error and by silence: read back, and not posted again. The same
// after a kill.
func TestALostReplyIsSettledByReadingBack(t *testing.T) {
	for name, f := range map[string]fault{
		"502 after it was taken":       {take: true, err: errKind(forge.KindTransient)},
		"silence after it was taken":   {take: true, hang: true},
		"an error without a kind":      {take: true, err: errors.New("EOF")},
		"502 and it was not taken":     {err: errKind(forge.KindTransient)},
		"silence and it was not taken": {hang: true},
	} {
		for _, kill := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/kill=%v", name, kill), func(t *testing.T) {
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					h := &hostile{next: []fault{f}}
					x := start(t, dir, h)
					x.set("s1", st(state.StateFailure, "d"))
					if kill {
						synctest.Wait()
						x.stop()
						x = start(t, dir, h)
					}
					x.flush(10 * time.Minute)
					wantPosts(t, h, "s1 ichor/check failure d")
					x.stop()
				})
			})
		}
	}
}

func TestAReadThatFailsIsNotTakenForAnAnswer(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		rate := &forge.Error{Op: "read", Kind: forge.KindRate, Until: time.Now().Add(time.Minute), Err: errors.New("x")}
		h := &hostile{next: []fault{{take: true, hang: true}}, readErr: []error{nil, rate, errors.New("500"), errKind(forge.KindAuth)}}
		x := start(t, dir, h)
		x.set("s1", st(state.StateFailure, "d"))
		x.flush(time.Hour)
		wantPosts(t, h, "s1 ichor/check failure d")
		x.stop()
	})
}

// A long outage: what was wanted last for each commit arrives, once, in order.
func TestAnOutageDelaysAndLosesNothing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		for range 40 {
			h.next = append(h.next, fault{err: errKind(forge.KindTransient)})
		}
		x := start(t, dir, h)
		for i := range 5 {
			x.set(fmt.Sprint("s", i), st(state.StatePending, "p"))
			x.set(fmt.Sprint("s", i), st(state.StateSuccess, "d"))
		}
		x.flush(24 * time.Hour)
		if n := len(h.posts); n != 5 {
			t.Fatalf("%d posts: %s", n, h.took())
		}
		if health := x.b.Health(); health.Queued != 0 || health.LastError != "" || health.Posted != 5 {
			t.Errorf("%+v", health)
		}
		x.stop()
	})
}

func TestALimitIsWaitedForAsTold(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		until := begun.Add(17 * time.Minute)
		h := &hostile{next: []fault{{err: &forge.Error{Op: "post", Kind: forge.KindRate, Until: until, Err: errors.New("x")}}}}
		x := start(t, dir, h)
		x.set("s1", st(state.StateSuccess, "d"))
		x.set("s2", st(state.StateSuccess, "d"))
		synctest.Wait()
		if hl := x.b.Health(); !hl.PausedUntil.Equal(until) || hl.Queued != 2 || hl.Refused {
			t.Errorf("%+v", hl)
		}
		reads := h.reads
		x.flush(time.Hour)
		if h.at[0].Before(until) || len(h.posts) != 2 || h.reads > reads+1 {
			t.Errorf("posted at %s, limit until %s, %d reads", h.at[0], until, h.reads)
		}
		x.stop()
	})
}

func TestARefusedCredentialIsTriedSeldomAndSaid(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{next: []fault{{err: errKind(forge.KindAuth)}, {err: errKind(forge.KindAuth)}}}
		x := start(t, dir, h)
		begun := time.Now()
		x.set("s1", st(state.StateSuccess, "d"))
		synctest.Wait()
		if !x.b.Health().Refused {
			t.Error("not said")
		}
		x.flush(time.Hour)
		if d := h.at[0].Sub(begun); d < 10*time.Minute || x.b.Health().Refused {
			t.Errorf("after %s, %+v", d, x.b.Health())
		}
		x.stop()
	})
}

func TestAnUnknownCommitIsTriedForFifteenSeconds(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		no := fault{err: errKind(forge.KindNoCommit)}
		h := &hostile{next: []fault{no, no, no, no}}
		x := start(t, dir, h)
		begun := time.Now()
		x.set("late", st(state.StateSuccess, "d"))
		x.flush(time.Minute)
		wantPosts(t, h, "late ichor/check success d")
		if d := h.at[0].Sub(begun); d < 15*time.Second {
			t.Errorf("after %s", d)
		}
		h.next = []fault{no, no, no, no, no, no}
		x.set("never", st(state.StateSuccess, "d"))
		x.flush(time.Minute)
		if hl := x.b.Health(); hl.Dropped != 1 || len(h.next) != 1 {
			t.Errorf("%+v, %d refusals left", hl, len(h.next))
		}
		x.stop()
	})
}

func TestFinalRefusals(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{next: []fault{{err: errKind(forge.KindTooMany)}, {err: errKind(forge.KindPermanent)}}}
		x := start(t, dir, h)
		x.set("full", st(state.StateSuccess, "1"))
		x.flush(time.Minute)
		x.set("full", st(state.StateFailure, "2")) // nothing more for this one
		x.flush(time.Minute)
		x.set("bad", st(state.StateSuccess, "1"))
		x.flush(time.Minute)
		x.set("bad", st(state.StateSuccess, "2")) // another status may work
		x.flush(time.Minute)
		wantPosts(t, h, "bad ichor/check success 2")
		x.stop()
		x = start(t, dir, h)
		x.set("full", st(state.StateSuccess, "3"))
		x.flush(time.Minute)
		wantPosts(t, h, "bad ichor/check success 2")
		x.stop()
	})
}

func TestTheBudgetLeavesRoomForFinalStates(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h, func(o *outbox.Options) { o.Budget = 3 })
		for i := range 6 {
			x.set("s1", st(state.StatePending, fmt.Sprint(i)))
			x.flush(time.Minute)
		}
		x.set("s1", st(state.StateSuccess, "end"))
		x.flush(time.Minute)
		wantPosts(t, h, "s1 ichor/check pending 0", "s1 ichor/check pending 1", "s1 ichor/check pending 2", "s1 ichor/check success end")
		x.stop()
	})
}

func TestTheHourlyShare(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h, func(o *outbox.Options) { o.PerHour = 3 })
		begun := time.Now()
		for i := range 7 {
			x.set(fmt.Sprint("s", i), st(state.StateSuccess, ""))
		}
		x.flush(5 * time.Hour)
		if d := h.at[6].Sub(begun); len(h.posts) != 7 || d < 2*time.Hour {
			t.Errorf("%d posts in %s", len(h.posts), d)
		}
		x.stop()
	})
}

// The state folder is lost: what the forge shows already is not posted again.
func TestALostStateFolderMakesNoDoubles(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, one, h)
		x.set("s1", st(state.StateSuccess, "fine"))
		x.flush(time.Minute)
		x.stop()
		x = start(t, two, h)
		x.set("s1", st(state.StateSuccess, "fine"))
		x.flush(time.Minute)
		wantPosts(t, h, "s1 ichor/check success fine")
		x.stop()
	})
}

// Pending statuses of a process that was killed: those that are taken up again stay, the others end as errors.
func TestPendingNeverStays(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h)
		for _, sha := range []string{"left", "cared", "taken up"} {
			x.set(sha, st(state.StatePending, "checking"))
		}
		x.set("done", st(state.StateSuccess, "done"))
		x.flush(time.Minute)
		x.stop()
		var mu sync.Mutex
		var list []string
		asked := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return append([]string(nil), list...)
		}
		x = start(t, dir, h, func(o *outbox.Options) {
			o.Orphan = func(sha string, _ state.CommitStatus) bool {
				mu.Lock()
				defer mu.Unlock()
				list = append(list, sha)
				return sha == "cared"
			}
		})
		x.set("taken up", st(state.StatePending, "checking"))
		x.set("new", st(state.StatePending, "a long rollout"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(asked()) != 0 {
			t.Errorf("too early: %v", asked())
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if fmt.Sprint(asked()) != "[left cared]" || !strings.HasSuffix(h.took(), "; left ichor/check error did not finish; it was interrupted") ||
			len(strings.Split(h.took(), "ichor/check")) != 7 {
			t.Errorf("asked about %v; %s", asked(), h.took())
		}
		x.stop()
	})
}

func TestAReportGoesBeforeItsStatus(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		tries := 0
		x := start(t, dir, h, func(o *outbox.Options) {
			o.Before = func(_ context.Context, sha string, _ state.CommitStatus) error {
				if tries++; tries < 3 {
					return errors.New("branch can't be pushed")
				}
				if h.took() != "" {
					t.Error("the status went first")
				}
				return nil
			}
		})
		x.set("s1", st(state.StateSuccess, "d"))
		x.flush(time.Minute)
		wantPosts(t, h, "s1 ichor/check success d")
		x.stop()
	})
}

func TestDescriptionsAreMadeToFit(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{}
		x := start(t, dir, h)
		x.set("s1", st(state.StateSuccess, "two\nlines\t"+strings.Repeat("ü", 200)))
		x.flush(time.Minute)
		last, ok := x.b.Last("s1", "ICHOR/check")
		if !ok || len([]rune(last.Description)) != 140 || !strings.HasPrefix(last.Description, "two lines ü") || !strings.HasSuffix(last.Description, "…") {
			t.Errorf("%q", last.Description)
		}
		if x.b.Set("", st(state.StateSuccess, ""), 0) == nil {
			t.Error("no commit was taken")
		}
		x.stop()
	})
}

func TestABrokenRecordIsSetAside(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"a.json": "{", "b.json": "", ".tmp-1": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := outbox.New(dir, &hostile{}, outbox.Options{}); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) != 2 || !strings.HasSuffix(left[0], ".bad") {
		t.Fatal(left)
	}
}
