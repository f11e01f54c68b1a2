package rules

import (
	"fmt"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

func countRule() Rule {
	return Rule{
		ID:    "count",
		Doc:   "As many approved control planes as controlPlane.count declares, and an odd number of them.",
		Check: checkCount,
	}
}

func checkCount(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		// A machine that could not be read may be the one that is missing.
		if cl.Manifest == nil || unknownMachines(c.Head, cl.Name) {
			continue
		}
		const path = "spec.controlPlane.count"
		n, want := len(approvedControlPlanes(cl)), cl.Manifest.Spec.ControlPlane.Count
		if n != want {
			p := warningAt(cl.Object, path, fmt.Sprintf("approved control planes: %d, but spec.controlPlane.count is %d", n, want))
			p.Hint = "approve control planes, or change the count, until the two agree"
			problems = append(problems, p)
		}
		if n > 0 && n%2 == 0 {
			p := warningAt(cl.Object, path, fmt.Sprintf(
				"even control plane count: %d control planes bear the loss of no more members than %d", n, n-1))
			p.Hint = "etcd keeps its quorum best with 1, 3 or 5 members"
			problems = append(problems, p)
		}
	}
	return problems
}
