package plan

import (
	"fmt"

	"ichor.maesh.dev/ichor/schemas/state"
)

// runDone records a commit that is in force everywhere, and gives every machine that no rule spoke for its reason.
func runDone(w *world) {
	for _, m := range w.ms {
		w.describe(m)
	}
	inv := w.in.Inventory
	if inv == nil || w.in.Desired.Suspend || w.in.Desired.Observe || !inv.Adopted || !w.in.Desired.CheckPassed {
		return
	}
	if len(w.actions) > 0 || !w.allApplied() {
		return
	}
	if inv.AppliedCommit == w.in.Desired.Commit && !w.encryptedChanged() {
		return
	}
	w.actions = append(w.actions, Action{
		Kind: RecordApplied, Commit: w.in.Desired.Commit, Reason: "the commit is in force on every approved machine",
	})
	w.event(nil, state.ReasonConverged, "commit is in force on every approved machine")
}

// allApplied: the head is in force on every approved machine, and nothing of it is held.
func (w *world) allApplied() bool {
	d := w.in.Desired
	if len(w.approved()) == 0 || versionChange(w.in) != "" || len(d.UnknownMachines) > 0 {
		return false
	}
	if was := w.in.Inventory.SecretsFingerprint; was != "" && was != d.SecretsFingerprint {
		return false
	}
	for _, h := range d.Holds {
		if !h.Destructive {
			return false
		}
	}
	for _, m := range w.ms {
		switch {
		case m.approved() && (!w.converged(m) || m.want.CheckedDigest != m.digest()):
			return false
		case !m.approved() && m.known():
			return false // a removal that is held
		}
	}
	return true
}

// converged: the wish is in force on a machine, as recorded and not contradicted by what is seen. Where an encrypted
// value changed the record proves nothing, and it has to be seen.
func (w *world) converged(m *machine) bool {
	if !m.approved() || !m.recorded() || m.failed() || len(m.intents) > 0 || w.tryLeft(m) > 0 {
		return false
	}
	if len(w.pendingReboot(m)) > 0 || m.ident.mismatch() {
		return false
	}
	if w.compared(m) {
		return w.equal(m)
	}
	return !w.encryptedChanged()
}

// describe gives a machine its reason where no rule did.
func (w *world) describe(m *machine) {
	if !m.approved() {
		m.say(state.ReasonWaiting, "it is not of this commit")
		return
	}
	if m.ident.mismatch() {
		m.reason, m.message = state.ReasonEndpointIdentityMismatch, m.ident.why
		return
	}
	if m.reach() == ReachUnreachable && (m.reason == "" || m.reason == state.ReasonWaiting) {
		m.reason, m.message = w.unreachable(m)
		return
	}
	switch {
	case m.facts == nil:
		m.say(state.ReasonWaiting, "it was not looked at yet")
	case m.failed():
		m.say(state.ReasonFailed, m.failure())
	case w.pendingReboot(m) != nil:
		m.say(state.ReasonRebootPending, "a reboot is pending for "+w.pendingReboot(m)[0])
	case w.converged(m):
		m.say(state.ReasonConverged, "nothing to do: its configuration is in force")
	case w.in.Inventory == nil:
		m.say(state.ReasonInventoryUnknown, inventoryUnknown)
	case w.in.Desired.Observe && w.equal(m):
		m.say(state.ReasonConverged, "observe mode: it does not differ from the head")
	case w.in.Desired.Observe:
		m.say(state.ReasonObserveMode, "observe mode: it differs or is not configured; nothing is written")
	case !w.in.Inventory.Adopted && w.adoption.message != "":
		m.say(state.ReasonAdoptionPending, w.adoption.message)
	case m.did != "":
		m.say(state.ReasonProgressing, m.did)
	case !m.ident.proved():
		m.say(state.ReasonWaiting, m.ident.why)
	case !w.in.Desired.CheckPassed:
		m.say(state.ReasonCheckFailed, "the check of the head did not pass for this cluster: the last good commit stays in force")
	case !w.compared(m):
		m.say(state.ReasonWaiting, "its configuration was not compared with the head yet")
	case !w.equal(m):
		m.say(state.ReasonWaiting, "its configuration differs from the head: "+pathsText(m.facts.Config.Paths))
	default:
		m.say(state.ReasonWaiting, "its configuration is on it, and it is waited for: "+firstText(m.notWell(), "it is not recorded yet"))
	}
}

