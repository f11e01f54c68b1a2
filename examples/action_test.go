package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// step is one of a workflow's that runs a shell.
type step struct{ If, Run string }

// actionSteps reads the steps of the workflow that call ichor.
func actionSteps(t *testing.T) []step {
	t.Helper()
	data, err := os.ReadFile("github-action/ichor-check.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs map[string]struct{ Steps []step }
	}
	if err := yaml.Unmarshal(data, &workflow); err != nil {
		t.Fatal(err)
	}
	var out []step
	for _, s := range workflow.Jobs["check"].Steps {
		if strings.HasPrefix(s.Run, "ichor ") {
			out = append(out, s)
		}
	}
	if len(out) < 3 {
		t.Fatalf("the workflow has only %d steps that call ichor", len(out))
	}
	return out
}

// TestTheActionsSteps runs the workflow's steps as a runner does (bash -e, GITHUB_* variables) on a pull request that is
// wrong, on one that is right, and on a push.
func TestTheActionsSteps(t *testing.T) {
	bin, repo, upstream := t.TempDir(), t.TempDir(), t.TempDir()
	summary := filepath.Join(t.TempDir(), "summary.md")
	env := append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "GIT_CONFIG_GLOBAL="+os.DevNull,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
		"GITHUB_ACTIONS=true", "GITHUB_BASE_REF=main", "GITHUB_STEP_SUMMARY="+summary)
	command := func(dir, name string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(dir, name string, args ...string) {
		t.Helper()
		if out, err := command(dir, name, args...); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	must("..", "go", "build", "-buildvcs=false", "-o", filepath.Join(bin, "ichor"), "./cmd/ichor")
	must(upstream, "git", "init", "-q", "-b", "main")
	must(".", "cp", "-r", "minimal/.", upstream)
	must(upstream, "git", "add", ".")
	must(upstream, "git", "commit", "-qm", "base")
	must(repo, "git", "clone", "-q", upstream, ".")
	must(repo, "git", "checkout", "-q", "-b", "idea")
	change := func(from, to string) {
		must(repo, "sed", "-i", "s/"+from+"/"+to+"/", "cp1.yaml")
		must(repo, "git", "commit", "-qam", "change")
	}
	job := func(event string) (out string, failed bool) {
		for _, s := range actionSteps(t) {
			if s.If != "always()" && s.If != "github.event_name == '"+event+"'" {
				continue
			}
			text, err := command(repo, "bash", "-e", "-c", s.Run)
			out, failed = out+text, failed || err != nil
		}
		return out, failed
	}

	change("role: controlplane", "role: controlpane")
	if out, failed := job("pull_request"); !failed || !strings.Contains(out, "::error file=cp1.yaml,line=8,") {
		t.Errorf("a pull request that is wrong: failed %t, without an annotation at its line:\n%s", failed, out)
	}
	if text, err := os.ReadFile(summary); err != nil || !strings.Contains(string(text), "# Check failed") {
		t.Errorf("the summary has no report: %v\n%s", err, text)
	}
	change("role: controlpane", "role: controlplane")
	if out, failed := job("pull_request"); failed || strings.Contains(out, "::error") {
		t.Errorf("a pull request that is right fails:\n%s", out)
	}
	if out, failed := job("push"); failed || strings.Contains(out, "::error") {
		t.Errorf("a push of what is right fails:\n%s", out)
	}
}
