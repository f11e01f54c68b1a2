package webhook_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/sync/webhook"
)

const push = `{"ref":"refs/heads/main","repository":{"full_name":"Acme/Fleet"}}`

func mac(h func() hash.Hash, key, body string) string {
	m := hmac.New(h, []byte(key))
	m.Write([]byte(body))
	return hex.EncodeToString(m.Sum(nil))
}

type hook struct {
	t    *testing.T
	h    *webhook.Handler
	file string
	n    int
}

func start(t *testing.T) *hook {
	t.Helper()
	k := &hook{t: t, file: filepath.Join(t.TempDir(), "secret")}
	k.key("correct horse")
	h, err := webhook.New(webhook.Options{SecretFile: k.file, Repository: "acme/fleet"})
	if err != nil {
		t.Fatal(err)
	}
	k.h = h
	return k
}

func (k *hook) key(v string) {
	if err := os.WriteFile(k.file, []byte(v+"\n"), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *hook) send(body string, headers ...string) int {
	k.t.Helper()
	r := httptest.NewRequest(http.MethodPost, webhook.Path, strings.NewReader(body))
	k.n++
	r.Header.Set("X-GitHub-Event", "push")
	r.Header.Set("X-GitHub-Delivery", fmt.Sprint("d", k.n))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Hub-Signature-256", "sha256="+mac(sha256.New, "correct horse", body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Del(headers[i])
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	k.h.ServeHTTP(w, r)
	return w.Code
}

func (k *hook) nudged() bool {
	select {
	case <-k.h.Nudges():
		return true
	default:
		return false
	}
}

func TestDeliveries(t *testing.T) {
	form := "payload=" + url.QueryEscape(push)
	other := strings.Replace(push, "Acme", "Evil", 1)
	for name, tc := range map[string]struct {
		body    string
		headers []string
		code    int
		nudge   bool
	}{
		"push":         {push, nil, 202, true},
		"pull request": {push, []string{"X-GitHub-Event", "pull_request"}, 202, true},
		"form":         {form, []string{"Content-Type", "application/x-www-form-urlencoded"}, 202, true},
		"gitea": {push, []string{
			"X-Hub-Signature-256", "", "X-Gitea-Signature", mac(sha256.New, "correct horse", push),
			"X-GitHub-Event", "", "X-Gitea-Event", "push",
		}, 202, true},
		"other event":        {push, []string{"X-GitHub-Event", "star"}, 202, false},
		"no event":           {push, []string{"X-GitHub-Event", ""}, 202, false},
		"ping":               {`{"zen":"x"}`, []string{"X-GitHub-Event", "ping"}, 200, false},
		"no signature":       {push, []string{"X-Hub-Signature-256", ""}, 401, false},
		"SHA-1 only":         {push, []string{"X-Hub-Signature-256", "", "X-Hub-Signature", "sha1=" + mac(sha1.New, "correct horse", push)}, 401, false},
		"SHA-1 in its place": {push, []string{"X-Hub-Signature-256", "sha256=" + mac(sha1.New, "correct horse", push)}, 401, false},
		"wrong key":          {push, []string{"X-Hub-Signature-256", "sha256=" + mac(sha256.New, "wrong", push)}, 401, false},
		"empty key":          {push, []string{"X-Hub-Signature-256", "sha256=" + mac(sha256.New, "", push)}, 401, false},
		"other repository":   {other, nil, 403, false},
		"not JSON":           {"{", nil, 400, false},
		"long delivery ID":   {push, []string{"X-GitHub-Delivery", strings.Repeat("x", 200)}, 202, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := start(t)
			if code := k.send(tc.body, tc.headers...); code != tc.code {
				t.Errorf("answer %d, want %d", code, tc.code)
			}
			if got := k.nudged(); got != tc.nudge {
				t.Errorf("nudged: %v", got)
			}
		})
	}
}

func TestOnlyPostOnItsPath(t *testing.T) {
	k := start(t)
	for _, tc := range []struct {
		method, path string
		code         int
	}{{"GET", webhook.Path, 405}, {"PUT", webhook.Path, 405}, {"POST", "/", 404}, {"POST", webhook.Path + "/x", 404}} {
		w := httptest.NewRecorder()
		k.h.ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, nil))
		if w.Code != tc.code {
			t.Errorf("%s %s: %d", tc.method, tc.path, w.Code)
		}
	}
}

// countingReader counts what is read of an endless body.
type countingReader struct{ n int64 }

