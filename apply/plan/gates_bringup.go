package plan

import (
	"strings"

	"ichor.maesh.dev/ichor/schemas/state"
)

// bringUpGates guard installs and the bootstrap.
var bringUpGates = []gate{
	{"join-one-at-a-time", joinOneAtATime},
	{"worker-needs-control-plane", workerNeedsControlPlane},
	{"bootstrap-once", bootstrapOnce},
	{"bootstrap-empty", bootstrapEmpty},
}

// joinOneAtATime: once etcd runs, the next control plane is installed only when the one before is a voter with its API
// server and services up, and the others are healthy (else etcd lets nobody join).
func joinOneAtATime(w *world, a wish) *refusal {
	if a.kind != DoInstall || !a.m.controlPlane() || !w.bootstrapped() {
		return nil
	}
	if w.cpTaken != "" {
		return refuse(state.ReasonWaiting, "it joins after control plane %s", w.cpTaken)
	}
	for _, m := range w.cps {
		if m == a.m || (m.mode() == ModeMaintenance && m.intent(state.ActInstall) == nil) {
			continue
		}
		if m.inv == nil && m.reach() != ReachOK {
			continue // never brought up and not there: it keeps nobody from joining
		}
		why := w.notJoined(m)
		if m.joined() || m.broken() {
			why = m.healthyMember().Why // it has joined; what else it lacks keeps nobody from joining
		}
		if why != "" {
			return refuse(state.ReasonWaiting, "it joins when control plane %s is a working member: %s", m.name, why)
		}
		if why := w.underWay(m); why != "" {
			return refuse(state.ReasonWaiting, "it joins after control plane %s: %s", m.name, why)
		}
	}
	return nil
}

// notJoined says what a control plane lacks to have joined: voter, API server answering, services up. "" nothing.
func (w *world) notJoined(m *machine) string {
	if v := m.healthyMember(); v.Is != Yes {
		return v.Why
	}
	if v := Ready(*m.facts, m.role(), m.nodeReadySeen()); v.Is != Yes {
		return v.Why
	}
	if up := m.facts.APIServerReady; up == nil || !*up {
		return "its API server is not ready"
	}
	return ""
}

// workerNeedsControlPlane: a worker's API opens only when a control plane can sign for it.
func workerNeedsControlPlane(w *world, a wish) *refusal {
	if a.kind != DoInstall || a.m.controlPlane() {
		return nil
	}
	for _, m := range w.cps {
		if m.healthyMember().Is == Yes {
			return nil
		}
	}
	return refuse(state.ReasonWaiting, "a worker is brought up when a control plane is a healthy member")
}

// bootstrapped tells whether etcd of this cluster runs or ran, as far as anything shows.
func (w *world) bootstrapped() bool {
	inv := w.in.Inventory
	if inv != nil && inv.BootstrapUUID+inv.BootstrapMachine != "" {
		return true
	}
	for _, m := range w.ms {
		if m.role() != RoleControlPlane {
			continue
		}
		if m.joined() || (m.inv != nil && m.inv.Identity.MemberID != "") {
			return true
		}
		if m.mode() == ModeConfigured && m.facts.Etcd != nil && (m.facts.Etcd.MemberID != "" || len(m.facts.Etcd.Members) > 0) {
			return true
		}
	}
	return false
}

// bootstrapOnce: exactly once per cluster.
func bootstrapOnce(w *world, a wish) *refusal {
	if a.kind == DoBootstrap && w.bootstrapped() {
		return refuse(state.ReasonWaiting, "etcd of this cluster was bootstrapped already")
	}
	return nil
}

// bootstrapEmpty: only when every approved control plane is seen waiting without etcd data; one that can't be reached
// may have some, and so may one whose facts are old.
func bootstrapEmpty(w *world, a wish) *refusal {
	if a.kind != DoBootstrap {
		return nil
	}
	if w.cpTaken != "" {
		return refuse(state.ReasonWaiting, "bootstrap waits for control plane %s", w.cpTaken)
	}
	var old []*machine
	var names []string
	for _, m := range w.cps {
		if len(m.intents) > 0 {
			return refuse(state.ReasonWaiting, "bootstrap waits: the outcome of %s of %s is not seen yet", m.intents[0].Act, m.name)
		}
		if m.reach() == ReachUnreachable {
			return refuse(state.ReasonWaiting, "bootstrap waits: %s can't be reached, and may have etcd data", m.name)
		}
		if !m.fresh(w.in.Now, w.in.Policy.FactMaxAge) {
			old, names = append(old, m), append(names, m.name)
			continue
		}
		if !m.answersConfigured() || !m.etcdEmpty() {
			r := refuse(state.ReasonWaiting, "bootstrap waits until %s is seen waiting without etcd data", m.name)
			r.again = w.in.Policy.Poll
			return r
		}
	}
	if old != nil {
		r := refuse(state.ReasonWaiting, "bootstrap waits until %s was read again", strings.Join(names, ", "))
		r.look = old
		return r
	}
	return nil
}
