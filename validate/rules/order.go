package rules

import (
	"cmp"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

func compareProblems(a, b fleet.Problem) int {
	return cmp.Or(
		strings.Compare(a.File, b.File),
		cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Column, b.Column),
		strings.Compare(a.Rule, b.Rule),
		strings.Compare(string(a.Severity), string(b.Severity)),
		strings.Compare(a.Cluster, b.Cluster),
		strings.Compare(a.Object, b.Object),
		strings.Compare(a.Machine, b.Machine),
		strings.Compare(a.Path, b.Path),
		strings.Compare(a.Message, b.Message),
		strings.Compare(a.Hint, b.Hint),
		strings.Compare(a.Fingerprint, b.Fingerprint),
	)
}

// comparePlaces orders two places by file, line and column.
func comparePlaces(a, b fleet.Position) int {
	return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}
