package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ichor.maesh.dev/ichor/apply/act"
	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
)

// fakeNodes answers with facts that are as old as they are: At is the time of the read.
type fakeNodes struct {
	facts map[string]plan.MachineFacts
	// read lists the machines of each call.
	read [][]string
	err  error
	next time.Time
	// during runs in each call.
	during func()
	forgot []string
}

func (n *fakeNodes) Due(spec *observe.Cluster, now time.Time) ([]string, time.Time) {
	var due []string
	for _, m := range spec.Machines {
		f := n.facts[m.Name]
		if f.At.IsZero() || !f.At.Add(spec.Interval).After(now) {
			due = append(due, m.Name)
		}
	}
	return due, n.next
}

func (n *fakeNodes) Observe(_ context.Context, _ *observe.Cluster, which []string) (map[string]plan.MachineFacts, error) {
	n.read = append(n.read, which)
	if n.during != nil {
		n.during()
	}
	if n.err != nil {
		return nil, n.err
	}
	for _, name := range which {
		f := n.facts[name]
		f.At = time.Now()
		n.facts[name] = f
	}
	return maps.Clone(n.facts), nil
}

func (n *fakeNodes) Forget(name string) { n.forgot = append(n.forgot, name) }

// fakeActor notes what it is given; node acts end as outcome says.
type fakeActor struct {
	did     []plan.Action
	outcome act.Outcome
	ctx     context.Context
	by      string
	// then runs after each call, as an inventory that is written would look.
	then func([]plan.Action)
}

func (a *fakeActor) Do(ctx context.Context, c *act.Cluster, actions []plan.Action) ([]act.Result, error) {
	a.ctx, a.by = ctx, c.MergedBy
	a.did = append(a.did, actions...)
	var out []act.Result
	for _, x := range actions {
		r := act.Result{Action: x, Outcome: act.Done}
		if x.Kind.OnNode() {
			r.Outcome = a.outcome
		}
		if r.Outcome != act.Done {
			r.Message = "no reply"
		}
		out = append(out, r)
	}
	if a.then != nil {
		a.then(actions)
	}
	return out, nil
}

// kinds lists what was done, without the edits of the inventory where only node acts count.
func (a *fakeActor) onNodes() []string {
	var out []string
	for _, x := range a.did {
		if x.Kind.OnNode() {
			out = append(out, string(x.Kind)+" "+x.Machine)
		}
	}
	return out
}

// rig is a clusterLoop on fakes: one control plane in maintenance mode, of a cluster that is Ichor's.
type rig struct {
	*clusterLoop
	nodes   *fakeNodes
	actor   *fakeActor
	journal *fakeJournal
	said    []fold.Cluster
	acts    []string
	target  *target
}

func newRig(t *testing.T) *rig {
	files, keys := openable(tree("cp1"))
	r := &rig{
		nodes: &fakeNodes{facts: map[string]plan.MachineFacts{"cp1": {
			Reach: plan.ReachOK, Since: time.Now().Add(-time.Hour), Mode: plan.ModeMaintenance, Endpoint: "192.0.2.10:50000",
			Identity: state.Identity{UUID: "11111111-2222-3333-4444-555555555555"}, TalosVersion: "v1.13.5", Fingerprint: "fp",
		}}},
		actor:   &fakeActor{outcome: act.Done},
		journal: &fakeJournal{inv: &state.Inventory{Clusters: map[string]*state.ClusterInventory{"prod": {Adopted: true}}}},
		target:  targetOfTree(t, files),
	}
	r.clusterLoop = &clusterLoop{
		name: "prod", log: quiet(), now: time.Now, keys: keys, policy: plan.DefaultPolicy(), commits: newCommits(newHistory()),
		inv: r.journal, nodes: r.nodes, actor: r.actor, nudge: make(chan struct{}, 1),
		acted: func(cluster, action, outcome string) { r.acts = append(r.acts, cluster+" "+action+" "+outcome) },
		say: func(_ *target, _ time.Time, c fold.Cluster, _ []state.Event, _ map[string]plan.MachineFacts) {
			r.said = append(r.said, c)
		},
	}
	r.set(r.target)
	return r
}

// bubble runs a test in a bubble, with the bundle made outside it.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	sealed()
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t)) })
}

func TestAPassObservesDecidesActsAndSays(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		pause := r.pass(t.Context())
		if !slices.Equal(r.actor.onNodes(), []string{"install cp1"}) {
			t.Fatalf("did %v; said %+v", r.actor.did, r.said)
		}
		if len(r.nodes.read) == 0 || !slices.Equal(r.nodes.read[0], []string{"cp1"}) {
			t.Errorf("read %v", r.nodes.read)
		}
		if r.actor.by != "Ada <ada@example.com>" || r.actor.did[0].Commit != sha("one") {
			t.Errorf("by %q for %+v", r.actor.by, r.actor.did[0])
		}
		if !slices.Equal(r.acts, []string{"prod install done"}) {
			t.Errorf("counted %v", r.acts)
		}
		if len(r.said) != 1 || r.said[0].Name != "prod" || r.said[0].Commit != sha("one") {
			t.Fatalf("said %+v", r.said)
		}
		if i := slices.IndexFunc(r.said[0].Events, func(e state.Event) bool { return e.Reason == "InstallDone" }); i < 0 {
			t.Errorf("events %+v", r.said[0].Events)
		}
		if pause < minPause || pause > r.policy.Poll {
			t.Errorf("looks again after %s though something was done", pause)
		}
	})
}

