package check

import (
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/plan/quorum"
	"ichor.maesh.dev/ichor/render/effect"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// forecast follows the steps of one cluster's plan: what etcd has at each, and what would be refused now.
type forecast struct {
	// members is how many voters there are before the next step: at first the control planes that base has approved.
	members int
	// first is the machine that is bootstrapped: its own join adds no member.
	first    string
	planes   map[string]bool
	services map[string][]string

	observation *state.Observation
	seen        state.ObservedCluster
	observed    bool
	// live are the control planes that base has approved, in order.
	live []string
}

func newForecast(s *session, cl *fleet.Cluster, machines []plan.StepMachine) *forecast {
	f := &forecast{planes: map[string]bool{}, services: map[string][]string{}, observation: s.in.Observed}
	f.seen, f.observed = s.in.Observed.Cluster(cl.Name)
	for _, m := range machines {
		f.planes[m.Name] = m.Role == v1alpha1.RoleControlPlane
		f.services[m.Name] = m.Services
	}
	if was := s.baseCluster(cl.Name); was != nil {
		for _, m := range was.Machines {
			if approved(m) && m.Manifest.Spec.Role == v1alpha1.RoleControlPlane {
				f.members++
				f.live = append(f.live, m.Name)
			}
		}
	}
	return f
}

// quorum gives the arithmetic of one step and takes the step. "" for workers, and for steps that don't concern etcd.
func (f *forecast) quorum(st plan.Step) string {
	if !f.planes[st.Machine] {
		return ""
	}
	switch st.Action {
	case "bootstrap":
		f.members, f.first = 1, st.Machine
		return members(1, 1)
	case "join":
		if st.Machine != f.first {
			f.members++
		}
		return members(f.members, f.members)
	case "remove-member":
		f.members--
		return members(f.members, f.members)
	case "reboot", "upgrade":
		return members(f.members-1, f.members)
	case "configure":
		if st.Disrupts == "" {
			return ""
		}
		if slices.Contains(f.services[st.Machine], effect.Etcd) {
			return members(f.members-1, f.members)
		}
		return members(f.members, f.members)
	}
	return ""
}

// members says how many of n members are there, and how many must be.
func members(there, n int) string {
	there, n = max(there, 0), max(n, 0)
	need := quorum.Of(n)
	text := fmt.Sprintf("%d of %d members, %d needed", there, n, need)
	switch {
	case n == 0:
		return "no member is left"
	case there < n && there >= need:
		return fmt.Sprintf("%d of %d members stay, %d needed", there, n, need)
	case there < need && n == 1:
		return "the only member is away: no quorum meanwhile"
	case there < need:
		return text + ": the quorum is lost meanwhile"
	}
	return text
}

// refusedNow gives what was last seen that the rollout would refuse this step for.
func (f *forecast) refusedNow(st plan.Step) string {
	if !f.observed {
		return ""
	}
	why := f.inTheWay(st)
	if why == "" {
		return ""
	}
	return why + " (" + f.observation.Age(f.seen.At) + ")"
}

func (f *forecast) inTheWay(st plan.Step) string {
	if f.seen.Held != "" {
		return "the cluster is held: " + f.seen.Held
	}
	if m, known := f.seen.Machines[st.Machine]; known && st.Action != "install" && !m.SilentSince.IsZero() {
		return silent(st.Machine, m.SilentSince)
	}
	if !f.planes[st.Machine] || st.Disrupts == "" {
		return ""
	}
	// The others must be there, healthy, and keep the quorum.
	for _, name := range f.live {
		m := f.seen.Machines[name]
		switch {
		case name == st.Machine:
		case !m.SilentSince.IsZero():
			return silent(name, m.SilentSince)
		case m.Reason != "":
			return "control plane " + name + " is not ready: " + m.Reason
		}
	}
	switch n := len(f.live); {
	case f.seen.Learners > 0:
		return "a member of etcd is still joining"
	case f.seen.Voters > 0 && f.seen.Voters != n:
		return fmt.Sprintf("etcd lists %d voters, and %d control planes are approved", f.seen.Voters, n)
	}
	return ""
}

func silent(name string, since time.Time) string {
	return name + " has not answered since " + since.UTC().Format("2006-01-02 15:04 UTC")
}
