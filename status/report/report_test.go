package report_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/validate/check"
)

var update = flag.Bool("update", false, "write the golden files")

// failing is a report as a reviewer meets it: a Talos error, a store in the cluster, something old, 50 machines.
func failing() *check.Report {
	r := &check.Report{
		APIVersion: check.ReportAPIVersion, Commit: "1f0c3c9a", Base: "77aa0b12", Verdict: check.Failed,
		Problems: []fleet.Problem{
			{
				Rule: "backup-in-cluster", Severity: fleet.Error, Cluster: "prod", Object: "TalosEtcdBackup/nightly",
				File: "backup.yaml", Line: 10, Column: 5, Path: "spec.s3.endpoint",
				Message: "backup store in the cluster: minio.storage.svc is a Kubernetes service name (*.svc); the backup store must live outside the cluster being restored",
			},
			{
				Rule: "count", Severity: fleet.Warning, Cluster: "prod", Object: "TalosCluster/prod", File: "cluster.yaml", Line: 14, Column: 5,
				Path: "spec.controlPlane.count", Message: "even control plane count: 2 control planes bear the loss of no more members than 1",
				Hint: "etcd keeps its quorum best with 1, 3 or 5 members",
			},
			{
				Rule: "plaintext-secret", Severity: fleet.Error, File: "old/notes.txt", Line: 3, Column: 1,
				Message: "secret in plain text: an age identity", OnBase: true,
			},
			{
				Rule: "render", Severity: fleet.Error, Cluster: "prod", Object: "TalosConfigPatch/apiserver-verbosity", File: "patches.yaml",
				Line: 27, Column: 7, Path: "spec.documents[0]",
				Message: "1 error occurred:\n\t* kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)\n(hits 3 machines: cp1, cp2, cp3)",
				Hint:    "set it in a KubeAPIServerConfig document",
			},
		},
		Machines: []check.Machine{
			{Cluster: "prod", Name: "cp1", Role: "controlplane", Change: check.ChangeUpdate, Effect: "restart", Digest: "sha256:aa", Paths: []check.PathChange{
				{Document: "v1alpha1", Path: "cluster.apiServer.extraArgs.v", Effect: "restart", Service: "kube-apiserver", Before: "2", After: "4"},
				{Document: "HostnameConfig", Path: "hostname", Effect: "live", After: "n|1"},
			}},
			{Cluster: "prod", Name: "cp9", Role: "controlplane", Change: check.ChangeNew, Effect: "install", Digest: "sha256:ab", Paths: []check.PathChange{}},
			{Cluster: "prod", Name: "w0", Role: "worker", Change: check.ChangeRemove, Effect: "none", Paths: []check.PathChange{}},
		},
		Plan: []check.Step{
			{Step: 1, Cluster: "prod", Machine: "cp1", Action: "configure", Disrupts: "the API server of one of 3 control planes", Refusal: "the check of this cluster failed: nothing is applied"},
		},
	}
	for i := range 47 {
		r.Machines = append(r.Machines, check.Machine{
			Cluster: "prod", Name: fmt.Sprintf("w%02d", i+1), Role: "worker", Change: check.ChangeUpdate, Effect: "live", Digest: "sha256:ac",
			Paths: []check.PathChange{{Document: "v1alpha1", Path: `machine.sysctls["net.core.somaxconn"]`, Effect: "live", Before: "4096", After: "8192"}},
		})
	}
	return r
}

func passing() *check.Report {
	return &check.Report{
		APIVersion: check.ReportAPIVersion, Commit: "1f0c3c9a", Verdict: check.Passed,
		Problems: []fleet.Problem{}, Machines: []check.Machine{}, Plan: []check.Step{},
	}
}

