package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"ichor.maesh.dev/ichor/status/metrics"
)

func TestSeriesOfAMachineComeAndGo(t *testing.T) {
	m := metrics.New("v0")
	m.Machine("prod", "w1", false, true, false, 90*time.Second)
	m.Machine("prod", "w2", true, false, true, 0)
	want := `
# HELP ichor_node_reachable 1 if the machine's Talos API answered the last read, else 0.
# TYPE ichor_node_reachable gauge
ichor_node_reachable{cluster="prod",machine="w1"} 0
ichor_node_reachable{cluster="prod",machine="w2"} 1
`
	if err := testutil.GatherAndCompare(m.Registry(), strings.NewReader(want), "ichor_node_reachable"); err != nil {
		t.Fatal(err)
	}
	m.ForgetMachine("prod", "w1")
	if n, err := testutil.GatherAndCount(m.Registry(), "ichor_node_reachable"); err != nil || n != 1 {
		t.Fatalf("%d series left, %v", n, err)
	}
	m.ForgetCluster("prod")
	if n, err := testutil.GatherAndCount(m.Registry(), "ichor_node_reachable"); err != nil || n != 0 {
		t.Fatalf("%d series left, %v", n, err)
	}
}

func TestNoMetricHasACommitLabelAndNamesPassTheLinter(t *testing.T) {
	m := metrics.New("v0")
	m.Machine("c", "m", true, true, false, 0)
	m.Check("passed", time.Second)
	m.CheckHead(true, 0, 1)
	m.Apply("c", "done", 1, 1, time.Unix(1, 0))
	m.Etcd("c", metrics.Etcd{Voters: 3, Healthy: 2})
	m.Dead("c", "m", true)
	m.Removal("c", "m", "waiting", 1, time.Unix(1, 0))
	m.Drain("c", "m", time.Second, 1)
	m.Discovered("c", 1)
	m.Action("c", "reboot", "done")
	m.Git("", time.Unix(1, 0))
	m.Git("transient", time.Unix(2, 0))
	m.Forge("rate")
	m.Outbox(2)
	m.StatusBranch(false, true)
	m.Inventory(true)
	problems, err := testutil.GatherAndLint(m.Registry())
	if err != nil || len(problems) > 0 {
		t.Fatalf("%v %v", problems, err)
	}
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.Metric {
			for _, l := range metric.Label {
				if strings.Contains(l.GetName(), "commit") || strings.Contains(l.GetName(), "sha") {
					t.Errorf("%s has the label %s", f.GetName(), l.GetName())
				}
			}
		}
	}
}

func TestQuorumMargin(t *testing.T) {
	m := metrics.New("v0")
	for _, c := range []struct {
		etcd metrics.Etcd
		want string
	}{
		{metrics.Etcd{Voters: 3, Healthy: 3}, "1"},
		{metrics.Etcd{Voters: 3, Healthy: 2}, "0"},
		{metrics.Etcd{Voters: 3, Healthy: 1}, "-1"},
		{metrics.Etcd{Voters: 1, Healthy: 1}, "0"},
		{metrics.Etcd{Voters: 2, Healthy: 2}, "0"},
		{metrics.Etcd{Voters: 5, Learners: 1, Healthy: 5}, "2"},
	} {
		m.Etcd("prod", c.etcd)
		want := `
# HELP ichor_etcd_quorum_margin Healthy voters beyond the quorum of those listed: at 0 the next failure stops etcd, below 0 it has no quorum.
# TYPE ichor_etcd_quorum_margin gauge
ichor_etcd_quorum_margin{cluster="prod"} ` + c.want + "\n"
		if err := testutil.GatherAndCompare(m.Registry(), strings.NewReader(want), "ichor_etcd_quorum_margin"); err != nil {
			t.Errorf("%+v: %v", c.etcd, err)
		}
	}
	m.Etcd("prod", metrics.Etcd{})
	for _, name := range []string{"ichor_etcd_quorum_margin", "ichor_etcd_members", "ichor_etcd_members_healthy"} {
		if n, err := testutil.GatherAndCount(m.Registry(), name); err != nil || n != 0 {
			t.Errorf("without a list %d series of %s are left, %v", n, name, err)
		}
	}
}

func TestSeriesOfARemovalComeAndGo(t *testing.T) {
	m := metrics.New("v0")
	m.Removal("prod", "cp3", "refused", 0, time.Time{})
	m.Drain("prod", "cp3", time.Minute, 2)
	for name, want := range map[string]int{"ichor_removal_state": 5, "ichor_removal_steps_over": 1, "ichor_drain_seconds": 1, "ichor_drain_blocked_pods": 1} {
		if n, err := testutil.GatherAndCount(m.Registry(), name); err != nil || n != want {
			t.Errorf("%d series of %s, not %d, %v", n, name, want, err)
		}
	}
	m.Removal("prod", "cp3", "", 0, time.Time{})
	m.Drain("prod", "cp3", -1, 0)
	for _, name := range []string{"ichor_removal_state", "ichor_removal_steps_over", "ichor_removal_changed_timestamp_seconds", "ichor_drain_seconds", "ichor_drain_blocked_pods"} {
		if n, err := testutil.GatherAndCount(m.Registry(), name); err != nil || n != 0 {
			t.Errorf("%d series of %s are left, %v", n, name, err)
		}
	}
}
