package apply_test

import (
	"errors"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/etcd"
	"ichor.maesh.dev/ichor/apply/plan"
)

// TestQuorumLost asks etcd itself and through Talos while members go away.
func TestQuorumLost(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"cp1", "cp2", "cp3"} {
		r.add(name, plan.RoleControlPlane)
	}
	r.bringUp()
	c, err := etcd.New(r.bundle, time.Now)
	must(t, err)
	defer c.Close()
	ep := r.machine("cp1").Endpoint
	look, err := c.Look(r.ctx, ep+":50000")
	must(t, err)
	if !look.LinearizableRead || len(look.Members) != 3 || look.Leader == "" || look.MemberID == "" || look.AppliedIndex == 0 || look.Learner || len(look.Alarms) != 0 {
		t.Fatalf("healthy: %+v", look)
	}
	must(t, r.lab.Kill("cp2"))
	must(t, r.lab.Kill("cp3"))
	f := r.until("cp1", "without a quorum", func(f plan.MachineFacts) bool {
		return f.Etcd != nil && f.Etcd.LinearizableRead != nil && !*f.Etcd.LinearizableRead
	})
	if plan.HealthyMember(f).Is != plan.No {
		t.Errorf("a member without a quorum is healthy: %+v", f.Etcd)
	}
	began := time.Now()
	if look, err = c.Look(r.ctx, ep); err == nil && look.LinearizableRead {
		t.Errorf("a linearizable read without a quorum: %+v", look)
	}
	if _, err := c.Look(r.ctx, r.machine("cp2").Endpoint); !errors.Is(err, etcd.ErrNoAnswer) {
		t.Errorf("a dead member: %v", err)
	}
	if took := time.Since(began); took > 3*etcd.Timeout {
		t.Errorf("both looks took %s", took)
	}
	other, err := made[1]()
	must(t, err)
	foreign, err := etcd.New(other, time.Now)
	must(t, err)
	defer foreign.Close()
	if _, err := foreign.Look(r.ctx, ep); !errors.Is(err, etcd.ErrNoAnswer) {
		t.Errorf("with another cluster's CA: %v", err)
	}
}
