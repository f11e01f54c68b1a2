package gitea_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/forgetest"
	"ichor.maesh.dev/ichor/sync/forge/gitea"
	"ichor.maesh.dev/ichor/sync/webhook"
)

// long builds Gitea where it is not built yet, which takes minutes: make test-all.
var long = flag.Bool("long", false, "build Gitea where it is not built yet")

// real is a running Gitea with users and repositories made for a test.
type real struct {
	t     *testing.T
	bin   string
	conf  string
	url   string
	token map[string]string
	n     atomic.Int64
}

// giteaBin is the pinned server, "" where it is not built.
func giteaBin(t *testing.T) string {
	t.Helper()
	args := []string{"../../../hack/tools.sh", "--built", "gitea"}
	if *long {
		args = []string{"../../../hack/tools.sh", "gitea"}
	}
	out, err := exec.CommandContext(t.Context(), "bash", args...).Output()
	if err != nil {
		if *long {
			t.Fatalf("build Gitea: %v", err)
		}
		return ""
	}
	return strings.TrimSpace(string(out))
}

func startReal(t *testing.T) *real {
	t.Helper()
	bin := giteaBin(t)
	if bin == "" {
		t.Skip("Gitea is not built: hack/tools.sh gitea, or make test-all")
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-C", "../../../hack/tools/gitea", "-m", "-f", "{{.Dir}}", "code.gitea.io/gitea").Output()
	if err != nil {
		t.Fatal("find Gitea's source for its templates: ", err)
	}
	work := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	_ = l.Close()
	r := &real{t: t, bin: bin, conf: filepath.Join(work, "app.ini"), url: "http://" + addr, token: map[string]string{}}
	ini := fmt.Sprintf(`RUN_USER = %s
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = %s
[server]
STATIC_ROOT_PATH = %s
APP_DATA_PATH = %s/data
HTTP_ADDR = 127.0.0.1
HTTP_PORT = %s
ROOT_URL = http://%s/
OFFLINE_MODE = true
DISABLE_SSH = true
[database]
DB_TYPE = sqlite3
PATH = %s/gitea.db
[security]
INSTALL_LOCK = true
[webhook]
ALLOWED_HOST_LIST = loopback
[log]
LEVEL = Error
MODE = file
ROOT_PATH = %s/log
[repository]
ROOT = %s/repos
DEFAULT_BRANCH = main
[indexer]
ISSUE_INDEXER_TYPE = db
`, user(), work, strings.TrimSpace(string(out)), work, port, addr, work, work, work)
	if err := os.WriteFile(r.conf, []byte(ini), 0o600); err != nil {
		t.Fatal(err)
	}
	r.cli("migrate")
	for _, name := range []string{"acme", "someone"} {
		r.cli("admin", "user", "create", "--username", name, "--password", "correct-horse-1", "--email", name+"@example.org", "--admin", "--must-change-password=false")
		r.token[name] = r.cli("admin", "user", "generate-access-token", "--username", name, "--raw", "--scopes", "all")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, bin, "--config", r.conf, "web")
	cmd.Env = r.env()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Gitea said: %.2000s", said.String())
		}
	})
	deadline := time.Now().Add(60 * time.Second)
	for {
		resp, err := http.Get(r.url + "/api/v1/version")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return r
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("Gitea does not answer: %v %.2000s", err, said.String())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func user() string {
	out, err := exec.Command("id", "-un").Output()
	if err != nil {
		return "root"
	}
	return strings.TrimSpace(string(out))
}

// env gives Gitea a home of its own. It runs git config --global, which replaces the file: GIT_CONFIG_GLOBAL must be a file
// of ours (as /dev/null it would be the machine's own that is replaced).
func (r *real) env() []string {
	work := filepath.Dir(r.conf)
	return append(os.Environ(), "HOME="+work, "GIT_CONFIG_GLOBAL="+filepath.Join(work, "gitconfig"), "GIT_CONFIG_NOSYSTEM=1")
}

func (r *real) cli(args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), r.bin, append([]string{"--config", r.conf}, args...)...)
	cmd.Env = r.env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("gitea %s: %v\n%s", args[0], err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// api calls Gitea's API as a user.
func (r *real) api(as, method, path string, in any) map[string]any {
	r.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+"/api/v1/"+path, bytes.NewReader(b))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "token "+r.token[as])
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode > 299 {
		r.t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, body)
	}
	var out map[string]any
	_ = json.Unmarshal(body, &out) // some answers are empty
	return out
}

