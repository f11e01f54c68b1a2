package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/status/outbox"
)

// TestAFailedHeadIsHeardWhereItStopsIchor: the last good commit stays in force, but a head that suspends the cluster, or
// takes the right to write away, is heard whatever else is wrong with it.
func TestAFailedHeadIsHeardWhereItStopsIchor(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1"))
	for _, tc := range []struct {
		spec             string
		suspend, observe bool
	}{
		{"spec:\n  suspend: true", true, false},
		{"spec:\n  rollout: {mode: observe}", false, true},
		{"spec:\n  suspend: false", false, false},
	} {
		bad := h.commit(tc.spec, one, broken(edit(tree("cp1"), "cluster.yaml", "spec:", tc.spec)))
		got := targetsAt(t, c, bad, inventory(one, "cp1"))["prod"]
		if got.commit != one || got.suspend != tc.suspend || got.observe != tc.observe {
			t.Fatalf("%s: %+v", tc.spec, got)
		}
		d := desired(prepare(t.Context(), got, bundle.Keys{}), &state.ClusterInventory{}, func(string) map[string]string { return nil }, false, time.Now())
		if d.Suspend != tc.suspend || d.Observe != tc.observe {
			t.Errorf("%s: suspend %t, observe %t", tc.spec, d.Suspend, d.Observe)
		}
	}
}

// TestSkippingTheKubernetesGatesIsForOneCommit: an annotation that stays in the manifest excuses nothing later.
func TestSkippingTheKubernetesGatesIsForOneCommit(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	skip := func(reason string) string {
		return "annotations: {ichor.maesh.dev/skip-kubernetes-gates: " + reason + "}"
	}
	plain := tree("cp1")
	with := edit(plain, "cluster.yaml", "annotations: {}", skip("all API servers are down"))
	anew := edit(plain, "cluster.yaml", "annotations: {}", skip("they are down again"))
	one := h.commit("one", "", plain)
	two := h.commit("two", one, with)
	three := h.commit("three", two, with)
	four := h.commit("four", three, anew)
	for commit, want := range map[string]string{one: "", two: "all API servers are down", three: "", four: "they are down again"} {
		tg := targetsAt(t, c, commit, nil)["prod"]
		d := desired(prepare(t.Context(), tg, bundle.Keys{}), nil, func(string) map[string]string { return nil }, false, time.Now())
		if d.SkipKubernetesGates != want {
			t.Errorf("%s skips for %q, want %q", short(commit), d.SkipKubernetesGates, want)
		}
	}
}

// TestAStopMakesNoClusterOneThatIsGone: what can't be read because Ichor stops is not missing.
func TestAStopMakesNoClusterOneThatIsGone(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1"))
	bad := h.commit("bad", one, edit(tree("cp1"), "cluster.yaml", "spec:", "spec: ["))
	res, err := c.head(t.Context(), bad)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if out, _, err := targets(ctx, c, res, inventory(one, "cp1"), nil); err == nil {
		t.Errorf("targets %v of a look that was broken off", out)
	}
}

// TestAStandbySaysWhatTheHolderCouldNot: while another Ichor holds the inventory this one writes no page and posts
// nothing; a verdict that it found then goes out when it takes over, for the holder may have died before it posted it.
func TestAStandbySaysWhatTheHolderCouldNot(t *testing.T) {
	pages, statuses := newPages(), &fakeStatuses{}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := newPublisher(quiet(), func() time.Time { return now }, pages, statuses, metrics.New("test"))
	holds := false
	p.mayPost = func() bool { return holds }
	verdict := func(sha string) {
		p.post(sha, state.CommitStatus{Context: "ichor/check", State: state.StateSuccess}, outbox.High)
	}
	verdict("old")
	now = now.Add(unsaidStays + time.Second)
	verdict("new")
	p.post("busy", state.CommitStatus{Context: "ichor/check", State: state.StatePending}, outbox.High)
	p.post("new", state.CommitStatus{Context: "ichor/apply/prod", State: state.StateFailure}, outbox.High)
	p.cluster(&target{head: "new"}, now, fold.Cluster{Name: "prod"}, nil)
	p.setHead(fold.Head{Commit: "new"})
	if len(statuses.list) != 0 || len(pages.puts) != 0 {
		t.Fatalf("a standby posted %v and wrote %v", statuses.list, pages.puts)
	}
	holds = true
	p.cluster(&target{head: "new"}, now, fold.Cluster{Name: "prod"}, nil)
	p.setHead(fold.Head{Commit: "new"})
	p.setHead(fold.Head{Commit: "new"})
	if got := statuses.of("new", "ichor/check"); len(got) != 1 || got[0] != state.StateSuccess {
		t.Errorf("the verdict found before the takeover: %v", got)
	}
	for _, sha := range []string{"old", "busy"} {
		if got := statuses.of(sha, "ichor/check"); len(got) != 0 {
			t.Errorf("%s: %v", sha, got)
		}
	}
	if pages.count("clusters/prod/README.md") != 1 || pages.count("README.md") == 0 {
		t.Errorf("pages after the takeover: %v", pages.puts)
	}
}

// TestALoopThatIsSlowToEndKeepsNobodyWaiting: a cluster that is gone may be in the middle of a call to a slow node. The
// repository's loop goes on, and the cluster never gets a second loop beside the first.
func TestALoopThatIsSlowToEndKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := &fakeNodes{}
		say := newPublisher(quiet(), time.Now, newPages(), &fakeStatuses{}, metrics.New("test"))
		told := 0
		slow := &runningLoop{
			clusterLoop: &clusterLoop{name: "prod", nudge: make(chan struct{}, 1)}, cancel: func() { told++ }, done: make(chan struct{}),
		}
		d := &daemon{p: &Parts{Say: say, Nodes: nodes}, loops: map[string]*runningLoop{"prod": slow}}
		began := time.Now()
		d.assign(nil)
		if took := time.Since(began); took > endWait || told != 1 || len(nodes.forgot) != 0 {
			t.Errorf("waited %s, told it %d times, forgot %v", took, told, nodes.forgot)
		}
		d.assign(map[string]*target{"prod": {head: "back"}})
		if d.loops["prod"] != slow || slow.current() != nil {
			t.Error("a cluster that came back got a loop beside the one that ends")
		}
		close(slow.done)
		d.assign(nil)
		if told != 1 || len(d.loops) != 0 || len(nodes.forgot) != 1 {
			t.Errorf("told it %d times, %d loops are left, forgot %v", told, len(d.loops), nodes.forgot)
		}
	})
}
