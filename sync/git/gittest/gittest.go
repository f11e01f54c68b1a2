// Package gittest is a real Git server over HTTP for tests: Debian's git http-backend behind net/http, with faults.
package gittest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Server serves one bare repository. Its methods fail the test on an error.
type Server struct {
	tb testing.TB
	// Dir is the bare repository, Work a clone to make commits in.
	Dir, Work string
	HTTP      *httptest.Server
	// URL of the repository.
	URL string

	mu     sync.Mutex
	before func(http.ResponseWriter, *http.Request) bool
	after  func(*http.Request)
	seen   []string
}

// Start makes an empty repository with branch main and serves it. The test is skipped where Git's server part is
// not installed.
func Start(tb testing.TB) *Server {
	tb.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		tb.Skip("git is not installed")
	}
	out, err := exec.Command(git, "--exec-path").Output()
	if err != nil {
		tb.Fatal(err)
	}
	backend := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		tb.Skip("git http-backend is not installed")
	}
	base := tb.TempDir()
	s := &Server{tb: tb, Dir: filepath.Join(base, "o", "fleet.git"), Work: filepath.Join(base, "work")}
	s.run(base, "init", "--quiet", "--bare", "--initial-branch=main", s.Dir)
	for _, kv := range []string{"http.receivepack=true", "uploadpack.allowAnySHA1InWant=true", "gc.auto=0", "receive.autogc=false"} {
		k, v, _ := strings.Cut(kv, "=")
		s.run(s.Dir, "config", k, v)
	}
	s.run(base, "init", "--quiet", "--initial-branch=main", s.Work)
	s.run(s.Work, "remote", "add", "origin", s.Dir)

	h := &cgi.Handler{
		Path: backend, Root: "/", Dir: base,
		Env: []string{
			"GIT_PROJECT_ROOT=" + base, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=test", "HOME=" + base,
			"GIT_CONFIG_NOSYSTEM=1",
		},
		InheritEnv: []string{"PATH"}, Stderr: io.Discard,
	}
	s.HTTP = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(h, w, r) }))
	tb.Cleanup(s.HTTP.Close)
	s.URL = s.HTTP.URL + "/o/fleet.git"
	return s
}

func (s *Server) serve(h *cgi.Handler, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	before, after := s.before, s.after
	s.seen = append(s.seen, r.Method+" "+r.URL.RequestURI())
	s.mu.Unlock()
	if before != nil && !before(w, r) {
		return
	}
	// net/http/cgi refuses chunked bodies.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	hc := *h
	if p := r.Header.Get("Git-Protocol"); p != "" {
		hc.Env = append(append([]string{}, h.Env...), "GIT_PROTOCOL="+p)
	}
	hc.ServeHTTP(w, r)
	if after != nil {
		after(r)
	}
}

// Before is asked for each request; false means that it answered itself. Nil switches it off.
func (s *Server) Before(fn func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = fn
}

// After is called when a request was served and before its answer is complete. Nil switches it off.
func (s *Server) After(fn func(*http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = fn
}

// Requests gives what was asked since the last call, as "METHOD URI".
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.seen
	s.seen = nil
	return out
}

// Git runs git in the bare repository and gives its trimmed output.
func (s *Server) Git(args ...string) string { s.tb.Helper(); return s.run(s.Dir, args...) }

// WorkGit runs git in the clone.
func (s *Server) WorkGit(args ...string) string { s.tb.Helper(); return s.run(s.Work, args...) }

// Write puts a file into the clone.
func (s *Server) Write(name, content string) {
	s.tb.Helper()
	p := filepath.Join(s.Work, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		s.tb.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		s.tb.Fatal(err)
	}
}

// Commit commits files (name, content, name, content, …) in the clone and gives the hash.
func (s *Server) Commit(message string, files ...string) string {
	s.tb.Helper()
	for i := 0; i+1 < len(files); i += 2 {
		s.Write(files[i], files[i+1])
	}
	s.WorkGit("add", "-A")
	s.WorkGit("commit", "--quiet", "--allow-empty", "-m", message)
	return s.WorkGit("rev-parse", "HEAD")
}

// Push pushes the clone's HEAD to a ref of the server: "refs/heads/main", "refs/pull/1/head".
func (s *Server) Push(ref string, flags ...string) {
	s.tb.Helper()
	args := append([]string{"push", "--quiet"}, flags...)
	s.WorkGit(append(args, "origin", "HEAD:"+ref)...)
}

func (s *Server) run(dir string, args ...string) string {
	s.tb.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(s.tb.Context()), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=A U Thor", "GIT_AUTHOR_EMAIL=author@example.com",
		"GIT_COMMITTER_NAME=A U Thor", "GIT_COMMITTER_EMAIL=author@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.tb.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
