package rules

import (
	"bytes"
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/rules/known"
)

func runningVersionRule() Rule {
	return Rule{
		ID: "running-version",
		Doc: "The Talos version that a node was last seen running knows every document and field of its new " +
			"configuration.",
		AgainstBase: true,
		Check:       checkRunningVersion,
	}
}

func checkRunningVersion(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if _, observed := c.Observed.Cluster(cl.Name); cl.Manifest == nil || !observed {
			continue
		}
		problems = append(problems, runningProblems(c, cl)...)
	}
	return problems
}

// tooNew is what nodes of one version don't know.
type tooNew struct {
	field   known.Field
	version string
}

func runningProblems(c *Context, cl *fleet.Cluster) []fleet.Problem {
	results, err := c.HeadRenders.Cluster(cl.Name)
	if err != nil {
		return nil
	}
	var order []tooNew
	hit := map[tooNew][]*fleet.Machine{}
	for _, r := range results {
		seen, ok := c.seen(r.Machine)
		if !ok || r.Err != nil || seen.minor[0] != 1 {
			continue
		}
		for _, d := range r.Masked.Documents {
			kind, _, _ := strings.Cut(d.ID, "/")
			for _, f := range known.NewerThan(seen.minor[1], kind, d.Fields) {
				k := tooNew{f, seen.version}
				if hit[k] == nil {
					order = append(order, k)
				}
				if on := hit[k]; len(on) == 0 || on[len(on)-1] != r.Machine {
					hit[k] = append(on, r.Machine)
				}
			}
		}
	}
	observed, _ := c.Observed.Cluster(cl.Name)
	var problems []fleet.Problem
	for _, k := range order {
		object, path := bringer(cl, k.field)
		p := warningAt(object, path, fmt.Sprintf("%s came with Talos 1.%d, which is newer than %s, running on %s (%s)",
			k.field, k.field.Minor, k.version, onMachines(hit[k]), c.Observed.Age(observed.At)))
		p.Hint = "upgrade Talos first: the node would refuse the configuration"
		problems = append(problems, p)
	}
	return problems
}

// bringer finds the patch that brings a kind or field, else the field of the cluster that says the contract.
func bringer(cl *fleet.Cluster, f known.Field) (fleet.Object, string) {
	for _, p := range cl.Patches {
		for i, e := range p.Entries {
			if f.Kind != "v1alpha1" && !bytes.Contains(e.Raw, []byte(f.Kind)) {
				continue
			}
			if f.Path == "" || bytes.Contains(e.Raw, []byte(f.Last())) {
				return p.Object, entryPath(p, i)
			}
		}
	}
	return cl.Object, contractPath(cl)
}

// NotObserved says what a check could not look at, because nothing is known of the nodes: "" where all is known.
func NotObserved(c *Context) string {
	unknown, total := 0, 0
	for _, cl := range c.Head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		for _, m := range cl.Machines {
			if !isApproved(m) {
				continue
			}
			total++
			if _, ok := c.seen(m); !ok {
				unknown++
			}
		}
	}
	if unknown == 0 {
		return ""
	}
	return fmt.Sprintf("running-version: not checked on %d of %d approved machines, because the Talos version that they run is not known", unknown, total)
}
