package plan

import (
	"strings"

	"ichor.maesh.dev/ichor/apply/plan/quorum"
	"ichor.maesh.dev/ichor/schemas/state"
)

// controlPlaneGates guard every act on a configured control plane (SPEC section 3, "Rules that never bend").
var controlPlaneGates = []gate{
	{"rollout-stopped", rolloutStopped},
	{"one-at-a-time", oneAtATime},
	{"others-fresh", othersFresh},
	{"others-healthy", othersHealthy},
	{"even-count", evenCount},
	{"quorum", keepsQuorum},
	{"kubernetes", kubernetesReady},
	{"settle", settled},
}

// rolloutStopped: a failure stops the rollout of the cluster with that one machine, but not the commit that repairs it.
func rolloutStopped(w *world, a wish) *refusal {
	if a.kind == DoInstall || a.kind == DoBootstrap || a.kind == DoConfirm || a.m.broken() {
		return nil
	}
	if m := other(w.index.failed, a.m); m != nil {
		return refuse(state.ReasonWaiting, "the rollout stopped at %s: %s", m.name, m.failure())
	}
	return nil
}

// oneAtATime: at most one control plane is disrupted at any time, by any act.
func oneAtATime(w *world, a wish) *refusal {
	if !a.onMember() {
		return nil
	}
	if w.cpTaken != "" && w.cpTaken != a.m.name {
		return refuse(state.ReasonWaiting, "it waits for control plane %s", w.cpTaken)
	}
	for _, m := range w.cps {
		if m == a.m {
			continue
		}
		if why := w.underWay(m); why != "" {
			return refuse(state.ReasonWaiting, "it waits for control plane %s: %s", m.name, why)
		}
		if w.begun(m) && !(w.begun(a.m) && a.m.name < m.name) {
			return refuse(state.ReasonWaiting, "it waits for control plane %s, which was begun", m.name)
		}
	}
	return nil
}

// underWay says what is being done to a machine and not yet seen to be over, "" nothing.
func (w *world) underWay(m *machine) string {
	for _, it := range m.intents {
		if it.Act != state.ActInstall {
			return "the outcome of its " + string(it.Act) + " is not seen yet"
		}
	}
	if w.tryLeft(m) > 0 {
		return "it runs a configuration on trial"
	}
	if !m.sent() || m.recorded() || m.failed() || m.mode() == ModeMaintenance {
		return ""
	}
	switch {
	case !w.compared(m):
		return "its configuration was sent and is not seen on it yet"
	case !w.equal(m) || len(w.pendingReboot(m)) > 0:
		return "" // begun: see there
	case m.etcdEmpty() && !w.bootstrapped() && w.in.Now.Sub(m.inv.SentAt) >= w.in.Desired.Settle:
		return "" // it waits for the bootstrap, and can't prove more than that
	}
	return "its configuration has to prove itself for the settle time"
}

// begun tells whether a configuration was sent to a machine and further acts have to bring it into force.
func (w *world) begun(m *machine) bool {
	if m.failed() || !m.approved() || !m.answersConfigured() {
		return false
	}
	if m.sent() && !m.recorded() && !w.equal(m) {
		return true
	}
	return len(w.pendingReboot(m)) > 0 && w.rebootHeld() == ""
}

// othersFresh: unknown is not false; what a gate looks at is young.
func othersFresh(w *world, a wish) *refusal {
	if !a.onMember() {
		return nil
	}
	var old []*machine
	var names []string
	for _, m := range w.cps {
		if m != a.m && !m.fresh(w.in.Now, w.in.Policy.FactMaxAge) {
			old = append(old, m)
			names = append(names, m.name)
		}
	}
	if old == nil {
		return nil
	}
	r := refuse(state.ReasonWaiting, "%s must be read again before it is touched", strings.Join(names, ", "))
	r.look = old
	return r
}

// othersHealthy: every other control plane is there, a healthy member, and all see one leader, before one is touched.
// One that runs no member may be touched first: nothing is lost by it.
func othersHealthy(w *world, a wish) *refusal {
	if !a.onMember() || a.kind == DoConfirm || a.m.etcdDown() {
		return nil
	}
	var leaders []string
	for _, m := range w.cps {
		v := m.healthyMember()
		if m == a.m {
			if v.Is == Yes {
				leaders = append(leaders, m.facts.Etcd.Leader)
			}
			continue
		}
		if a.m.broken() && m.newcomer() {
			continue // it can't join before the broken one is mended
		}
		if v.Is != Yes {
			r := refuse(state.ReasonWaiting, "control plane %s is not a healthy member: %s", m.name, v.Why)
			if v.Is == Unknown {
				r.look = []*machine{m}
			}
			r.again = w.in.Policy.UnreachableRetry
			return r
		}
		leaders = append(leaders, m.facts.Etcd.Leader)
	}
	if len(leaders) > 0 && !quorum.OneLeader(leaders) {
		r := refuse(state.ReasonWaiting, "the control planes see different etcd leaders")
		r.again = w.in.Policy.UnreachableRetry
		return r
	}
	return nil
}

