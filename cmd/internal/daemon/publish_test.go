package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/status/outbox"
)

// fakePages stands in for the status branch's writer: puts are staged, Flush pushes them or fails.
type fakePages struct {
	mu      sync.Mutex
	staged  map[string]string
	pushed  map[string]string
	puts    []string
	removed []string
	closed  []int
	down    error
}

func newPages() *fakePages {
	return &fakePages{staged: map[string]string{}, pushed: map[string]string{}}
}

func (p *fakePages) Put(path string, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.staged[path] = string(data)
	p.puts = append(p.puts, path)
}

func (p *fakePages) Remove(path string) { p.removed = append(p.removed, path) }

func (p *fakePages) Report(commit string, _ int, markdown, json []byte) {
	p.Put("checks/"+commit+".md", markdown)
	p.Put("checks/"+commit+".json", json)
}

func (p *fakePages) OnlyPulls([]int)          {}
func (p *fakePages) ClosePulls(numbers []int) { p.closed = append(p.closed, numbers...) }

func (p *fakePages) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down != nil {
		return p.down
	}
	for path, data := range p.staged {
		p.pushed[path] = data
		delete(p.staged, path)
	}
	return ctx.Err()
}

// count says how often a page was put.
func (p *fakePages) count(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, x := range p.puts {
		if x == path {
			n++
		}
	}
	return n
}

// fakeStatuses stands in for the outbox and keeps everything that was set, in order.
type fakeStatuses struct {
	mu   sync.Mutex
	list []posted
	down error
}

type posted struct {
	sha string
	state.CommitStatus
	prio outbox.Priority
}

func (f *fakeStatuses) Set(sha string, s state.CommitStatus, prio outbox.Priority) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return f.down
	}
	f.list = append(f.list, posted{sha, s, prio})
	return nil
}

// of lists the states that a context of a commit went through.
func (f *fakeStatuses) of(sha, context string) []state.CommitState {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []state.CommitState
	for _, p := range f.list {
		if p.sha == sha && p.Context == context {
			out = append(out, p.State)
		}
	}
	return out
}

func (f *fakeStatuses) last() posted {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list[len(f.list)-1]
}

// clock is a time that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newSay() (*publisher, *fakePages, *fakeStatuses, *clock) {
	pages, statuses, c := newPages(), &fakeStatuses{}, &clock{t0}
	p := newPublisher(quiet(), c.now, pages, statuses, metrics.New("test"))
	p.reportURL = func(commit string) string { return "https://forge/" + commit }
	p.pageURL = func(path string) string { return "https://forge/" + path }
	return p, pages, statuses, c
}

// folded is a cluster with one worker, as a pass finds it.
func folded(progress string, converged int) fold.Cluster {
	return fold.Cluster{
		Name: "prod", Commit: sha("one"), Mode: "apply",
		Progress:   fold.Progress{State: progress, Converged: converged, Total: 1, Message: "so it is"},
		Conditions: []state.Condition{{Type: state.CondHeld, Status: state.False, Message: "for 3s"}},
		Machines: []fold.Machine{{
			Name: "w1", Approval: "approved", Mode: "configured", Reason: state.ReasonReady, Converged: converged == 1,
			Conditions: []state.Condition{{Type: state.CondReady, Status: state.True, Reason: state.ReasonReady, Message: "since 5s"}},
		}},
	}
}

const (
	applyContext = "ichor/apply/prod"
	nodesContext = "ichor/nodes/prod"
	page         = "clusters/prod/README.md"
)

func TestAStatusIsPostedOnChangeOnly(t *testing.T) {
	p, _, statuses, _ := newSay()
	s := state.CommitStatus{Context: "ichor/check", State: state.StateSuccess, Description: "fine"}
	for range 3 {
		p.post(sha("one"), s, outbox.High)
	}
	p.post(sha("two"), s, outbox.High)
	s.State = state.StateFailure
	p.post(sha("one"), s, outbox.High)
	if got := statuses.of(sha("one"), "ichor/check"); !slices.Equal(got, []state.CommitState{state.StateSuccess, state.StateFailure}) {
		t.Errorf("posted %v", got)
	}
	if n := len(statuses.list); n != 3 {
		t.Errorf("%d statuses were posted, want 3", n)
	}
	p.post("", s, outbox.High)
	p.mayPost = func() bool { return false }
	p.post(sha("three"), s, outbox.High)
	if n := len(statuses.list); n != 3 {
		t.Errorf("posted for no commit, or by who does not hold the inventory: %+v", statuses.last())
	}
	// What was not posted then is not taken for posted later.
	p.mayPost = func() bool { return true }
	p.post(sha("three"), s, outbox.High)
	if statuses.last().sha != sha("three") {
		t.Error("the status was lost")
	}
}

