package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/schemas/state"
)

// branch is a status branch in memory: compare-and-swap on the tip, which reports move too.
type branch struct {
	mu   sync.Mutex
	data []byte
	tip  int
	gone bool
	// down: nothing answers. loseReply: the next write arrives and its answer does not. onWrite runs before a write.
	down, loseReply, foreign bool
	onWrite                  func()
	writes                   int
}

var errDown = errors.New("connection refused")

func (b *branch) rev() string { return fmt.Sprint("r", b.tip) }

func (b *branch) Read(context.Context) ([]byte, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.down:
		return nil, "", errDown
	case b.foreign:
		return nil, "", ErrForeign
	case b.gone || b.tip == 0:
		return nil, "", ErrAbsent
	case b.data == nil:
		return nil, b.rev(), ErrNoFile
	}
	return bytes.Clone(b.data), b.rev(), nil
}

func (b *branch) Write(_ context.Context, data []byte, prev string) (string, error) {
	if f := b.onWrite; f != nil {
		b.onWrite = nil
		f()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return "", errDown
	}
	want := b.rev()
	if b.gone || b.tip == 0 {
		want = ""
	}
	if prev != want {
		return "", ErrMoved
	}
	b.data, b.gone = bytes.Clone(data), false
	b.tip++
	b.writes++
	if b.loseReply {
		b.loseReply = false
		return "", errors.New("unexpected EOF")
	}
	return b.rev(), nil
}

// report moves the tip as a report does.
func (b *branch) report() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tip++
}

