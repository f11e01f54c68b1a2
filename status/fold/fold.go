// Package fold turns facts and decisions into what Ichor says of a cluster: conditions, events, the two commit statuses
// and the values behind the status branch's pages. It is the one place where that is done, and it is pure.
package fold

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// MaxEvents are kept per cluster, newest last.
const MaxEvents = 200

// Cluster is what Ichor says of one cluster; status.yaml is its YAML form.
type Cluster struct {
	Name              string            `json:"name"`
	Commit            string            `json:"commit"`
	Mode              string            `json:"mode"`
	TalosVersion      string            `json:"talosVersion,omitempty"`
	KubernetesVersion string            `json:"kubernetesVersion,omitempty"`
	Progress          Progress          `json:"progress"`
	Conditions        []state.Condition `json:"conditions"`
	Machines          []Machine         `json:"machines"`
	Members           []Member          `json:"members"`
	Events            []state.Event     `json:"events"`
}

// Progress of the rollout.
type Progress struct {
	State     string `json:"state"`
	Converged int    `json:"converged"`
	Total     int    `json:"total"`
	Message   string `json:"message,omitempty"`
}

// Machine is what Ichor says of one machine.
type Machine struct {
	Name         string            `json:"name"`
	Role         string            `json:"role,omitempty"`
	Approval     string            `json:"approval,omitempty"`
	Endpoint     string            `json:"endpoint,omitempty"`
	Hostname     string            `json:"hostname,omitempty"`
	Mode         string            `json:"mode,omitempty"`
	Stage        string            `json:"stage,omitempty"`
	TalosVersion string            `json:"talosVersion,omitempty"`
	Identity     state.Identity    `json:"identity,omitzero"`
	Reason       string            `json:"reason"`
	Message      string            `json:"message,omitempty"`
	Converged    bool              `json:"converged"`
	Conditions   []state.Condition `json:"conditions"`
}

// Member of etcd as the approved control planes list it.
type Member struct {
	ID      string `json:"id"`
	Name    string `json:"name,omitempty"`
	Learner bool   `json:"learner,omitempty"`
	Leader  bool   `json:"leader,omitempty"`
}

// Input of one fold.
type Input struct {
	Now      time.Time
	Desired  plan.Desired
	Observed map[string]plan.MachineFacts
	Decision plan.Decision
	// Events that came from elsewhere (acts).
	Events []state.Event
}

// Fold makes the next value out of the last one. The second result is the events that are new.
func Fold(last Cluster, in Input) (Cluster, []state.Event) {
	next := Cluster{
		Name:              in.Desired.Name,
		Commit:            in.Desired.Commit,
		Mode:              "apply",
		TalosVersion:      in.Desired.TalosVersion,
		KubernetesVersion: in.Desired.KubernetesVersion,
		Progress: Progress{
			State: in.Decision.Progress.State, Converged: in.Decision.Progress.Converged,
			Total: in.Decision.Progress.Total, Message: in.Decision.Progress.Message,
		},
		Conditions: carry(last.Conditions, in.Decision.Conditions, in),
		Members:    members(in.Observed),
	}
	if in.Desired.Observe {
		next.Mode = "observe"
	}
	for _, d := range in.Decision.Machines {
		next.Machines = append(next.Machines, machine(last, d, in))
	}
	fresh := append(slices.Clone(in.Events), unseen(last.Events, in.Decision.Events)...)
	fresh = append(fresh, transitions(last, next, in.Now)...)
	next.Events = append(slices.Clone(last.Events), fresh...)
	next.whole()
	if extra := len(next.Events) - MaxEvents; extra > 0 {
		next.Events = next.Events[extra:]
	}
	return next, fresh
}

// whole makes empty lists of absent ones, for programs that read the YAML.
func (c *Cluster) whole() {
	fill(&c.Conditions)
	fill(&c.Machines)
	fill(&c.Members)
	fill(&c.Events)
	for i := range c.Machines {
		fill(&c.Machines[i].Conditions)
	}
}

func fill[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}

