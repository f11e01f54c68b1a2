package apply_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/act"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/e2e/lab/wire"
	"ichor.maesh.dev/ichor/schemas/state"
)

// three brings up a cluster of three, with its identities pinned and a short grace.
func three(t *testing.T) *rig {
	r := newRig(t)
	for _, name := range []string{"cp1", "cp2", "cp3"} {
		r.add(name, plan.RoleControlPlane)
	}
	r.bringUp()
	r.desired.Grace = 300 * time.Millisecond
	r.pin("cp1", "cp2", "cp3")
	return r
}

// pin records who the machines are.
func (r *rig) pin(names ...string) {
	r.Helper()
	for _, name := range names {
		f := r.look(name)[name]
		r.done(plan.Action{Kind: plan.RecordIdentity, Machine: name, Identity: f.Identity, Joined: true})
	}
}

// listed gives the member IDs as a control plane lists them.
func (r *rig) listed(by string) string {
	r.Helper()
	var ids []string
	f := r.until(by, "listing members", func(f plan.MachineFacts) bool { return f.Etcd != nil && f.Etcd.Members != nil })
	for _, m := range f.Etcd.Members {
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

func (r *rig) member(name string) string { return r.inventory().Machines[name].Identity.MemberID }

// removeDead is the action of plan for a dead cp3.
func (r *rig) removeDead() plan.Action {
	return plan.Action{
		Kind: plan.DoRemoveMember, Machine: "cp3", Via: "cp1", MemberID: r.member("cp3"),
		Expect: plan.Expect{Dead: true, OthersHealthy: []string{"cp1", "cp2"}, MemberListed: r.member("cp3")},
	}
}

// waitDead looks until cp3 is proved dead.
func (r *rig) waitDead() {
	r.Helper()
	for {
		f := r.look()
		siblings := map[string]plan.MachineFacts{"cp1": f["cp1"], "cp2": f["cp2"]}
		v := plan.Dead(plan.Death{
			Now: time.Now(), Grace: r.desired.Grace, MaxAge: 10 * time.Second, Pinned: r.inventory().Machines["cp3"].Identity,
			Facts: f["cp3"], Siblings: siblings,
		})
		if v.Is == plan.Yes {
			return
		}
		if r.ctx.Err() != nil {
			r.Fatalf("cp3 is not proved dead: %s", v.Why)
		}
	}
}

func TestDeadMemberIsRemovedThroughASibling(t *testing.T) {
	r := three(t)
	// while it lives nothing is called, whatever was decided
	res := r.do(r.removeDead())
	r.wantOutcome(res, act.NotDone, act.KindPrecondition)
	if !strings.Contains(res.Message, "it is healthy") || len(r.inventory().Intents) != 0 {
		t.Fatalf("%s %+v", res.Message, r.inventory().Intents)
	}
	must(t, r.lab.Kill("cp3"))
	r.waitDead()
	// by a wrong ID, or by none, nothing is called
	wrong := r.removeDead()
	wrong.MemberID, wrong.Expect.MemberListed = "00000000000000aa", "00000000000000aa"
	r.wantOutcome(r.do(wrong), act.NotDone, act.KindPrecondition)
	bare := r.removeDead()
	bare.Expect.MemberListed = ""
	r.wantOutcome(r.do(bare), act.NotDone, act.KindOther)

	r.done(r.removeDead())
	if ids := r.listed("cp1"); strings.Contains(ids, r.member("cp3")) || len(strings.Fields(ids)) != 2 {
		t.Fatalf("members are %s", ids)
	}
	in := r.inventory().Intents
	if len(in) != 1 || in[0].Act != state.ActRemoveMember || !in[0].Sent || in[0].Detail["member"] != r.member("cp3") || in[0].UUID == "" {
		t.Fatalf("intents: %+v", in)
	}
	r.closeIntents(plan.OutcomeDone)
	// once more: it is not listed, so nothing is called
	r.wantOutcome(r.do(r.removeDead()), act.NotDone, act.KindPrecondition)
}

// TestSiblingReachesIt: what only Ichor can't reach is not dead.
func TestSiblingReachesIt(t *testing.T) {
	r := three(t)
	must(t, r.lab.CutBetween(wire.Outside, "cp3"))
	f := r.until("cp3", "unreachable with a look through a sibling", func(f plan.MachineFacts) bool { return f.Reach == plan.ReachUnreachable && f.Proxy != nil })
	if f.Proxy.Reach != plan.ReachOK {
		t.Fatalf("through %s: %s %s", f.Proxy.Via, f.Proxy.Reach, f.Proxy.Error)
	}
	time.Sleep(2 * r.desired.Grace)
	res := r.do(r.removeDead())
	r.wantOutcome(res, act.NotDone, act.KindPrecondition)
	if !strings.Contains(res.Message, "it answers through") {
		t.Error(res.Message)
	}
	if ids := r.listed("cp1"); len(strings.Fields(ids)) != 3 {
		t.Errorf("members are %s", ids)
	}
}

// TestLostRepliesOfARemoval: the call arrived, its answer did not; and the other way round.
func TestLostRepliesOfARemoval(t *testing.T) {
	r := three(t)
	must(t, r.lab.Kill("cp3"))
	r.waitDead()
	r.lab.LoseReply("cp1", "EtcdRemoveMemberByID")
	r.wantOutcome(r.do(r.removeDead()), act.Unknown, "unreachable")
	if in := r.inventory().Intents; len(in) != 1 || in[0].Sent {
		t.Fatalf("intents: %+v", in)
	}
	if ids := r.listed("cp2"); len(strings.Fields(ids)) != 2 {
		t.Fatalf("members are %s", ids)
	}
}

func TestLiveMemberLeaves(t *testing.T) {
	r := three(t)
	cp3 := r.look("cp3")["cp3"]
	expect := plan.Expect{
		Mode: plan.ModeConfigured, UUID: cp3.Identity.UUID, NodeID: cp3.Identity.NodeID, MemberID: r.member("cp3"),
		OthersHealthy: []string{"cp1", "cp2"},
	}
	reset := plan.Action{Kind: plan.DoReset, Machine: "cp3", Wipe: "system", After: "reboot", Expect: expect}
	reset.Expect.MemberGone, reset.Expect.MemberID = r.member("cp3"), ""
	res := r.do(reset)
	r.wantOutcome(res, act.NotDone, act.KindPrecondition)
	if !strings.Contains(res.Message, "still lists member") {
		t.Fatal(res.Message)
	}
	if cp3.Etcd.Leader == r.member("cp3") {
		r.done(plan.Action{Kind: plan.DoForfeit, Machine: "cp3", Expect: expect})
		r.until("cp1", "with another leader", func(f plan.MachineFacts) bool {
			return f.Etcd != nil && f.Etcd.Leader != "" && f.Etcd.Leader != r.member("cp3")
		})
	}
	remove := plan.Action{Kind: plan.DoRemoveMember, Machine: "cp3", Via: "cp2", MemberID: r.member("cp3"), Expect: expect}
	remove.Expect.MemberListed = r.member("cp3")
	for deadline := time.Now().Add(20 * time.Second); ; {
		res := r.do(remove) // the others may not have caught up with the new leader yet
		if res.Outcome == act.Done {
			break
		}
		// etcd refuses while a member is connected for less than its health interval of 5 s
		if res.Kind != act.KindPrecondition && res.Kind != "etcd-refused" || time.Now().After(deadline) || len(r.inventory().Intents) > 0 {
			t.Fatalf("%+v", res)
		}
	}
	r.closeIntents(plan.OutcomeDone)
	for deadline := time.Now().Add(20 * time.Second); ; {
		res := r.do(reset)
		if res.Outcome == act.Done {
			break
		}
		if res.Kind != act.KindPrecondition || time.Now().After(deadline) {
			t.Fatalf("%+v", res)
		}
	}
	in := r.inventory().Intents
	if len(in) != 1 || in[0].Act != state.ActReset || !in[0].Sent || in[0].Detail["wipe"] != "system" || in[0].BootID == "" {
		t.Fatalf("intents: %+v", in)
	}
	f := r.until("cp3", "back in maintenance mode", func(f plan.MachineFacts) bool { return f.Mode == plan.ModeMaintenance })
	if f.Identity.UUID != cp3.Identity.UUID {
		t.Errorf("UUID %s was %s", f.Identity.UUID, cp3.Identity.UUID)
	}
	r.closeIntents(plan.OutcomeDone)
	// what was done is recorded; the machine is not known any more as one of the cluster
	r.done(plan.Action{Kind: plan.RecordRemoved, Machine: "cp3", Removal: &state.Removal{Kind: state.RemovalReplace, Commit: "c1", DoneAt: time.Now()}})
	if m := r.inventory().Machines["cp3"]; m.Identity != (state.Identity{}) || !m.JoinedAt.IsZero() || m.SentDigest != "" || m.Removal == nil {
		t.Errorf("%+v", m)
	}
	// and comes up anew
	r.done(plan.Action{Kind: plan.DoInstall, Machine: "cp3", Expect: plan.Expect{Mode: plan.ModeMaintenance}})
	r.until("cp3", "a member again", well("cp3", plan.RoleControlPlane))
}

// TestLastMemberIsNotRemoved: etcd refuses it, a member that is not there is told apart, and a name is no ID.
func TestLastMemberIsNotRemoved(t *testing.T) {
	r := newRig(t)
	r.add("cp1", plan.RoleControlPlane)
	d, err := r.observer.Dialer(r.spec)
	must(t, err)
	r.bringUp()
	c, err := d.Secure(r.machine("cp1").Endpoint, talos.Admin)
	must(t, err)
	ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
	defer cancel()
	f := r.look("cp1")["cp1"]
	err = c.RemoveMember(ctx, f.Identity.MemberID)
	if err == nil || !strings.Contains(fmt.Sprint(err), "not enough started members") {
		t.Fatalf("the last member was removed: %v", err)
	}
	if err := c.RemoveMember(ctx, "00000000000000aa"); err == nil || !strings.Contains(err.Error(), "not found") && !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("a member that is not there: %v", err)
	}
	if err := c.RemoveMember(ctx, "cp1"); err == nil {
		t.Error("a name was taken for an ID")
	}
}
