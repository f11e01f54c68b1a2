package sim

import (
	"fmt"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"

	"ichor.maesh.dev/ichor/apply/plan"
)

// injectFaults is asked each second.
func (f *fleet) injectFaults() {
	n := f.nodes[f.rnd.IntN(len(f.nodes))]
	switch r := f.rnd.Float64(); {
	case r < 0.002:
		n.cutUntil = f.now.Add(f.between(5*time.Second, 5*time.Minute))
		f.note("fault: %s is cut off until %s", n.name, n.cutUntil.Format("15:04:05"))
	case r < 0.003:
		n.goDown(f.now, f.between(10*time.Second, 2*time.Minute), "rebooting")
		f.note("fault: %s reboots by itself", n.name)
	case r < 0.0035:
		n.goDown(f.now, f.between(time.Minute, 10*time.Minute), "off")
		f.note("fault: %s has no power until %s", n.name, n.downUntil.Format("15:04:05"))
	case r < 0.0045:
		f.pushFail = f.now.Add(f.between(10*time.Second, 3*time.Minute))
		f.note("fault: the status branch can't be reached until %s", f.pushFail.Format("15:04:05"))
	case r < 0.005:
		n.otherUntil = f.now.Add(f.between(10*time.Second, 3*time.Minute))
		f.note("fault: another box answers for %s", n.name)
	case r < 0.006:
		f.drift(n)
	case r < 0.009:
		f.moveGit()
	}
}

// drift: someone uses talosctl.
func (f *fleet) drift(n *node) {
	if !n.configured || !n.up(f.now) || !n.tryEnds.IsZero() {
		return
	}
	n.running.Live = -1 - f.rnd.IntN(100)
	n.stored, n.storedShown, n.driftAt = n.running, true, f.now
	f.note("fault: someone changes %s", n.name)
}

// moveGit pushes a new head: changes, bad ones, modes and holds.
func (f *fleet) moveGit() {
	bad := ""
	if f.chance(0.25) {
		bad = []string{"refuse", "break", "cut"}[f.rnd.IntN(3)]
	}
	kind := f.rnd.IntN(3)
	for _, n := range f.nodes {
		c := f.wishes[n.name]
		changed := f.chance(0.7)
		if c.Bad != "" || changed {
			c.Bad, c.BadAt = "", 0
			if changed && bad != "" {
				c.Bad, c.BadAt = bad, f.commits
			}
			switch kind {
			case 0:
				c.Live = f.commits*10 + 1
			case 1:
				c.Restart++
			case 2:
				c.Reboot++
			}
			f.wishes[n.name] = c
		}
	}
	switch r := f.rnd.Float64(); {
	case r < 0.05 && f.count(plan.RoleControlPlane) < 5:
		f.approve(plan.RoleControlPlane)
	case r < 0.10 && f.count(plan.RoleWorker) < 4:
		f.approve(plan.RoleWorker)
	}
	f.desired.Reboot = []string{"auto", "auto", "auto", "auto", "window", "manual"}[f.rnd.IntN(6)]
	f.desired.InWindow = f.chance(0.5)
	f.desired.Observe = f.chance(0.05)
	f.desired.CheckPassed = !f.chance(0.05)
	f.desired.Holds = nil
	if f.chance(0.05) {
		f.desired.Holds = []plan.Hold{{Reason: state.ReasonForcePush, Message: "the head does not descend from the last applied one"}}
	}
	f.commit("faults")
}

// finalHead is good, wanted, and another for every machine, so that it repairs what failed before.
func (f *fleet) finalHead() {
	for _, n := range f.nodes {
		c := f.wishes[n.name]
		c.Bad, c.BadAt, c.Live = "", 0, f.commits*10+5
		f.wishes[n.name] = c
		n.cutUntil, n.otherUntil = time.Time{}, time.Time{}
	}
	if cps := f.count(plan.RoleControlPlane); cps%2 == 0 { // an even number disrupts nothing: another is approved
		f.approve(plan.RoleControlPlane)
	}
	f.pushFail = time.Time{}
	f.desired.Observe, f.desired.CheckPassed, f.desired.Holds, f.desired.Reboot = false, true, nil, "auto"
	f.commit("the end")
}

func (f *fleet) count(role string) int {
	n := 0
	for _, m := range f.nodes {
		if m.role == role {
			n++
		}
	}
	return n
}

// approve one more machine, which waits in maintenance mode.
func (f *fleet) approve(role string) {
	name := fmt.Sprintf("w%d", f.count(role)+1)
	if role == plan.RoleControlPlane {
		name = fmt.Sprintf("cp%d", f.count(role)+1)
	}
	f.nodes = append(f.nodes, &node{name: name, role: role, uuid: "uuid-" + name, minor: f.nodes[0].minor})
	f.wishes[name] = config{Live: f.commits*10 + 3}
}
