package rules

import (
	"bytes"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

func suspiciousPatchRule() Rule {
	return Rule{
		ID: "suspicious-patch",
		Doc: "A patch selects some machine, changes something on one, and leaves alone what the machine's own fields " +
			"set.",
		Check: checkSuspiciousPatch,
	}
}

func checkSuspiciousPatch(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if cl.Manifest == nil || len(cl.Patches) == 0 {
			continue
		}
		results, err := c.HeadRenders.Cluster(cl.Name)
		if err != nil {
			continue
		}
		uses := patchUses(results)
		for _, p := range cl.Patches {
			problems = append(problems, patchProblems(c, cl, p, uses[p])...)
		}
	}
	return problems
}

// patchUse sums up what a patch did to all machines.
type patchUse struct {
	changed, failed bool
}

// patchUses: a machine that does not render says nothing about what its patches would have changed.
func patchUses(results []render.Result) map[*fleet.Patch]patchUse {
	uses := map[*fleet.Patch]patchUse{}
	for _, r := range results {
		for _, u := range r.Patches {
			use := uses[u.Patch]
			use.changed = use.changed || u.Changed
			use.failed = use.failed || r.Err != nil
			uses[u.Patch] = use
		}
	}
	return uses
}

func patchProblems(c *Context, cl *fleet.Cluster, p *fleet.Patch, use patchUse) []fleet.Problem {
	var problems []fleet.Problem
	selected, failed := 0, use.failed
	for _, m := range cl.Machines {
		if !isRejected(m) && fleet.Matches(p.Manifest.Spec.Selector, m) {
			selected++
		}
	}
	switch {
	case selected == 0:
		if !unknownMachines(c.Head, cl.Name) {
			problems = append(problems, warningAt(p.Object, "spec.selector", "the patch selects no machine of cluster "+cl.Name))
		}
	case !use.changed && !failed:
		problems = append(problems, warningAt(p.Object, "", "the patch changes nothing on any machine that it selects"))
	}
	for i, e := range p.Entries {
		if setsHostname(e.Raw) {
			w := warningAt(p.Object, entryPath(p, i), "the patch sets the hostname, which is a field of the machine")
			w.Hint = "set spec.hostname of the TalosMachine instead"
			problems = append(problems, w)
		}
	}
	return problems
}

// setsHostname tells whether a patch entry sets machine.network.hostname or brings a HostnameConfig.
func setsHostname(raw []byte) bool {
	if !bytes.Contains(raw, []byte("ostname")) {
		return false
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	for {
		var doc struct {
			Kind     string `yaml:"kind"`
			Hostname string `yaml:"hostname"`
			Machine  struct {
				Network struct {
					Hostname string `yaml:"hostname"`
				} `yaml:"network"`
			} `yaml:"machine"`
		}
		if err := dec.Decode(&doc); err != nil {
			// The end, a JSON patch, or what the render rule speaks about.
			return false
		}
		if doc.Machine.Network.Hostname != "" || (doc.Kind == "HostnameConfig" && doc.Hostname != "") {
			return true
		}
	}
}
