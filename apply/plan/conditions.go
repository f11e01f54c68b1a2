package plan

import (
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/apply/plan/quorum"
	"ichor.maesh.dev/ichor/schemas/state"
)

// condition of this decision. Its transition time is left to the fold where nothing says it.
func (w *world) condition(typ string, status state.ConditionStatus, reason, message string) state.Condition {
	return state.Condition{Type: typ, Status: status, Reason: reason, Message: message, ObservedCommit: w.in.Desired.Commit}
}

// unreachable is the reason of a machine that does not answer (SPEC section 4, "Reachability").
func (w *world) unreachable(m *machine) (reason, message string) {
	f := m.facts
	left := w.graceLeft(m)
	endpoint := f.Endpoint
	if endpoint == "" {
		endpoint = m.want.Endpoint
	}
	if left > 0 {
		w.again(left)
		return state.ReasonCurrentConfigUnavailable, fmt.Sprintf("%s does not answer: %s", endpoint, f.Error)
	}
	message = fmt.Sprintf("%s has not answered for %s: %s", endpoint, roundAge(w.in.Now.Sub(f.Since)), f.Error)
	if hint := endpointHint(endpoint, f.KubeAddress); hint != "" {
		message += "; " + hint
	}
	return state.ReasonNodeUnreachable, message
}

// endpointHint says where the machine's Kubernetes node is seen instead, "" nowhere else.
func endpointHint(endpoint, kube string) string {
	host, port := endpoint, "50000"
	if i := strings.LastIndexByte(endpoint, ':'); i >= 0 && !strings.HasSuffix(endpoint, "]") {
		host, port = endpoint[:i], endpoint[i+1:]
	}
	if kube == "" || kube == strings.Trim(host, "[]") {
		return ""
	}
	if strings.Contains(kube, ":") {
		kube = "[" + kube + "]"
	}
	return "spec.endpoint may need updating to " + kube + ":" + port
}

// roundAge keeps messages from changing with every look.
func roundAge(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Truncate(10 * time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d/time.Hour))
	}
	return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
}

// machineConditions of a machine that is approved or known.
func (w *world) machineConditions(m *machine) []state.Condition {
	if !m.approved() && m.inv == nil || w.in.Desired.Suspend {
		return nil
	}
	conv := state.False
	if w.converged(m) {
		conv = state.True
	}
	out := []state.Condition{w.condition(state.CondConverged, conv, m.reason, m.message)}
	if m.reach() == ReachUnreachable && m.want != nil {
		reason, message := w.unreachable(m)
		c := w.condition(state.CondNodeReachable, state.False, reason, message)
		c.LastTransitionTime = m.facts.Since
		out = append(out, c)
	}
	out = append(out, w.readyCondition(m))
	if paths := w.pendingReboot(m); paths != nil {
		out = append(out, w.condition(state.CondRebootPending, state.True, state.ReasonRebootPending, strings.Join(paths, ", ")))
	}
	return out
}

func (w *world) readyCondition(m *machine) state.Condition {
	switch {
	case m.facts == nil:
		return w.condition(state.CondReady, state.Unknown, state.ReasonWaiting, "it was not looked at yet")
	case m.reach() == ReachUnreachable && m.want != nil:
		reason, message := w.unreachable(m)
		return w.condition(state.CondReady, state.False, reason, message)
	case m.ident.mismatch():
		return w.condition(state.CondReady, state.False, state.ReasonEndpointIdentityMismatch, m.ident.why)
	case m.failed():
		return w.condition(state.CondReady, state.False, state.ReasonFailed, m.failure())
	case m.well():
		return w.condition(state.CondReady, state.True, state.ReasonReady, "it is reachable, itself and ready")
	case !m.ident.proved():
		return w.condition(state.CondReady, state.Unknown, state.ReasonWaiting, m.ident.why)
	}
	return w.condition(state.CondReady, state.False, state.ReasonWaiting, m.notWell())
}

// clusterHold is the first reason for which nothing of the cluster is written.
func (w *world) clusterHold() (Hold, bool) {
	if w.in.Inventory == nil && !w.in.Desired.Suspend {
		// A wrong age identity opens neither the secrets nor the inventory's seal: the cause leads, not what follows from it.
		for _, h := range w.in.Desired.Holds {
			if h.Reason == state.ReasonSecretsBundleUnavailable {
				return h, true
			}
		}
		return Hold{Reason: state.ReasonInventoryUnknown, Message: inventoryUnknown}, true
	}
	probe := wish{m: &machine{}, kind: DoConfigure}
	for _, g := range clusterGates {
		if g.name == w.off {
			continue
		}
		if r := g.check(w, probe); r != nil {
			return Hold{Reason: r.reason, Message: r.message}, true
		}
	}
	return Hold{}, false
}

const inventoryUnknown = "the inventory is not known, so neither identities nor what was applied: nothing is written"

// conditions of the cluster.
func (w *world) conditions() []state.Condition {
	inv := w.condition(state.CondInventory, state.True, state.ReasonReady, "the inventory is known")
	if w.in.Inventory == nil {
		inv = w.condition(state.CondInventory, state.False, state.ReasonInventoryUnknown, "the inventory is missing, older than its copy or fails its seal")
	}
	out := []state.Condition{inv}
	if h, ok := w.clusterHold(); ok {
		out = append(out, w.condition(state.CondHeld, state.True, h.Reason, h.Message))
	} else {
		out = append(out, w.condition(state.CondHeld, state.False, state.ReasonReady, "nothing holds the cluster"))
	}
	if n := len(w.cps); quorum.Even(n) {
		out = append(out, w.condition(state.CondTransitioning, state.True, state.ReasonEvenControlPlaneCount, evenRefusal(n)))
	}
	return out
}
