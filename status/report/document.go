package report

import (
	"fmt"
	"strings"
)

// noteBytes are kept free for what is said of what was left out.
const noteBytes = 700

// document is Markdown under a limit of bytes.
type document struct {
	b    strings.Builder
	left int
	// omitted says what was left out, in order.
	omitted []string
}

func (d *document) write(s string) {
	d.b.WriteString(s)
	d.left -= len(s)
}

// fit gives as many whole rows as go into the share of what is left, and notes the rest.
func (d *document) fit(title, end string, rows []string, share float64, what string) {
	budget := int(float64(d.left)*share) - len(title) - len(end)
	n, used := 0, 0
	for n < len(rows) && used+len(rows[n]) <= budget {
		used += len(rows[n])
		n++
	}
	if n < len(rows) {
		d.omitted = append(d.omitted, fmt.Sprintf("%d of %d %s", len(rows)-n, len(rows), what))
	}
	if n > 0 {
		d.write(title + strings.Join(rows[:n], "") + end)
	}
}

// section writes a title and its rows; nothing where there are none.
func (d *document) section(title string, rows []string, share float64, what string) {
	if len(rows) > 0 {
		d.fit(title, "\n", rows, share, what)
	}
}

// folded writes rows that are shown on a click.
func (d *document) folded(summary, head string, rows []string, share float64, what string) {
	if len(rows) == 0 {
		return
	}
	title := "<details><summary>" + prose(summary, 6*maxName) + "</summary>\n\n" + head
	d.fit(title, "\n</details>\n\n", rows, share, what)
}

// finish adds what was left out.
func (d *document) finish(opt Options) string {
	s := strings.TrimRight(d.b.String(), "\n") + "\n"
	if len(d.omitted) == 0 {
		return s
	}
	// Groups of paths may be many; the note itself is bounded too.
	list := clip(strings.Join(d.omitted, ", "), 400)
	s += fmt.Sprintf("\nLeft out to stay under %d bytes: %s.", opt.MaxBytes, list)
	if opt.JSONName != "" {
		s += fmt.Sprintf(" The whole is in %s.", code(opt.JSONName, maxName))
	}
	return s + "\n"
}
