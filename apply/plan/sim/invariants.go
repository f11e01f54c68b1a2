package sim

import (
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
)

// checkAct holds an action on a node against what must never happen, with the truth of the world, not with facts. It is
// called before the precondition is read again, but judges only what that reading lets through.
func (f *fleet) checkAct(i *ichor, n *node, a plan.Action) {
	if !i.expected(n, a) {
		return
	}
	d := i.decided.Desired
	want := i.want(n.name)
	if want == nil || want.Approval != "approved" {
		f.violated("%s of %s, which is not approved", a.Kind, n.name)
		return
	}
	if d.Observe || d.Suspend || !d.CheckPassed || len(d.Holds) > 0 {
		f.violated("%s of %s while the cluster is held", a.Kind, n.name)
	}
	if f.now.Before(n.otherUntil) {
		f.violated("%s of %s while another box answers there", a.Kind, n.name)
	}
	if !n.tryEnds.IsZero() && a.Kind != plan.DoConfirm {
		f.violated("%s of %s while a try is pending", a.Kind, n.name)
	}
	if a.Kind == plan.DoConfigure && f.wishes[n.name] == n.running && n.running == n.stored {
		f.violated("%s was configured though it has the wish", n.name)
	}
	if a.Kind == plan.DoReboot && !n.needsReboot() && f.now.Sub(n.driftAt) > 10*time.Second {
		f.violated("%s was rebooted for nothing", n.name)
	}
	if a.Kind == plan.DoReboot && (d.Reboot == "manual" || d.Reboot == "window" && !d.InWindow) {
		f.violated("%s was rebooted, which the policy leaves to a person or a window", n.name)
	}
	if n.role == plan.RoleControlPlane && n.configured && a.Kind != plan.DoConfirm {
		f.checkControlPlane(n, a)
	}
}

// checkControlPlane: what is disrupted leaves quorum, nobody else is down, the leader is not disrupted.
func (f *fleet) checkControlPlane(n *node, a plan.Action) {
	wish := f.wishes[n.name]
	disrupts := a.Kind == plan.DoReboot || (a.Kind == plan.DoConfigure && a.Send == plan.SendNoReboot && wish.Restart != n.running.Restart)
	if !disrupts || !n.etcdUp(f.now) || n.learner {
		return
	}
	all, up := f.voters()
	if len(all) == 1 {
		return
	}
	if len(up)-1 < len(all)/2+1 {
		f.violated("%s of %s takes quorum: %d of %d voters up", a.Kind, n.name, len(up), len(all))
	}
	for _, o := range f.nodes {
		if o != n && o.member != 0 && !o.etcdUp(f.now) {
			f.violated("%s of %s while %s is down", a.Kind, n.name, o.name)
		}
	}
	if f.leader == n.member {
		f.violated("%s of %s, which leads", a.Kind, n.name)
	}
	if len(all)%2 == 0 {
		f.violated("%s of %s with %d voters", a.Kind, n.name, len(all))
	}
}

// checkAlways is asked after each pass.
func (f *fleet) checkAlways() {
	broken, workers := map[int]int{}, map[int]int{} // by the commit that made it bad
	for _, n := range f.nodes {
		bad := n.running.Bad == "break" || n.running.Bad == "cut" && f.now.Before(n.badUntil)
		if !n.configured || !n.badAsMember || !bad {
			continue
		}
		if n.role == plan.RoleControlPlane {
			broken[n.running.BadAt]++
		} else {
			workers[n.running.BadAt]++
		}
	}
	for at, n := range broken {
		if n > 1 {
			f.violated("a bad configuration of commit %d went on to %d control planes", at, n)
		}
	}
	for at, n := range workers {
		if n > f.desired.WorkerMaxUnavailable {
			f.violated("a bad configuration of commit %d went on to %d workers", at, n)
		}
	}
}