func TestAStatusThatCouldNotBeQueuedIsTriedAgain(t *testing.T) {
	p, _, statuses, _ := newSay()
	s := state.CommitStatus{Context: "ichor/check", State: state.StateSuccess}
	statuses.down = errors.New("disk full")
	p.post(sha("one"), s, outbox.High)
	statuses.down = nil
	p.post(sha("one"), s, outbox.High)
	if got := statuses.of(sha("one"), "ichor/check"); len(got) != 1 {
		t.Errorf("posted %v", got)
	}
}

func TestAStatusGoesOutAfterItsPageOrAfterPatience(t *testing.T) {
	p, pages, _, c := newSay()
	p.pages.Put("checks/x.md", []byte("report"))
	if err := p.Before(t.Context(), sha("one"), state.CommitStatus{}); err != nil || pages.pushed["checks/x.md"] != "report" {
		t.Fatalf("before the status: %v, pushed %v", err, pages.pushed)
	}
	pages.down = errors.New("push refused")
	for _, step := range []struct {
		after time.Duration
		wait  bool
	}{{0, true}, {patience, true}, {patience + time.Second, false}, {time.Hour, false}} {
		c.at = t0.Add(step.after)
		if err := p.Before(t.Context(), sha("one"), state.CommitStatus{}); (err != nil) != step.wait {
			t.Errorf("after %s: %v, want it to wait: %t", step.after, err, step.wait)
		}
	}
	// A push that succeeds begins the patience anew.
	pages.down = nil
	if err := p.Before(t.Context(), sha("one"), state.CommitStatus{}); err != nil {
		t.Fatal(err)
	}
	pages.down = errors.New("push refused")
	if err := p.Before(t.Context(), sha("one"), state.CommitStatus{}); err == nil {
		t.Error("no patience with the second outage")
	}
}

func TestAPageIsWrittenForNewsAndNowAndThen(t *testing.T) {
	p, pages, statuses, _ := newSay()
	tg := &target{commit: sha("one"), head: sha("one")}
	say := func(after time.Duration, c fold.Cluster, want int) {
		t.Helper()
		p.cluster(tg, t0.Add(after), c, nil)
		if got := pages.count(page); got != want {
			t.Errorf("after %s the page was put %d times, want %d", after, got, want)
		}
	}
	c := folded(plan.ProgressProgressing, 0)
	say(0, c, 1)
	c.Conditions[0].Message, c.Machines[0].Conditions[0].Message = "for 9s", "since 11s"
	c.Machines[0].Conditions[0].LastTransitionTime = t0
	say(time.Second, c, 1) // only durations differ
	c.Events = append(c.Events, state.Event{At: t0, Message: "something happened"})
	say(2*time.Second, c, 2)
	say(3*time.Second, c, 2)
	c.Progress.State = plan.ProgressDone
	say(4*time.Second, c, 3)
	c.Machines[0].Stage = "rebooting"
	say(5*time.Second, c, 4)
	say(5*time.Second+quietPage-1, c, 4)
	say(5*time.Second+quietPage, c, 5)
	if got := statuses.of(sha("one"), applyContext); !slices.Equal(got, []state.CommitState{state.StatePending, state.StateSuccess}) {
		t.Errorf("apply went through %v", got)
	}
	if got := statuses.of(sha("one"), nodesContext); !slices.Equal(got, []state.CommitState{state.StateSuccess}) {
		t.Errorf("nodes went through %v", got)
	}
	if s := statuses.list[0]; s.TargetURL != "https://forge/"+page || s.prio != outbox.High {
		t.Errorf("%+v", s)
	}
}

