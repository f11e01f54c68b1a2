package plan

import (
	"ichor.maesh.dev/ichor/apply/plan/quorum"
	"ichor.maesh.dev/ichor/schemas/state"
)

// workerGates guard acts on configured workers.
var workerGates = []gate{
	{"control-planes-first", controlPlanesFirst},
	{"max-unavailable", maxUnavailable},
}

func (a wish) onWorker() bool {
	return !a.m.controlPlane() && a.kind != DoInstall && a.kind != DoConfirm
}

// controlPlanesFirst: a worker waits for every control plane that can still be written. One that is unreachable or held
// keeps no worker waiting.
func controlPlanesFirst(w *world, a wish) *refusal {
	if !a.onWorker() || a.m.broken() {
		return nil
	}
	for _, m := range w.cps {
		if !m.answersConfigured() || m.want.Problem != "" {
			continue
		}
		if w.underWay(m) != "" {
			return refuse(state.ReasonWaiting, "control planes come before workers: %s is under way", m.name)
		}
		if !w.compared(m) {
			r := refuse(state.ReasonWaiting, "control planes come before workers: %s has to be compared first", m.name)
			r.look = []*machine{m}
			return r
		}
		if w.pending(m) {
			return refuse(state.ReasonWaiting, "control planes come before workers: %s is not done", m.name)
		}
	}
	return nil
}

// maxUnavailable: workers in parallel up to workerMaxUnavailable. An unreachable one counts, but what makes nobody
// unavailable may still go on with one at a time, so that it blocks nobody.
func maxUnavailable(w *world, a wish) *refusal {
	if !a.onWorker() {
		return nil
	}
	busy, lost := w.tally().without(a.m)
	if w.workerDown(a.m) {
		lost = 0 // it is not available as it is: it takes nothing away, and is not kept waiting by those that are lost
	}
	slots := quorum.WorkerSlots(w.in.Desired.WorkerMaxUnavailable, busy+lost)
	if slots == 0 && a.disrupts == "" && busy == 0 {
		slots = 1
	}
	if slots == 0 {
		return refuse(state.ReasonWaiting, "%d of at most %d workers are unavailable or being changed", busy+lost, max(1, w.in.Desired.WorkerMaxUnavailable))
	}
	return nil
}

// workerBusy: it is being changed by Ichor and has not proved itself yet.
func (w *world) workerBusy(m *machine) bool {
	for _, it := range m.intents {
		if it.Act != state.ActInstall {
			return true
		}
	}
	if w.tryLeft(m) > 0 {
		return true
	}
	if !m.sent() || m.recorded() || !m.known() || m.failed() {
		return false
	}
	if len(w.pendingReboot(m)) > 0 {
		// what of it is in force already has to prove itself; then it waits for a person or a window, and runs
		return w.rebootHeld() != "" && m.wellFor() < w.in.Desired.Settle
	}
	return !w.compared(m) || w.equal(m)
}

// workerDown: it is one of the cluster and not available now, as far as is known.
func (w *world) workerDown(m *machine) bool { return m.known() && !m.well() }
