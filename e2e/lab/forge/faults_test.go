package forge_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-github/v62/github"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

func TestFaults(t *testing.T) {
	f := open(t, t.TempDir())
	sha := push(t, f, "main", map[string]string{"a": "1"})
	post := func(ctx context.Context) error {
		gh, _ := client(t, f, token)
		_, _, err := gh.Repositories.CreateStatus(ctx, "acme", "fleet", sha, &github.RepoStatus{State: github.String("success"), Context: github.String("ichor/check")})
		return err
	}
	code := func(err error) int {
		if e, ok := errors.AsType[*github.ErrorResponse](err); ok {
			return e.Response.StatusCode
		}
		return 0
	}
	for _, c := range []struct {
		fault forge.Fault
		ok    func(error) bool
		kept  int
	}{
		{forge.Fault{Kind: forge.FaultStatus}, func(err error) bool { return code(err) == 500 }, 0},
		{forge.Fault{Kind: forge.FaultStatus, Status: 502}, func(err error) bool { return code(err) == 502 }, 0},
		{forge.Fault{Kind: forge.FaultTooMany}, func(err error) bool { return code(err) == 429 }, 0},
		{forge.Fault{Kind: forge.FaultPrimaryLimit, RetryAfter: 90 * time.Second}, func(err error) bool {
			e, ok := errors.AsType[*github.RateLimitError](err)
			return ok && time.Until(e.Rate.Reset.Time) > time.Minute
		}, 0},
		{forge.Fault{Kind: forge.FaultSecondaryLimit, RetryAfter: 2 * time.Second}, func(err error) bool {
			e, ok := errors.AsType[*github.AbuseRateLimitError](err)
			return ok && e.GetRetryAfter() == 2*time.Second
		}, 0},
		{forge.Fault{Kind: forge.FaultCut}, func(err error) bool { return err != nil && code(err) == 0 }, 0},
		{forge.Fault{Kind: forge.FaultHang}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, 0},
		{forge.Fault{Kind: forge.FaultLostReply}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, 1},
		{forge.Fault{Kind: forge.FaultLostReply, Delay: time.Millisecond}, func(err error) bool { return err != nil && code(err) == 0 && !errors.Is(err, context.DeadlineExceeded) }, 1},
		{forge.Fault{Kind: forge.FaultSlow, Delay: 20 * time.Millisecond}, func(err error) bool { return err == nil }, 1},
	} {
		before := len(f.Statuses(sha))
		f.ResetRequests()
		c.fault.Endpoint, c.fault.Count = "statuses.create", 1
		if err := f.Fault(c.fault); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if c.fault.Kind == forge.FaultHang || c.fault.Kind == forge.FaultLostReply && c.fault.Delay == 0 {
			// long enough for a busy machine to do what was asked
			ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
		}
		if err := post(ctx); !c.ok(err) {
			t.Errorf("%s: got %v", c.fault.Kind, err)
		}
		cancel()
		if got := len(f.Statuses(sha)) - before; got != c.kept {
			t.Errorf("%s: %d statuses were kept, want %d", c.fault.Kind, got, c.kept)
		}
		// the fault is used up
		if err := post(t.Context()); err != nil {
			t.Errorf("after %s: %v", c.fault.Kind, err)
		}
		eventually(t, "both requests are logged", func() bool { return f.Counts()["statuses.create"] == 2 })
		if r := f.Requests(); r[0].Fault != c.fault.Kind && r[1].Fault != c.fault.Kind || r[1].User != "ichor-bot" {
			t.Errorf("log of %s: %+v", c.fault.Kind, r)
		}
	}
	if f.Fault(forge.Fault{Endpoint: "*", Kind: "odd"}) == nil || f.Fault(forge.Fault{Endpoint: "[", Kind: forge.FaultCut}) == nil {
		t.Error("a senseless fault was taken")
	}
}