var (
	key1 = []byte("key one")
	key2 = []byte("key two")
	t0   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

func newJournal(t *testing.T, b Store, dir string, opts ...func(*Options)) *Journal {
	t.Helper()
	o := Options{Store: b, Dir: dir, Keys: [][]byte{key1}, Instance: filepath.Base(dir)}
	for _, f := range opts {
		f(&o)
	}
	j, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	return j
}

func take(t *testing.T, j *Journal, now time.Time) {
	t.Helper()
	if err := j.Take(t.Context(), now); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func adopt(c *state.ClusterInventory) { c.Adopted = true }

func TestFirstRunThenRestart(t *testing.T) {
	b, dir := &branch{}, t.TempDir()
	j := newJournal(t, b, dir)
	st, err := j.Load(t.Context(), t0)
	must(t, err)
	if st.State != Fresh || st.Mine {
		t.Fatalf("first run: %+v", st)
	}
	if j.Inventory() != nil {
		t.Fatal("an inventory before the first run began one")
	}
	if err := j.Edit(t.Context(), t0, "c", adopt); !errors.Is(err, ErrNotHolder) {
		t.Fatalf("a write before Take: %v", err)
	}
	take(t, j, t0)
	must(t, j.Edit(t.Context(), t0, "c", adopt))
	if _, err := Open(Options{Store: b, Dir: dir, Keys: [][]byte{key1}}); !errors.Is(err, ErrLocked) {
		t.Fatalf("a second process on one folder: %v", err)
	}
	j.Close()

	// Killed and started again: the folder's lock proves that the old process is gone.
	j = newJournal(t, b, dir)
	take(t, j, t0.Add(time.Second))
	if got := j.Status(); got.Holder.Epoch != 2 || !got.Mine || !j.Cluster("c").Adopted {
		t.Fatalf("after the restart: %+v", got)
	}
}

// TestCrash stops the process at each boundary of an intent and starts another on the same folder: the intent is either
// on the branch, or no call was made.
func TestCrash(t *testing.T) {
	for _, at := range []string{"before the push", "reply lost", "before the copy", "after the copy"} {
		t.Run(at, func(t *testing.T) {
			b, dir := &branch{}, t.TempDir()
			j := newJournal(t, b, dir)
			take(t, j, t0)
			must(t, j.Edit(t.Context(), t0, "c", adopt))
			before, err := os.ReadFile(filepath.Join(dir, copyFile))
			must(t, err)
			switch at {
			case "before the push":
				b.down = true
			case "reply lost":
				b.onWrite = func() { b.loseReply = true }
			}
			in, err := j.Intend(t.Context(), t0, "c", state.Intent{Act: state.ActReboot, Machine: "cp1"}, nil)
			b.down = false
			called := err == nil
			if called != (at != "before the push") {
				t.Fatalf("intend: %v", err)
			}
			j.Close()
			if at == "before the copy" {
				must(t, os.WriteFile(filepath.Join(dir, copyFile), before, 0o600))
			}

			j = newJournal(t, b, dir)
			take(t, j, t0)
			open := j.Cluster("c").Intents
			if called != (len(open) == 1) || called && open[0].ID != in.ID {
				t.Fatalf("called %v, intents %+v", called, open)
			}
			if !j.Cluster("c").Adopted || j.Status().Finding != "" {
				t.Fatalf("lost what was before: %+v", j.Status())
			}
		})
	}
}

func TestLostAndTampered(t *testing.T) {
	for _, c := range []struct {
		name    string
		damage  func(*branch, []byte)
		noCopy  bool
		state   State
		finding string
		adopted bool
	}{
		{"untouched", func(*branch, []byte) {}, false, Known, "", true},
		{"untouched, folder lost", func(*branch, []byte) {}, true, Known, "", true},
		{"branch deleted", func(b *branch, _ []byte) { b.gone = true }, false, Known, state.ReasonStatusBranchLost, true},
		{"branch and folder lost", func(b *branch, _ []byte) { b.gone = true }, true, Fresh, "", false},
		{"file deleted", func(b *branch, _ []byte) { b.data = nil; b.tip++ }, false, Known, state.ReasonStatusBranchLost, true},
		{"file deleted, folder lost", func(b *branch, _ []byte) { b.data = nil; b.tip++ }, true, Unknown, state.ReasonStatusBranchLost, false},
		{"edited", edited, false, Known, state.ReasonStatusBranchTampered, true},
		{"edited, folder lost", edited, true, Unknown, state.ReasonStatusBranchTampered, false},
		{"garbage, folder lost", func(b *branch, _ []byte) { b.data = []byte("{"); b.tip++ }, true, Unknown, state.ReasonStatusBranchTampered, false},
		{"rolled back", func(b *branch, old []byte) { b.data = old; b.tip++ }, false, Known, state.ReasonStatusBranchTampered, true},
		{"newer version", func(b *branch, _ []byte) { b.data = []byte("version: 2\n"); b.tip++ }, false, Refused, "", false},
		{"foreign root", func(b *branch, _ []byte) { b.foreign = true }, false, Refused, state.ReasonStatusBranchTampered, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, dir := &branch{}, t.TempDir()
			j := newJournal(t, b, dir)
			take(t, j, t0)
			old := bytes.Clone(b.data)
			must(t, j.Edit(t.Context(), t0, "c", adopt))
			j.Close()
			c.damage(b, old)
			if c.noCopy {
				dir = t.TempDir()
			}
			j = newJournal(t, b, dir)
			st, err := j.Load(t.Context(), t0)
			must(t, err)
			if st.State != c.state || st.Finding != c.finding {
				t.Fatalf("got %+v", st)
			}
			if c.state != Known {
				if j.Inventory() != nil {
					t.Fatal("an inventory that is not known is given out")
				}
				return
			}
			if j.Cluster("c").Adopted != c.adopted {
				t.Fatal("what was known is lost")
			}
			err = j.Take(t.Context(), t0)
			if c.noCopy {
				if !errors.Is(err, ErrHeld) {
					t.Fatalf("another folder's holder may be alive: %v", err)
				}
				return
			}
			must(t, err)
			if inv, err := open(b.data, [][]byte{key1}, ""); err != nil || inv.Clusters["c"] == nil {
				t.Fatalf("not put back: %v", err)
			}
		})
	}
}

func edited(b *branch, _ []byte) {
	b.data = bytes.Replace(b.data, []byte("adopted: true"), []byte("adopted: false"), 1)
	b.tip++
}

// TestDamageWhileHolding: a holder that is running puts the branch back at the next look.
func TestDamageWhileHolding(t *testing.T) {
	for name, damage := range map[string]func(*branch, []byte){
		"deleted":     func(b *branch, _ []byte) { b.gone = true },
		"edited":      edited,
		"rolled back": func(b *branch, old []byte) { b.data = old; b.tip++ },
	} {
		t.Run(name, func(t *testing.T) {
			b := &branch{}
			j := newJournal(t, b, t.TempDir())
			take(t, j, t0)
			old := bytes.Clone(b.data)
			must(t, j.Edit(t.Context(), t0, "c", adopt))
			damage(b, old)
			if _, err := j.Intend(t.Context(), t0, "c", state.Intent{Act: state.ActReboot, Machine: "m"}, nil); err == nil && name != "rolled back" {
				t.Fatal("an intent went out on a damaged branch without a look at it")
			}
			st, err := j.Load(t.Context(), t0)
			must(t, err)
			if st.State != Known || !st.Mine {
				t.Fatalf("got %+v", st)
			}
			inv, err := open(b.data, [][]byte{key1}, "")
			must(t, err)
			if !inv.Clusters["c"].Adopted {
				t.Fatal("not put back")
			}
		})
	}
}

func TestAcknowledge(t *testing.T) {
	b := &branch{}
	j := newJournal(t, b, t.TempDir())
	take(t, j, t0)
	must(t, j.Edit(t.Context(), t0, "c", adopt))
	if err := j.Acknowledge(t.Context(), t0, "abc"); !errors.Is(err, ErrKnown) {
		t.Fatalf("acknowledged what is known: %v", err)
	}
	j.Close()
	edited(b, nil)
	j = newJournal(t, b, t.TempDir())
	if err := j.Take(t.Context(), t0); !errors.Is(err, ErrUnknown) {
		t.Fatalf("took an unknown inventory: %v", err)
	}
	must(t, j.Acknowledge(t.Context(), t0, "abc"))
	if inv := j.Inventory(); inv.UnknownAt != "abc" || len(inv.Clusters) != 0 || !j.Status().Mine {
		t.Fatalf("got %+v", inv)
	}
}

func TestTwoHolders(t *testing.T) {
	b := &branch{}
	a := newJournal(t, b, filepath.Join(t.TempDir(), "a"))
	take(t, a, t0)
	c := newJournal(t, b, filepath.Join(t.TempDir(), "c"))
	held := func(at time.Duration) {
		t.Helper()
		if err := c.Take(t.Context(), t0.Add(at)); !errors.Is(err, ErrHeld) {
			t.Fatalf("after %s: %v", at, err)
		}
	}
	claimed := func() bool {
		t.Helper()
		inv, err := open(b.data, [][]byte{key1}, "")
		must(t, err)
		return inv.Claim != nil
	}
	held(0)
	if !claimed() {
		t.Fatal("the second one does not ask whether the first one lives")
	}
	if _, err := a.Load(t.Context(), t0.Add(time.Minute)); err != nil || !a.Status().Mine {
		t.Fatalf("a claim made the holder lose it: %v %+v", err, a.Status())
	}
	must(t, a.Answer(t.Context(), t0.Add(time.Minute)))
	for _, at := range []time.Duration{4 * time.Minute, 12*time.Minute + 59*time.Second} {
		held(at)
		if claimed() {
			t.Fatalf("after %s it asks again, though it was answered lately", at)
		}
	}
	if err := a.Holding(t0.Add(2*time.Minute + 29*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := a.Holding(t0.Add(2*time.Minute + 30*time.Second)); !errors.Is(err, ErrNotHolder) {
		t.Fatalf("a holder that did not see the branch for half of what a claim waits still acts: %v", err)
	}
	held(15 * time.Minute) // asks again, and now nobody answers
	held(17*time.Minute + 59*time.Second)
	take(t, c, t0.Add(18*time.Minute))
	// The old holder can't push, so it can't act, whatever it thinks.
	if _, err := a.Intend(t.Context(), t0.Add(18*time.Minute), "x", state.Intent{Act: state.ActReboot, Machine: "m"}, nil); !errors.Is(err, ErrFenced) {
		t.Fatalf("the old holder: %v", err)
	}
	if st := a.Status(); st.Mine || !st.Fenced {
		t.Fatalf("the old holder: %+v", st)
	}
	must(t, c.Release(t.Context(), t0.Add(19*time.Minute)))
	take(t, a, t0.Add(19*time.Minute))
	if st := a.Status(); st.Holder.Epoch != 3 || st.Fenced {
		t.Fatalf("after the release: %+v", st)
	}
}

// TestAPushAnswersAClaim: a holder that writes before it has seen the claim lives all the same, and what it wrote is one
// history with the claim.
func TestAPushAnswersAClaim(t *testing.T) {
	b := &branch{}
	a := newJournal(t, b, filepath.Join(t.TempDir(), "a"))
	take(t, a, t0)
	c := newJournal(t, b, filepath.Join(t.TempDir(), "c"))
	if err := c.Take(t.Context(), t0); !errors.Is(err, ErrHeld) {
		t.Fatal(err)
	}
	if st, err := c.Load(t.Context(), t0); err != nil || st.State != Known {
		t.Fatalf("%v %+v", err, st) // the copy of the one that asks has the claim now
	}
	must(t, a.Edit(t.Context(), t0.Add(time.Second), "x", adopt))
	st, err := c.Load(t.Context(), t0.Add(2*time.Second))
	if err != nil || st.State != Known || st.Finding != "" || !c.Cluster("x").Adopted {
		t.Fatalf("%v %+v", err, st)
	}
	if err := c.Take(t.Context(), t0.Add(5*time.Minute)); !errors.Is(err, ErrHeld) {
		t.Fatalf("a holder that wrote was taken for gone: %v", err)
	}
}

// TestADeadHolderIsReplacedSoon: with nobody to answer, the wait is what a claim waits and no more.
func TestADeadHolderIsReplacedSoon(t *testing.T) {
	b := &branch{}
	a := newJournal(t, b, filepath.Join(t.TempDir(), "a"), func(o *Options) { o.Every = 2 * time.Second })
	take(t, a, t0)
	c := newJournal(t, b, filepath.Join(t.TempDir(), "c"), func(o *Options) { o.Takeover = 10 * time.Second })
	for at := range 10 {
		if err := c.Take(t.Context(), t0.Add(time.Duration(at)*time.Second)); !errors.Is(err, ErrHeld) {
			t.Fatalf("after %d s: %v", at, err)
		}
	}
	take(t, c, t0.Add(10*time.Second))
}

// TestRace lets many take at once: exactly one holds, and of all intents those that were pushed are on the branch.
func TestRace(t *testing.T) {
	b := &branch{}
	var js []*Journal
	for i := range 8 {
		js = append(js, newJournal(t, b, filepath.Join(t.TempDir(), fmt.Sprint(i))))
	}
	var wg sync.WaitGroup
	pushed := make([]int, len(js))
	for i, j := range js {
		wg.Go(func() {
			if j.Take(t.Context(), t0) != nil {
				return
			}
			for n := range 20 {
				if _, err := j.Intend(t.Context(), t0, "c", state.Intent{Act: state.ActReboot, Machine: fmt.Sprintf("m%d-%d", i, n)}, nil); err == nil {
					pushed[i]++
				}
				b.report()
			}
		})
	}
	wg.Wait()
	inv, err := open(b.data, [][]byte{key1}, "")
	must(t, err)
	holders, total := 0, 0
	for i := range js {
		if pushed[i] > 0 {
			holders++
			total += pushed[i]
		}
	}
	if holders != 1 || total != 20 || len(inv.Clusters["c"].Intents) != 20 {
		t.Fatalf("%d holders pushed %d, the branch has %d", holders, total, len(inv.Clusters["c"].Intents))
	}
}

func TestNotesStayLocalAndGoOut(t *testing.T) {
	b, dir := &branch{}, t.TempDir()
	j := newJournal(t, b, dir)
	take(t, j, t0)
	b.down = true
	note := func(commit string) error {
		return j.Note(t.Context(), t0, func(inv *state.Inventory) error { Of(inv, "c").AttemptedCommit = commit; return nil })
	}
	must(t, note("one"))
	must(t, note("two"))
	if _, err := j.Intend(t.Context(), t0, "c", state.Intent{Act: state.ActReboot, Machine: "m"}, nil); err == nil {
		t.Fatal("an intent without a push")
	}
	if err := j.Note(t.Context(), t0.Add(time.Hour), func(inv *state.Inventory) error { Of(inv, "c").Adopted = true; return nil }); !errors.Is(err, ErrNotHolder) {
		t.Fatalf("a note long after the branch was seen: %v", err)
	}
	j.Close()
	b.down = false
	j = newJournal(t, b, dir)
	st, err := j.Load(t.Context(), t0)
	must(t, err)
	if st.Finding != "" || j.Cluster("c").AttemptedCommit != "two" {
		t.Fatalf("after a restart: %+v, %+v", st, j.Cluster("c"))
	}
	take(t, j, t0)
	inv, err := open(b.data, [][]byte{key1}, "")
	must(t, err)
	if inv.Clusters["c"].AttemptedCommit != "two" {
		t.Fatal("the notes did not go out")
	}
}

// TestNotesOfAReplacedHolder: notes that never went out are dropped where another holder went on.
func TestNotesOfAReplacedHolder(t *testing.T) {
	b, dir := &branch{}, t.TempDir()
	j := newJournal(t, b, dir)
	take(t, j, t0)
	b.down = true
	for i := range 5 {
		must(t, j.Note(t.Context(), t0, func(inv *state.Inventory) error { Of(inv, "c").AttemptedCommit = fmt.Sprint(i); return nil }))
	}
	b.down = false
	other := newJournal(t, b, filepath.Join(t.TempDir(), "other"), func(o *Options) { o.TakeOver = true })
	take(t, other, t0)
	must(t, other.Edit(t.Context(), t0, "c", func(c *state.ClusterInventory) { c.AttemptedCommit = "theirs" }))
	st, err := j.Load(t.Context(), t0)
	must(t, err)
	if !st.Fenced || st.State != Known || j.Cluster("c").AttemptedCommit != "theirs" {
		t.Fatalf("running: %+v %+v", st, j.Cluster("c"))
	}
	j.Close()
	j = newJournal(t, b, dir)
	if st, err = j.Load(t.Context(), t0); err != nil || st.State != Known || st.Finding != "" {
		t.Fatalf("restarted: %+v %v", st, err)
	}
}

func TestKeysRotateAndIdentity(t *testing.T) {
	b, dir := &branch{}, t.TempDir()
	j := newJournal(t, b, dir, func(o *Options) { o.RepositoryID = "1" })
	take(t, j, t0)
	j.Close()
	j = newJournal(t, b, dir, func(o *Options) { o.Keys = [][]byte{key2, key1}; o.RepositoryID = "1" })
	take(t, j, t0)
	j.Close()
	j = newJournal(t, b, dir, func(o *Options) { o.Keys = [][]byte{key2}; o.RepositoryID = "1" })
	if st, err := j.Load(t.Context(), t0); err != nil || st.State != Known {
		t.Fatalf("sealed anew with the first key: %+v %v", st, err)
	}
	j.Close()
	j = newJournal(t, b, dir, func(o *Options) { o.Keys = [][]byte{key2}; o.RepositoryID = "2" })
	if st, err := j.Load(t.Context(), t0); err != nil || st.State != Unknown || !strings.Contains(st.Message, "another repository") {
		t.Fatalf("another repository's inventory: %+v %v", st, err)
	}
	if _, err := Open(Options{Store: b, Dir: t.TempDir()}); !errors.Is(err, ErrNoKeys) {
		t.Fatalf("no keys: %v", err)
	}
}

func TestIntentOnceAndClose(t *testing.T) {
	b := &branch{}
	j := newJournal(t, b, t.TempDir())
	take(t, j, t0)
	in, err := j.Intend(t.Context(), t0, "c", state.Intent{Act: state.ActBootstrap, Machine: "cp1"}, func(c *state.ClusterInventory) { c.BootstrapMachine = "cp1" })
	must(t, err)
	if c := j.Cluster("c"); len(c.Intents) != 1 || c.Intents[0].ID != in.ID || c.BootstrapMachine != "cp1" {
		t.Fatalf("readers don't see the intent: %+v", c)
	}
	if _, err := j.Intend(t.Context(), t0, "c", state.Intent{Act: state.ActBootstrap, Machine: "cp1"}, nil); !errors.Is(err, ErrIntentOpen) {
		t.Fatalf("twice: %v", err)
	}
	writes := b.writes
	must(t, j.Edit(t.Context(), t0, "c", func(c *state.ClusterInventory) { CloseIntent(c, "none") }))
	if b.writes != writes {
		t.Fatal("a write that changes nothing was pushed")
	}
	must(t, j.Edit(t.Context(), t0, "c", func(c *state.ClusterInventory) { MarkSent(c, in.ID) }))
	if !j.Cluster("c").Intents[0].Sent {
		t.Fatal("not marked")
	}
	must(t, j.Edit(t.Context(), t0, "c", func(c *state.ClusterInventory) {
		if _, ok := CloseIntent(c, in.ID); !ok {
			t.Error("not there")
		}
	}))
	if c := j.Cluster("c"); len(c.Intents) != 0 || c.BootstrapMachine != "cp1" {
		t.Fatalf("got %+v", c)
	}
}

// FuzzOpen: whatever lies on the branch, only what was sealed opens.
func FuzzOpen(f *testing.F) {
	inv := &state.Inventory{Version: 1, Generation: 3, Clusters: map[string]*state.ClusterInventory{"c": {Adopted: true}}}
	data, err := seal(inv, [][]byte{key1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("version: 2\n"))
	f.Add([]byte("version: 1\nclusters: {a: null}\n"))
	want, _ := open(data, [][]byte{key1}, "")
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := open(data, [][]byte{key1}, "")
		if err != nil {
			return
		}
		a, _ := yaml.Marshal(got)
		b, _ := yaml.Marshal(want)
		if !bytes.Equal(a, b) {
			t.Fatalf("opened what was not sealed:\n%s", a)
		}
	})
}
