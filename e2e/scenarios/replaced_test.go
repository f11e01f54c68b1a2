package scenarios

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/harness"
)

// TestRepositoryReplaced: a repository that was deleted and made anew under the same name has another number. Nothing is read
// from it or written to it, by a new process neither, though its history goes on from what ichor knows; with an empty state
// folder it is begun with anew.
func TestRepositoryReplaced(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.58", ControlPlanes: 1})
	r.wait(r.nextCommit(1), checkStatus, "success")
	id, err := r.lab.RecreateForge(r.ctx)
	r.must(err)
	noticed := func() {
		t.Helper()
		r.until("ichor noticed", func() (bool, string) {
			text, err := r.scrape()
			return err == nil && strings.Contains(text, `ichor_git_errors_total{class="replaced"}`), fmt.Sprint("not said (", err, ")")
		})
	}
	noticed()
	if out := r.ichor.Output(); !strings.Contains(out, "another repository is in its place") || !strings.Contains(out, fmt.Sprint(id)) {
		t.Errorf("it says not what is wrong: %.3000s", out)
	}

	status := r.lab.Tip(r.ctx, "ichor/status")
	before := r.writes()
	r.fleet.Somaxconn = "1234"
	commit := r.push("Of the other repository")
	r.ichor.Kill()
	r.start()
	noticed()
	time.Sleep(5 * time.Second) // many looks, were it allowed to look
	if all, err := r.lab.Status(r.ctx, commit); err != nil || len(all.Statuses) != 0 {
		t.Errorf("%+v %v", all, err)
	}
	if now := r.lab.Tip(r.ctx, "ichor/status"); now != status {
		t.Errorf("the status branch of the other was pushed to: %s, was %s", now, status)
	}
	r.unwritten(before)

	r.stop()
	r.ichor = r.run(t.TempDir(), nil, "--takeover-now")
	r.wait(commit, checkStatus, "success")
}
