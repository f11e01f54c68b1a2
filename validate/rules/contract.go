package rules

import (
	"fmt"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

func contractRule() Rule {
	return Rule{
		ID: "contract",
		Doc: "The contract is not above talosVersion, is known to the library, and does not change the shape of every " +
			"configuration unnoticed.",
		Check: checkContract,
	}
}

// preReleaseContract is the newest contract, whose shape this Ichor has from a pre-release of the machinery library.
var preReleaseContract = [2]uint64{1, 14}

func checkContract(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		contract, ok := minorOf(cl.Manifest.Spec.EffectiveContract())
		talos, okTalos := minorOf(cl.Manifest.Spec.TalosVersion)
		if !ok || !okTalos {
			continue
		}
		problems = append(problems, contractBounds(cl, contract, talos)...)
		problems = append(problems, contractChange(c, cl, contract)...)
		problems = append(problems, contractSeen(c, cl, contract)...)
	}
	return problems
}

// contractPath is the field that says the contract.
func contractPath(cl *fleet.Cluster) string {
	if cl.Manifest.Spec.Contract != "" {
		return "spec.contract"
	}
	return "spec.talosVersion"
}

func contractBounds(cl *fleet.Cluster, contract, talos [2]uint64) []fleet.Problem {
	path, name := contractPath(cl), "v"+minorText(contract)
	switch {
	case compareMinors(contract, talos) > 0:
		p := problemAt(cl.Object, path, fmt.Sprintf("contract %s is above talosVersion %s: the nodes would not know its documents",
			name, cl.Manifest.Spec.TalosVersion))
		p.Hint = "lower the contract to v" + minorText(talos) + ", or upgrade Talos first"
		return []fleet.Problem{p}
	case compareMinors(contract, newestKnown()) > 0:
		p := warningAt(cl.Object, path, fmt.Sprintf("contract %s is above what this Ichor knows (v%s), whose shape is rendered instead",
			name, minorText(newestKnown())))
		p.Hint = "set spec.contract: v" + minorText(newestKnown())
		return []fleet.Problem{p}
	case contract == preReleaseContract:
		p := warningAt(cl.Object, path, fmt.Sprintf("the shape of contract %s is that of a pre-release of Talos's library and may still change", name))
		p.Hint = "a node of 1.14 takes the shape of v1.13 as well: spec.contract: v1.13"
		return []fleet.Problem{p}
	}
	return nil
}

// contractChange warns where every configuration of a live cluster would change its shape.
func contractChange(c *Context, cl *fleet.Cluster, contract [2]uint64) []fleet.Problem {
	old := c.live(cl)
	if old == nil {
		return nil
	}
	was, ok := minorOf(old.Manifest.Spec.EffectiveContract())
	if !ok || was == contract {
		return nil
	}
	if old.Manifest.Spec.Contract == "" && cl.Manifest.Spec.Contract == "" {
		p := warningAt(cl.Object, "spec.talosVersion", fmt.Sprintf(
			"talosVersion changes from %s to %s without a contract: the shape of every configuration would change from v%s to v%s",
			old.Manifest.Spec.TalosVersion, cl.Manifest.Spec.TalosVersion, minorText(was), minorText(contract)))
		p.Hint = "set spec.contract: v" + minorText(was) + ", which keeps the shape, and raise it later in a commit of its own"
		return []fleet.Problem{p}
	}
	p := warningAt(cl.Object, contractPath(cl), fmt.Sprintf(
		"the contract of a live cluster changes from v%s to v%s: the shape of every configuration changes", minorText(was), minorText(contract)))
	p.Hint = "raise it in a commit of its own, when every node runs that Talos version: a node that is rolled back to an " +
		"older one would not open its API again"
	return []fleet.Problem{p}
}

// contractSeen warns where a node was last seen running an older Talos than the contract.
func contractSeen(c *Context, cl *fleet.Cluster, contract [2]uint64) []fleet.Problem {
	var older []*fleet.Machine
	var lowest seenVersion
	for _, m := range cl.Machines {
		seen, ok := c.seen(m)
		if !ok || isRejected(m) || compareMinors(seen.minor, contract) >= 0 {
			continue
		}
		if len(older) == 0 || compareMinors(seen.minor, lowest.minor) < 0 {
			lowest = seen
		}
		older = append(older, m)
	}
	if len(older) == 0 {
		return nil
	}
	p := warningAt(cl.Object, contractPath(cl), fmt.Sprintf(
		"contract v%s is above what nodes were last seen running: Talos %s on %s (%s); the rollout would refuse it",
		minorText(contract), lowest.version, onMachines(older), lowest.age))
	p.Hint = "upgrade Talos first"
	return []fleet.Problem{p}
}