func TestFaultsOfGit(t *testing.T) {
	f := open(t, t.TempDir())
	work := t.TempDir()
	mustGit(t, work, "clone", withToken(f, token), "fleet")
	dir := filepath.Join(work, "fleet")
	mustGit(t, dir, "commit", "--allow-empty", "-m", "one")
	if err := f.Fault(forge.Fault{Endpoint: "git.receive-pack", Kind: forge.FaultLostReply, Count: 1, Delay: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if out, err := git(t, dir, "push", "origin", "HEAD:main"); err == nil {
		t.Fatalf("the push got an answer: %s", out)
	}
	if f.Tip("main") != mustGit(t, dir, "rev-parse", "HEAD") {
		t.Fatal("the push was not taken")
	}
	if err := f.Fault(forge.Fault{Endpoint: "git.*", Kind: forge.FaultStatus, Status: 503}); err != nil {
		t.Fatal(err)
	}
	if out, err := git(t, dir, "fetch"); err == nil || !strings.Contains(out, "503") {
		t.Fatalf("fetch: %v %s", err, out)
	}
	f.ClearFaults()
	mustGit(t, dir, "fetch")
}

func TestWebhooks(t *testing.T) {
	type got struct {
		event, action string
		signed        bool
	}
	var mu sync.Mutex
	var seen []got
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, []byte("s3cret"))
		mac.Write(body)
		event, err := github.ParseWebHook(github.WebHookType(r), body)
		if err != nil {
			t.Error(err)
		}
		g := got{event: github.WebHookType(r), signed: r.Header.Get("X-Hub-Signature-256") == "sha256="+hex.EncodeToString(mac.Sum(nil))}
		switch e := event.(type) {
		case *github.PullRequestEvent:
			g.action = e.GetAction()
		case *github.PushEvent:
			g.action = e.GetRef()
			if e.GetForced() {
				g.action += " forced"
			}
		}
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, g)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer srv.Close()
	f := open(t, t.TempDir())
	f.SetWebhook(srv.URL, "s3cret")
	push(t, f, "main", map[string]string{"a": "1"})
	push(t, f, "b", map[string]string{"a": "2"})
	n, err := f.OpenPR("b", "", "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Push(t.Context(), forge.PushOptions{Dir: folder(t, map[string]string{"a": "3"}), Branch: "b", Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.MergePR(n); err != nil {
		t.Fatal(err)
	}
	want := []string{"ping ", "push refs/heads/main", "push refs/heads/b", "pull_request opened", "push refs/heads/b forced", "pull_request synchronize", "pull_request closed", "push refs/heads/main"}
	eventually(t, "all deliveries", func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) >= len(want) })
	mu.Lock()
	first := slices.Clone(seen)
	mu.Unlock()
	for i, g := range first {
		if !g.signed || i >= len(want) || g.event+" "+g.action != want[i] {
			t.Errorf("delivery %d: %+v, want %v", i, g, want)
		}
	}
	eventually(t, "deliveries are kept", func() bool { return len(f.Deliveries()) == len(want) })
	if d := f.Deliveries()[1]; d.Status != 202 || f.Redeliver(d.ID) != nil || f.Redeliver("x") == nil {
		t.Errorf("delivery: %+v", d)
	}
	eventually(t, "the repeated delivery", func() bool { return len(f.Deliveries()) == len(want)+1 })
	if d := f.Deliveries(); d[len(d)-1].ID != d[1].ID || d[len(d)-1].Event != "push" {
		t.Errorf("repeated: %+v", d[len(d)-1])
	}
}

func TestRenameAndRecreate(t *testing.T) {
	f := open(t, t.TempDir())
	sha := push(t, f, "main", map[string]string{"a": "1"})
	if err := f.Rename("ships"); err != nil {
		t.Fatal(err)
	}
	gh, _ := client(t, f, token)
	r, _, err := gh.Repositories.Get(t.Context(), "acme", "fleet")
	if err != nil || r.GetName() != "ships" {
		t.Fatalf("old name: %v %v", r.GetName(), err)
	}
	noFollow := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for method, want := range map[string]int{"GET": 301, "POST": 307} {
		req, _ := http.NewRequest(method, f.APIURL()+"repos/acme/fleet/statuses/"+sha, strings.NewReader(`{"state":"success"}`))
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := noFollow.Do(req)
		if err != nil || resp.StatusCode != want || resp.Header.Get("Location") != fmt.Sprintf("%srepositories/%d/statuses/%s", f.APIURL(), r.GetID(), sha) {
			t.Errorf("%s: %v %v", method, resp, err)
		}
		resp.Body.Close()
	}
	work := t.TempDir()
	mustGit(t, work, "clone", strings.Replace(withToken(f, token), "/ships", "/fleet", 1), "x")
	id := f.Recreate()
	if r2, _, err := gh.Repositories.Get(t.Context(), "acme", "ships"); err != nil || r2.GetID() != id || id == r.GetID() {
		t.Fatalf("after it was made anew: %v %v", r2.GetID(), err)
	}
}

