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
		changed, failed := patchUses(results)
		for _, p := range cl.Patches {
			problems = append(problems, patchProblems(c, cl, p, changed[p], failed)...)
		}
	}
	return problems
}

// patchUses says which patches changed something, and which machines do not render: these say nothing about what
// their patches would have changed.
func patchUses(results []render.Result) (changed map[*fleet.Patch]bool, failed map[string]bool) {
	changed, failed = map[*fleet.Patch]bool{}, map[string]bool{}
	for _, r := range results {
		if r.Err != nil {
			failed[r.Machine.Name] = true
		}
		for _, u := range r.Patches {
			changed[u.Patch] = changed[u.Patch] || u.Changed
		}
	}
	return changed, failed
}

func patchProblems(c *Context, cl *fleet.Cluster, p *fleet.Patch, changed bool, failed map[string]bool) []fleet.Problem {
	var problems []fleet.Problem
	selected, told := 0, true
	for _, m := range cl.Machines {
		if changed {
			selected = 1 // one at least
			break
		}
		if !isRejected(m) && fleet.Matches(p.Manifest.Spec.Selector, m) {
			selected++
			told = told && !failed[m.Name]
		}
	}
	switch {
	case selected == 0:
		if !unknownMachines(c.Head, cl.Name) {
			w := warningAt(p.Object, "spec.selector", "the patch selects no machine of cluster "+cl.Name)
			w.Hint = "correct the selector (roles, machines and matchLabels must all hold), or delete the patch"
			problems = append(problems, w)
		}
	case len(p.Entries) == 0: // its file can't be read, which is another rule's to say: what it changes is unknown
	case !changed && told:
		w := warningAt(p.Object, "", "the patch changes nothing on any machine that it selects")
		w.Hint = "the machines have these values without it: delete the patch, or change what it sets"
		problems = append(problems, w)
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
