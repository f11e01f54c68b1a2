package fold_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func input(now time.Time, status state.ConditionStatus, reason string, converged int) fold.Input {
	return fold.Input{
		Now: now,
		Desired: plan.Desired{
			Name: "prod", Commit: "c1",
			Machines: []plan.DesiredMachine{{Name: "w1", Role: "worker", Approval: "approved", Endpoint: "127.0.0.1"}},
		},
		Observed: map[string]plan.MachineFacts{"w1": {Mode: plan.ModeConfigured, Reach: plan.ReachOK}},
		Decision: plan.Decision{
			Machines: []plan.MachineDecision{{
				Name: "w1", Reason: reason, Message: "w1 says " + reason, Converged: converged == 1,
				Conditions: []state.Condition{{Type: state.CondReady, Status: status, Reason: reason}},
			}},
			Progress: plan.Progress{State: plan.ProgressDone, Converged: converged, Total: 1},
		},
	}
}

func TestTransitionTimesStayWhileTheStatusStays(t *testing.T) {
	c, _ := fold.Fold(fold.Cluster{}, input(t0, state.True, "Ready", 1))
	c, _ = fold.Fold(c, input(t0.Add(time.Minute), state.True, "Ready", 1))
	if got := c.Machines[0].Conditions[0].LastTransitionTime; !got.Equal(t0) {
		t.Fatalf("transition at %s, want %s", got, t0)
	}
	later := t0.Add(2 * time.Minute)
	c, _ = fold.Fold(c, input(later, state.False, state.ReasonNodeUnreachable, 1))
	if got := c.Machines[0].Conditions[0].LastTransitionTime; !got.Equal(later) {
		t.Fatalf("transition at %s, want %s", got, later)
	}
	if got := c.Machines[0].Conditions[0].ObservedCommit; got != "c1" {
		t.Fatalf("observed commit %q", got)
	}
}

func TestEachTransitionIsAnEventAndStandingStillIsNone(t *testing.T) {
	var c fold.Cluster
	var events []state.Event
	step := func(status state.ConditionStatus, reason string) []state.Event {
		c, events = fold.Fold(c, input(t0, status, reason, 1))
		return events
	}
	if n := len(step(state.True, "Ready")); n != 0 {
		t.Fatalf("well from the first look on made %d events", n)
	}
	for range 2 { // the second outage must be told too
		if e := step(state.False, state.ReasonNodeUnreachable); len(e) != 1 || e[0].Machine != "w1" ||
			e[0].Reason != state.ReasonNodeUnreachable {
			t.Fatalf("going silent made %v", e)
		}
		if n := len(step(state.False, state.ReasonNodeUnreachable)); n != 0 {
			t.Fatalf("staying silent made %d events", n)
		}
		if e := step(state.True, "Ready"); len(e) != 1 {
			t.Fatalf("coming back made %v", e)
		}
	}
	if len(c.Events) != 4 {
		t.Fatalf("%d events kept, want 4", len(c.Events))
	}
}

func TestEventsAreBounded(t *testing.T) {
	var c fold.Cluster
	for i := range fold.MaxEvents + 50 {
		in := input(t0, state.True, "Ready", 1)
		in.Events = []state.Event{{At: t0, Cluster: "prod", Reason: "Act", Message: fmt.Sprint(i)}}
		c, _ = fold.Fold(c, in)
	}
	if len(c.Events) != fold.MaxEvents || c.Events[len(c.Events)-1].Message != fmt.Sprint(fold.MaxEvents+49) {
		t.Fatalf("%d events, last %v", len(c.Events), c.Events[len(c.Events)-1])
	}
}

