package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/loop"
	"ichor.maesh.dev/ichor/validate/check"
)

// signedBy says of each commit what is wrong with its signature; nothing of those that it does not know.
type signedBy map[string]string

func (s signedBy) Signature(commit string, _ *git.Signers) (git.Signature, error) {
	return git.Signature{Problem: s[commit]}, nil
}

const edKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGuXbWvJGvGpoBr1Bm1hm6sSlWXHr0qqEyUeWmyUYbqL"

func signersFile(t *testing.T) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "allowed")
	if err := os.WriteFile(p, []byte("ed@example.org "+edKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func signatureOf(r *check.Report) string {
	for _, p := range r.Problems {
		if p.Rule == ruleSignature {
			return string(p.Severity) + ": " + p.Message
		}
	}
	return ""
}

// TestSignaturesByMode: the watched branch is judged, whatever a stranger signs is not.
func TestSignaturesByMode(t *testing.T) {
	h := newHistory()
	good := h.commit("good", "", tree("cp1"))
	bad := h.commit("bad", good, tree("cp1", "w1"))
	read := signedBy{bad: "it is not signed"}
	for mode, want := range map[string]struct {
		verdict   check.Verdict
		said      string
		untrusted bool
	}{
		"off":     {check.Passed, "", false},
		"warn":    {check.Passed, "warning: the commit", false},
		"require": {check.Failed, "error: the commit", true},
	} {
		c := newCommits(h)
		c.signed = signatures{config.Signatures{Mode: mode, AllowedSignersFile: signersFile(t)}, read}
		res, err := c.head(t.Context(), bad)
		if err != nil {
			t.Fatal(err)
		}
		if res.report.Verdict != want.verdict || !strings.HasPrefix(signatureOf(res.report), want.said) || res.untrusted != want.untrusted {
			t.Errorf("%s: %s, %q, untrusted %t", mode, res.report.Verdict, signatureOf(res.report), res.untrusted)
		}
		if res, err = c.head(t.Context(), good); err != nil || res.report.Verdict != check.Passed || signatureOf(res.report) != "" {
			t.Errorf("%s: a good one: %v %v", mode, res, err)
		}
		pull, err := c.check(t.Context(), subject{commit: bad, base: good, tree: bad, against: good, excuse: true})
		if err != nil || signatureOf(pull.report) != "" {
			t.Errorf("%s: a pull request: %v %v", mode, pull, err)
		}
	}
}

// TestAnUnsignedHeadIsNotFollowed: the last commit that was good stays in force, and what the head acknowledges counts for
// nothing.
func TestAnUnsignedHeadIsNotFollowed(t *testing.T) {
	h := newHistory()
	good := h.commit("good", "", tree("cp1"))
	bad := h.commit("bad", good, tree("cp1", "w1"))
	c := newCommits(h)
	c.signed = signatures{config.Signatures{Mode: "require", AllowedSignersFile: signersFile(t)}, signedBy{bad: "it is not signed"}}
	got := targetsAt(t, c, bad, inventory(good, "cp1"))["prod"]
	if got == nil || got.commit != good || len(got.acks) != 0 {
		t.Fatalf("%+v", got)
	}
	if got := targetsAt(t, c, bad, nil)["prod"]; got == nil || got.passed {
		t.Fatalf("with nothing applied before: %+v", got)
	}
	// The keys can't be read: nothing is trusted.
	c.signed.config.AllowedSignersFile = "/nonexistent"
	if res, err := c.head(t.Context(), good); err != nil || res.report.Verdict != check.Failed {
		t.Fatalf("without keys: %+v %v", res, err)
	}
}

// TestAKeyThatIsAddedCountsAtOnce: the same head turns green when its signer is allowed.
func TestAKeyThatIsAddedCountsAtOnce(t *testing.T) {
	r := newRepo()
	head := r.history.commit("one", "", tree("cp1"))
	read := signedBy{head: "its key is not one of those that may sign"}
	r.commits.signed = signatures{config.Signatures{Mode: "require", AllowedSignersFile: signersFile(t)}, read}
	r.at(head)
	look := func() {
		t.Helper()
		if err := r.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.looker.work.Checks = nil
	}
	look()
	look()
	r.wantStatus(t, head, state.StateFailure)
	if last := r.assigned[len(r.assigned)-1]["prod"]; last == nil || last.passed {
		t.Fatalf("%+v", last)
	}
	delete(read, head)
	look()
	look()
	r.wantStatus(t, head, state.StateFailure, state.StateSuccess)
	if last := r.assigned[len(r.assigned)-1]["prod"]; last == nil || !last.passed {
		t.Fatalf("%+v", last)
	}
}

// TestAPullRequestIsCheckedAsItsMerge: the files of the forge's merge commit are read, and the status is its head's; a
// merge that is not known is said.
func TestAPullRequestIsCheckedAsItsMerge(t *testing.T) {
	r := newRepo()
	fork := r.history.commit("fork", "", tree("cp1"))
	base := r.history.commit("base", fork, tree("cp1", "w1"))
	head := r.history.commit("head", fork, broken(tree("cp1")))
	merge := r.history.commit("merge", base, tree("cp1", "w1", "w2"))
	r.at(base)
	r.looker.work.Checks = []loop.CheckJob{
		{Commit: head, Base: base, Tree: merge, Against: base, Kind: loop.KindPull, PR: 1},
	}
	if err := r.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantStatus(t, head, state.StateSuccess)
	r.looker.work.Checks = []loop.CheckJob{
		{Commit: head, Base: base, Tree: head, Against: fork, Kind: loop.KindPull, PR: 1, Note: "the forge has no merge commit of it"},
	}
	if err := r.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantStatus(t, head, state.StateSuccess, state.StateFailure)
	if page := r.pages.staged["checks/"+head+".md"]; !strings.Contains(page, "checked alone") || !strings.Contains(page, "no merge commit") {
		t.Errorf("the report says\n%s", page)
	}
	if !slices.Contains(r.looker.done, head) {
		t.Error("the job is not done")
	}
}
