package report

import (
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/check"
)

// Text is the form for a terminal: one line a problem as compilers write it, what changes, the steps, the verdict.
func Text(r *check.Report) string {
	var b strings.Builder
	for _, p := range r.Problems {
		textProblem(&b, p)
	}
	Changes(&b, r, false)
	Steps(&b, r)
	for _, n := range slices.Concat(r.Notes, r.NotChecked) {
		fmt.Fprintf(&b, "note: %s\n", oneLine(n))
	}
	s := split(r)
	fmt.Fprintf(&b, "%s: %s, %s", r.Verdict, count(len(s.errors), "error", "errors"),
		count(len(s.warnings), "warning", "warnings"))
	if n := len(s.onBase); n > 0 {
		fmt.Fprintf(&b, ", %d already on base", n)
	}
	b.WriteString("; " + changeSummary(r) + "\n")
	return b.String()
}

func textProblem(b *strings.Builder, p fleet.Problem) {
	onBase := ""
	if p.OnBase {
		onBase = " (already on base)"
	}
	fmt.Fprintf(b, "%s: %s%s: %s", oneLine(where(p)), p.Severity, onBase, indented(p.Message))
	if p.Rule != "" && where(p) != p.Rule {
		fmt.Fprintf(b, " [%s]", p.Rule)
	}
	b.WriteByte('\n')
	if subject := subjectOf(p); subject != "" {
		fmt.Fprintf(b, "    in %s\n", oneLine(subject))
	}
	if p.Hint != "" {
		fmt.Fprintf(b, "    hint: %s\n", indented(p.Hint))
	}
}

// subjectOf says what a problem is about: object, field and cluster.
func subjectOf(p fleet.Problem) string {
	subject := p.Object
	if p.Path != "" {
		subject = strings.TrimSpace(subject + " " + p.Path)
	}
	if p.Cluster != "" && p.Object != "TalosCluster/"+p.Cluster {
		subject = strings.TrimSpace(subject + " of cluster " + p.Cluster)
	}
	return subject
}

// indented keeps the lines of a long message apart from the next problem.
func indented(s string) string {
	s = visible(strings.TrimSpace(strings.ReplaceAll(s, "\r\n", "\n")), true)
	return strings.ReplaceAll(s, "\n", "\n    ")
}

// Changes writes what changes per machine, equal changes folded; every is true for machines that don't change too.
func Changes(b *strings.Builder, r *check.Report, every bool) {
	for _, g := range groups(r) {
		if g.change == check.ChangeNone && !every {
			continue
		}
		fmt.Fprintf(b, "%s %s: %s%s\n", oneLine(g.cluster), oneLine(g.names(textNames)), g.change, effectText(g.effect, g.services()))
		for _, p := range g.paths {
			fmt.Fprintf(b, "    %s %s: %s -> %s (%s)\n", oneLine(p.Document), oneLine(p.Path),
				shown(p.Before), shown(p.After), effectName(p.Effect, p.Service))
		}
	}
}

// textNames is how many machines a line of text names.
const textNames = 8

// Steps writes the plan.
func Steps(b *strings.Builder, r *check.Report) {
	for _, st := range r.Plan {
		fmt.Fprintf(b, "step %d: %s %s %s%s%s%s%s\n", st.Step, oneLine(st.Cluster), st.Action, oneLine(st.Machine),
			suffix(", disrupts: ", oneLine(st.Disrupts)), suffix(", etcd: ", oneLine(st.Quorum)),
			suffix(", refused: ", oneLine(st.Refusal)), suffix(", would be refused now: ", oneLine(st.RefusedNow)))
	}
}

func suffix(label, s string) string {
	if s == "" {
		return ""
	}
	return label + s
}

// shown prints a value of a change; an absent one is said.
func shown(v string) string {
	if v == "" {
		return "(none)"
	}
	return clip(oneLine(v), 200)
}

func effectName(effect, service string) string {
	if service != "" {
		return effect + " " + oneLine(service)
	}
	return effect
}

func effectText(effect string, services []string) string {
	if effect == "" || effect == "none" {
		return ""
	}
	if len(services) > 0 {
		return ", " + effect + " (" + oneLine(strings.Join(services, ", ")) + ")"
	}
	return ", " + effect
}

// GitHub is the form of workflow commands, which a runner turns into annotations at the lines
// (docs.github.com/actions, "Workflow commands"). What base has too is a notice.
func GitHub(r *check.Report) string {
	var b strings.Builder
	for _, p := range r.Problems {
		kind := "warning"
		switch {
		case p.OnBase:
			kind = "notice"
		case p.Severity == fleet.Error:
			kind = "error"
		}
		var props []string
		if p.File != "" {
			props = append(props, "file="+property(p.File))
		}
		if p.Line > 0 {
			props = append(props, fmt.Sprintf("line=%d", p.Line))
		}
		if p.Column > 0 {
			props = append(props, fmt.Sprintf("col=%d", p.Column))
		}
		props = append(props, "title="+property("ichor: "+p.Rule))
		message := p.Message
		if p.Hint != "" {
			message += "\nhint: " + p.Hint
		}
		fmt.Fprintf(&b, "::%s %s::%s\n", kind, strings.Join(props, ","), data(message))
	}
	for _, n := range slices.Concat(r.Notes, r.NotChecked) {
		fmt.Fprintf(&b, "::notice title=ichor check::%s\n", data(n))
	}
	kind := "notice"
	if r.Verdict != check.Passed {
		kind = "error"
	}
	fmt.Fprintf(&b, "::%s title=ichor check::%s\n", kind, data(string(r.Verdict)+": "+Description(r)))
	return b.String()
}

var (
	dataEscape     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	propertyEscape = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func data(s string) string     { return dataEscape.Replace(visible(s, true)) }
func property(s string) string { return propertyEscape.Replace(visible(s, true)) }
