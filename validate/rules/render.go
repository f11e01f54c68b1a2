package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

func renderRule() Rule {
	return Rule{
		ID:     "render",
		Doc:    "Every machine that is not rejected renders and passes Talos's own validation.",
		OnBase: true,
		Check:  checkRender,
	}
}

// renderGroup is one failure: the same text by the same patch, for machines that all have it on base, or all not.
type renderGroup struct {
	severity fleet.Severity
	err      *render.Error
	onBase   bool
	machines []*fleet.Machine
}

func checkRender(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		results, err := c.HeadRenders.Cluster(cl.Name)
		if err != nil {
			path := ""
			if errors.Is(err, bundle.ErrMalformed) {
				path = "spec.secretsRef.path"
			}
			p := problemAt(cl.Object, path, "no machine of the cluster renders: "+err.Error())
			p.OnBase = sameOnBase(c, cl, err)
			problems = append(problems, p)
			continue
		}
		for _, g := range renderGroups(c, cl, results) {
			problems = append(problems, g.problem(cl))
		}
	}
	return problems
}

// sameOnBase tells whether the whole cluster fails in the same way on base.
func sameOnBase(c *Context, cl *fleet.Cluster, err error) bool {
	if c.BaseRenders == nil {
		return false
	}
	_, was := c.BaseRenders.Cluster(cl.Name)
	return was != nil && was.Error() == err.Error()
}

// renderGroups folds the failures and warnings of a cluster, in the order in which they are met.
func renderGroups(c *Context, cl *fleet.Cluster, results []render.Result) []*renderGroup {
	base := baseFailures(c, cl, results)
	index := map[string]*renderGroup{}
	var groups []*renderGroup
	add := func(sev fleet.Severity, e *render.Error, m *fleet.Machine) {
		onBase := base[m.Name+"\x00"+failureKey(sev, e)]
		key := fmt.Sprintf("%s\x00%t", failureKey(sev, e), onBase)
		g := index[key]
		if g == nil {
			g = &renderGroup{severity: sev, err: e, onBase: onBase}
			index[key] = g
			groups = append(groups, g)
		}
		g.machines = append(g.machines, m)
	}
	for _, r := range results {
		if r.Err != nil {
			add(fleet.Error, r.Err, r.Machine)
		}
		for _, w := range r.Warnings {
			add(fleet.Warning, w, r.Machine)
		}
	}
	return groups
}

// failureKey is what makes two failures the same: the patch, its entry and Talos's text. Lines may move.
func failureKey(sev fleet.Severity, e *render.Error) string {
	patch := ""
	if e.Patch != nil {
		patch = fmt.Sprintf("%s[%d]", e.Patch.Name, e.Entry)
	}
	return string(sev) + "\x00" + patch + "\x00" + e.Talos
}

// baseFailures renders on base the machines that fail here, and gives what fails there, by machine and failureKey.
func baseFailures(c *Context, cl *fleet.Cluster, results []render.Result) map[string]bool {
	if c.Base == nil || c.BaseRenders == nil {
		return nil
	}
	was := c.Base.Cluster(cl.Name)
	if was == nil || was.Manifest == nil {
		return nil
	}
	var names []string
	for _, r := range results {
		if (r.Err != nil || len(r.Warnings) > 0) && c.machine(was, r.Machine.Name) != nil {
			names = append(names, r.Machine.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	found, err := c.BaseRenders.Cluster(cl.Name, names...)
	if err != nil {
		return nil
	}
	out := map[string]bool{}
	for _, r := range found {
		if r.Err != nil {
			out[r.Machine.Name+"\x00"+failureKey(fleet.Error, r.Err)] = true
		}
		for _, w := range r.Warnings {
			out[r.Machine.Name+"\x00"+failureKey(fleet.Warning, w)] = true
		}
	}
	return out
}

func (g *renderGroup) problem(cl *fleet.Cluster) fleet.Problem {
	p := fleet.Problem{
		Severity: g.severity, Cluster: cl.Name, OnBase: g.onBase,
		File: g.err.Pos.File, Line: g.err.Pos.Line, Column: g.err.Pos.Column,
		Message: withHits(g.err.Talos, g.machines), Hint: g.err.Hint,
	}
	if len(g.machines) == 1 {
		p.Machine = g.machines[0].Name
	}
	object := g.machines[0].Object
	if g.err.Patch != nil {
		object = g.err.Patch.Object
		p.Path = entryPath(g.err.Patch, g.err.Entry)
	}
	p.Object = object.ID()
	if p.File == "" {
		pos := object.At(p.Path)
		p.File, p.Line, p.Column = pos.File, pos.Line, pos.Column
	}
	return p
}

// entryPath is the field that an entry of a patch stands in.
func entryPath(p *fleet.Patch, entry int) string {
	if p.Manifest == nil {
		return ""
	}
	switch s := p.Manifest.Spec; {
	case s.Path != "":
		return "spec.path"
	case len(s.JSONPatch) > 0:
		return "spec.jsonPatch"
	}
	return fmt.Sprintf("spec.documents[%d]", entry)
}

// withHits adds the machines to Talos's text, which may be of several lines.
func withHits(talos string, machines []*fleet.Machine) string {
	talos = strings.TrimSpace(talos)
	if strings.Contains(talos, "\n") {
		return talos + "\n(" + hits(machines) + ")"
	}
	return talos + " (" + hits(machines) + ")"
}

// shownNames is how many machines a message names.
const shownNames = 3

// hits says which machines a failure hits: "hits 12 workers: a, b, c and 9 more".
func hits(machines []*fleet.Machine) string { return "hits " + onMachines(machines) }

// onMachines names machines: "machine w1", "3 control planes: cp1, cp2, cp3", "47 workers: w1, w2, w3 and 44 more".
func onMachines(machines []*fleet.Machine) string {
	names := make([]string, len(machines))
	planes := 0
	for i, m := range machines {
		names[i] = m.Name
		if isControlPlane(m) {
			planes++
		}
	}
	slices.Sort(names)
	what := "machines"
	switch planes {
	case len(machines):
		what = "control planes"
	case 0:
		what = "workers"
	}
	switch n := len(names); {
	case n == 1:
		return "machine " + names[0]
	case n <= shownNames:
		return fmt.Sprintf("%d %s: %s", n, what, strings.Join(names, ", "))
	default:
		return fmt.Sprintf("%d %s: %s and %d more", n, what, strings.Join(names[:shownNames], ", "), n-shownNames)
	}
}
