// Package examples_test holds what people copy to its word: every repository passes its check, everything else parses,
// the alert rules do what their tests say, and the hook stops a bad commit.
package examples_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/validate/check"
)

// repositories are the examples that are checked, with how many machines each has.
var repositories = map[string]int{"minimal": 1, "prod": 5}

func TestEveryRepositoryPassesItsCheckWithoutAWarning(t *testing.T) {
	for name, machines := range repositories {
		t.Run(name, func(t *testing.T) {
			r, d, err := check.Run(t.Context(), check.Input{FS: os.DirFS(name)})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range r.Problems {
				t.Errorf("%s:%d: %s: %s: %s", p.File, p.Line, p.Severity, p.Rule, p.Message)
			}
			if r.Verdict != check.Passed || len(r.Machines) != machines {
				t.Errorf("verdict %s with %d machines, want passed with %d", r.Verdict, len(r.Machines), machines)
			}
			for _, c := range d.Head.Clusters {
				if c.Secrets == nil || len(d.Digests[c.Name]) != len(c.Machines) {
					t.Errorf("cluster %s: %d of %d machines rendered", c.Name, len(d.Digests[c.Name]), len(c.Machines))
				}
			}
		})
	}
}

// TestTheExampleOfEachPatchFormIsThere keeps the table in README.md true.
func TestTheExampleOfEachPatchFormIsThere(t *testing.T) {
	f, _, err := fleet.Load(t.Context(), os.DirFS("prod"), fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range f.Clusters[0].Patches {
		s := p.Manifest.Spec
		seen["path"] = seen["path"] || s.Path != ""
		seen["several documents"] = seen["several documents"] || len(s.Documents) > 1
		seen["roles"] = seen["roles"] || len(s.Selector.Roles) > 0
		seen["machines"] = seen["machines"] || len(s.Selector.Machines) > 0
		seen["matchLabels"] = seen["matchLabels"] || len(s.Selector.MatchLabels) > 0
		for _, e := range p.Entries {
			seen["encrypted value"] = seen["encrypted value"] || e.Sops != nil
		}
	}
	for _, form := range []string{"path", "several documents", "roles", "machines", "matchLabels", "encrypted value"} {
		if !seen[form] {
			t.Errorf("examples/prod shows no patch with %s", form)
		}
	}
}

func TestEveryYAMLFileParses(t *testing.T) {
	var seen int
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		seen++
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dec := yaml.NewDecoder(bytes.NewReader(data))
		for {
			var doc yaml.Node
			if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				t.Errorf("%s: %s", path, err)
				return nil
			}
		}
	})
	if err != nil || seen < 20 {
		t.Fatalf("%d YAML files seen: %v", seen, err)
	}
}

func TestNoAgeIdentityIsCommitted(t *testing.T) {
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, ".go") {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte("AGE-SECRET-KEY")) {
			t.Errorf("%s holds an age identity", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// promtool gives the path of the tool, which hack/tools.sh fetches where it is missing.
func promtool(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "../hack/tools.sh", "promtool").Output()
	if err != nil {
		t.Fatalf("get promtool: %v (make deps, or install Prometheus)", err)
	}
	return strings.TrimSpace(string(out))
}

func TestAlertRules(t *testing.T) {
	tool := promtool(t)
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), tool, args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestAlertsAreTestedAndUseMetricsThatExist finds the alert that nobody tests, and the one on a metric that was renamed.
func TestAlertsAreTestedAndUseMetricsThatExist(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	data, err := os.ReadFile("prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &rules); err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("prometheus/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, d := range metrics.New("test").Descs() {
		known = append(known, d.Name)
	}
	metric := regexp.MustCompile(`ichor_[a-z_]+`)
	for _, r := range rules.Groups[0].Rules {
		if !regexp.MustCompile(`alertname: ` + r.Alert + `\n\s+exp_alerts:`).Match(tests) {
			t.Errorf("no test sees %s fire", r.Alert)
		}
		if !strings.Contains(string(tests), "alertname: "+r.Alert+"}") && r.Alert != "" {
			t.Errorf("no test sees %s stay silent", r.Alert)
		}
		for _, name := range metric.FindAllString(r.Expr, -1) {
			if !slices.Contains(known, name) {
				t.Errorf("%s looks at %s, which Ichor does not have", r.Alert, name)
			}
		}
	}
}

// TestHookStopsABadCommit runs the hook as Git does, in a repository of its own.
func TestHookStopsABadCommit(t *testing.T) {
	bin, repo := t.TempDir(), t.TempDir()
	command := func(dir, name string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "GIT_CONFIG_GLOBAL="+os.DevNull,
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(dir, name string, args ...string) {
		t.Helper()
		if out, err := command(dir, name, args...); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	must("..", "go", "build", "-o", filepath.Join(bin, "ichor"), "./cmd/ichor")
	must(repo, "git", "init", "-q")
	must(".", "cp", "-r", "minimal/.", repo)
	must(".", "cp", "pre-commit/pre-commit", filepath.Join(repo, ".git/hooks/pre-commit"))
	must(repo, "git", "add", ".")
	must(repo, "git", "commit", "-qm", "good")

	path := filepath.Join(repo, "cp1.yaml")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Replace(good, []byte("controlplane"), []byte("controlpane"), 1)
	if err := os.WriteFile(path, bad, 0o644); err != nil {
		t.Fatal(err)
	}
	must(repo, "git", "add", ".")
	// What is staged counts, not what lies in the folder.
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := command(repo, "git", "commit", "-qm", "bad")
	if err == nil || !strings.Contains(out, "controlpane") {
		t.Errorf("a bad commit got through, or was stopped for another reason: %v\n%s", err, out)
	}
	// So does what the commit removes.
	must(repo, "git", "rm", "-qf", "cp1.yaml")
	out, err = command(repo, "git", "commit", "-qm", "gone")
	if err == nil || !strings.Contains(out, "delete refused") {
		t.Errorf("the last control plane could be deleted: %v\n%s", err, out)
	}
}