func (c *countingReader) Read(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func TestALargeBodyIsNotRead(t *testing.T) {
	k := start(t)
	for name, sig := range map[string]string{"signed": "sha256=" + strings.Repeat("ab", 32), "unsigned": ""} {
		c := &countingReader{}
		r := httptest.NewRequest(http.MethodPost, webhook.Path, io.NopCloser(io.LimitReader(c, 100<<20)))
		r.ContentLength = -1
		if sig != "" {
			r.Header.Set("X-Hub-Signature-256", sig)
		}
		w := httptest.NewRecorder()
		k.h.ServeHTTP(w, r)
		if w.Code == 202 || c.n > 5<<20 {
			t.Errorf("%s: %d after %d bytes", name, w.Code, c.n)
		}
	}
	r := httptest.NewRequest(http.MethodPost, webhook.Path, bytes.NewReader(make([]byte, 4<<20)))
	w := httptest.NewRecorder()
	if k.h.ServeHTTP(w, r); w.Code != 413 {
		t.Errorf("declared too large: %d", w.Code)
	}
}

func TestDeliveriesCoalesceAndReplaysAreIgnored(t *testing.T) {
	k := start(t)
	for range 1000 {
		if code := k.send(push); code != 202 {
			t.Fatal(code)
		}
	}
	if !k.nudged() || k.nudged() {
		t.Fatal("a thousand deliveries must make one nudge")
	}
	if code := k.send(push, "X-GitHub-Delivery", "d7"); code != 202 || k.nudged() {
		t.Fatal("a replay must not nudge")
	}
	if k.h.Taken() != 1000 {
		t.Fatal(k.h.Taken())
	}
}

func TestTheSecretIsRequiredAndReadAgain(t *testing.T) {
	for _, content := range []string{"", "   \n", "short"} {
		f := filepath.Join(t.TempDir(), "s")
		if err := os.WriteFile(f, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := webhook.New(webhook.Options{SecretFile: f}); err == nil {
			t.Errorf("secret %q was taken", content)
		}
	}
	if _, err := webhook.New(webhook.Options{}); err == nil {
		t.Error("no secret was taken")
	}
	k := start(t)
	k.key("battery staple")
	if code := k.send(push); code != 401 {
		t.Errorf("the old secret still works: %d", code)
	}
	if code := k.send(push, "X-Hub-Signature-256", "sha256="+mac(sha256.New, "battery staple", push)); code != 202 {
		t.Errorf("the new secret: %d", code)
	}
	if err := os.Remove(k.file); err != nil {
		t.Fatal(err)
	}
	if code := k.send(push); code != 503 {
		t.Errorf("a lost secret file: %d", code)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	k := start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- webhook.Serve(ctx, l, k.h) }()
	resp, err := http.Post("http://"+l.Addr().String()+webhook.Path, "application/json", strings.NewReader(push))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 401 {
		t.Error(resp.StatusCode)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestGitLab: the secret itself comes in a header, and each kind of forge is believed by its own proof alone.
func TestGitLab(t *testing.T) {
	const body = `{"object_kind":"push","project":{"path_with_namespace":"Acme/Infra/Fleet"}}`
	k := start(t)
	h, err := webhook.New(webhook.Options{SecretFile: k.file, Repository: "acme/infra/fleet", GitLab: true})
	if err != nil {
		t.Fatal(err)
	}
	k.h = h
	hook := []string{"X-Hub-Signature-256", "", "X-GitHub-Event", "", "X-GitHub-Delivery", "", "X-Gitlab-Event", "Push Hook"}
	for name, tc := range map[string]struct {
		headers []string
		code    int
		nudge   bool
	}{
		"push":          {append(hook, "X-Gitlab-Token", "correct horse", "X-Gitlab-Event-UUID", "1"), 202, true},
		"merge request": {append(hook, "X-Gitlab-Token", "correct horse", "X-Gitlab-Event", "Merge Request Hook"), 202, true},
		"another event": {append(hook, "X-Gitlab-Token", "correct horse", "X-Gitlab-Event", "Issue Hook"), 202, false},
		"wrong token":   {append(hook, "X-Gitlab-Token", "correct hors"), 401, false},
		"no token":      {hook, 401, false},
		"an HMAC only":  {nil, 401, false},
	} {
		if code := k.send(body, tc.headers...); code != tc.code {
			t.Errorf("%s: %d, want %d", name, code, tc.code)
		}
		if got := k.nudged(); got != tc.nudge {
			t.Errorf("%s: nudged %v", name, got)
		}
	}
	if code := start(t).send(push, "X-Hub-Signature-256", "", "X-Gitlab-Token", "correct horse"); code != 401 {
		t.Errorf("GitLab's token where HMACs are wanted: %d", code)
	}
}

// TestBodiesAreReadByFew: whoever reaches the port can have a few bodies of 3 MiB in memory, not hundreds.
func TestBodiesAreReadByFew(t *testing.T) {
	k := start(t)
	const n = 60
	var writers []*io.PipeWriter
	codes := make(chan int, n)
	for range n {
		pr, pw := io.Pipe()
		writers = append(writers, pw)
		r := httptest.NewRequest(http.MethodPost, webhook.Path, pr)
		r.ContentLength = -1
		r.Header.Set("X-Hub-Signature-256", "sha256="+strings.Repeat("ab", 32))
		go func() {
			w := httptest.NewRecorder()
			k.h.ServeHTTP(w, r)
			codes <- w.Code
		}()
	}
	refused := 0
	for range n - 8 { // the others wait for their bodies
		if <-codes == http.StatusServiceUnavailable {
			refused++
		}
	}
	for _, w := range writers {
		_ = w.Close()
	}
	if refused != n-8 {
		t.Errorf("%d of %d were refused", refused, n)
	}
}
