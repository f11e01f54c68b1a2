package plan

import (
	"sort"

	"ichor.maesh.dev/ichor/schemas/state"
)

// runFinish finishes what was started: outcomes of intents, pins, tries to be confirmed, configurations that prove
// themselves, pending reboots.
func runFinish(w *world) {
	if w.in.Inventory == nil || w.in.Desired.Suspend || w.in.Desired.Observe {
		return
	}
	for _, m := range w.ms {
		for _, it := range m.intents {
			w.settle(m, it)
		}
	}
	for _, m := range w.approved() {
		if m.taken || !w.in.Inventory.Adopted || !w.in.Desired.CheckPassed {
			continue
		}
		w.watch(m)
		if m.answersConfigured() && !m.taken {
			w.pin(m)
		}
		if m.answersConfigured() && !m.taken && m.inv != nil {
			w.prove(m)
		}
	}
	for _, m := range w.rebootOrder() {
		if !m.taken {
			w.reboot(m)
		}
	}
}

// watch notes a failure of what was sent: a try that cut Ichor off, or a machine that is not well with it.
func (w *world) watch(m *machine) {
	if !m.sent() || m.failed() || m.recorded() || m.inv.SentAt.IsZero() || m.facts == nil || m.facts.At.Before(m.inv.SentAt) || len(m.intents) > 0 {
		return
	}
	now, f := w.in.Now, m.facts
	if m.inv.SentMode == string(SendTry) && w.tryLeft(m) > 0 {
		w.watchTry(m)
		return
	}
	start := m.inv.SentAt
	if f.Since.After(start) {
		start = f.Since
	}
	limit := w.in.Policy.ConfigTimeout
	if !m.joined() {
		if m.controlPlane() && !w.othersRun(m) {
			return // it waits for the bootstrap, which is no failure
		}
		limit = w.joinTimeout(m, start)
	}
	if now.Sub(start) < limit || m.well() || (m.reach() == ReachOK && !w.equal(m)) {
		return
	}
	w.fail(m, m.digest(), "it is not well with the configuration that was sent: "+m.notWell())
}

// othersRun tells whether another control plane is a healthy member.
func (w *world) othersRun(m *machine) bool {
	for _, o := range w.cps {
		if o != m && o.healthyMember().Is == Yes {
			return true
		}
	}
	return false
}

// watchTry: a try after which the machine does not answer, or is not well, has failed; the node takes it back.
func (w *world) watchTry(m *machine) {
	now, f := w.in.Now, m.facts
	lost := m.reach() == ReachUnreachable && !f.Since.Before(m.inv.SentAt)
	switch {
	case lost && now.Sub(f.Since) >= w.in.Policy.UnreachableRetry:
		w.fail(m, m.digest(), "it could not be reached with the configuration on trial, and takes it back by itself")
	case lost:
		w.again(w.in.Policy.UnreachableRetry - now.Sub(f.Since))
	case m.reach() == ReachOK && w.ran(m) && !m.well() && w.tryLeft(m) <= w.in.Policy.TryMargin/2:
		w.fail(m, m.digest(), "it is not well with the configuration on trial, and takes it back by itself: "+m.notWell())
	}
}

// pin records who a machine is, that it joined, and that its Kubernetes node was ready.
func (w *world) pin(m *machine) {
	f := m.facts
	if f.Stage == "installing" || !w.adoption.free(m) || (m.inv == nil && !w.compared(m)) {
		return
	}
	id := f.Identity
	var was state.Identity
	if m.inv != nil {
		was = m.inv.Identity
	}
	changed := (id.UUID != "" && id.UUID != was.UUID) || (id.NodeID != "" && id.NodeID != was.NodeID) ||
		(id.NodeName != "" && id.NodeName != was.NodeName) || (id.MemberID != "" && id.MemberID != was.MemberID)
	joined := !m.joined() && f.Stage == "running" && (!m.controlPlane() || w.notJoined(m) == "")
	if changed || joined {
		w.record(m, Action{Kind: RecordIdentity, Identity: id, Joined: joined, Reason: "its identity is proved"})
	}
	if f.NodeReady != nil && *f.NodeReady && m.inv != nil && !m.inv.NodeReadySeen {
		w.record(m, Action{Kind: RecordNodeReady, Reason: "its Kubernetes node is ready"})
	}
}

// prove brings a configuration that is on the node to its end: a try is confirmed, one in force is recorded.
func (w *world) prove(m *machine) {
	if w.tryLeft(m) > 0 || w.tryByOther(m) {
		w.proveTry(m)
		return
	}
	if len(m.inv.RebootPending) > 0 && m.inv.RebootPendingBootID != "" && m.facts.BootID != "" && m.facts.BootID != m.inv.RebootPendingBootID && w.equal(m) {
		w.record(m, Action{Kind: RecordRebootPending, Digest: m.digest(), Reason: "it was rebooted: nothing waits for a reboot any more"})
		return
	}
	if m.recorded() && !m.failed() || !w.equal(m) || len(w.pendingReboot(m)) > 0 || m.want.CheckedDigest != m.digest() || len(m.intents) > 0 {
		return
	}
	if m.controlPlane() && m.etcdEmpty() && !w.bootstrapped() {
		return // it waits for the bootstrap
	}
	if !m.well() {
		m.say(state.ReasonProgressing, "its configuration is on it, but it is not well: "+m.notWell())
		w.look(m, "its configuration is on it and has to prove itself")
		return
	}
	if left := w.in.Desired.Settle - m.wellFor(); left > 0 {
		m.say(state.ReasonProgressing, "its configuration is on it and has to prove itself for the settle time")
		w.watchFor(m, left, "its configuration has to prove itself")
		return
	}
	w.record(m, Action{Kind: RecordInForce, Digest: m.digest(), Reason: "its configuration is in force"})
	w.event(m, state.ReasonConverged, "configuration in force on "+m.name)
}