func machine(last Cluster, d plan.MachineDecision, in Input) Machine {
	m := Machine{Name: d.Name, Reason: d.Reason, Message: d.Message, Converged: d.Converged}
	for _, w := range in.Desired.Machines {
		if w.Name == d.Name {
			m.Role, m.Approval, m.Endpoint, m.Hostname = w.Role, w.Approval, w.Endpoint, w.Hostname
		}
	}
	if f, ok := in.Observed[d.Name]; ok {
		m.Mode, m.Stage, m.TalosVersion, m.Identity = string(f.Mode), f.Stage, f.TalosVersion, f.Identity
		if m.Endpoint == "" {
			m.Endpoint = f.Endpoint
		}
	}
	var before []state.Condition
	for _, l := range last.Machines {
		if l.Name == d.Name {
			before = l.Conditions
		}
	}
	m.Conditions = carry(before, d.Conditions, in)
	return m
}

// carry keeps the transition time of a condition whose status did not change, and fills in what a decision leaves open.
func carry(before, now []state.Condition, in Input) []state.Condition {
	out := slices.Clone(now)
	slices.SortStableFunc(out, func(a, b state.Condition) int { return strings.Compare(a.Type, b.Type) })
	for i := range out {
		c := &out[i]
		if c.ObservedCommit == "" {
			c.ObservedCommit = in.Desired.Commit
		}
		if !c.LastTransitionTime.IsZero() {
			continue
		}
		c.LastTransitionTime = in.Now
		for _, b := range before {
			if b.Type == c.Type && b.Status == c.Status && !b.LastTransitionTime.IsZero() {
				c.LastTransitionTime = b.LastTransitionTime
			}
		}
	}
	return out
}

// members takes the longest list that a control plane gave lately; ties go by machine name.
func members(observed map[string]plan.MachineFacts) []Member {
	var names []string
	for name := range observed {
		names = append(names, name)
	}
	slices.Sort(names)
	var best *plan.EtcdFact
	for _, name := range names {
		e := observed[name].Etcd
		if e != nil && observed[name].Reach == plan.ReachOK && (best == nil || len(e.Members) > len(best.Members)) {
			best = e
		}
	}
	if best == nil {
		return nil
	}
	var out []Member
	for _, m := range best.Members {
		out = append(out, Member{ID: m.ID, Name: m.Name, Learner: m.Learner, Leader: m.ID == best.Leader})
	}
	return out
}

// transitions are events for conditions whose status changed.
func transitions(last, next Cluster, now time.Time) []state.Event {
	var events []state.Event
	note := func(machine string, before, after []state.Condition) {
		for _, c := range after {
			i := slices.IndexFunc(before, func(b state.Condition) bool { return b.Type == c.Type })
			if i < 0 && (c.Status == state.True) == goodWhenTrue(c.Type) {
				continue // well from the first look on: nothing happened
			}
			if i >= 0 && before[i].Status == c.Status && (before[i].Reason == c.Reason || c.Type == state.CondConverged) {
				continue // why a machine is not converged yet changes with each step of a rollout
			}
			events = append(events, state.Event{
				At: now, Cluster: next.Name, Machine: machine, Reason: c.Reason, Commit: next.Commit,
				Message: fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Message),
			})
		}
		for _, b := range before {
			gone := !slices.ContainsFunc(after, func(c state.Condition) bool { return c.Type == b.Type })
			if gone && b.Status == state.False {
				events = append(events, state.Event{
					At: now, Cluster: next.Name, Machine: machine, Reason: b.Type + "Recovered", Commit: next.Commit,
					Message: b.Type + " is no longer " + string(b.Status),
				})
			}
		}
	}
	note("", last.Conditions, next.Conditions)
	for _, m := range next.Machines {
		var before []state.Condition
		for _, l := range last.Machines {
			if l.Name == m.Name {
				before = l.Conditions
			}
		}
		note(m.Name, before, m.Conditions)
	}
	return events
}

// goodWhenTrue tells the conditions that are well when True from those (Held, RebootPending) that are well when False.
func goodWhenTrue(kind string) bool {
	switch kind {
	case state.CondHeld, state.CondRebootPending, state.CondTransitioning:
		return false
	}
	return true
}

// unseen drops events that say what the newest event of the same machine and reason already said: a decision that is
// taken again each second says the same again each second.
func unseen(kept, fresh []state.Event) []state.Event {
	said := func(list []state.Event, e state.Event) bool {
		for _, k := range slices.Backward(list) {
			if k.Machine == e.Machine && k.Reason == e.Reason {
				return k.Message == e.Message && k.Commit == e.Commit
			}
		}
		return false
	}
	var out []state.Event
	for _, e := range fresh {
		if !said(kept, e) && !said(out, e) {
			out = append(out, e)
		}
	}
	return out
}
