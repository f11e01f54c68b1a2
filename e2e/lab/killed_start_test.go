package lab_test

import (
	"os"
	"path/filepath"
	"testing"

	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// TestKilledAtItsStart: a lab that was killed while it made configured clusters goes on: a machine of which there is
// only a folder is none, and control planes without etcd get one.
func TestKilledAtItsStart(t *testing.T) {
	r := newRig(t)
	for i, name := range []string{"cp1", "cp2"} {
		_, err := r.lab.AddConfigured(node.Spec{Name: name, Address: r.addr(1 + i)}, r.config(mtype.TypeControlPlane, name))
		must(t, err)
	}
	must(t, r.lab.Close())
	must(t, os.MkdirAll(filepath.Join(r.dir, "nodes", "cp3", "STATE"), 0o700))
	r.open()
	if r.lab.Node("cp3") != nil {
		t.Fatal("a folder without a machine became one")
	}
	must(t, r.lab.EnsureEtcd(r.ctx, []string{"cp1", "cp2", "cp3"}))
	must(t, r.lab.FromConfigured(r.ctx, []lab.Configured{{Spec: node.Spec{Name: "cp3", Address: r.addr(3)}, Config: r.config(mtype.TypeControlPlane, "cp3")}}, ""))
	must(t, r.lab.Wait(r.ctx, "three voters", func() bool { return r.voters() == 3 }))
	// There is an etcd: nothing is bootstrapped a second time.
	must(t, r.lab.EnsureEtcd(r.ctx, []string{"cp1", "cp2", "cp3"}))
	if n := r.voters(); n != 3 {
		t.Errorf("%d voters after it was ensured again", n)
	}
}

// TestFormed: machines that run from the start are voters of one etcd, none of which was bootstrapped or joined; one
// that loses its data afterwards joins as any other.
func TestFormed(t *testing.T) {
	r := newRig(t)
	var list []lab.Configured
	for i, name := range []string{"cp1", "cp2", "cp3"} {
		list = append(list, lab.Configured{Spec: node.Spec{Name: name, Address: r.addr(1 + i)}, Config: r.config(mtype.TypeControlPlane, name)})
	}
	must(t, r.lab.FromConfigured(r.ctx, list, "cp1"))
	if n := r.voters(); n != 3 {
		t.Fatalf("%d voters at once, want 3", n)
	}
	cl, err := r.lab.EtcdClient(r.ctx)
	must(t, err)
	defer cl.Close()
	before, err := cl.MemberList(r.ctx)
	must(t, err)
	must(t, r.lab.Wipe("cp2"))
	must(t, r.lab.WaitMaintenance(r.ctx, "cp2"))
	must(t, r.lab.Remove("cp2"))
	_, err = r.lab.AddConfigured(list[1].Spec, list[1].Config)
	must(t, err)
	must(t, r.lab.Wait(r.ctx, "cp2 to join anew", func() bool {
		after, err := cl.MemberList(r.ctx)
		if err != nil || len(after.Members) != 3 {
			return false
		}
		known := map[uint64]bool{}
		for _, m := range before.Members {
			known[m.ID] = true
		}
		for _, m := range after.Members {
			if m.Name == "cp2" && !m.IsLearner && !known[m.ID] {
				return true
			}
		}
		return false
	}))
}