func TestAnActWhoseOutcomeIsUnknownIsSaidSo(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.actor.outcome = act.Unknown
		r.pass(t.Context())
		i := slices.IndexFunc(r.said[0].Events, func(e state.Event) bool { return e.Reason == "InstallUnknown" })
		if i < 0 || !strings.Contains(r.said[0].Events[i].Message, "no reply") {
			t.Errorf("events %+v", r.said[0].Events)
		}
		if !slices.Equal(r.acts, []string{"prod install unknown"}) {
			t.Errorf("counted %v", r.acts)
		}
	})
}

func TestFactsThatAreTooOldAreReadAgainBeforeAnAct(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.pass(t.Context())
		before := len(r.nodes.read)
		time.Sleep(r.policy.FactMaxAge + time.Second) // nothing is due for two minutes
		r.actor.did, r.touched = nil, nil
		r.pass(t.Context())
		// The pass reads what is due (nothing); the decision asks for the machine; only then it acts.
		reads := r.nodes.read[before:]
		if len(reads) != 2 || reads[0] == nil || len(reads[0]) != 0 || // nil would read every machine
			!slices.Equal(reads[1], []string{"cp1"}) {
			t.Errorf("read %v", reads)
		}
		if !slices.Equal(r.actor.onNodes(), []string{"install cp1"}) {
			t.Errorf("did %v", r.actor.onNodes())
		}
	})
}

func TestWhatWasTouchedIsReadAgainBeforeTheNextDecision(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.pass(t.Context())
		before := len(r.nodes.read)
		r.pass(t.Context())
		if reads := r.nodes.read[before:]; len(reads) == 0 || !slices.Equal(reads[0], []string{"cp1"}) {
			t.Errorf("read %v", reads)
		}
	})
}

func TestLookingAgainHasAnEnd(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.nodes.facts = map[string]plan.MachineFacts{} // it answers nothing of any use
		r.nodes.err = errors.New("no connections can be made")
		r.pass(t.Context())
		if n := len(r.nodes.read); n > maxLooks+1 {
			t.Errorf("looked %d times in one pass", n)
		}
		if len(r.actor.onNodes()) != 0 || len(r.said) != 1 {
			t.Errorf("did %v, said %d times", r.actor.onNodes(), len(r.said))
		}
	})
}

func TestNothingIsDoneByWhoDoesNotHold(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.journal.holding = errors.New("another Ichor took over")
		r.pass(t.Context())
		if len(r.actor.did) != 0 {
			t.Errorf("did %v", r.actor.did)
		}
		if p := r.said[0].Progress; p.State != plan.ProgressHeld || !strings.Contains(p.Message, "another Ichor") {
			t.Errorf("said %+v", p)
		}
		if len(r.nodes.read) == 0 {
			t.Error("it does not even look")
		}
	})
}

// TestTheRightIsLookedAtOnceMore loses the inventory between the decision and the act.
func TestTheRightIsLookedAtOnceMore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		inner := r.journal
		r.inv = &fencedAfter{fakeJournal: inner, good: 1}
		r.pass(t.Context())
		if len(r.actor.did) != 0 {
			t.Errorf("did %v", r.actor.did)
		}
	})
}

// fencedAfter holds for the first calls of Holding.
type fencedAfter struct {
	*fakeJournal
	good int
}

func (f *fencedAfter) Holding(time.Time) error {
	if f.good--; f.good >= 0 {
		return nil
	}
	return errors.New("fenced")
}

func TestAnInventoryThatIsNotKnownHoldsDestructiveActs(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.journal.inv = nil
		r.journal.holding = errors.New("not the holder") // which is no news where nobody can be
		r.pass(t.Context())
		if len(r.actor.onNodes()) != 0 {
			t.Errorf("did %v", r.actor.onNodes())
		}
		held := slices.ContainsFunc(r.said[0].Conditions, func(c state.Condition) bool {
			return c.Type == state.CondHeld && c.Status == state.True && c.Reason == state.ReasonInventoryUnknown
		})
		if !held {
			t.Errorf("conditions %+v", r.said[0].Conditions)
		}
	})
}

