// Package report turns what a check found into the forms that people and programs read: Markdown for a person who
// decides on a merge, text for a terminal, JSON for programs, annotations for GitHub's runners, and the one line of a
// commit status. The same report gives the same bytes. What a repository wrote into a message can't break the form.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/check"
)

// JSON is the stable form (schemas/report.schema.json), with a newline at its end.
func JSON(r *check.Report) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return b.Bytes(), nil
}

// MaxDescription is how many runes a commit status holds (GitHub's limit; the others allow more).
const MaxDescription = 140

// Description is the line of the commit status ichor/check: what matters first, no time or duration, at most
// MaxDescription runes.
func Description(r *check.Report) string {
	s := split(r)
	switch r.Verdict {
	case check.Errored:
		text := "could not be checked"
		if len(s.errors) > 0 {
			text += ": " + oneLine(s.errors[0].Message)
		}
		return clip(text, MaxDescription)
	case check.Failed:
		counted := s.errors
		if len(counted) == 0 {
			counted = s.onBase
		}
		if len(counted) == 0 {
			return "failed"
		}
		tail := ""
		if n := len(counted) - 1; n > 0 {
			tail = fmt.Sprintf(" (and %s)", count(n, "more error", "more errors"))
		}
		first := counted[0]
		return clip(where(first)+": "+oneLine(first.Message), MaxDescription-len([]rune(tail))) + tail
	case check.Passed:
	}
	return clip(changeSummary(r)+noted(s), MaxDescription)
}

// noted says what a pass leaves to be looked at.
func noted(s problems) string {
	var parts []string
	if n := len(s.warnings); n > 0 {
		parts = append(parts, count(n, "warning", "warnings"))
	}
	if n := len(s.onBase); n > 0 {
		parts = append(parts, count(n, "problem", "problems")+" already on base")
	}
	if len(parts) == 0 {
		return ""
	}
	return "; " + strings.Join(parts, ", ")
}

// changeSummary counts what changes: "3 machines change (restart), 1 new".
func changeSummary(r *check.Report) string {
	counts := map[check.Change]int{}
	worst := ""
	for _, m := range r.Machines {
		counts[m.Change]++
		if m.Change == check.ChangeUpdate && effectRank(m.Effect) > effectRank(worst) {
			worst = m.Effect
		}
	}
	var parts []string
	if n := counts[check.ChangeUpdate]; n > 0 {
		parts = append(parts, fmt.Sprintf("%s (%s)", count(n, "machine changes", "machines change"), worst))
	}
	if n := counts[check.ChangeNew]; n > 0 {
		parts = append(parts, count(n, "new machine", "new machines"))
	}
	if n := counts[check.ChangeRemove]; n > 0 {
		parts = append(parts, count(n, "machine removed", "machines removed"))
	}
	if len(parts) == 0 {
		return "no machine changes"
	}
	return strings.Join(parts, ", ")
}

// effectRank orders effects by what they do now: reboot, restart, live, install.
func effectRank(e string) int {
	switch e {
	case "reboot":
		return 4
	case "restart":
		return 3
	case "live":
		return 2
	case "install":
		return 1
	}
	return 0
}

// problems of a report, by how they are shown.
type problems struct {
	errors, warnings, onBase []fleet.Problem
}

func split(r *check.Report) problems {
	var s problems
	for _, p := range r.Problems {
		switch {
		case p.OnBase:
			s.onBase = append(s.onBase, p)
		case p.Severity == fleet.Error:
			s.errors = append(s.errors, p)
		default:
			s.warnings = append(s.warnings, p)
		}
	}
	return s
}

// where names a problem's place as people click it.
func where(p fleet.Problem) string {
	switch {
	case p.File == "":
		return p.Rule
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