func TestAHeadThatIsNotInForceIsNoSuccess(t *testing.T) {
	p, pages, statuses, _ := newSay()
	p.cluster(&target{commit: sha("one"), head: sha("two"), headNote: "the check did not pass"}, t0, folded(plan.ProgressDone, 1), nil)
	if got := statuses.of(sha("two"), applyContext); !slices.Equal(got, []state.CommitState{state.StateFailure}) {
		t.Errorf("apply of the failed head: %v", got)
	}
	if len(statuses.of(sha("one"), applyContext)) != 0 {
		t.Error("the last good commit got a status")
	}
	if !strings.Contains(pages.staged[page], "the check did not pass") {
		t.Errorf("the page does not say why:\n%s", pages.staged[page])
	}
}

func TestSupersededEndsWhatIsPendingAndNothingElse(t *testing.T) {
	p, _, statuses, _ := newSay()
	one, two := sha("one"), sha("two")
	p.post(one, state.CommitStatus{Context: applyContext, State: state.StatePending}, outbox.High)
	p.post(one, state.CommitStatus{Context: nodesContext, State: state.StateSuccess}, outbox.High)
	p.post(two, state.CommitStatus{Context: applyContext, State: state.StatePending}, outbox.High)
	p.superseded(one, two)
	p.superseded(one, two)
	pending, ended := state.StatePending, state.StateError
	if got := statuses.of(one, applyContext); !slices.Equal(got, []state.CommitState{pending, ended}) {
		t.Errorf("the old head's apply: %v", got)
	}
	if s := statuses.last(); s.Description != "superseded by "+short(two) || s.prio != outbox.Low {
		t.Errorf("%+v", s)
	}
	if got := statuses.of(one, nodesContext); len(got) != 1 {
		t.Errorf("a final status was touched: %v", got)
	}
	if got := statuses.of(two, applyContext); len(got) != 1 {
		t.Errorf("the new head was touched: %v", got)
	}
	// A pass that was under way must not make it pending again; a verdict may still come.
	p.post(one, state.CommitStatus{Context: applyContext, State: pending, Description: "late"}, outbox.High)
	p.post(one, state.CommitStatus{Context: "ichor/check", State: state.StateSuccess}, outbox.High)
	if got := statuses.of(one, applyContext); len(got) != 2 {
		t.Errorf("pending came back: %v", got)
	}
	if got := statuses.of(one, "ichor/check"); len(got) != 1 {
		t.Errorf("the verdict was dropped: %v", got)
	}
	// The branch is set back to the old head: it counts again.
	p.superseded(two, one)
	p.post(one, state.CommitStatus{Context: applyContext, State: pending}, outbox.High)
	if got := statuses.of(one, applyContext); !slices.Equal(got, []state.CommitState{pending, ended, pending}) {
		t.Errorf("the head that came back: %v", got)
	}
}

func TestForgottenClustersLeaveNothingBehind(t *testing.T) {
	p, pages, _, _ := newSay()
	tg := &target{commit: sha("one"), head: sha("one")}
	p.cluster(tg, t0, folded(plan.ProgressDone, 1), map[string]plan.MachineFacts{"w1": {Reach: plan.ReachOK}})
	n, err := testutil.GatherAndCount(p.metrics.Registry(), "ichor_node_reachable", "ichor_apply_machines")
	if err != nil || n != 2 {
		t.Fatalf("%d series: %v", n, err)
	}
	if !strings.Contains(pages.staged["README.md"], "prod") {
		t.Errorf("the fleet's page does not list the cluster:\n%s", pages.staged["README.md"])
	}
	p.forget("prod")
	if n, err = testutil.GatherAndCount(p.metrics.Registry(), "ichor_node_reachable", "ichor_apply_machines"); err != nil || n != 0 {
		t.Errorf("%d series are left: %v", n, err)
	}
	if !slices.Equal(pages.removed, []string{"clusters/prod"}) || strings.Contains(pages.staged["README.md"], "prod") {
		t.Errorf("removed %v, fleet's page:\n%s", pages.removed, pages.staged["README.md"])
	}
	// It comes back as it was: its page is written again.
	before := pages.count(page)
	p.cluster(tg, t0, folded(plan.ProgressDone, 1), nil)
	if pages.count(page) != before+1 {
		t.Error("the page of a cluster that came back was not written")
	}
}

