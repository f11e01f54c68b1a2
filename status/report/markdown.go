package report

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/check"
)

// DefaultMaxBytes keeps a report under what forges show of a Markdown file and take as a comment.
const DefaultMaxBytes = 60_000

// Options of the Markdown form.
type Options struct {
	// MaxBytes bounds the whole; 0 is DefaultMaxBytes. What does not fit is left out, and that is said.
	MaxBytes int
	// JSONName names the whole report for a reader of a shortened one; "" names none.
	JSONName string
}

// Lengths of single texts, in runes.
const (
	maxName    = 120
	maxValue   = 160
	maxMessage = 4_000
	mdNames    = 5
)

// Markdown is the report for a person who decides on a merge: the verdict and its reasons, what changes on which
// machine with what effect, the steps, then the details folded.
func Markdown(r *check.Report, opt Options) string {
	if opt.MaxBytes == 0 {
		opt.MaxBytes = DefaultMaxBytes
	}
	s := split(r)
	gs := groups(r)
	failedBy := s.errors
	d := &document{left: opt.MaxBytes - noteBytes}
	d.write(head(r, s))
	// Each section may take its share of what is left, so that no long one hides the next.
	d.section("## Errors\n\n", problemBlocks(failedBy), 0.6, "errors")
	d.section(changesHead(gs), changeRows(gs), 0.4, "groups of machines")
	d.section("## Warnings\n\n", problemBlocks(s.warnings), 0.4, "warnings")
	d.folded(fmt.Sprintf("%s already on base", count(len(s.onBase), "problem", "problems")), "", problemBlocks(s.onBase), 0.4, "problems")
	d.folded(fmt.Sprintf("Steps that a merge causes (%d)", len(r.Plan)),
		"| step | cluster | machine | action | disrupts | refused by |\n| ---: | --- | --- | --- | --- | --- |\n", stepRows(r), 0.5, "steps")
	d.folded("Not checked", "", notChecked(r), 0.4, "notes")
	for _, g := range gs {
		d.folded(pathsTitle(g), "| document | path | effect | before | after |\n| --- | --- | --- | --- | --- |\n", pathRows(g), 0.5, "paths")
	}
	return d.finish(opt)
}

func head(r *check.Report, s problems) string {
	var b strings.Builder
	switch r.Verdict {
	case check.Passed:
		b.WriteString("# Check passed\n\n")
	case check.Failed:
		b.WriteString("# Check failed\n\n")
	case check.Errored:
		b.WriteString("# Check could not be done\n\n")
	}
	fmt.Fprintf(&b, "%s, %s; %s.", count(len(s.errors), "error", "errors"), count(len(s.warnings), "warning", "warnings"),
		changeSummary(r))
	if r.Commit != "" {
		fmt.Fprintf(&b, " Commit %s", code(r.Commit, maxName))
		if r.Base != "" {
			fmt.Fprintf(&b, ", compared with %s", code(r.Base, maxName))
		}
		b.WriteString(".")
	}
	b.WriteString("\n\n")
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "> %s\n\n", prose(n, maxMessage))
	}
	if r.Verdict == check.Failed && len(s.errors) == 0 && len(s.onBase) > 0 {
		b.WriteString("The errors are on base already; here they count.\n\n")
	}
	return b.String()
}

// notChecked says what the check could not look at.
func notChecked(r *check.Report) []string {
	out := make([]string, 0, len(r.NotChecked))
	for _, n := range r.NotChecked {
		out = append(out, "- "+prose(n, maxMessage)+"\n")
	}
	return out
}

// problemBlocks gives one list item a problem.
func problemBlocks(list []fleet.Problem) []string {
	out := make([]string, 0, len(list))
	for _, p := range list {
		var b strings.Builder
		fmt.Fprintf(&b, "- **%s** %s", prose(p.Rule, maxName), code(where(p), 2*maxName))
		if subject := subjectOf(p); subject != "" {
			fmt.Fprintf(&b, " %s", code(subject, 2*maxName))
		}
		// Talos's own text stays as it is, to the letter.
		if p.Rule == "render" || strings.Contains(strings.TrimSpace(p.Message), "\n") || len(p.Message) > 300 {
			b.WriteString("\n\n" + block(p.Message, "  ", maxMessage))
		} else {
			fmt.Fprintf(&b, "\n  %s\n", prose(p.Message, maxMessage))
		}
		if p.Hint != "" {
			fmt.Fprintf(&b, "\n  Hint: %s\n", prose(p.Hint, maxMessage))
		}
		out = append(out, b.String())
	}
	return out
}

func changesHead(gs []*group) string {
	for _, g := range gs {
		if g.change != check.ChangeNone {
			return "## What changes\n\n| cluster | machines | change | effect | what |\n| --- | --- | --- | --- | --- |\n"
		}
	}
	return ""
}

// whatPaths is how many paths a row of the table names.
const whatPaths = 3

func changeRows(gs []*group) []string {
	var out []string
	for _, g := range gs {
		if g.change == check.ChangeNone {
			continue
		}
		var what []string
		for i, p := range g.paths {
			if i == whatPaths {
				what = append(what, fmt.Sprintf("and %d more", len(g.paths)-i))
				break
			}
			what = append(what, code(pathName(p), maxName))
		}
		effect := g.effect
		if services := g.services(); len(services) > 0 {
			effect += " (" + strings.Join(services, ", ") + ")"
		}
		out = append(out, fmt.Sprintf("| %s | %s | %s | %s | %s |\n", prose(g.cluster, maxName),
			prose(g.names(mdNames), 6*maxName), g.change, prose(effect, maxName), strings.Join(what, " ")))
	}
	return out
}

// pathName is a path with its document, which is left out where it is the v1alpha1 one.
func pathName(p check.PathChange) string {
	if p.Document == "v1alpha1" {
		return p.Path
	}
	return p.Document + " " + p.Path
}

func stepRows(r *check.Report) []string {
	out := make([]string, 0, len(r.Plan))
	for _, st := range r.Plan {
		out = append(out, fmt.Sprintf("| %d | %s | %s | %s | %s | %s |\n", st.Step, prose(st.Cluster, maxName),
			prose(st.Machine, maxName), prose(st.Action, maxName),
			prose(both(st.Disrupts, "etcd: ", st.Quorum), 3*maxName), prose(both(st.Refusal, "now: ", st.RefusedNow), 4*maxName)))
	}
	return out
}

// both puts two texts into one cell.
func both(a, label, b string) string {
	switch {
	case b == "":
		return a
	case a == "":
		return label + b
	}
	return a + "; " + label + b
}

func pathsTitle(g *group) string {
	return fmt.Sprintf("%s on %s of %s", count(len(g.paths), "changed path", "changed paths"), g.names(mdNames), g.cluster)
}

func pathRows(g *group) []string {
	out := make([]string, 0, len(g.paths))
	for _, p := range g.paths {
		out = append(out, fmt.Sprintf("| %s | %s | %s | %s | %s |\n", code(p.Document, maxName), code(p.Path, 2*maxName),
			prose(effectName(p.Effect, p.Service), maxName), value(p.Before), value(p.After)))
	}
	return out
}

func value(v string) string {
	if v == "" {
		return "(none)"
	}
	return code(v, maxValue)
}
