package plan

import (
	"slices"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// runConfigure brings the head's configuration onto configured machines: control planes one at a time, the leader
// last, then workers.
func runConfigure(w *world) {
	if w.in.Inventory == nil {
		return
	}
	for _, m := range w.byRank() {
		if !m.taken {
			w.configure(m)
		}
	}
}

// byRank are the machines of the head in the order in which they are worked on: control planes before workers; of the control planes first one that was begun, then one that is down, then
// the followers, the leader last; else by name.
func (w *world) byRank() []*machine {
	rank := func(m *machine) int {
		switch {
		case !m.controlPlane():
			return 4
		case w.begun(m):
			return 0
		case m.etcdDown():
			return 1
		case w.leads(m):
			return 3
		}
		return 2
	}
	var out []*machine
	for _, m := range w.ms {
		if m.want != nil {
			out = append(out, m)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return rank(out[i]) < rank(out[j]) })
	return out
}

// leads tells whether a machine's member is the etcd leader, as any control plane sees it.
func (w *world) leads(m *machine) bool {
	if m.facts == nil || m.facts.Etcd == nil || m.facts.Etcd.MemberID == "" {
		return false
	}
	for _, o := range w.cps {
		if o.facts != nil && o.facts.Etcd != nil && o.facts.Etcd.Leader == m.facts.Etcd.MemberID {
			return true
		}
	}
	return false
}

// compared: its configuration was compared with the wish, after the last thing that was sent.
func (w *world) compared(m *machine) bool {
	if m.reach() != ReachOK || m.facts.Config == nil || m.digest() == "" || m.facts.Config.ForDigest != m.digest() {
		return false
	}
	return m.inv == nil || !m.facts.Config.At.Before(m.inv.SentAt)
}

// equal: what runs and what is stored is the wish.
func (w *world) equal(m *machine) bool {
	return w.compared(m) && m.facts.Config.Equal && m.facts.Config.PersistentEqual
}

// drift: someone else changed the node; the wish is what Ichor saw in force.
func (w *world) drift(m *machine) bool {
	return w.compared(m) && !w.equal(m) && m.recorded() && (m.inv.SentDigest == "" || m.sent()) && !w.encryptedChanged() &&
		w.tryLeft(m) == 0 && len(m.inv.RebootPending) == 0 && !w.staged(m)
}

// encryptedChanged: an encrypted value of a patch changed, which the masked digests do not show.
func (w *world) encryptedChanged() bool {
	inv := w.in.Inventory
	return inv != nil && inv.EncryptedFingerprint != "" && inv.EncryptedFingerprint != w.in.Desired.EncryptedFingerprint
}

// pending: the machine answers and something is still to be sent to it or to be brought into force now.
func (w *world) pending(m *machine) bool {
	if !m.answersConfigured() || !w.compared(m) || w.held(m) {
		return false
	}
	if w.in.Desired.ReportDrift && w.drift(m) {
		return false
	}
	return !w.equal(m) || (len(w.pendingReboot(m)) > 0 && w.rebootHeld() == "")
}

// held: a gate of the machine alone keeps its configuration back, so that nobody has to wait for it.
func (w *world) held(m *machine) bool {
	for _, check := range []string{"problem", "checked-digest", "tool-render", "contract", "machine-adoption"} {
		for _, g := range machineGates {
			if g.name == check && g.name != w.off && g.check(w, wish{kind: DoConfigure, m: m, changes: true}) != nil {
				return true
			}
		}
	}
	return false
}

// configure sends the wish to a machine that does not have it.
func (w *world) configure(m *machine) {
	if m.mode() != ModeConfigured || len(m.intents) > 0 {
		return
	}
	if !w.compared(m) {
		w.look(m, "its configuration has to be compared with the head")
		if m.ident.proved() {
			m.say(state.ReasonWaiting, "its configuration was not compared with the head yet")
		}
		return
	}
	if w.equal(m) || (m.inv != nil && w.tryByOther(m)) || (len(w.pendingReboot(m)) > 0 && w.staged(m) && m.inv.AnsweredDigest != m.digest()) {
		return
	}
	if w.drift(m) && w.in.Desired.ReportDrift {
		m.say(state.ReasonDrift, "someone changed it: "+pathsText(m.facts.Config.Paths)+"; onDrift is report")
		return
	}
	if left := w.retryLeft(m); left > 0 && w.tryLeft(m) == 0 {
		m.say(state.ReasonProgressing, "its configuration was sent and is not seen on it yet")
		w.again(min(left, w.in.Policy.Poll))
		w.look(m, "its configuration was sent")
		return
	}
	w.send(m)
}

// retryLeft is how long a configuration that was sent is waited for before it is sent again, 0 not.
func (w *world) retryLeft(m *machine) time.Duration {
	if !m.sent() || m.inv.SentAt.IsZero() {
		return 0
	}
	if m.recorded() && m.facts.Config.At.Sub(m.inv.SentAt) > w.in.Desired.Settle {
		return 0 // it was in force since: this is a change by someone else
	}
	return max(0, m.inv.SentAt.Add(w.in.Policy.RetryInterval).Sub(w.in.Now))
}

// sending is how a difference is brought onto a node.
type sending struct {
	how Send
	// disrupts at once; gated is what the gates look at (a staged change is sent only where its reboot may follow).
	disrupts, gated string
	// reboot lists the paths that wait for a reboot afterwards on a node that accepts them without one.
	reboot []string
}

// sendingOf a machine's difference (SPEC section 3, "Sending").
func (w *world) sendingOf(m *machine) sending {
	c := m.facts.Config
	effect := c.Effect
	old := m.refusesWithoutReboot()
	if old && m.inv != nil && m.inv.AnsweredDigest == m.digest() && m.inv.AnsweredDigest != "" {
		switch {
		case m.inv.AnsweredEffect == "reboot":
			effect = "reboot"
		case effect == "reboot":
			effect = "restart"
		}
	}
	switch effect {
	case "reboot":
		if old {
			s := sending{how: SendStaged}
			if w.rebootHeld() == "" {
				s.gated = rebootDisrupts(m.role(), len(w.cps))
			}
			return s
		}
		s := sending{how: SendNoReboot, reboot: rebootPaths(c.Paths), disrupts: partRestarts(m.role(), c.Paths)}
		s.gated = s.disrupts
		return s
	case "live":
		if w.in.Desired.Try && m.well() && !c.Equal {
			return sending{how: SendTry}
		}
		return sending{how: SendNoReboot}
	case "install", "none":
		return sending{how: SendNoReboot}
	}
	s := sending{how: SendNoReboot, disrupts: restartDisrupts(m.role(), restarts(c.Paths))}
	s.gated = s.disrupts
	return s
}

// restarts lists what restarts; "" for a path of which that is not known.
func restarts(paths []PathFact) []string {
	var out []string
	for _, p := range paths {
		if p.Effect == "restart" {
			out = append(out, p.Service)
		}
	}
	return out
}

// partRestarts is what restarts at once beside paths that wait for a reboot.
func partRestarts(role string, paths []PathFact) string {
	services := restarts(paths)
	if len(services) == 0 {
		return ""
	}
	return restartDisrupts(role, services)
}

func (w *world) send(m *machine) {
	s := w.sendingOf(m)
	a := wish{kind: DoConfigure, m: m, changes: true, disrupts: s.gated}
	if w.refused(a) != nil {
		return
	}
	if len(s.reboot) > 0 && !w.rebootNoted(m, s.reboot) {
		if m.facts.BootID == "" {
			w.look(m, "its boot ID is needed to know when it was rebooted")
			m.say(state.ReasonWaiting, "its boot ID is not known, so that a pending reboot could not be followed")
			return
		}
		w.record(m, Action{
			Kind: RecordRebootPending, Digest: m.digest(), Paths: s.reboot, Expect: Expect{BootID: m.facts.BootID},
			Reason: "these paths come into force by a reboot",
		})
		m.say(state.ReasonProgressing, "what waits for a reboot is noted before it is sent")
		return
	}
	w.disrupt(a, Action{
		Kind: DoConfigure, Send: s.how, Digest: m.digest(), Disrupts: s.disrupts, Expect: w.expect(a),
		TryTimeout: w.timeoutOf(s.how), Reason: sendReason(w.drift(m), s.how, m.facts.Config.Paths),
	})
}

func (w *world) timeoutOf(how Send) time.Duration {
	if how == SendTry {
		return w.tryTimeout()
	}
	return 0
}

func (w *world) rebootNoted(m *machine, paths []string) bool {
	return m.inv != nil && m.inv.RebootPendingBootID == m.facts.BootID && m.facts.BootID != "" && slices.Equal(m.inv.RebootPending, paths)
}

// disrupt gives a machine its action, or first hands on the leadership that the action would take away.
func (w *world) disrupt(a wish, act Action) {
	if a.disrupts != "" && a.m.controlPlane() && len(w.cps) > 1 && w.leads(a.m) && w.off != "leader-hands-on" {
		act = Action{
			Kind: DoForfeit, Expect: act.Expect, Digest: act.Digest,
			Reason: "it leads etcd and hands that on before it is disrupted",
		}
	}
	w.do(a.m, act)
}

// expect is what must still be so just before the call.
func (w *world) expect(a wish) Expect {
	f := a.m.facts
	e := Expect{Mode: f.Mode, UUID: f.Identity.UUID}
	if f.Mode == ModeMaintenance {
		e.Fingerprint = f.Fingerprint
		return e
	}
	e.NodeID, e.NodeName, e.MemberID = f.Identity.NodeID, f.Identity.NodeName, f.Identity.MemberID
	if a.kind == DoReboot {
		e.BootID = f.BootID
	}
	e.EtcdDown = a.onMember() && a.kind != DoConfirm && a.m.etcdDown()
	if a.onMember() && a.kind != DoConfirm && !a.m.etcdDown() {
		e.SkipKubernetes = w.in.Desired.SkipKubernetesGates != ""
		for _, m := range w.cps {
			if m != a.m && !(a.m.broken() && m.newcomer()) {
				e.OthersHealthy = append(e.OthersHealthy, m.name)
			}
		}
	}
	return e
}

func sendReason(drift bool, how Send, paths []PathFact) string {
	what := "its configuration is sent"
	if drift {
		what = "someone changed it; it is set right"
	}
	switch how {
	case SendTry:
		what += " on trial"
	case SendStaged:
		what += " to come into force by a reboot"
	}
	return what + ": " + pathsText(paths)
}

// pathsText names the first paths.
func pathsText(paths []PathFact) string {
	const most = 3
	var out []string
	for i, p := range paths {
		if i == most {
			out = append(out, "…")
			break
		}
		out = append(out, p.Document+" "+p.Path)
	}
	if out == nil {
		return "nothing that has a path"
	}
	return strings.Join(out, ", ")
}
