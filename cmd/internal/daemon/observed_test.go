package daemon

import (
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/validate/check"
)

// TestChecksKnowWhatWasSeen: what the clusters' loops saw of the nodes is a warning of the next check, never its verdict.
func TestChecksKnowWhatWasSeen(t *testing.T) {
	h := newHistory()
	one := h.commit("one", "", tree("cp1", "w1"))
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	say := newPublisher(quiet(), func() time.Time { return now }, newPages(), &fakeStatuses{}, metrics.New("test"))
	c := newCommits(h)
	c.now, c.observed = func() time.Time { return now }, say.observation
	warned := func() bool {
		c.results = nil
		r, err := c.head(t.Context(), one)
		if err != nil || r.report.Verdict != check.Passed {
			t.Fatalf("%v %+v", err, r)
		}
		for _, p := range r.report.Problems {
			if p.Rule == "running-version" {
				return true
			}
		}
		return false
	}
	if warned() {
		t.Error("a warning about nodes that nobody saw")
	}
	say.cluster(&target{}, now.Add(-time.Minute), fold.Cluster{Name: "prod", Machines: []fold.Machine{{Name: "w1", TalosVersion: "v1.11.5"}}}, nil)
	if !warned() {
		t.Error("no warning that w1 runs a Talos that does not know its configuration")
	}
	if o := say.observation(now); o.Clusters["prod"].At != now.Add(-time.Minute) || o.Now != now || o.Clusters["prod"].Machines["w1"] != (state.ObservedMachine{TalosVersion: "v1.11.5"}) {
		t.Errorf("%+v", o)
	}
}
