package check

import (
	"cmp"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/validate/rules"
)

// minScrub is the shortest text that is scrubbed; shorter ones would eat text that has nothing to do with them.
const minScrub = 6

// scrubber replaces what lies in plain text in the repository: a misplaced secret shows in Talos's error texts and in
// configuration fields that no mask knows (the content of a file, for example). Rule plaintext-secret reports it; no
// output repeats it.
type scrubber struct{ replacer *strings.Replacer }

// newScrubber takes the values of both sides: a change shows what base had, too.
func newScrubber(values []secret.Bytes) scrubber {
	var pieces []string
	for _, v := range values {
		// A value of several lines is written with another indentation elsewhere: each line counts for itself.
		for _, piece := range strings.Fields(strings.ReplaceAll(string(v.Reveal()), `\n`, "\n")) {
			if len(piece) >= minScrub && !strings.HasPrefix(piece, "-----") {
				pieces = append(pieces, piece)
			}
		}
	}
	if len(pieces) == 0 {
		return scrubber{}
	}
	// The longest first: one value may begin with another.
	slices.SortFunc(pieces, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	pieces = slices.Compact(pieces)
	pairs := make([]string, 0, 2*len(pieces))
	for _, p := range pieces {
		pairs = append(pairs, p, secret.Redacted)
	}
	return scrubber{strings.NewReplacer(pairs...)}
}

func (s scrubber) text(t string) string {
	if s.replacer == nil {
		return t
	}
	return s.replacer.Replace(t)
}

// scrub takes the plain-text secrets of both sides out of everything that the report says.
func (s *session) scrub() {
	values := rules.SecretValues(s.context())
	if s.base != nil {
		values = append(values, rules.SecretValues(s.baseContext())...)
	}
	s.detail.scrubber = newScrubber(values)
	sc := s.detail.scrubber
	if sc.replacer == nil {
		return
	}
	for i := range s.report.Problems {
		p := &s.report.Problems[i]
		p.Message, p.Hint, p.Path = sc.text(p.Message), sc.text(p.Hint), sc.text(p.Path)
	}
	for i := range s.report.Machines {
		for j := range s.report.Machines[i].Paths {
			p := &s.report.Machines[i].Paths[j]
			p.Path, p.Before, p.After = sc.text(p.Path), sc.text(p.Before), sc.text(p.After)
		}
	}
	for i := range s.report.Plan {
		st := &s.report.Plan[i]
		st.Disrupts, st.Refusal, st.RefusedNow = sc.text(st.Disrupts), sc.text(st.Refusal), sc.text(st.RefusedNow)
	}
}

// Scrub takes the repository's plain-text secrets out of a text that is to be shown.
func (d *Detail) Scrub(t string) string { return d.scrubber.text(t) }
