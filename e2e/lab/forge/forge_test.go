package forge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-github/v62/github"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

const token = "lab-token-0123456789"

func open(t *testing.T, dir string, change ...func(*forge.Options)) *forge.Forge {
	t.Helper()
	o := forge.Options{Dir: dir, Token: token, Owner: "acme", Name: "fleet", Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, c := range change {
		c(&o)
	}
	f, err := forge.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// folder writes files ("path": "content") into a new folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func push(t *testing.T, f *forge.Forge, branch string, files map[string]string) string {
	t.Helper()
	sha, err := f.Push(t.Context(), forge.PushOptions{Dir: folder(t, files), Branch: branch})
	if err != nil {
		t.Fatal(err)
	}
	return sha
}

// client is go-github as Ichor uses it, every exchange checked against GitHub's description.
func client(t *testing.T, f *forge.Forge, token string) (*github.Client, *checked) {
	t.Helper()
	tr := newChecked(t, f.APIURL(), token)
	c, err := github.NewClient(&http.Client{Transport: tr}).WithEnterpriseURLs(f.URL(), f.URL())
	if err != nil {
		t.Fatal(err)
	}
	return c, tr
}

// eventually polls; the forge computes mergeability and delivers webhooks in the background.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

// git runs the real client.
func git(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	return git0(dir, args...)
}

func git0(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_AUTHOR_NAME=ann", "GIT_AUTHOR_EMAIL=ann@example.com",
		"GIT_COMMITTER_NAME=ann", "GIT_COMMITTER_EMAIL=ann@example.com")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(t, dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

func withToken(f *forge.Forge, token string) string {
	return strings.Replace(f.CloneURL(), "http://", "http://x-access-token:"+token+"@", 1)
}

func TestRealGit(t *testing.T) {
	f := open(t, t.TempDir())
	work := t.TempDir()
	if out, err := git(t, work, "clone", f.CloneURL(), "anonymous"); err == nil || !strings.Contains(out, "could not read Username") {
		t.Fatalf("clone without a token: %v\n%s", err, out)
	}
	if out, err := git(t, work, "clone", withToken(f, "wrong"), "wrong"); err == nil || !strings.Contains(out, "Authentication failed") {
		t.Fatalf("clone with a wrong token: %v\n%s", err, out)
	}
	mustGit(t, work, "clone", withToken(f, token), "fleet")
	dir := filepath.Join(work, "fleet")
	mustGit(t, dir, "commit", "--allow-empty", "-m", "first")
	// a pack that is sent in chunks: larger than http.postBuffer
	big := make([]byte, 3<<20)
	for i := range big {
		big[i] = byte(i*7919>>3) ^ byte(i>>11)
	}
	if err := os.WriteFile(filepath.Join(dir, "big"), big, 0o644); err != nil {
		t.Fatal(err)
	}
	mustGit(t, dir, "add", "big")
	mustGit(t, dir, "commit", "-m", "big")
	mustGit(t, dir, "-c", "http.postBuffer=65536", "-c", "pack.compression=0", "push", "origin", "HEAD:main")
	if got, want := f.Tip("main"), mustGit(t, dir, "rev-parse", "HEAD"); got != want {
		t.Fatalf("main is at %q, want %q", got, want)
	}
	if out := mustGit(t, dir, "-c", "protocol.version=2", "ls-remote", "origin"); !strings.Contains(out, "refs/heads/main") {
		t.Fatalf("ls-remote: %s", out)
	}
	if out, err := git(t, dir, "push", "origin", "HEAD:refs/pull/1/head"); err == nil || !strings.Contains(out, "deny updating a hidden ref") {
		t.Fatalf("push to refs/pull: %v\n%s", err, out)
	}
	if out, err := git(t, dir, "push", "origin", ":main"); err == nil || !strings.Contains(out, "refusing to delete the current branch") {
		t.Fatalf("delete the default branch: %v\n%s", err, out)
	}
	if err := f.Protect("main", true); err != nil {
		t.Fatal(err)
	}
	mustGit(t, dir, "commit", "--allow-empty", "-m", "more")
	if out, err := git(t, dir, "push", "origin", "HEAD:main"); err == nil || !strings.Contains(out, "GH006") {
		t.Fatalf("push to a protected branch: %v\n%s", err, out)
	}
	if err := f.Protect("main", false); err != nil {
		t.Fatal(err)
	}
	mustGit(t, dir, "push", "origin", "HEAD:main")
	mustGit(t, dir, "push", "--force", "origin", "HEAD~2:main")
	if c := f.Counts(); c["git.receive-pack"] == 0 || c["git.info-refs"] == 0 {
		t.Fatalf("counts: %v", c)
	}
}

func TestTokenRights(t *testing.T) {
	f := open(t, t.TempDir())
	sha := push(t, f, "main", map[string]string{"a": "1"})
	f.AddToken("reader", "reader", forge.Rights{})
	work := t.TempDir()
	mustGit(t, work, "clone", withToken(f, "reader"), "fleet")
	if out, err := git(t, filepath.Join(work, "fleet"), "push", "origin", "HEAD:other"); err == nil || !strings.Contains(out, "403") {
		t.Fatalf("push with a reader's token: %v\n%s", err, out)
	}
	gh, _ := client(t, f, "reader")
	_, resp, err := gh.Repositories.CreateStatus(t.Context(), "acme", "fleet", sha, &github.RepoStatus{State: github.String("success")})
	if err == nil || resp.StatusCode != 404 {
		t.Fatalf("status with a reader's token: %v", err)
	}
	r, _, err := gh.Repositories.Get(t.Context(), "acme", "fleet")
	if err != nil || r.GetPermissions()["push"] || !r.GetPermissions()["pull"] {
		t.Fatalf("permissions: %v %v", r.GetPermissions(), err)
	}
	for tok, want := range map[string]int{"": 404, "wrong": 401} {
		gh, _ := client(t, f, tok)
		if _, resp, err := gh.Repositories.Get(t.Context(), "acme", "fleet"); err == nil || resp.StatusCode != want {
			t.Errorf("token %q: got %v, want %d", tok, err, want)
		}
	}
	f.RevokeToken("reader")
	if _, resp, err := gh.Repositories.Get(t.Context(), "acme", "fleet"); err == nil || resp.StatusCode != 401 {
		t.Errorf("revoked token: %v", err)
	}
}

func TestGoGitHubAgainstTheDescription(t *testing.T) {
	f := open(t, t.TempDir())
	ctx := t.Context()
	gh, tr := client(t, f, token)
	first := push(t, f, "main", map[string]string{"a": "1\n"})
	push(t, f, "feature/x", map[string]string{"a": "1\n", "b": "2\n"})

	repo, _, err := gh.Repositories.Get(ctx, "acme", "fleet")
	if err != nil || repo.GetDefaultBranch() != "main" || repo.GetID() == 0 || repo.GetHTMLURL() != f.URL()+"/acme/fleet" {
		t.Fatalf("repository: %v %v", repo, err)
	}
	pr, _, err := gh.PullRequests.Create(ctx, "acme", "fleet", &github.NewPullRequest{Title: github.String("add b"), Head: github.String("feature/x"), Base: github.String("main")})
	if err != nil || pr.GetNumber() != 1 {
		t.Fatalf("open: %v %v", pr, err)
	}
	list, _, err := gh.PullRequests.List(ctx, "acme", "fleet", &github.PullRequestListOptions{State: "open", Base: "main", Sort: "updated", Direction: "desc", ListOptions: github.ListOptions{PerPage: 100}})
	if err != nil || len(list) != 1 || list[0].GetHead().GetSHA() != f.Tip("feature/x") {
		t.Fatalf("list: %v %v", list, err)
	}
	eventually(t, "mergeable is computed", func() bool {
		pr, _, err = gh.PullRequests.Get(ctx, "acme", "fleet", 1)
		return err == nil && pr.Mergeable != nil
	})
	if !pr.GetMergeable() || pr.GetCommits() != 1 || pr.GetAdditions() != 1 {
		t.Fatalf("pull request: %+v", pr)
	}
	for _, state := range []string{"pending", "success"} {
		st, _, err := gh.Repositories.CreateStatus(ctx, "acme", "fleet", pr.GetHead().GetSHA(), &github.RepoStatus{
			State: &state, Context: github.String("ichor/check"),
			Description: github.String("fine"), TargetURL: github.String(f.URL() + "/x"),
		})
		if err != nil || st.GetState() != state || st.GetCreator().GetLogin() != "ichor-bot" {
			t.Fatalf("status: %v %v", st, err)
		}
	}
	comb, _, err := gh.Repositories.GetCombinedStatus(ctx, "acme", "fleet", pr.GetHead().GetSHA(), nil)
	if err != nil || comb.GetState() != "success" || len(comb.Statuses) != 1 {
		t.Fatalf("combined: %v %v", comb, err)
	}
	all, _, err := gh.Repositories.ListStatuses(ctx, "acme", "fleet", "heads/feature/x", nil)
	if err != nil || len(all) != 2 || all[0].GetState() != "success" {
		t.Fatalf("list: %v %v", all, err)
	}
	sha, _, err := gh.Repositories.GetCommitSHA1(ctx, "acme", "fleet", "heads/main", "")
	if err != nil || sha != first {
		t.Fatalf("commit: %q %v", sha, err)
	}
	if _, resp, err := gh.Repositories.GetCommitSHA1(ctx, "acme", "fleet", "heads/main", first); err == nil || resp.StatusCode != 304 {
		t.Fatalf("same commit: %v", err)
	}
	br, _, err := gh.Repositories.GetBranch(ctx, "acme", "fleet", "feature/x", 0)
	if err != nil || br.GetCommit().GetSHA() != pr.GetHead().GetSHA() {
		t.Fatalf("branch: %v %v", br, err)
	}
	if bs, _, err := gh.Repositories.ListBranches(ctx, "acme", "fleet", nil); err != nil || len(bs) != 2 {
		t.Fatalf("branches: %v %v", bs, err)
	}
	tree, _, err := gh.Git.GetTree(ctx, "acme", "fleet", pr.GetHead().GetSHA(), true)
	if err != nil || tree.GetTruncated() || len(tree.Entries) != 2 || tree.Entries[1].GetPath() != "b" || tree.Entries[1].GetSize() != 2 {
		t.Fatalf("tree: %v %v", tree, err)
	}
	if _, resp, err := gh.Git.GetTree(ctx, "acme", "fleet", strings.Repeat("0b", 20), true); err == nil || resp.StatusCode != http.StatusNotFound {
		t.Fatalf("tree that is not there: %v", err)
	}
	res, _, err := gh.PullRequests.Merge(ctx, "acme", "fleet", 1, "", nil)
	if err != nil || !res.GetMerged() || f.Tip("main") != res.GetSHA() {
		t.Fatalf("merge: %v %v", res, err)
	}
	c, _, err := gh.Repositories.GetCommit(ctx, "acme", "fleet", res.GetSHA(), nil)
	if err != nil || len(c.Parents) != 2 || c.Parents[0].GetSHA() != first {
		t.Fatalf("merge commit: %v %v", c, err)
	}
	if prs, _, err := gh.PullRequests.ListPullRequestsWithCommit(ctx, "acme", "fleet", res.GetSHA(), nil); err != nil || len(prs) != 1 || prs[0].GetMergedAt().IsZero() {
		t.Fatalf("pull requests of the merge: %v %v", prs, err)
	}
	if _, _, err := gh.Users.Get(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if l, _, err := gh.RateLimit.Get(ctx); err != nil || l.GetCore().Limit != 5000 {
		t.Fatalf("rate limit: %v %v", l, err)
	}
	if len(tr.seen) < 13 {
		t.Errorf("only these operations were checked: %v", tr.seen)
	}
}

func TestStatusRules(t *testing.T) {
	f := open(t, t.TempDir(), func(o *forge.Options) { o.Limits = forge.Limits{PerHour: -1, WritesPerMinute: -1, WritesPerHour: -1} })
	sha := push(t, f, "main", map[string]string{"a": "1"})
	gh, _ := client(t, f, token)
	bad := context.WithValue(t.Context(), wantBad{}, true)
	for name, c := range map[string]struct {
		sha  string
		in   github.RepoStatus
		want string
	}{
		"long description": {sha, github.RepoStatus{State: github.String("success"), Description: github.String(strings.Repeat("ä", 141))}, "description is too long (maximum is 140 characters)"},
		"long context":     {sha, github.RepoStatus{State: github.String("success"), Context: github.String(strings.Repeat("c", 256))}, "context is too long"},
		"bad state":        {sha, github.RepoStatus{State: github.String("great")}, "state is not included in the list"},
		"bad target":       {sha, github.RepoStatus{State: github.String("success"), TargetURL: github.String("ftp://x")}, "target_url must use http(s) scheme"},
		"unknown commit":   {strings.Repeat("a", 40), github.RepoStatus{State: github.String("success")}, "No commit found for SHA"},
		"branch name":      {"main", github.RepoStatus{State: github.String("success")}, "No commit found for SHA"},
	} {
		_, resp, err := gh.Repositories.CreateStatus(bad, "acme", "fleet", c.sha, &c.in)
		if err == nil || resp.StatusCode != 422 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want 422 with %q", name, err, c.want)
		}
	}
	if len(f.Statuses(sha)) != 0 {
		t.Fatalf("a refused status was kept: %v", f.Statuses(sha))
	}
	ok := &github.RepoStatus{State: github.String("success"), Description: github.String(strings.Repeat("ä", 140))}
	if _, _, err := gh.Repositories.CreateStatus(t.Context(), "acme", "fleet", sha, ok); err != nil {
		t.Fatal(err)
	}
	if s := f.Statuses(sha); len(s) != 1 || s[0].Context != "default" {
		t.Fatalf("statuses: %v", s)
	}
}

func TestThousandStatusesPerContext(t *testing.T) {
	f := open(t, t.TempDir(), func(o *forge.Options) { o.Limits = forge.Limits{PerHour: -1, WritesPerMinute: -1, WritesPerHour: -1} })
	sha := push(t, f, "main", map[string]string{"a": "1"})
	gh := github.NewClient(nil).WithAuthToken(token)
	gh, err := gh.WithEnterpriseURLs(f.URL(), f.URL())
	if err != nil {
		t.Fatal(err)
	}
	post := func(context string) error {
		_, _, err := gh.Repositories.CreateStatus(t.Context(), "acme", "fleet", sha, &github.RepoStatus{State: github.String("pending"), Context: &context})
		return err
	}
	for i := range 1000 {
		if err := post([]string{"ichor/check", "Ichor/Check"}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	if err := post("ichor/check"); err == nil || !strings.Contains(err.Error(), "maximum number of statuses") {
		t.Fatalf("status 1001: %v", err)
	}
	if err := post("ichor/other"); err != nil {
		t.Fatal(err)
	}
}

func TestPages(t *testing.T) {
	f := open(t, t.TempDir())
	gh, _ := client(t, f, token)
	push(t, f, "main", map[string]string{"a": "0"})
	for i := range 5 {
		branch := fmt.Sprintf("b%d", i)
		push(t, f, branch, map[string]string{"a": branch})
		if _, err := f.OpenPR(branch, "main", branch); err != nil {
			t.Fatal(err)
		}
	}
	var got []int
	opt := &github.PullRequestListOptions{State: "open", Sort: "created", Direction: "asc", ListOptions: github.ListOptions{PerPage: 2}}
	for {
		prs, resp, err := gh.PullRequests.List(t.Context(), "acme", "fleet", opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range prs {
			got = append(got, p.GetNumber())
		}
		if opt.Page == 2 && (resp.PrevPage != 1 || resp.LastPage != 3 || resp.FirstPage != 1) {
			t.Errorf("links of page 2: %+v", resp)
		}
		if resp.NextPage == 0 {
			break
		}
		opt.Page = resp.NextPage
	}
	if fmt.Sprint(got) != "[1 2 3 4 5]" {
		t.Fatalf("numbers: %v", got)
	}
}

func TestConditionalRequestsAreFree(t *testing.T) {
	f := open(t, t.TempDir())
	push(t, f, "main", map[string]string{"a": "0"})
	ask := func(tag string) *http.Response {
		req, _ := http.NewRequest("GET", f.APIURL()+"repos/acme/fleet/pulls", nil)
		req.Header.Set("Authorization", "token "+token)
		if tag != "" {
			req.Header.Set("If-None-Match", tag)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	r1 := ask("")
	r2 := ask(r1.Header.Get("ETag"))
	if r2.StatusCode != 304 || r2.Header.Get("X-RateLimit-Remaining") != r1.Header.Get("X-RateLimit-Remaining") {
		t.Fatalf("second: %d, remaining %s then %s", r2.StatusCode, r1.Header.Get("X-RateLimit-Remaining"), r2.Header.Get("X-RateLimit-Remaining"))
	}
	push(t, f, "b", map[string]string{"a": "1"})
	if _, err := f.OpenPR("b", "", "b"); err != nil {
		t.Fatal(err)
	}
	if r := ask(r1.Header.Get("ETag")); r.StatusCode != 200 {
		t.Fatalf("after a change: %d", r.StatusCode)
	}
}

func TestLimitsAreReal(t *testing.T) {
	now := time.Now()
	f := open(t, t.TempDir(), func(o *forge.Options) {
		o.Limits = forge.Limits{PerHour: 6, WritesPerMinute: 2}
		o.Now = func() time.Time { return now }
	})
	sha := push(t, f, "main", map[string]string{"a": "1"})
	gh, _ := client(t, f, token)
	post := func() error {
		_, _, err := gh.Repositories.CreateStatus(t.Context(), "acme", "fleet", sha, &github.RepoStatus{State: github.String("pending")})
		return err
	}
	if err := errors.Join(post(), post()); err != nil {
		t.Fatal(err)
	}
	abuse, ok := errors.AsType[*github.AbuseRateLimitError](post())
	if !ok || abuse.GetRetryAfter() != time.Minute {
		t.Fatalf("third write in a minute: %v", abuse)
	}
	gh, _ = client(t, f, token) // go-github refuses everything by itself after that
	for range 3 {
		if _, _, err := gh.Repositories.Get(t.Context(), "acme", "fleet"); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := gh.Repositories.Get(t.Context(), "acme", "fleet")
	if _, ok := errors.AsType[*github.RateLimitError](err); !ok {
		t.Fatalf("seventh request: %v", err)
	}
	if len(f.Statuses(sha)) != 2 {
		t.Fatalf("statuses: %v", f.Statuses(sha))
	}
}

func TestEmptyRepositoryAndUnknownRefs(t *testing.T) {
	f := open(t, t.TempDir())
	gh, _ := client(t, f, token)
	want := func(what string, status int, err error) {
		t.Helper()
		if e, ok := errors.AsType[*github.ErrorResponse](err); !ok || e.Response.StatusCode != status {
			t.Errorf("%s: got %v, want %d", what, err, status)
		}
	}
	_, _, err := gh.Repositories.GetCommitSHA1(t.Context(), "acme", "fleet", "heads/main", "")
	want("commit of an empty repository", 409, err)
	push(t, f, "main", map[string]string{"a": "1"})
	_, _, err = gh.Repositories.GetCommitSHA1(t.Context(), "acme", "fleet", "heads/none", "")
	want("unknown branch", 422, err)
	_, _, err = gh.Repositories.GetCombinedStatus(t.Context(), "acme", "fleet", "none", nil)
	want("status of an unknown branch", 404, err)
	// go-github has no typed error there
	if _, resp, err := gh.Repositories.GetBranch(t.Context(), "acme", "fleet", "none", 0); err == nil || resp.StatusCode != 404 {
		t.Errorf("unknown branch: %v", err)
	}
	_, _, err = gh.PullRequests.Get(t.Context(), "acme", "fleet", 1)
	want("unknown pull request", 404, err)
	_, _, err = gh.Repositories.Get(t.Context(), "acme", "other")
	want("unknown repository", 404, err)
	for _, ref := range []string{"-x", "main~1", "main^{tree}", "@", "a b"} {
		if got := f.Commit(ref); got != "" {
			t.Errorf("ref %q gave %s", ref, got)
		}
	}
}
