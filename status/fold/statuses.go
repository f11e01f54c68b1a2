package fold

import (
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// Context puts the instance's name in front of a status context, where there is one.
func Context(instance string, parts ...string) string {
	context := strings.Join(append([]string{"ichor"}, parts...), "/")
	if instance != "" {
		return instance + "/" + context
	}
	return context
}

// ApplyStatus is the commit status ichor/apply/<cluster>. Its words hold neither time nor duration, so that the same
// state is the same status.
func ApplyStatus(instance string, c Cluster, target string) state.CommitStatus {
	s := state.CommitStatus{Context: Context(instance, "apply", c.Name), TargetURL: target}
	count := fmt.Sprintf("%d of %d machines converged", c.Progress.Converged, c.Progress.Total)
	if c.Mode == "observe" {
		s.State, s.Description = state.StateSuccess, "observe mode: "+differ(c)
		return s
	}
	switch c.Progress.State {
	case plan.ProgressDone:
		s.State, s.Description = state.StateSuccess, count
		if c.Progress.Message != "" {
			s.Description = c.Progress.Message
		}
	case plan.ProgressFailed:
		s.State, s.Description = state.StateFailure, lead(c.Progress.Message, count)
	case plan.ProgressHeld:
		s.State, s.Description = state.StateFailure, lead("held: "+c.Progress.Message, count)
		if slices.ContainsFunc(c.Conditions, ours) {
			s.State = state.StateError
		}
	default:
		s.State, s.Description = state.StatePending, lead(c.Progress.Message, count)
		if name := stuck(c); name != "" {
			// pending never stays: what waits for a silent machine is said as a failure until it answers.
			s.State = state.StateFailure
		}
	}
	return s
}

// ours tells a condition that is Ichor's or its surroundings' fault from one of the commit.
func ours(c state.Condition) bool {
	switch c.Reason {
	case state.ReasonSecretsBundleUnavailable, state.ReasonInventoryUnknown, state.ReasonFenced,
		state.ReasonRepositoryIdentityMismatch:
		return c.Status != state.True || c.Type == state.CondHeld
	}
	return false
}

func lead(message, count string) string {
	switch {
	case message == "":
		return count
	case strings.Contains(message, count):
		return message
	}
	return message + "; " + count
}

func differ(c Cluster) string {
	n := c.Progress.Total - c.Progress.Converged
	switch n {
	case 0:
		return "no machine differs"
	case 1:
		return fmt.Sprintf("1 of %d machines differs", c.Progress.Total)
	default:
		return fmt.Sprintf("%d of %d machines differ", n, c.Progress.Total)
	}
}

// stuck names a machine that is not converged and has been silent for longer than the grace.
func stuck(c Cluster) string {
	for _, m := range c.Machines {
		if !m.Converged && m.Reason == state.ReasonNodeUnreachable {
			return m.Name
		}
	}
	return ""
}

// NodesStatus is the commit status ichor/nodes/<cluster>; false where the cluster has no approved machine. Within the
// grace a silent machine changes nothing, so the last status stays (zero CommitStatus, true).
func NodesStatus(instance string, c Cluster, target string) (state.CommitStatus, bool) {
	var total, reachable, silent int
	var bad []string
	for _, m := range c.Machines {
		if m.Approval != "approved" {
			continue
		}
		total++
		switch ready := condition(m, state.CondReady); {
		case ready.Reason == state.ReasonNodeUnreachable:
			bad = append(bad, m.Name+" unreachable")
		case ready.Reason == state.ReasonEndpointIdentityMismatch:
			bad = append(bad, m.Name+" has another identity")
		case ready.Reason == state.ReasonCurrentConfigUnavailable, m.Mode == "":
			silent++
		default:
			reachable++
		}
	}
	s := state.CommitStatus{Context: Context(instance, "nodes", c.Name), TargetURL: target}
	count := fmt.Sprintf("%d of %d machines reachable", reachable, total)
	switch {
	case total == 0:
		return s, false
	case len(bad) > 0:
		s.State, s.Description = state.StateFailure, strings.Join(bad, ", ")+"; "+count
	case silent > 0:
		return state.CommitStatus{}, true
	default:
		s.State, s.Description = state.StateSuccess, count
	}
	return s, true
}

func condition(m Machine, kind string) state.Condition {
	for _, c := range m.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return state.Condition{}
}