func (r *real) repo() string {
	r.t.Helper()
	name := fmt.Sprintf("fleet%d", r.n.Add(1))
	r.api("acme", "POST", "user/repos", map[string]any{"name": name, "auto_init": true, "default_branch": "main"})
	r.api("acme", "POST", "repos/acme/"+name+"/branches", map[string]any{"new_branch_name": "release", "old_branch_name": "main"})
	return "acme/" + name
}

// commit makes a branch with a commit of its own and gives both.
func (r *real) commit(repo, as string) (branch, sha string) {
	r.t.Helper()
	branch = fmt.Sprintf("topic%d", r.n.Add(1))
	got := r.api(as, "POST", "repos/"+repo+"/contents/"+branch+".txt", map[string]any{
		"content": "eA==", "message": branch, "branch": "main", "new_branch": branch,
	})
	return branch, got["commit"].(map[string]any)["sha"].(string)
}

func (r *real) client(repo string) *gitea.Client {
	r.t.Helper()
	c, err := gitea.New(gitea.Options{WebURL: r.url, Repository: repo, Token: secret.FromString(r.token["acme"]), Timeout: 20 * time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// fixture makes pull requests of branches: a commit that the suite opens one for already has one.
func (r *real) fixture() forgetest.Fixture {
	repo := r.repo()
	branches := map[string]string{}
	var last int
	return forgetest.Fixture{
		Few: true, DeletedCloses: true,
		Forge: r.client(repo),
		Commit: func() string {
			b, sha := r.commit(repo, "acme")
			branches[sha] = b
			return sha
		},
		Open: func(p forgetest.Pull) int {
			head := branches[p.Head]
			fork := ""
			if p.Fork {
				last++
				name := fmt.Sprintf("fork%d", r.n.Add(1))
				r.api("acme", "POST", "orgs", map[string]any{"username": name})
				r.api("acme", "POST", "repos/"+repo+"/forks", map[string]any{"organization": name})
				fork = name + "/" + strings.TrimPrefix(repo, "acme/")
				head = name + ":" + head
			}
			title := p.Title
			if title == "" {
				title = "pull"
			}
			if p.Draft {
				title = "WIP: " + title
			}
			got := r.api("acme", "POST", "repos/"+repo+"/pulls", map[string]any{"head": head, "base": p.Base, "title": title})
			if p.Deleted {
				r.api("acme", "DELETE", "repos/"+fork, nil)
			}
			time.Sleep(1100 * time.Millisecond) // Gitea's times have seconds
			return int(got["number"].(float64))
		},
		Close: func(n int) {
			r.api("acme", "PATCH", fmt.Sprintf("repos/%s/pulls/%d", repo, n), map[string]any{"state": "closed"})
		},
	}
}

// TestRealGitea runs the suite and what only the real server can tell on Gitea itself.
func TestRealGitea(t *testing.T) {
	r := startReal(t)
	t.Run("conformance", func(t *testing.T) {
		forgetest.Run(t, func(t *testing.T) forgetest.Fixture {
			return r.on(t).fixture()
		})
	})
	t.Run("faults", func(t *testing.T) { r.on(t).faults() })
	t.Run("sizes", func(t *testing.T) { r.on(t).sizes() })
	t.Run("pages", func(t *testing.T) { r.on(t).pages() })
	t.Run("webhook", func(t *testing.T) { r.on(t).webhook() })
	t.Run("rename", func(t *testing.T) { r.on(t).rename() })
}

// on is the same server in a subtest.
func (r *real) on(t *testing.T) *real {
	out := &real{t: t, bin: r.bin, conf: r.conf, url: r.url, token: r.token}
	out.n.Store(r.n.Add(1000))
	return out
}

func (r *real) faults() {
	t, repo := r.t, r.repo()
	_, sha := r.commit(repo, "acme")
	bad, err := gitea.New(gitea.Options{WebURL: r.url, Repository: repo, Token: secret.FromString("0000000000000000000000000000000000000000")})
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrAuth) {
		t.Errorf("a wrong token: %v", err)
	}
	if err := r.client("acme/nothing").PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrHeld) {
		t.Errorf("no such repository: %v", err)
	}
	if _, err := r.client("acme/nothing").Repository(t.Context()); !errors.Is(err, forge.ErrHeld) {
		t.Errorf("no such repository: %v", err)
	}
	if _, err := r.client(repo).Statuses(t.Context(), strings.Repeat("0b", 20)); !errors.Is(err, forge.ErrNoCommit) {
		t.Errorf("statuses of an unknown commit: %v", err)
	}
}

func (r *real) sizes() {
	t, repo := r.t, r.repo()
	_, sha := r.commit(repo, "acme")
	list, complete, err := r.client(repo).Objects(t.Context(), sha)
	var sum int64
	for _, o := range list {
		sum += o.Size
	}
	if err != nil || !complete || len(list) != 2 || sum < 2 {
		t.Errorf("%v %t %v", list, complete, err)
	}
}

// pages: the addresses that statuses point to are there.
func (r *real) pages() {
	t, repo := r.t, r.repo()
	b, _ := r.commit(repo, "acme")
	resp, err := http.Get(r.client(repo).FileURL(b, b+".txt"))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v", resp, err)
	}
}