func TestStatuses(t *testing.T) {
	machine := func(reason string, converged bool) fold.Machine {
		return fold.Machine{
			Name: "w1", Approval: "approved", Mode: "configured", Converged: converged, Reason: reason,
			Conditions: []state.Condition{{Type: state.CondReady, Reason: reason}},
		}
	}
	for _, tc := range []struct {
		name          string
		progress      fold.Progress
		mode          string
		machine       fold.Machine
		conditions    []state.Condition
		apply, nodes  state.CommitState
		applyD, nodeD string
	}{
		{
			name: "converged", progress: fold.Progress{State: "done", Converged: 1, Total: 1}, machine: machine("Ready", true),
			apply: "success", applyD: "1 of 1 machines converged", nodes: "success", nodeD: "1 of 1 machines reachable",
		},
		{
			name: "under way", progress: fold.Progress{State: "progressing", Total: 1, Message: "configuring w1"},
			machine: machine("Progressing", false), apply: "pending", applyD: "configuring w1; 0 of 1 machines converged",
			nodes: "success", nodeD: "1 of 1 machines reachable",
		},
		{
			name: "silent for long", progress: fold.Progress{State: "waiting", Total: 1, Message: "w1 is unreachable"},
			machine: machine(state.ReasonNodeUnreachable, false), apply: "failure",
			applyD: "w1 is unreachable; 0 of 1 machines converged", nodes: "failure",
			nodeD: "w1 unreachable; 0 of 1 machines reachable",
		},
		{
			name: "silent within the grace", progress: fold.Progress{State: "done", Converged: 1, Total: 1},
			machine: machine(state.ReasonCurrentConfigUnavailable, true), apply: "success",
			applyD: "1 of 1 machines converged", nodes: "", nodeD: "",
		},
		{
			name: "held", progress: fold.Progress{State: "held", Total: 1, Message: "force push"}, machine: machine("Waiting", false),
			apply: "failure", applyD: "held: force push; 0 of 1 machines converged", nodes: "success",
			nodeD: "1 of 1 machines reachable",
		},
		{
			name: "Ichor's own trouble", progress: fold.Progress{State: "held", Total: 1, Message: "no key"},
			machine:    machine("Waiting", false),
			conditions: []state.Condition{{Type: "Held", Status: "True", Reason: state.ReasonSecretsBundleUnavailable}},
			apply:      "error", applyD: "held: no key; 0 of 1 machines converged", nodes: "success",
			nodeD: "1 of 1 machines reachable",
		},
		{
			name: "observe", mode: "observe", progress: fold.Progress{State: "held", Total: 1}, machine: machine("ObserveMode", false),
			apply: "success", applyD: "observe mode: 1 of 1 machines differs", nodes: "success",
			nodeD: "1 of 1 machines reachable",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fold.Cluster{
				Name: "prod", Mode: tc.mode, Progress: tc.progress, Machines: []fold.Machine{tc.machine}, Conditions: tc.conditions,
			}
			a := fold.ApplyStatus("", c, "u")
			if a.Context != "ichor/apply/prod" || a.State != tc.apply || a.Description != tc.applyD || a.TargetURL != "u" {
				t.Errorf("apply: got %+v, want %s %q", a, tc.apply, tc.applyD)
			}
			n, ok := fold.NodesStatus("two", c, "u")
			if !ok || n.State != tc.nodes || n.Description != tc.nodeD {
				t.Errorf("nodes: got %v %+v, want %s %q", ok, n, tc.nodes, tc.nodeD)
			}
			if n.State != "" && n.Context != "two/ichor/nodes/prod" {
				t.Errorf("nodes context %q", n.Context)
			}
		})
	}
	if _, ok := fold.NodesStatus("", fold.Cluster{Machines: []fold.Machine{{Approval: "pending"}}}, ""); ok {
		t.Error("a cluster without approved machines has a nodes status")
	}
}

func TestPagesSurviveHostileText(t *testing.T) {
	c := fold.Cluster{
		Name: "prod", Machines: []fold.Machine{{Name: "w1", Message: "a | b\n# <script>x</script> `y` [z](http://e) @all"}},
	}
	page := string(fold.ClusterPage(c))
	for _, bad := range []string{"<script", "\n# <", "`y`", "[z](", "@all", "a | b"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q:\n%s", bad, page)
		}
	}
}

func TestARestartGoesOnFromTheStatus(t *testing.T) {
	c, _ := fold.Fold(fold.Cluster{}, input(t0, state.True, "Ready", 1))
	c, _ = fold.Fold(c, input(t0.Add(time.Minute), state.False, state.ReasonNodeUnreachable, 1))
	data, err := fold.StatusYAML(c)
	if err != nil || strings.Contains(string(data), "null") {
		t.Fatalf("%v\n%s", err, data)
	}
	again, err := fold.ParseStatus(data)
	if err != nil {
		t.Fatal(err)
	}
	again, fresh := fold.Fold(again, input(t0.Add(time.Hour), state.False, state.ReasonNodeUnreachable, 1))
	if len(fresh) != 0 || len(again.Events) != 1 {
		t.Fatalf("a restart made events %v and has %v", fresh, again.Events)
	}
	if got := again.Machines[0].Conditions[0].LastTransitionTime; !got.Equal(t0.Add(time.Minute)) {
		t.Fatalf("transition at %s", got)
	}
}
