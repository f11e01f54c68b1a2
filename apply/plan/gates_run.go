package plan

import (
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// runGates is the first family: what holds the whole cluster, what is due to be read, and what has to be adopted.
func runGates(w *world) {
	if w.in.Desired.Suspend {
		for _, m := range w.ms {
			m.say(state.ReasonSuspended, "the cluster is suspended: no node of it is even read")
		}
		return
	}
	for _, m := range w.ms {
		if m.approved() || len(m.intents) > 0 {
			w.due(m)
		}
	}
	w.adopt()
}

// due asks for a machine whose regular read is due: every interval, and within the grace of an outage every
// UnreachableRetry.
func (w *world) due(m *machine) {
	if m.facts == nil {
		w.look(m, "it was not looked at yet")
		return
	}
	every := w.in.Desired.Interval
	if m.reach() == ReachUnreachable && w.in.Now.Sub(m.facts.Since) < w.in.Desired.Grace+w.in.Policy.UnreachableRetry {
		every = min(every, w.in.Policy.UnreachableRetry)
	}
	left := every - w.in.Now.Sub(m.facts.At)
	if left <= 0 {
		w.look(m, "its regular read is due")
		return
	}
	w.again(left)
}

// again also at the end of a grace, so that the condition changes when it does.
func (w *world) graceLeft(m *machine) time.Duration {
	return w.in.Desired.Grace - w.in.Now.Sub(m.facts.Since)
}