// webhook: what Gitea sends is taken by Ichor's receiver.
func (r *real) webhook() {
	t, repo := r.t, r.repo()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("correct horse"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := webhook.New(webhook.Options{SecretFile: file, Repository: repo})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = webhook.Serve(ctx, l, h) }()
	r.api("acme", "POST", "repos/"+repo+"/hooks", map[string]any{
		"type": "gitea", "active": true, "events": []string{"push", "pull_request", "pull_request_sync"},
		"config": map[string]string{"url": "http://" + l.Addr().String() + webhook.Path, "content_type": "json", "secret": "correct horse"},
	})
	b, _ := r.commit(repo, "acme")
	r.nudged(h, "a push")
	r.api("acme", "POST", "repos/"+repo+"/pulls", map[string]any{"head": b, "base": "main", "title": "x"})
	r.nudged(h, "a pull request")
}

func (r *real) nudged(h *webhook.Handler, what string) {
	r.t.Helper()
	select {
	case <-h.Nudges():
	case <-time.After(20 * time.Second):
		r.t.Errorf("%s: no nudge", what)
	}
}

// rename: the numeric ID stays, and the old name leads on or is held, never to a wrong answer.
func (r *real) rename() {
	t, repo := r.t, r.repo()
	_, sha := r.commit(repo, "acme")
	c := r.client(repo)
	before, err := c.Repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.api("acme", "PATCH", "repos/"+repo, map[string]any{"name": "renamed"})
	after, err := c.Repository(t.Context())
	if err == nil && (after.ID != before.ID || after.FullName != "acme/renamed") {
		t.Errorf("%+v became %+v", before, after)
	}
	if err != nil && !errors.Is(err, forge.ErrHeld) {
		t.Errorf("reading by the old name: %v", err)
	}
	err = c.PostStatus(t.Context(), sha, state.CommitStatus{Context: "ichor/check", State: state.StateFailure, Description: "x"})
	if err != nil && !errors.Is(err, forge.ErrHeld) {
		t.Errorf("posting by the old name: %v", err)
	}
	got, rerr := r.client("acme/renamed").Statuses(t.Context(), sha)
	if rerr != nil || (err == nil) != (len(got) == 1) {
		t.Errorf("posted %v, shown %v %v", err, got, rerr)
	}
}
