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
