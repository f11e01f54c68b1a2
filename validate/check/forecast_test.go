package check_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/validate/check"
)

func plan(r *check.Report) string {
	var b strings.Builder
	for _, s := range r.Plan {
		b.WriteString(s.Action + " " + s.Machine)
		for _, x := range []string{s.Quorum, s.RefusedNow} {
			if x != "" {
				b.WriteString(" | " + x)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestPlanSaysTheQuorum: what etcd has at each step, from the first member on.
func TestPlanSaysTheQuorum(t *testing.T) {
	base := example(t)
	r, _ := run(t, base, nil, false)
	want := `install cp1
install cp2
install cp3
bootstrap cp1 | 1 of 1 members, 1 needed
join cp1 | 1 of 1 members, 1 needed
join cp2 | 2 of 2 members, 2 needed
join cp3 | 3 of 3 members, 2 needed
install w1
join w1
`
	if got := plan(r); got != want {
		t.Errorf("bring-up:\n%s\nwant:\n%s", got, want)
	}
	r, _ = run(t, edit(base, "patches.yaml", `v: "2"`, `v: "4"`), base, true)
	want = `configure cp1 | 3 of 3 members, 2 needed
configure cp2 | 3 of 3 members, 2 needed
configure cp3 | 3 of 3 members, 2 needed
`
	if got := plan(r); got != want {
		t.Errorf("a restart of the API servers:\n%s\nwant:\n%s", got, want)
	}
	for what, entry := range map[string]string{
		"a restart of etcd": "    - cluster:\n        etcd:\n          extraArgs:\n            a: b\n", "a reboot": "    - machine:\n        env:\n          A: b\n",
	} {
		head := edit(base, "patches.yaml", "    - cluster:\n        apiServer:", entry+"    - cluster:\n        apiServer:")
		r, _ = run(t, head, base, true)
		if got := plan(r); strings.Count(got, " | 2 of 3 members stay, 2 needed\n") != 3 {
			t.Errorf("%s:\n%s", what, got)
		}
	}
}

// TestPlanSaysWhatWouldBeRefusedNow: by what was last seen, with its time, and never part of the verdict.
func TestPlanSaysWhatWouldBeRefusedNow(t *testing.T) {
	base := example(t)
	head := edit(base, "patches.yaml", `v: "2"`, `v: "4"`)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	seen := func(change func(*state.ObservedCluster)) string {
		cl := state.ObservedCluster{At: now.Add(-3 * time.Minute), Voters: 3, Machines: map[string]state.ObservedMachine{
			"cp1": {TalosVersion: "v1.13.5"}, "cp2": {TalosVersion: "v1.13.5"}, "cp3": {TalosVersion: "v1.13.5"}, "w1": {TalosVersion: "v1.13.5"},
		}}
		change(&cl)
		r, _, err := check.Run(t.Context(), check.Input{FS: head, BaseFS: base, ExcuseBase: true, Observed: &state.Observation{
			Now: now, Clusters: map[string]state.ObservedCluster{"prod": cl},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Verdict != check.Passed || len(r.NotChecked) > 0 {
			t.Errorf("what was observed is part of the verdict: %s\n%v", story(r), r.NotChecked)
		}
		return plan(r)
	}
	const age = " (seen 2026-11-30 11:57 UTC, 3m before this check)"
	for name, c := range map[string]struct {
		change func(*state.ObservedCluster)
		want   []string
	}{
		"all is well": {func(*state.ObservedCluster) {}, nil},
		"held":        {func(c *state.ObservedCluster) { c.Held = "AdoptionPending" }, []string{"the cluster is held: AdoptionPending" + age}},
		"silent": {func(c *state.ObservedCluster) {
			c.Machines["cp2"] = state.ObservedMachine{SilentSince: now.Add(-time.Hour), TalosVersion: "v1.13.5"}
		}, []string{"configure cp1 | 3 of 3 members, 2 needed | cp2 has not answered since 2026-11-30 11:00 UTC" + age}},
		"not ready": {func(c *state.ObservedCluster) {
			c.Machines["cp3"] = state.ObservedMachine{Reason: "ServicesDown", TalosVersion: "v1.13.5"}
		}, []string{"control plane cp3 is not ready: ServicesDown" + age}},
		"joining": {func(c *state.ObservedCluster) { c.Learners = 1 }, []string{"a member of etcd is still joining" + age}},
		"fewer":   {func(c *state.ObservedCluster) { c.Voters = 2 }, []string{"etcd lists 2 voters, and 3 control planes are approved" + age}},
	} {
		got := seen(c.change)
		if len(c.want) == 0 && strings.Contains(got, "seen") {
			t.Errorf("%s: %s", name, got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: no %q in\n%s", name, w, got)
			}
		}
	}
}

// TestSeenRemovals: what was last seen is said beside the refusal of a removal, dated, and changes no verdict.
func TestSeenRemovals(t *testing.T) {
	base := edit(example(t), "cp3.yaml", "name: cp3\n", "name: cp3\n  annotations:\n    ichor.maesh.dev/allow-delete: \"true\"\n")
	head := maps.Clone(base)
	delete(head, "cp3.yaml")
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	check1 := func(cl state.ObservedCluster) *check.Report {
		cl.At = now.Add(-2 * time.Hour)
		r, _, err := check.Run(t.Context(), check.Input{FS: head, BaseFS: base, ExcuseBase: true, Observed: &state.Observation{
			Now: now, Clusters: map[string]state.ObservedCluster{"prod": cl},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := check1(state.ObservedCluster{Machines: map[string]state.ObservedMachine{"cp3": {SilentSince: now.Add(-3 * time.Hour)}}})
	got := story(r)
	for _, want := range []string{
		"failed\n", "error delete", "below the declared count of 3", "warning delete",
		"control plane cp3 has not answered since 2026-11-30 09:00 UTC (seen 2026-11-30 10:00 UTC, 2h before this check): one that is proved dead may leave below the declared count",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if got := story(check1(state.ObservedCluster{Machines: map[string]state.ObservedMachine{"cp3": {}}})); strings.Contains(got, "warning delete") {
		t.Errorf("a control plane that answers gets a warning:\n%s", got)
	}
	if got := story(check1(state.ObservedCluster{Voters: 2, Machines: map[string]state.ObservedMachine{"cp3": {}}})); !strings.Contains(got, "error delete") {
		t.Errorf("the verdict hangs on what was seen:\n%s", got)
	}
}
