package rules

import (
	"fmt"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// The observed part of the removal guard, and operations that take a control plane away for a while. What was observed
// is said beside the static verdict with its age; the rollout looks again just before the act.

// seenRemoval says what was last seen that speaks for or against the removal of a control plane. refused is what the
// static rules say, "" where they allow it.
func seenRemoval(c *Context, r removal, members int, refused string) []fleet.Problem {
	cl, ok := c.Observed.Cluster(r.old.Cluster)
	if !ok {
		return nil
	}
	age := c.Observed.Age(cl.At)
	var problems []fleet.Problem
	warn := func(message, hint string) {
		p := r.problem(message, hint)
		p.Severity = fleet.Warning
		problems = append(problems, p)
	}
	silent := cl.Machines[r.old.Name].SilentSince
	switch {
	case refused != "" && r.marked && !silent.IsZero():
		warn(fmt.Sprintf("control plane %s has not answered since %s (%s): one that is proved dead may leave below the declared count",
			r.old.Name, silent.UTC().Format("2006-01-02 15:04 UTC"), age),
			"the rollout asks its siblings' etcd, and looks again just before it acts; this check can't")
	case refused == "" && r.marked && silent.IsZero() && cl.Voters > 0 && cl.Voters != members:
		warn(fmt.Sprintf("etcd listed %d voters (%s), but there are %d approved control planes: the worse of the two counts for the quorum",
			cl.Voters, age, members), "let the change that is under way end first")
	}
	if n := cl.Voters; r.marked && refused == "" && n > 0 && n < members && n-1 < n/2+1 {
		warn(fmt.Sprintf("the rollout would refuse this now: etcd listed %d voters (%s), and %d are below its quorum of %d", n, age, n-1, n/2+1),
			"bring the missing members back first")
	}
	return problems
}

// resetProblems holds a resetMachine operation of a live control plane to the count guard: while it is away, the others
// must do.
func resetProblems(c *Context, old, now *fleet.Cluster) []fleet.Problem {
	var problems []fleet.Problem
	for _, op := range now.Operations {
		r := op.Manifest.Spec.ResetMachine
		if r == nil || operationOn(c.Base, op) {
			continue
		}
		m := c.machine(old, r.Machine)
		if m == nil || !isControlPlane(m) || !isApproved(m) {
			continue
		}
		if why := removalStep(len(approvedControlPlanes(old)), now.Manifest.Spec.ControlPlane.Count); why != "" {
			p := problemAt(op.Object, "spec.resetMachine.machine", "a reset takes control plane "+r.Machine+" away: "+why)
			p.Machine = r.Machine
			p.Hint = "to reinstall the same box use replaceMachine, which lets its member leave first and brings it up again"
			problems = append(problems, p)
		}
	}
	return problems
}