// machineDecisions for every machine of the head, the inventory or both.
func (w *world) machineDecisions() []MachineDecision {
	var out []MachineDecision
	for _, m := range w.ms {
		out = append(out, MachineDecision{
			Name: m.name, Reason: m.reason, Message: m.message, Converged: w.converged(m), Conditions: w.machineConditions(m),
		})
	}
	return out
}

// progress sums up. A failure leads, then what is held, then what is done, then what is waited for.
func (w *world) progress(d Decision) Progress {
	p := Progress{Total: len(w.approved())}
	differ := 0
	for _, m := range w.approved() {
		if w.converged(m) {
			p.Converged++
		}
		if w.compared(m) && !w.equal(m) || m.mode() == ModeMaintenance {
			differ++
		}
	}
	p.State, p.Message = w.progressState(d, p, differ)
	p.Message = clip(p.Message, 140)
	return p
}

func (w *world) progressState(d Decision, p Progress, differ int) (string, string) {
	count := fmt.Sprintf("%d of %d machines converged", p.Converged, p.Total)
	for _, m := range w.approved() {
		if m.failed() {
			return ProgressFailed, m.name + " failed: " + m.failure()
		}
	}
	if w.in.Desired.Observe && !w.in.Desired.Suspend {
		return ProgressDone, fmt.Sprintf("observe mode: %d of %d machines differ", differ, p.Total)
	}
	if h, ok := w.clusterHold(); ok && len(w.actions) == 0 {
		return ProgressHeld, h.Reason + ": " + h.Message
	}
	if p.Converged == p.Total && !w.anyHeld() {
		return ProgressDone, count
	}
	for _, a := range d.Actions {
		if a.Kind.OnNode() {
			return ProgressProgressing, fmt.Sprintf("%s; %s: %s", count, a.Machine, a.Reason)
		}
	}
	for _, reason := range []string{state.ReasonProgressing, "", state.ReasonWaiting} {
		for _, m := range w.ms {
			switch {
			case reason == "" && heldReasons[m.reason]:
				return ProgressHeld, fmt.Sprintf("%s; %s: %s", count, m.name, m.message)
			case reason == state.ReasonProgressing && m.reason == reason:
				return ProgressProgressing, fmt.Sprintf("%s; %s: %s", count, m.name, m.message)
			case reason == state.ReasonWaiting && m.approved() && !w.converged(m):
				return ProgressWaiting, fmt.Sprintf("%s; %s: %s", count, m.name, m.briefly())
			}
		}
	}
	return ProgressWaiting, count
}

// briefly is the machine's message for a commit status: of a machine that is silent without the error, which changes from
// read to read while the state stays the same.
func (m *machine) briefly() string {
	if m.reach() == ReachUnreachable {
		return "it does not answer"
	}
	return m.message
}

// heldReasons are those that wait for a person.
var heldReasons = map[string]bool{
	state.ReasonEndpointIdentityMismatch: true, state.ReasonAdoptionPending: true, state.ReasonSecretsChanged: true,
	state.ReasonRenderChangedByTool: true, state.ReasonVersionChange: true, state.ReasonNotSupported: true,
	state.ReasonDeleteRefused: true, state.ReasonCheckFailed: true, state.ReasonEvenControlPlaneCount: true,
}

// anyHeld: something of the head waits for a person, though every approved machine may have converged.
func (w *world) anyHeld() bool {
	for _, m := range w.ms {
		if heldReasons[m.reason] {
			return true
		}
	}
	return false
}

// clip cuts a text to n runes.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
