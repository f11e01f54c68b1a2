package fold

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/schemas/state"
)

// StatusYAML is clusters/<name>/status.yaml.
func StatusYAML(c Cluster) ([]byte, error) {
	out, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode the status of cluster %s: %w", c.Name, err)
	}
	return out, nil
}

// ParseStatus reads what StatusYAML wrote.
func ParseStatus(data []byte) (Cluster, error) {
	var c Cluster
	if err := yaml.Unmarshal(data, &c); err != nil {
		return Cluster{}, fmt.Errorf("decode the status of a cluster: %w", err)
	}
	if extra := len(c.Events) - MaxEvents; extra > 0 {
		c.Events = c.Events[extra:]
	}
	return c, nil
}

// ClusterPage is clusters/<name>/README.md: the cluster at a glance, for people.
func ClusterPage(c Cluster) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Cluster %s\n\n", c.Name)
	fmt.Fprintf(&b, "**%s** — %d of %d machines run the configuration of commit `%s`.", stateWord(c), c.Progress.Converged,
		c.Progress.Total, short(c.Commit))
	if c.Mode == "observe" {
		b.WriteString(" Observe mode: nothing is written to the nodes.")
	}
	b.WriteString("\n\n")
	if c.Progress.Message != "" {
		fmt.Fprintf(&b, "> %s\n\n", cell(c.Progress.Message))
	}
	fmt.Fprintf(&b, "Talos %s, Kubernetes %s.\n\n", orDash(c.TalosVersion), orDash(c.KubernetesVersion))
	conditionTable(&b, c.Conditions)
	b.WriteString("## Machines\n\n| machine | role | state | endpoint | Talos | what |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, m := range c.Machines {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", cell(m.Name), cell(m.Role), mark(m), cell(m.Endpoint),
			orDash(cell(m.TalosVersion)), cell(m.Message))
	}
	if len(c.Members) > 0 {
		b.WriteString("\n## etcd members\n\n| member | name | |\n| --- | --- | --- |\n")
		for _, m := range c.Members {
			note := ""
			if m.Leader {
				note = "leader"
			}
			if m.Learner {
				note = "learner: joining"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.ID, orDash(cell(m.Name)), note)
		}
	}
	eventList(&b, c.Events)
	return b.Bytes()
}

// Head is what the fleet's page says of the watched branch.
type Head struct {
	Branch, Commit, Verdict string
	// Notes are problems of Ichor's surroundings (StatusBranchTampered, a repository out of reach …).
	Notes []state.Condition
}

// FleetPage is README.md of the status branch: the fleet at a glance.
func FleetPage(h Head, clusters []Cluster) []byte {
	var b bytes.Buffer
	b.WriteString("# Fleet\n\nWritten by Ichor; edits are found out and overwritten.\n\n")
	fmt.Fprintf(&b, "Watched branch `%s` is at `%s`, check: ", h.Branch, short(h.Commit))
	if h.Verdict == "" {
		b.WriteString("not done yet.\n\n")
	} else {
		fmt.Fprintf(&b, "[%s](checks/%s.md).\n\n", h.Verdict, h.Commit)
	}
	conditionTable(&b, h.Notes)
	if len(clusters) == 0 {
		b.WriteString("There is no cluster yet.\n")
		return b.Bytes()
	}
	b.WriteString("| cluster | state | machines | what |\n| --- | --- | --- | --- |\n")
	for _, c := range clusters {
		fmt.Fprintf(&b, "| [%s](clusters/%s/README.md) | %s | %d of %d converged | %s |\n", cell(c.Name), c.Name, stateWord(c),
			c.Progress.Converged, c.Progress.Total, cell(c.Progress.Message))
	}
	return b.Bytes()
}

func conditionTable(b *bytes.Buffer, conditions []state.Condition) {
	if len(conditions) == 0 {
		return
	}
	b.WriteString("| condition | status | reason | message |\n| --- | --- | --- | --- |\n")
	for _, c := range conditions {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", cell(c.Type), c.Status, cell(c.Reason), cell(c.Message))
	}
	b.WriteString("\n")
}

func eventList(b *bytes.Buffer, events []state.Event) {
	if len(events) == 0 {
		return
	}
	b.WriteString("\n## Events\n\nNewest first.\n\n| time | machine | reason | message |\n| --- | --- | --- | --- |\n")
	shown := 0
	for _, e := range slices.Backward(events) {
		if shown++; shown > 50 {
			break
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", e.At.UTC().Format(time.RFC3339), orDash(cell(e.Machine)), cell(e.Reason), cell(e.Message))
	}
}

func stateWord(c Cluster) string {
	if c.Progress.State == "" {
		return "unknown"
	}
	return c.Progress.State
}

func mark(m Machine) string {
	if m.Converged {
		return "✅ converged"
	}
	return "❌ " + cell(m.Reason)
}

func short(commit string) string {
	if len(commit) > 12 {
		return commit[:12]
	}
	return commit
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// cell makes text safe inside a Markdown table: it may hold what a node or a manifest said.
func cell(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "`", "'", "[", `\[`, "]", `\]`, "@", "&#64;").Replace(s)
}
