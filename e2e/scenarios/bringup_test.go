package scenarios

import (
	"fmt"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/status/fold"
)

// TestBootstrapWaitsForEveryControlPlane: one that can't be reached may have etcd's data, so nobody is bootstrapped
// until it was seen waiting; then it happens once, though ichor is killed right after it.
func TestBootstrapWaitsForEveryControlPlane(t *testing.T) {
	for _, c := range []struct{ name, net, cutWhen string }{
		{"silent from the start", "127.20.15", "at once"},
		{"silent after the first was installed", "127.20.18", "installed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, harness.Fleet{Net: c.net, ControlPlanes: 3, Workers: 1}, false)
			if c.cutWhen == "installed" {
				r.start()
				r.until("cp1 is installed", func() (bool, string) { return r.writes()["cp1"].configurations > 0, "waiting" })
			}
			r.node(cli.NodeAct{Act: "cut", Name: "cp3"})
			if c.cutWhen == "at once" {
				r.start()
			}
			r.waitSaying("main", nodesStatus, "failure", "cp3 unreachable")
			r.looks(8)
			r.bootstraps(0)
			r.clusterWhere("that etcd waits for cp3", func(c fold.Cluster) (bool, string) {
				var seen []string
				for _, m := range c.Machines {
					seen = append(seen, m.Name+": "+m.Mode+" "+m.Message)
					if m.Name != "cp3" && strings.Contains(m.Message, "cp3") {
						return true, ""
					}
				}
				return false, strings.Join(seen, "; ")
			})

			r.node(cli.NodeAct{Act: "heal", Name: "cp3"})
			r.until("etcd is bootstrapped", func() (bool, string) { return r.countBootstraps() > 0, "waiting" })
			r.ichor.Kill()
			r.start()
			r.wait("main", applyStatus, "success")
			r.bootstraps(1)
			r.broughtUp()
		})
	}
}

// broughtUp fails unless each node took one configuration and etcd has all members.
func (r *rig) broughtUp() {
	r.Helper()
	for name, n := range r.writes() {
		if n.configurations != 1 || n.reboots != 0 {
			r.Errorf("%s took %+v, want one configuration", name, n)
		}
	}
	r.clusterWhere("every etcd member", func(c fold.Cluster) (bool, string) {
		return len(c.Members) == r.fleet.ControlPlanes, fmt.Sprintf("%+v", c.Members)
	})
}

func (r *rig) countBootstraps() int {
	r.Helper()
	sum := 0
	for _, n := range r.writes() {
		sum += n.bootstraps
	}
	return sum
}

func (r *rig) bootstraps(want int) {
	r.Helper()
	if got := r.countBootstraps(); got != want {
		r.Errorf("etcd was bootstrapped %d times, want %d", got, want)
	}
}
