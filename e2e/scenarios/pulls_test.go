package scenarios

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/validate/check"
)

func (r *rig) pull(p cli.PullRequest) cli.PullResult {
	r.Helper()
	out, err := r.lab.Pull(r.ctx, p)
	r.must(err)
	return out
}

// report reads the report of a commit in both forms.
func (r *rig) report(sha string) (check.Report, string) {
	r.Helper()
	var rep check.Report
	var page string
	r.until("the report of "+sha+" is there", func() (bool, string) {
		data, err := r.lab.File(r.ctx, harness.StatusBranch, "checks/"+sha+".json")
		if err == nil {
			page, err = r.lab.File(r.ctx, harness.StatusBranch, "checks/"+sha+".md")
		}
		if err != nil {
			return false, err.Error()
		}
		r.must(json.Unmarshal([]byte(data), &rep))
		return true, ""
	})
	return rep, page
}

// TestPullRequestFromRedToItsEnd: red with a report that says why, pushed again green, checked again as the forge's merge
// when its base moves, and when it is closed its reports expire.
func TestPullRequestFromRedToItsEnd(t *testing.T) {
	r := newRig(t, harness.Fleet{Net: "127.20.41", ControlPlanes: 1}, true)
	r.start("--status-keep-closed", "1s")
	r.wait("main", applyStatus, "success")
	main := r.lab.Tip(r.ctx, "main")

	// Red.
	clone := filepath.Join(r.dir, "clone")
	r.must(r.lab.Clone(r.ctx, "main", clone))
	edit := func(change func(f *harness.Fleet)) string {
		t.Helper()
		f := r.fleet
		f.Dir = clone
		change(&f)
		r.must(f.Write())
		_, err := r.lab.Git(r.ctx, clone, "add", "-A")
		r.must(err)
		_, err = r.lab.Git(r.ctx, clone, "commit", "-q", "-m", "Topic")
		r.must(err)
		_, err = r.lab.Git(r.ctx, clone, "push", "-q", "origin", "HEAD:refs/heads/topic")
		r.must(err)
		sha, err := r.lab.Git(r.ctx, clone, "rev-parse", "HEAD")
		r.must(err)
		return sha
	}
	red := edit(func(f *harness.Fleet) { f.MachineSpec = map[string]string{"cp1": "hostnam: x"} })
	number := r.pull(cli.PullRequest{Act: "open", Branch: "topic", Title: "A topic"}).Number
	st := r.wait(red, checkStatus, "failure")
	if !strings.Contains(st.TargetURL, "/checks/"+red+".md") {
		t.Errorf("the status points to %q", st.TargetURL)
	}
	rep, page := r.report(red)
	if rep.Base != main || rep.Verdict != check.Failed || !strings.Contains(page, "hostnam") || !strings.Contains(page, "prod/cp1.yaml:") {
		t.Errorf("base %s, verdict %s\n%s", rep.Base, rep.Verdict, page)
	}

	// Pushed again: green, and what a merge does is said.
	green := edit(func(f *harness.Fleet) { f.Somaxconn = "4096" })
	r.wait(green, checkStatus, "success")
	rep, _ = r.report(green)
	if rep.Base != main || len(rep.Notes) > 1 || len(rep.Machines) != 1 || rep.Machines[0].Change != check.ChangeUpdate {
		t.Errorf("%+v", rep)
	}

	// The base moves: the merge of both is checked. It has what main brought, and no step back.
	r.fleet.Annotations = map[string]string{"example.org/note": "base"}
	r.fleet.Extra = map[string]string{"prod/w9.yaml": machine("w9", "  endpoint: 127.20.41.29\n")}
	r.fleet.Extra["prod/w9.yaml"] = strings.Replace(r.fleet.Extra["prod/w9.yaml"], "approvalState: approved", "approvalState: pending", 1)
	moved := r.push("Base moves")
	r.until("the pull request is checked on the new base", func() (bool, string) {
		rep, page = r.report(green)
		return rep.Base == moved && !strings.Contains(page, "checked alone"), fmt.Sprintf("base %s\n%.300s", rep.Base, page)
	})
	for _, m := range rep.Machines {
		if m.Change == check.ChangeRemove {
			t.Errorf("the merge removes %s, which main has and the topic does not know", m.Name)
		}
	}
	if len(rep.Machines) != 2 {
		t.Errorf("the merge has %d machines, want the topic's and main's: %+v", len(rep.Machines), rep.Machines)
	}
	r.posts(green, checkStatus, "success")
	if n := len(r.posted(0, green, checkStatus)); n > 2 {
		t.Errorf("%d statuses for a verdict that did not change", n)
	}

	// It conflicts with its base: no merge is known, and that is said.
	r.fleet.Somaxconn = "8192"
	conflict := r.push("Conflict")
	r.until("the report says that no merge is known", func() (bool, string) {
		rep, page = r.report(green)
		return rep.Base == conflict && strings.Contains(page, "checked alone"), fmt.Sprintf("base %s\n%.300s", rep.Base, page)
	})

	// Closed: its reports go, those of the branch stay.
	r.pull(cli.PullRequest{Act: "close", Number: number})
	r.until("the reports of the pull request are gone", func() (bool, string) {
		for _, sha := range []string{red, green} {
			if _, err := r.lab.File(r.ctx, harness.StatusBranch, "checks/"+sha+".md"); err == nil {
				return false, sha + " is there"
			}
		}
		return true, ""
	})
	r.report(conflict)
}

// TestReportsOfPullsClosedMeanwhileExpire: nobody saw it closed.
func TestReportsOfPullsClosedMeanwhileExpire(t *testing.T) {
	r := newRig(t, harness.Fleet{Net: "127.20.42", ControlPlanes: 1}, true)
	r.start("--status-keep-closed", "1s")
	r.wait("main", applyStatus, "success")
	dir := filepath.Join(r.dir, "topic")
	f := r.fleet
	f.Dir, f.Somaxconn = dir, "4096"
	r.must(f.Write())
	p := r.pull(cli.PullRequest{Act: "open", Branch: "topic", Title: "A topic", Dir: dir})
	r.wait(p.Commit, checkStatus, "success", "failure")
	r.report(p.Commit)
	r.stop()
	r.pull(cli.PullRequest{Act: "close", Number: p.Number})
	r.start("--status-keep-closed", "1s")
	r.until("its report is gone", func() (bool, string) {
		_, err := r.lab.File(r.ctx, harness.StatusBranch, "checks/"+p.Commit+".md")
		return err != nil, "it is there"
	})
}