func TestGolden(t *testing.T) {
	j, err := report.JSON(failing())
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{
		"failing.md": report.Markdown(failing(), report.Options{}), "failing.txt": report.Text(failing()),
		"failing.json": string(j), "failing.github": report.GitHub(failing()),
		"passing.md": report.Markdown(passing(), report.Options{}), "passing.txt": report.Text(passing()),
	} {
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestDescription(t *testing.T) {
	long := failing()
	long.Problems[0].Message = strings.Repeat("ä very long message ", 40)
	changed := passing()
	changed.Machines = failing().Machines
	onBase := passing()
	onBase.Verdict = check.Failed
	onBase.Problems = failing().Problems[2:3]
	errored := passing()
	errored.Verdict = check.Errored
	for name, c := range map[string]struct {
		r    *check.Report
		want string
	}{
		"failed":  {failing(), "backup.yaml:10:5: backup store in the cluster: minio.storage.svc is a Kubernetes service name (*.svc); the backup store… (and 1 more error)"},
		"long":    {long, "(and 1 more error)"},
		"passed":  {passing(), "no machine changes"},
		"changed": {changed, "48 machines change (restart), 1 new machine, 1 machine removed"},
		"on base": {onBase, "old/notes.txt:3:1: secret in plain text: an age identity"},
		"errored": {errored, "could not be checked"},
	} {
		got := report.Description(c.r)
		if !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if n := utf8.RuneCountInString(got); n > report.MaxDescription || strings.ContainsAny(got, "\n\r") {
			t.Errorf("%s: %d runes: %q", name, n, got)
		}
	}
}

// hostile texts try to end what they stand in, to name somebody, to run, to hide or to move a terminal's cursor.
var hostile = []string{
	"</details><script>alert(1)</script>", "`` ` ``` ```` code", "a | b | c", "line\nbreak\r\n\r\n# heading", "@everyone and #123",
	"[click](javascript:alert(1))", "![x](https://evil.example/x.png)", "https://evil.example www.evil.example", "\x1b[31mred\x1b[0m\x07",
	"\u202eevil\u2066", "<!-- ", "&lt;b&gt;", "*bold* _it_ ~~no~~ $x$", strings.Repeat("x", 20_000), "\xff\xfe", "::error::x%0A", "\\|", "- item\n\n    code",
	"```\n</details>\n# out of the block",
}

// poison puts a hostile text into every field that a repository can write.
func poison(s string) *check.Report {
	r := failing()
	for i := range r.Problems {
		p := &r.Problems[i]
		p.Message, p.Hint, p.Path, p.Object, p.File, p.Cluster, p.Machine = s, s, s, s, s, s, s
	}
	for i := range r.Machines {
		m := &r.Machines[i]
		m.Cluster, m.Name = s, s
		for j := range m.Paths {
			p := &m.Paths[j]
			p.Document, p.Path, p.Before, p.After, p.Service = s, s, s, s, s
		}
	}
	for i := range r.Plan {
		r.Plan[i].Cluster, r.Plan[i].Machine, r.Plan[i].Disrupts, r.Plan[i].Refusal = s, s, s, s
	}
	return r
}

func TestHostileTexts(t *testing.T) {
	for _, s := range hostile {
		r := poison(s)
		md := report.Markdown(r, report.Options{})
		checkMarkdown(t, s, md)
		for form, out := range map[string]string{"text": report.Text(r), "github": report.GitHub(r), "markdown": md} {
			if strings.ContainsAny(out, "\x1b\x07\r") || strings.Contains(out, "\u202e") || strings.Contains(out, "\u2066") || !utf8.ValidString(out) {
				t.Errorf("%s lets control characters of %.30q through", form, s)
			}
		}
		for line := range strings.Lines(report.GitHub(r)) {
			if !strings.HasPrefix(line, "::") || strings.Count(line, "::error") > 1 && !strings.Contains(s, "::error") {
				t.Errorf("github: %.60q is no command of ours", line)
			}
		}
		if _, err := report.JSON(r); err != nil {
			t.Errorf("JSON of %.30q: %v", s, err)
		}
	}
}

// checkMarkdown follows the lines as a renderer does: what is outside of fenced blocks must be of our own form.
func checkMarkdown(t *testing.T, s, md string) {
	t.Helper()
	if len(md) > report.DefaultMaxBytes {
		t.Errorf("%.30q: %d bytes", s, len(md))
	}
	fence, details, head := "", 0, 0
	for line := range strings.Lines(md) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimLeft(line, " ")
		if fence != "" {
			if strings.TrimRight(trimmed, "`") == "" && len(trimmed) >= len(fence) {
				fence = ""
			}
			continue
		}
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fence = trimmed[:len(trimmed)-len(strings.TrimLeft(trimmed, "`"))]
			continue
		case strings.HasPrefix(line, "<details><summary>"):
			details++
			continue
		case line == "</details>":
			details--
			continue
		case strings.HasPrefix(line, "#"):
			head++
		case line == "", strings.HasPrefix(line, "- **"), strings.HasPrefix(line, "| "), strings.HasPrefix(line, "  "),
			strings.HasPrefix(line, "2 errors"), strings.HasPrefix(line, "Left out"):
		default:
			t.Errorf("%.30q: line of no known form: %.80q", s, line)
		}
		plain := withoutCode(line)
		for _, bad := range []string{"<s", "</", "<!--", "https://", "![", "](", "@e"} {
			if strings.Contains(plain, bad) {
				t.Errorf("%.30q: %q in %.120q", s, bad, plain)
			}
		}
		if strings.HasPrefix(line, "| ") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 6 && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 7 {
			t.Errorf("%.30q: a row has another number of cells: %.200q", s, line)
		}
	}
	if fence != "" || details != 0 || head > 4 {
		t.Errorf("%.30q: fence %q, %d details open, %d headings", s, fence, details, head)
	}
}

