// Command gen-docs writes docs/metrics.md from the metrics themselves. The pages of the commands and of the
// configuration are written by ichor gen-docs, which has the commands.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"ichor.maesh.dev/ichor/status/metrics"
)

func main() {
	var b bytes.Buffer
	b.WriteString("# Metrics\n\n<!-- Made by make generate from status/metrics. -->\n\n" +
		"On `/metrics` of `metrics.listen`, beside those of the Go runtime and the process. No label holds a commit.\n\n" +
		"| metric | type | labels | what |\n| --- | --- | --- | --- |\n")
	for _, d := range metrics.New("").Descs() {
		labels := "–"
		if len(d.Labels) > 0 {
			labels = "`" + strings.Join(d.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, d.Help)
	}
	if err := os.WriteFile("docs/metrics.md", b.Bytes(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "gen-docs:", err)
		os.Exit(1)
	}
}
