package forge_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-github/v62/github"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

// ref of the bare repository, "" where there is none.
func ref(t *testing.T, f *forge.Forge, name string) string {
	t.Helper()
	out, err := git(t, f.GitDir(), "rev-parse", "--verify", "--quiet", name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

func status(t *testing.T, err error) int {
	t.Helper()
	if e, ok := errors.AsType[*forge.Error](err); ok {
		return e.Status
	}
	t.Fatalf("got %v, want an answer of the API", err)
	return 0
}

func TestPullRequestRefs(t *testing.T) {
	f := open(t, t.TempDir())
	base := push(t, f, "main", map[string]string{"a": "1\n", "b": "1\n"})
	head := push(t, f, "feature", map[string]string{"a": "2\n", "b": "1\n"})
	n, err := f.OpenPR("feature", "main", "change a")
	if err != nil {
		t.Fatal(err)
	}
	if got := ref(t, f, "refs/pull/1/head"); got != head {
		t.Fatalf("refs/pull/1/head is %q, want %q", got, head)
	}
	eventually(t, "test merge", func() bool { return ref(t, f, "refs/pull/1/merge") != "" })
	if got := mustGit(t, f.GitDir(), "log", "-1", "--format=%P", "refs/pull/1/merge"); got != base+" "+head {
		t.Fatalf("parents of the test merge: %q", got)
	}

	// the base moves: the test merge stays behind until somebody asks
	base2 := push(t, f, "main", map[string]string{"a": "1\n", "b": "2\n"})
	if got := mustGit(t, f.GitDir(), "log", "-1", "--format=%P", "refs/pull/1/merge"); got != base+" "+head {
		t.Fatalf("the test merge moved by itself: %q", got)
	}
	gh, _ := client(t, f, token)
	pr, _, err := gh.PullRequests.Get(t.Context(), "acme", "fleet", n)
	if err != nil || pr.Mergeable != nil || pr.GetMergeableState() != "unknown" {
		t.Fatalf("right after the base moved: %v %v", pr.Mergeable, err)
	}
	eventually(t, "new test merge", func() bool {
		return mustGit(t, f.GitDir(), "log", "-1", "--format=%P", "refs/pull/1/merge") == base2+" "+head
	})

	// a conflict: no test merge, and no merge
	push(t, f, "main", map[string]string{"a": "3\n", "b": "2\n"})
	if _, _, err = gh.PullRequests.Get(t.Context(), "acme", "fleet", n); err != nil {
		t.Fatal(err)
	}
	eventually(t, "test merge is gone", func() bool { return ref(t, f, "refs/pull/1/merge") == "" })
	if _, err := f.MergePR(n); status(t, err) != http.StatusMethodNotAllowed {
		t.Fatalf("merge with a conflict: %v", err)
	}

	// force push of the head solves it
	head2, err := f.Push(t.Context(), forge.PushOptions{Dir: folder(t, map[string]string{"a": "3\n", "b": "2\n", "c": "1\n"}), Branch: "feature", Force: true, From: "main"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Merge(t.Context(), n, forge.MergeOptions{Head: head}); status(t, err) != http.StatusConflict {
		t.Fatalf("merge of another head: %v", err)
	}
	commit, err := f.Merge(t.Context(), n, forge.MergeOptions{Head: head2, By: "ann"})
	if err != nil || f.Tip("main") != commit {
		t.Fatalf("merge: %v", err)
	}
	if got := mustGit(t, f.GitDir(), "log", "-1", "--format=%s by %an", "main"); got != "Merge pull request #1 from acme/feature by ann" {
		t.Fatalf("merge commit: %q", got)
	}
	if ref(t, f, "refs/pull/1/head") != head2 || ref(t, f, "refs/pull/1/merge") != "" {
		t.Fatal("after the merge the head must stay and the test merge go")
	}
	if _, err := f.MergePR(n); status(t, err) != http.StatusMethodNotAllowed {
		t.Fatalf("merge twice: %v", err)
	}
}

func TestPullRequestEnds(t *testing.T) {
	f := open(t, t.TempDir())
	push(t, f, "main", map[string]string{"a": "1"})
	for _, b := range []string{"pushed", "deleted", "closed", "draft"} {
		push(t, f, b, map[string]string{"a": "1", b: "x"})
		if _, err := f.OpenPR(b, "", b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.OpenPR("closed", "", "again"); status(t, err) != 422 {
		t.Fatalf("second pull request of a branch: %v", err)
	}
	if _, err := f.OpenPR("nowhere", "", "x"); status(t, err) != 422 {
		t.Fatalf("no such branch: %v", err)
	}
	if err := errors.Join(f.SetDraft(4, true), f.ClosePR(3), f.DeleteBranch(t.Context(), "deleted"), f.SetBranch(t.Context(), "main", f.Tip("pushed"))); err != nil {
		t.Fatal(err)
	}
	if _, err := f.MergePR(4); status(t, err) != 405 || !strings.Contains(err.Error(), "draft") {
		t.Fatalf("merge a draft: %v", err)
	}
	var got []string
	for _, p := range f.Pulls() {
		state := p.State
		if p.Merged {
			state = "merged"
		}
		got = append(got, p.Title+":"+state)
	}
	if s := strings.Join(got, " "); s != "pushed:merged deleted:closed closed:closed draft:open" {
		t.Fatal(s)
	}
	if err := f.ReopenPR(3); err != nil || f.Pulls()[2].State != "open" {
		t.Fatalf("reopen: %v", err)
	}
	if err := f.ReopenPR(1); status(t, err) != 422 {
		t.Fatalf("reopen a merged one: %v", err)
	}
}

func TestForks(t *testing.T) {
	f := open(t, t.TempDir())
	push(t, f, "main", map[string]string{"a": "1"})
	if err := f.Fork("eve"); err != nil {
		t.Fatal(err)
	}
	f.AddToken("eves-token", "eve", forge.Rights{Pulls: true})
	work := t.TempDir()
	mustGit(t, work, "clone", strings.Replace(withToken(f, "eves-token"), "/acme/", "/eve/", 1), "fork")
	dir := filepath.Join(work, "fork")
	mustGit(t, dir, "commit", "--allow-empty", "-m", "evil")
	mustGit(t, dir, "push", "origin", "HEAD:idea")
	if out, err := git(t, dir, "push", withToken(f, "eves-token"), "HEAD:main"); err == nil {
		t.Fatalf("eve pushed to the main repository: %s", out)
	}
	gh, _ := client(t, f, "eves-token")
	pr, _, err := gh.PullRequests.Create(t.Context(), "acme", "fleet", &github.NewPullRequest{Title: github.String("idea"), Head: github.String("eve:idea"), Base: github.String("main")})
	if err != nil {
		t.Fatal(err)
	}
	if pr.GetHead().GetRepo().GetID() == pr.GetBase().GetRepo().GetID() || pr.GetHead().GetRepo().GetFullName() != "eve/fleet" {
		t.Fatalf("head repository: %v", pr.GetHead().GetRepo())
	}
	sha := mustGit(t, dir, "rev-parse", "HEAD")
	if ref(t, f, "refs/pull/1/head") != sha {
		t.Fatal("the head of the fork's pull request is not in the main repository")
	}
	mustGit(t, dir, "commit", "--allow-empty", "-m", "more")
	mustGit(t, dir, "push", "origin", "HEAD:idea")
	if sha = mustGit(t, dir, "rev-parse", "HEAD"); ref(t, f, "refs/pull/1/head") != sha {
		t.Fatal("a push to the fork did not reach the pull request")
	}
	own, _ := client(t, f, token)
	if _, _, err := own.Repositories.CreateStatus(t.Context(), "acme", "fleet", sha, &github.RepoStatus{State: github.String("failure")}); err != nil {
		t.Fatalf("status on a fork's commit: %v", err)
	}
	if err := f.DeleteFork("eve"); err != nil {
		t.Fatal(err)
	}
	list, _, err := own.PullRequests.List(t.Context(), "acme", "fleet", nil)
	if err != nil || len(list) != 1 || list[0].GetHead().Repo != nil || list[0].GetHead().GetSHA() != sha {
		t.Fatalf("after the fork was deleted: %v %v", list, err)
	}
}

func TestPushFolder(t *testing.T) {
	f := open(t, t.TempDir())
	dir := folder(t, map[string]string{"a": "1", ".gitignore": "junk\n", "junk": "x", ".ichor-lab/state.json": "x", "d/e": "2"})
	sha, err := f.Push(t.Context(), forge.PushOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if got := mustGit(t, f.GitDir(), "ls-tree", "-r", "--name-only", sha); got != ".gitignore\na\nd/e" {
		t.Fatalf("files: %q", got)
	}
	if again, err := f.Push(t.Context(), forge.PushOptions{Dir: dir}); err != nil || again != sha {
		t.Fatalf("nothing changed: %q %v", again, err)
	}
	next := push(t, f, "main", map[string]string{"a": "2"})
	forced, err := f.Push(t.Context(), forge.PushOptions{Dir: folder(t, map[string]string{"a": "3"}), Force: true})
	if err != nil || mustGit(t, f.GitDir(), "rev-parse", forced+"^") != sha || forced == next {
		t.Fatalf("force: %v", err)
	}
	orphan, err := f.Push(t.Context(), forge.PushOptions{Force: true, Orphan: true})
	if err != nil || mustGit(t, f.GitDir(), "log", "--format=%P", orphan) != "" {
		t.Fatalf("orphan: %v", err)
	}
	if _, err := f.Push(t.Context(), forge.PushOptions{Dir: dir, Branch: "a..b"}); err == nil {
		t.Fatal("a bad branch name was taken")
	}
	if data, err := f.ReadFile("main", "a"); err != nil || string(data) != "3" {
		t.Fatalf("read: %q %v", data, err)
	}
}

func TestImport(t *testing.T) {
	dir := t.TempDir()
	mustGit(t, dir, "init", "-b", "trunk")
	mustGit(t, dir, "commit", "--allow-empty", "-m", "one")
	mustGit(t, dir, "commit", "--allow-empty", "-m", "two")
	f := open(t, t.TempDir())
	tip, err := f.Import(t.Context(), dir, "main")
	if err != nil || tip != mustGit(t, dir, "rev-parse", "HEAD") {
		t.Fatalf("import: %q %v", tip, err)
	}
}