func TestWithoutAnIdentityNothingIsReadOrDoneAndItIsSaid(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.keys, r.inv = bundle.Keys{}, noJournal{}
		r.pass(t.Context())
		if len(r.nodes.read) != 0 || len(r.actor.did) != 0 {
			t.Errorf("read %v, did %v", r.nodes.read, r.actor.did)
		}
		if p := r.said[0].Progress; p.State != plan.ProgressHeld {
			t.Errorf("said %+v", p)
		}
		if s := fold.ApplyStatus("", r.said[0], ""); s.State != state.StateError {
			t.Errorf("the status is %+v", s)
		}
	})
}

func TestObserveModeReadsAndWritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.observer = true
		r.pass(t.Context())
		if len(r.nodes.read) == 0 || len(r.actor.onNodes()) != 0 {
			t.Errorf("read %v, did %v", r.nodes.read, r.actor.onNodes())
		}
	})
}

func TestASuspendedClusterIsNotEvenRead(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		files, _ := openable(edit(tree("cp1"), "cluster.yaml", "spec:", "spec:\n  suspend: true"))
		r.set(targetOfTree(t, files))
		pause := r.pass(t.Context())
		if len(r.actor.onNodes()) != 0 || slices.ContainsFunc(r.nodes.read, func(w []string) bool { return len(w) > 0 }) {
			t.Errorf("read %v, did %v", r.nodes.read, r.actor.did)
		}
		if pause < time.Minute {
			t.Errorf("looks again after %s though nothing of it is due", pause)
		}
	})
}

func TestAHeldHeadWritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		held := *r.target
		held.holds = []plan.Hold{{Reason: state.ReasonForcePush, Message: "a force push"}}
		r.set(&held)
		r.pass(t.Context())
		if len(r.actor.onNodes()) != 0 || r.said[0].Progress.State != plan.ProgressHeld {
			t.Errorf("did %v, said %+v", r.actor.onNodes(), r.said[0].Progress)
		}
	})
}

func TestAStopEndsThePassBeforeItActs(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ctx, stop := context.WithCancel(t.Context())
		r.nodes.during = stop
		r.pass(ctx)
		if len(r.actor.did) != 0 || len(r.said) != 0 {
			t.Errorf("did %v, said %d times", r.actor.did, len(r.said))
		}
	})
}

func TestAStopWhileLookingAgainEndsThePassToo(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.pass(t.Context())
		time.Sleep(r.policy.FactMaxAge + time.Second)
		r.actor.did, r.touched = nil, nil
		ctx, stop := context.WithCancel(t.Context())
		first := true
		r.nodes.during = func() {
			if !first {
				stop() // while the decision looks again
			}
			first = false
		}
		r.pass(ctx)
		if ctx.Err() == nil || len(r.actor.did) != 0 {
			t.Errorf("stopped %v, did %v", ctx.Err(), r.actor.did)
		}
	})
}

func TestACallUnderWayIsNotCut(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ctx, stop := context.WithCancel(t.Context())
		var during error
		r.actor.then = func([]plan.Action) {
			stop()
			during = r.actor.ctx.Err()
		}
		r.pass(ctx)
		if during != nil || len(r.said) != 1 {
			t.Errorf("the act saw %v; said %d times", during, len(r.said))
		}
	})
}

func TestARunEndsWithItsContextAndWakesForATarget(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.journal.inv.Clusters["prod"].Adopted = false
		r.observer = true
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		r.nodes.next = time.Now().Add(time.Hour)
		go func() {
			defer close(done)
			r.run(ctx)
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		before := len(r.said)
		if before == 0 || before > 70 {
			t.Fatalf("%d passes in a minute", before)
		}
		next := *r.target
		next.head = sha("two")
		r.set(&next)
		synctest.Wait()
		if len(r.said) == before {
			t.Error("a new target did not wake the loop")
		}
		stop()
		<-done
	})
}

func TestASameTargetIsNotPreparedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.pass(t.Context())
		first := r.prepared
		r.pass(t.Context())
		if r.prepared != first {
			t.Error("prepared again for the same target")
		}
		moved := *r.target // another head, the same commit in force
		moved.head = sha("two")
		r.set(&moved)
		r.pass(t.Context())
		if r.prepared.bundle != first.bundle || r.prepared.target != &moved {
			t.Error("the bundle was opened again, or the target is the old one")
		}
		files, _ := openable(tree("cp1", "w1"))
		r.set(targetOfTree(t, files))
		r.pass(t.Context())
		if len(r.prepared.results) != 2 {
			t.Errorf("%d renders of the new target", len(r.prepared.results))
		}
	})
}

func TestEventReasons(t *testing.T) {
	for want, r := range map[string]act.Result{
		"InstallDone":              {Action: plan.Action{Kind: plan.DoInstall}, Outcome: act.Done},
		"ForfeitLeadershipNotDone": {Action: plan.Action{Kind: plan.DoForfeit}, Outcome: act.NotDone},
		"RebootUnknown":            {Action: plan.Action{Kind: plan.DoReboot}, Outcome: act.Unknown},
	} {
		if got := eventReason(r); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
