package fold

import (
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Observed gives what a check may say of a cluster beside its verdict; at is when the status was made.
func Observed(c Cluster, at time.Time) state.ObservedCluster {
	out := state.ObservedCluster{At: at, Machines: make(map[string]state.ObservedMachine, len(c.Machines))}
	for _, m := range c.Members {
		if m.Learner {
			out.Learners++
		} else {
			out.Voters++
		}
	}
	for _, cond := range c.Conditions {
		if cond.Type == state.CondHeld && cond.Status == state.True && out.Held == "" {
			out.Held = cond.Reason
			if cond.Message != "" {
				out.Held += ": " + cond.Message
			}
		}
	}
	for _, m := range c.Machines {
		o := state.ObservedMachine{TalosVersion: m.TalosVersion}
		if reach := condition(m, state.CondNodeReachable); reach.Status == state.False {
			o.SilentSince = reach.LastTransitionTime
		}
		if ready := condition(m, state.CondReady); ready.Status == state.False {
			o.Reason, o.Message = ready.Reason, ready.Message
		}
		out.Machines[m.Name] = o
	}
	return out
}