// keepsQuorum: quorum holds without it for the approved control planes and for etcd's voters; the worse counts.
func keepsQuorum(w *world, a wish) *refusal {
	if !a.onMember() || a.disrupts == "" || a.m.etcdDown() {
		return nil
	}
	v, ok := w.voters()
	if !ok {
		return refuse(state.ReasonWaiting, "etcd's voters are not known, so neither is whether they keep quorum without it")
	}
	if v.learners > 0 {
		return refuse(state.ReasonWaiting, "a member is joining etcd")
	}
	if len(w.cps) == 1 && v.listed == 1 {
		return nil
	}
	sum := quorum.Keeps(quorum.Touch{
		Approved: len(w.cps), Listed: v.listed, Healthy: v.healthy, TargetHealthy: a.m.healthyMember().Is == Yes,
	})
	// One that is not healthy may still vote. Where all others are looked at (othersHealthy) they keep quorum without its
	// vote; voters that the head does not have are not looked at.
	if !sum.Keeps || v.listed > len(w.cps) && sum.After < sum.Need {
		return refuse(state.ReasonWaiting, "etcd would lose quorum without it: %s", sum)
	}
	return nil
}

// voterCount is what etcd says of its voters.
type voterCount struct{ listed, learners, healthy int }

// voters counts the voters that etcd lists (where the lists differ, the most) and the healthy ones among the approved
// control planes. Not ok: no control plane gives a list.
func (w *world) voters() (voterCount, bool) {
	var v voterCount
	known := false
	for _, m := range w.cps {
		if m.mode() != ModeConfigured || m.facts.Etcd == nil {
			continue
		}
		if m.healthyMember().Is == Yes {
			v.healthy++
		}
		if m.facts.Etcd.Members == nil {
			continue
		}
		known = true
		voters, learners := 0, 0
		for _, e := range m.facts.Etcd.Members {
			if e.Learner {
				learners++
			} else {
				voters++
			}
		}
		v.listed, v.learners = max(v.listed, voters), max(v.learners, learners)
	}
	return v, known
}

// kubernetesReady: the others' API servers and kubelets are ready, unless the head gives a reason to skip that.
func kubernetesReady(w *world, a wish) *refusal {
	if !a.onMember() || a.kind == DoConfirm || w.in.Desired.SkipKubernetesGates != "" || a.m.etcdDown() {
		return nil
	}
	for _, m := range w.cps {
		if m == a.m || m.facts == nil || (a.m.broken() && m.newcomer()) {
			continue
		}
		switch up := m.facts.APIServerReady; {
		case up == nil:
			r := refuse(state.ReasonWaiting, "whether the API server of %s is ready is not known", m.name)
			r.look = []*machine{m}
			return r
		case !*up:
			r := refuse(state.ReasonWaiting, "the API server of %s is not ready", m.name)
			r.again = w.in.Policy.UnreachableRetry
			return r
		}
		if v := Ready(*m.facts, m.role(), m.nodeReadySeen()); v.Is != Yes {
			r := refuse(state.ReasonWaiting, "control plane %s is not ready: %s", m.name, v.Why)
			r.again = w.in.Policy.UnreachableRetry
			return r
		}
	}
	return nil
}

// evenCount: with an even number of control planes nothing that disrupts one.
func evenCount(w *world, a wish) *refusal {
	if !a.onMember() || a.disrupts == "" || a.m.etcdDown() {
		return nil
	}
	n := len(w.cps)
	if v, ok := w.voters(); ok && !quorum.Even(n) && quorum.Even(v.listed) {
		n = v.listed
	}
	if quorum.Even(n) {
		return refuse(state.ReasonEvenControlPlaneCount, "%s", evenRefusal(n))
	}
	return nil
}

// settled: what was touched before was well for the settle time; only then the next.
func settled(w *world, a wish) *refusal {
	if !a.onMember() || a.kind == DoConfirm || a.m.etcdDown() {
		return nil
	}
	for _, m := range w.cps {
		if m == a.m || (a.m.broken() && m.newcomer()) {
			continue
		}
		if m.reach() == ReachOK && m.mode() == ModeConfigured && !m.well() && w.kubernetesOnly(m) {
			continue
		}
		if for_ := m.wellFor(); for_ < w.in.Desired.Settle || !m.well() {
			r := refuse(state.ReasonWaiting, "control plane %s has not been well for the settle time yet", m.name)
			w.watchFor(m, w.in.Desired.Settle-for_, "it has to be well for the settle time")
			return r
		}
	}
	return nil
}

// kubernetesOnly: the machine is a healthy member and not well only by what the head's annotation skips.
func (w *world) kubernetesOnly(m *machine) bool {
	return w.in.Desired.SkipKubernetesGates != "" && m.healthyMember().Is == Yes
}