// withoutCode takes the code spans out of a line.
func withoutCode(line string) string {
	var b strings.Builder
	for i := 0; i < len(line); {
		if line[i] != '`' {
			b.WriteByte(line[i])
			i++
			continue
		}
		n := len(line[i:]) - len(strings.TrimLeft(line[i:], "`"))
		rest := line[i+n:]
		end := closing(rest, n)
		if end < 0 {
			b.WriteString(line[i : i+n])
			i += n
			continue
		}
		i += n + end + n
	}
	return b.String()
}

// closing finds a run of exactly n backticks.
func closing(s string, n int) int {
	for i := 0; i < len(s); {
		if s[i] != '`' {
			i++
			continue
		}
		run := len(s[i:]) - len(strings.TrimLeft(s[i:], "`"))
		if run == n {
			return i
		}
		i += run
	}
	return -1
}

// TestLimit: whatever there is, the report stays under its limit, leads with the verdict and says what it left out.
func TestLimit(t *testing.T) {
	r := failing()
	for i := range 3_000 {
		p := r.Problems[0]
		p.Line = i + 1
		r.Problems = append(r.Problems, p)
		r.Machines = append(r.Machines, check.Machine{
			Cluster: "prod", Name: fmt.Sprintf("x%04d", i), Role: "worker", Change: check.ChangeUpdate, Effect: "live",
			Paths: []check.PathChange{{Document: "v1alpha1", Path: "machine.nodeLabels.n", Effect: "live", After: fmt.Sprint(i)}},
		})
		r.Plan = append(r.Plan, check.Step{Step: i + 2, Cluster: "prod", Machine: fmt.Sprintf("x%04d", i), Action: "configure"})
	}
	for _, limit := range []int{2_000, 10_000, report.DefaultMaxBytes} {
		md := report.Markdown(r, report.Options{MaxBytes: limit, JSONName: "1f0c3c9a.json"})
		if len(md) > limit {
			t.Errorf("limit %d: %d bytes", limit, len(md))
		}
		if !strings.HasPrefix(md, "# Check failed\n\n3002 errors") || !strings.Contains(md, "Left out to stay under") ||
			!strings.Contains(md, "of 3002 errors") || !strings.Contains(md, "`1f0c3c9a.json`") {
			t.Errorf("limit %d: %.200q … %q", limit, md, md[max(0, len(md)-500):])
		}
		if limit > 2_000 && !strings.Contains(md, "## What changes") {
			t.Errorf("limit %d: the errors hide what changes", limit)
		}
	}
}

// FuzzMarkdown: no text breaks the form.
func FuzzMarkdown(f *testing.F) {
	for _, s := range hostile {
		f.Add(s[:min(len(s), 500)])
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := poison(s)
		md := report.Markdown(r, report.Options{})
		if len(md) > report.DefaultMaxBytes || !utf8.ValidString(md) || strings.Count(md, "\n<details>") != strings.Count(md, "\n</details>\n") {
			t.Fatalf("%q breaks the form", s)
		}
		b, err := report.JSON(r)
		if err != nil || !json.Valid(b) {
			t.Fatalf("JSON of %q: %v", s, err)
		}
	})
}
