package scenarios

import (
	_ "embed"
	"encoding/json"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/validate/check"
)

// examplePatches is patches.yaml of the example repository: its second patch sets cluster.apiServer.
//
//go:embed testdata/patches.yaml
var examplePatches string

// talosText is what Talos says of cluster.apiServer under contract 1.14.
const talosText = "kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)"

func TestContract114RefusesThePatchOfTheExample(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.3", ControlPlanes: 1, Workers: 1, TalosVersion: "v1.14.0", Contract: "v1.14"})
	before := r.writes()
	r.fleet.Extra = map[string]string{"prod/patches.yaml": examplePatches}
	commit := r.push("Raise verbosity")

	s := r.wait(commit, checkStatus, "failure")
	if want := r.lab.Value("ICHOR_FORGE_URL") + "/lab/fleet/blob/ichor/status/checks/" + commit + ".md"; s.TargetURL != want {
		t.Errorf("the status points to %q, want %q", s.TargetURL, want)
	}
	page, err := r.lab.StatusFile(r.ctx, "checks/"+commit+".md")
	r.must(err)
	for _, want := range []string{talosText, "prod/patches.yaml", "apiserver-verbosity"} {
		if !strings.Contains(page, want) {
			t.Errorf("the report does not say %q:\n%s", want, page)
		}
	}
	text, err := r.lab.StatusFile(r.ctx, "checks/"+commit+".json")
	r.must(err)
	var rep check.Report
	r.must(json.Unmarshal([]byte(text), &rep))
	line := 0
	for i, l := range strings.Split(examplePatches, "\n") {
		if strings.Contains(l, "- cluster:") {
			line = i + 1
		}
	}
	found := false
	for _, p := range rep.Problems {
		if p.Rule == "render" && p.Machine == "cp1" && p.File == "prod/patches.yaml" && p.Line == line &&
			p.Object == "TalosConfigPatch/apiserver-verbosity" && strings.Contains(p.Message, talosText) {
			found = true
		}
	}
	if !found {
		t.Errorf("no problem names the patch at prod/patches.yaml:%d: %+v", line, rep.Problems)
	}
	r.wait(commit, applyStatus, "failure")
	r.looks(6)
	r.unwritten(before)
	if acts := r.acts(commit); len(acts) > 0 {
		t.Errorf("acts for a commit whose check failed: %+v", acts)
	}

	r.fleet.Extra = map[string]string{"prod/patches.yaml": ""}
	r.wait(r.push("Take it back"), applyStatus, "success")
	r.unwritten(before)
}

func TestContract113AppliesThePatchOfTheExample(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.4", ControlPlanes: 1, Workers: 1})
	before := r.writes()
	r.fleet.Extra = map[string]string{"prod/patches.yaml": examplePatches}
	commit := r.push("Raise verbosity")
	r.wait(commit, checkStatus, "success")
	r.wait(commit, applyStatus, "success")
	for name, now := range r.writes() {
		if now.configurations == before[name].configurations || now.reboots != before[name].reboots {
			t.Errorf("%s took %+v, before %+v: want a configuration and no reboot", name, now, before[name])
		}
	}
}
