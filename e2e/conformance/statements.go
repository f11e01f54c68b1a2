package conformance

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed statements.md
var statementsTable string

// statement is a row of statements.md.
type statement struct{ id, title, how string }

// statements returns the rows in their order.
var statements = sync.OnceValue(func() []statement {
	var out []statement
	for line := range strings.Lines(statementsTable) {
		cells := strings.SplitN(strings.Trim(strings.TrimSpace(line), "|"), " | ", 3)
		if len(cells) != 3 || !strings.HasPrefix(line, "| 1") {
			continue
		}
		out = append(out, statement{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])})
	}
	return out
})

var titles = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	for _, s := range statements() {
		out[s.id] = s.title
	}
	return out
})