func TestWebPages(t *testing.T) {
	f := open(t, t.TempDir())
	push(t, f, "main", map[string]string{"a": "1"})
	sha := push(t, f, "ichor/status", map[string]string{"checks/x.md": "# Report\n\n<script>alert(1)</script>\n\n[x](javascript:alert(1)) `<b>`\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n<details>\n<summary>More</summary>\n\n- item\n\n</details>\n"})
	gh, _ := client(t, f, token)
	if _, err := f.OpenPR("ichor/status", "", "a <title>"); err != nil {
		t.Fatal(err)
	}
	target := f.URL() + "/acme/fleet/blob/ichor/status/checks/x.md"
	if _, _, err := gh.Repositories.CreateStatus(t.Context(), "acme", "fleet", sha, &github.RepoStatus{State: github.String("failure"), Context: github.String("ichor/check"), TargetURL: &target}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/acme/fleet/blob/ichor/status/checks/x.md":   "<td>1</td>",
		"/acme/fleet/blob/" + sha + "/checks/x.md":    "<strong>More</strong>",
		"/acme/fleet/blob/ichor%2Fstatus/checks/x.md": "&lt;b&gt;",
		"/acme/fleet/raw/ichor/status/checks/x.md":    "<script>",
		"/acme/fleet/pull/1":                          "failure",
		"/acme/fleet/commit/" + sha:                   "checks/x.md",
		"/acme/fleet/tree/ichor/status":               "/acme/fleet/tree/ichor/status/checks",
		"/acme/fleet":                                 "a &lt;title&gt;",
		"/":                                           "a &lt;title&gt;",
		"/acme/fleet/blob/main/none":                  "404",
		"/acme/other":                                 "404",
		"/acme/fleet/pull/9":                          "404",
	} {
		resp, err := http.Get(f.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want == "404" && resp.StatusCode == 404 {
			continue
		}
		if strings.Contains(path, "/blob/") && (strings.Contains(string(body), "<script") || strings.Contains(string(body), "javascript:")) {
			t.Errorf("%s lets a script through:\n%s", path, body)
		}
		if resp.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d, want %q in\n%s", path, resp.StatusCode, want, body)
		}
	}
}

func TestStateSurvives(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	push(t, f, "main", map[string]string{"a": "1"})
	head := push(t, f, "b", map[string]string{"a": "2"})
	if _, err := f.OpenPR("b", "", "b"); err != nil {
		t.Fatal(err)
	}
	gh, _ := client(t, f, token)
	if _, _, err := gh.Repositories.CreateStatus(t.Context(), "acme", "fleet", head, &github.RepoStatus{State: github.String("success")}); err != nil {
		t.Fatal(err)
	}
	if _, err := forge.New(forge.Options{Dir: dir, Token: token, Owner: "acme", Name: "fleet"}); err == nil || !strings.Contains(err.Error(), "another forge runs in it") {
		t.Fatalf("second forge in one folder: %v", err)
	}
	url := f.URL()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// a kill cut the last status short
	file, err := os.OpenFile(filepath.Join(dir, "statuses.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"id":2,"sha":"`); err != nil {
		t.Fatal(err)
	}
	file.Close()
	// and came between a push and what follows from it
	mustGit(t, filepath.Join(dir, "repos", "acme-fleet-1001.git"), "update-ref", "refs/heads/b", mustGit(t, filepath.Join(dir, "repos", "acme-fleet-1001.git"), "commit-tree", head+"^{tree}", "-p", head, "-m", "x"))
	f = open(t, dir)
	if f.URL() != url {
		t.Errorf("the address changed from %s to %s", url, f.URL())
	}
	if s := f.Statuses(head); len(s) != 1 || s[0].State != "success" {
		t.Errorf("statuses: %v", s)
	}
	if p := f.Pulls(); len(p) != 1 || p[0].HeadSHA != f.Tip("b") || p[0].HeadSHA == head {
		t.Errorf("pull requests: %+v", p)
	}
	gh, _ = client(t, f, token)
	if _, _, err := gh.Repositories.CreateStatus(t.Context(), "acme", "fleet", head, &github.RepoStatus{State: github.String("failure")}); err != nil || len(f.Statuses(head)) != 2 {
		t.Errorf("status after the restart: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	for name, o := range map[string]forge.Options{
		"not loopback": {Dir: t.TempDir(), Owner: "a", Name: "b", Addr: "0.0.0.0:0"},
		"no owner":     {Dir: t.TempDir(), Name: "b"},
		"bad name":     {Dir: t.TempDir(), Owner: "a", Name: "../b"},
	} {
		if f, err := forge.New(o); err == nil {
			f.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

// TestMain runs a forge to be killed when it is told to.
func TestMain(m *testing.M) {
	if dir := os.Getenv("FORGE_TO_KILL"); dir != "" {
		f, err := forge.New(forge.Options{Dir: dir, Token: token, Owner: "acme", Name: "fleet"})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(f.URL())
		select {}
	}
	os.Exit(m.Run())
}

// TestKill9 posts statuses while the forge is killed: what was answered is there afterwards.
func TestKill9(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	sha := push(t, f, "main", map[string]string{"a": "1"})
	f.Close()
	answered := 0
	for range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FORGE_TO_KILL="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, err := out.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		url := strings.TrimSpace(string(buf[:n]))
		for i := 0; ; i++ {
			if i == 5 {
				go func() { _ = cmd.Process.Signal(syscall.SIGKILL) }()
			}
			req, _ := http.NewRequest("POST", url+"/repos/acme/fleet/statuses/"+sha, strings.NewReader(`{"state":"success"}`))
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				break
			}
			resp.Body.Close()
			if resp.StatusCode == 201 {
				answered++
			}
		}
		_ = cmd.Wait()
	}
	f = open(t, dir)
	if got := len(f.Statuses(sha)); got < answered || got > answered+3 || answered < 15 {
		t.Fatalf("%d statuses were answered, %d are there", answered, got)
	}
}