// ran tells whether the wish is what runs on the node (stored or not), as seen since it was sent.
func (w *world) ran(m *machine) bool { return w.compared(m) && m.facts.Config.Equal }

// tryByOther: running is the wish, stored is not, and no try of ours is known to be pending: it may be one whose note or
// whose confirmation was lost, or someone staged something else. All are ended by sending the wish for good.
func (w *world) tryByOther(m *machine) bool { return w.compared(m) && m.facts.Config.TryPending }

func (w *world) proveTry(m *machine) {
	switch {
	case !m.sent() && !w.tryByOther(m), !w.compared(m) && m.sent():
		if m.sent() {
			w.look(m, "it runs a configuration on trial")
		}
		m.say(state.ReasonWaiting, "it runs another configuration on trial; nothing is sent until that is taken back")
		w.again(max(w.tryLeft(m), w.in.Policy.Poll))
		return
	case !w.ran(m):
		m.say(state.ReasonWaiting, "a configuration was sent on trial and is not seen on it; nothing is sent until the trial is over")
		w.again(w.tryLeft(m))
		return
	case m.failed():
		m.say(state.ReasonFailed, m.failure())
		return
	case !m.well():
		m.say(state.ReasonProgressing, "it runs the configuration on trial, but is not well: "+m.notWell())
		w.again(w.in.Policy.Poll)
		w.look(m, "it runs a configuration on trial")
		return
	}
	if left := w.in.Desired.Settle - m.wellFor(); left > 0 {
		m.say(state.ReasonProgressing, "it runs the configuration on trial and has to prove itself for the settle time")
		w.watchFor(m, left, "its configuration is on trial")
		return
	}
	if m.sent() && m.inv.SentMode != string(SendTry) && w.in.Now.Sub(m.facts.At) > w.in.Policy.Poll {
		// it was confirmed after these facts were read, or the confirmation was lost: only another look can tell
		m.say(state.ReasonProgressing, "its configuration was made permanent and is not seen to be yet")
		w.look(m, "its configuration was made permanent")
		return
	}
	a := wish{kind: DoConfirm, m: m}
	if w.refused(a) == nil {
		w.do(m, Action{Kind: DoConfirm, Digest: m.digest(), Expect: w.expect(a), Reason: "its configuration proved itself on trial: it is made permanent"})
	}
}

// rebootOrder: control planes that are begun first, then by rank.
func (w *world) rebootOrder() []*machine {
	out := w.byRank()
	sort.SliceStable(out, func(i, j int) bool { return w.begun(out[i]) && !w.begun(out[j]) })
	return out
}

// reboot reboots a machine whose configuration waits for it.
func (w *world) reboot(m *machine) {
	if !m.answersConfigured() || len(m.intents) > 0 || !w.in.Inventory.Adopted || !w.compared(m) || len(w.pendingReboot(m)) == 0 {
		return
	}
	a := wish{kind: DoReboot, m: m, destructive: true, changes: w.staged(m), disrupts: rebootDisrupts(m.role(), len(w.cps))}
	if w.refused(a) != nil {
		if left := w.in.Desired.Settle - m.wellFor(); left > 0 && m.sent() && !m.recorded() {
			w.watchFor(m, left, "what of its configuration is in force has to prove itself")
		}
		return
	}
	w.disrupt(a, Action{
		Kind: DoReboot, Digest: m.digest(), Disrupts: a.disrupts, Expect: w.expect(a),
		Reason: "its configuration comes into force by a reboot",
	})
}

// staged: the wish is stored on the node and waits for a reboot that the node can't do without.
func (w *world) staged(m *machine) bool {
	return w.compared(m) && m.facts.Config.Staged
}

// pendingReboot lists the paths that wait for a reboot of a machine, nil none.
func (w *world) pendingReboot(m *machine) []string {
	if m.inv == nil || m.facts == nil || !w.compared(m) {
		return nil
	}
	if w.staged(m) {
		return rebootPaths(m.facts.Config.Paths)
	}
	if len(m.inv.RebootPending) > 0 && w.equal(m) && m.inv.RebootPendingBootID == m.facts.BootID {
		return m.inv.RebootPending
	}
	return nil
}

// rebootPaths that need a reboot, as text; where none is named, all that differ.
func rebootPaths(paths []PathFact) []string {
	var out, all []string
	for _, p := range paths {
		text := p.Document + " " + p.Path
		all = append(all, text)
		if p.Effect == "reboot" {
			out = append(out, text)
		}
	}
	if out == nil {
		out = all
	}
	if out == nil {
		out = []string{"(unknown)"}
	}
	sort.Strings(out)
	return out
}
