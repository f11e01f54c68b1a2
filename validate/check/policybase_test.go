package check_test

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/validate/check"
)

const guardPolicy = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosPolicy
metadata:
  name: guard
spec:
  severity: error
  rules:
    - name: kexec-off
      expression: config.machine.?sysctls["kernel.kexec_load_disabled"].orValue("1") == "1"
`

const kexecPatch = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: kexec
spec:
  clusterRef:
    name: prod
  documents:
    - machine:
        sysctls:
          kernel.kexec_load_disabled: "0"
`

// TestAPullRequestIsJudgedByThePolicyOfBase: whoever sends a pull request can't loosen, in it, what it is judged by.
func TestAPullRequestIsJudgedByThePolicyOfBase(t *testing.T) {
	common := os.DirFS("testdata/common")
	base := fstest.MapFS{"policy.yaml": {Data: []byte(guardPolicy)}}
	for _, name := range []string{"cluster.yaml", "cp1.yaml", "w1.yaml", "secrets.sops.yaml"} {
		data, err := fs.ReadFile(common, name)
		if err != nil {
			t.Fatal(err)
		}
		base[name] = &fstest.MapFile{Data: data}
	}
	run := func(head fstest.MapFS, pull bool) *check.Report {
		t.Helper()
		r, _, err := check.Run(t.Context(), check.Input{FS: head, BaseFS: base, ExcuseBase: pull})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	with := func(policy string, patch bool) fstest.MapFS {
		head := fstest.MapFS{}
		for name, f := range base {
			head[name] = f
		}
		delete(head, "policy.yaml")
		if policy != "" {
			head["policy.yaml"] = &fstest.MapFile{Data: []byte(policy)}
		}
		if patch {
			head["kexec.yaml"] = &fstest.MapFile{Data: []byte(kexecPatch)}
		}
		return head
	}
	loosened := map[string]string{
		"deleted":            "",
		"only a warning":     strings.Replace(guardPolicy, "severity: error", "severity: warning", 1),
		"selects nobody":     strings.Replace(guardPolicy, "  rules:", "  selector:\n    machines: [none]\n  rules:", 1),
		"another expression": strings.Replace(guardPolicy, `== "1"`, `!= "2"`, 1),
		"renamed":            strings.Replace(strings.Replace(guardPolicy, `== "1"`, `!= "2"`, 1), "name: guard", "name: other", 1),
		"of another cluster": strings.Replace(guardPolicy, "  severity", "  clusterRef:\n    name: elsewhere\n  severity", 1),
	}
	for name, policy := range loosened {
		if r := run(with(policy, true), true); r.Verdict != check.Failed || !strings.Contains(story(r), "policy") || !strings.Contains(story(r), "base's counts") {
			t.Errorf("%s, with a patch that breaks the rule:\n%s", name, story(r))
		}
		if name == "of another cluster" {
			continue // a reference to nothing
		}
		if r := run(with(policy, false), true); r.Verdict != check.Passed {
			t.Errorf("%s, with nothing that breaks it:\n%s", name, story(r))
		}
		// Once it is merged the branch is judged by what it holds.
		if r := run(with(policy, true), false); r.Verdict != check.Passed {
			t.Errorf("%s, on the watched branch:\n%s", name, story(r))
		}
	}
	if r := run(with(guardPolicy, true), true); strings.Count(story(r), "does not hold") != 1 {
		t.Errorf("an unchanged policy speaks once:\n%s", story(r))
	}
}