func TestMachinesAreMeasured(t *testing.T) {
	p, _, _, _ := newSay()
	c := folded(plan.ProgressWaiting, 0)
	c.Machines = append(c.Machines, fold.Machine{Name: "w2", Approval: "pending"})
	c.Machines[0].Conditions = append(c.Machines[0].Conditions, state.Condition{Type: state.CondRebootPending, Status: state.True})
	facts := map[string]plan.MachineFacts{"w1": {Reach: plan.ReachUnreachable, Since: t0.Add(-90 * time.Second)}}
	p.cluster(&target{commit: sha("one"), head: sha("one")}, t0, c, facts)
	want := `# HELP ichor_machine_reboot_pending 1 if an accepted configuration waits for a reboot, else 0.
# TYPE ichor_machine_reboot_pending gauge
ichor_machine_reboot_pending{cluster="prod",machine="w1"} 1
# HELP ichor_node_reachable 1 if the machine's Talos API answered the last read, else 0.
# TYPE ichor_node_reachable gauge
ichor_node_reachable{cluster="prod",machine="w1"} 0
# HELP ichor_node_unreachable_seconds Seconds since the machine's failed reads began; 0 while it answers.
# TYPE ichor_node_unreachable_seconds gauge
ichor_node_unreachable_seconds{cluster="prod",machine="w1"} 90
`
	err := testutil.GatherAndCompare(p.metrics.Registry(), strings.NewReader(want),
		"ichor_node_reachable", "ichor_node_unreachable_seconds", "ichor_machine_reboot_pending")
	if err != nil {
		t.Error(err)
	}
}

func TestEtcdIsMeasured(t *testing.T) {
	p, _, _, _ := newSay()
	c := folded(plan.ProgressDone, 1)
	c.Members = []fold.Member{{ID: "a1"}, {ID: "a2"}, {ID: "a3"}, {ID: "a4", Learner: true}}
	yes := true
	healthy := func(id string) plan.MachineFacts {
		return plan.MachineFacts{Reach: plan.ReachOK, Mode: plan.ModeConfigured, Etcd: &plan.EtcdFact{
			State: "Running", MemberID: id, Leader: "a1", LinearizableRead: &yes, CaughtUp: &yes,
		}}
	}
	alarm := healthy("a3")
	alarm.Etcd.Alarms = []string{"NOSPACE"}
	stranger := healthy("a9") // answers as a member that is not listed
	facts := map[string]plan.MachineFacts{"cp1": healthy("a1"), "cp2": healthy("a2"), "cp3": alarm, "cp9": stranger, "cp4": {Reach: plan.ReachUnreachable}}
	p.cluster(&target{commit: sha("one"), head: sha("one")}, t0, c, facts)
	want := `# HELP ichor_etcd_members_healthy Voters that were seen healthy at their last read: they answer, have no alarm, see the leader and keep up with it.
# TYPE ichor_etcd_members_healthy gauge
ichor_etcd_members_healthy{cluster="prod"} 2
# HELP ichor_etcd_quorum_margin Healthy voters beyond the quorum of those listed: at 0 the next failure stops etcd, below 0 it has no quorum.
# TYPE ichor_etcd_quorum_margin gauge
ichor_etcd_quorum_margin{cluster="prod"} 0
`
	if err := testutil.GatherAndCompare(p.metrics.Registry(), strings.NewReader(want), "ichor_etcd_members_healthy", "ichor_etcd_quorum_margin"); err != nil {
		t.Error(err)
	}
}

func TestTheFleetsPageIsPutOnChange(t *testing.T) {
	p, pages, _, _ := newSay()
	h := fold.Head{Branch: "main", Commit: sha("one"), Verdict: "passed"}
	p.setHead(h)
	p.setHead(h)
	if n := pages.count("README.md"); n != 1 {
		t.Errorf("put %d times", n)
	}
	h.Notes = append(h.Notes, state.Condition{Type: "Repository", Status: state.False, Reason: "FetchFailed", Message: "network"})
	p.setHead(h)
	if !strings.Contains(pages.staged["README.md"], "FetchFailed") {
		t.Errorf("the note is not on the page:\n%s", pages.staged["README.md"])
	}
}
