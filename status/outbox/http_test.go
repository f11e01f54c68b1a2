package outbox_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/outbox"
	"ichor.maesh.dev/ichor/sync/forge/forgetest"
	"ichor.maesh.dev/ichor/sync/forge/github"
)

// The real client against a real HTTP server that does its worst: every final status arrives, in order, and not twice.
func TestOverHTTP(t *testing.T) {
	code := func(n int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(n); return false }
	}
	cut := func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	for name, trouble := range map[string]struct {
		before, after func(http.ResponseWriter, *http.Request) bool
	}{
		"none": {},
		"500":  {before: func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return false }},
		"403 with a rate limit": {before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("X-RateLimit-Limit", "60")
			w.Header().Set("X-RateLimit-Remaining", "0")
			w.Header().Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(time.Second).Unix()))
			w.WriteHeader(403)
			return false
		}},
		"429": {before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
			return false
		}},
		"503 with a pause": {before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(503)
			return false
		}},
		"408": {before: code(408)}, "401": {before: code(401)}, "403": {before: code(403)},
		"404, as where a right was taken away": {before: code(404)}, "410": {before: code(410)}, "451": {before: code(451)},
		"a secondary limit": {before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(403)
			_, _ = w.Write([]byte(`{"message":"You have exceeded a secondary rate limit","documentation_url":"https://docs.github.com/rest/overview/rate-limits#secondary"}`))
			return false
		}},
		"a redirect to another host": {before: func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://elsewhere.invalid"+r.URL.Path, http.StatusTemporaryRedirect)
			return false
		}},
		"a redirect that turns it into a read": {before: func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.Path+"/x", http.StatusMovedPermanently)
			return false
		}},
		"a page for logging in": {before: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write([]byte("<html>log in</html>"))
			return false
		}},
		"an empty answer": {before: code(201)},
		"another's answer": {before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(201)
			_, _ = w.Write([]byte(`{"state":"pending","context":"other"}`))
			return false
		}},
		"a commit that is not known yet": {before: func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(422)
			_, _ = w.Write([]byte(`{"message":"No commit found for SHA: ` + path.Base(r.URL.Path) + `"}`))
			return false
		}},
		"a broken transfer": {before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(201)
			return false
		}},
		"cut before it was taken": {before: cut},
		"cut after it was taken":  {after: cut},
		"silent after it was taken": {after: func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			return false
		}},
		"500 after it was taken": {after: func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return false }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := forgetest.StartGitHub(t)
			var mu sync.Mutex
			n := 0
			// The 2nd, 3rd and 5th post meet the trouble.
			when := func(fn func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
				return func(w http.ResponseWriter, r *http.Request) bool {
					if fn == nil || r.Method != http.MethodPost {
						return true
					}
					mu.Lock()
					n++
					hit := n == 2 || n == 3 || n == 5
					mu.Unlock()
					return !hit || fn(w, r)
				}
			}
			g.Before(when(trouble.before))
			if trouble.after != nil {
				g.AfterPost(when(trouble.after))
			}
			c, err := github.New(github.Options{WebURL: g.HTTP.URL, Repository: forgetest.Repo, Token: secret.FromString("t")})
			if err != nil {
				t.Fatal(err)
			}
			b, err := outbox.New(t.TempDir(), c, outbox.Options{Pace: -1, RetryMin: 10 * time.Millisecond, AuthPause: 50 * time.Millisecond, CallTimeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			done := make(chan struct{})
			go func() { defer close(done); _ = b.Run(ctx) }()
			sha := g.Commit()
			var want []string
			for i, s := range []state.CommitState{state.StateFailure, state.StateSuccess, state.StateFailure, state.StateError, state.StateSuccess} {
				d := fmt.Sprint("number ", i)
				want = append(want, string(s)+" "+d)
				if err := b.Set(sha, state.CommitStatus{Context: "ichor/check", State: s, Description: d}, outbox.High); err != nil {
					t.Fatal(err)
				}
				if err := b.Flush(ctx); err != nil {
					t.Fatal(err, b.Health())
				}
			}
			var got []string
			for _, p := range g.Posts() {
				got = append(got, p.State+" "+p.Description)
			}
			if strings.Join(got, "; ") != strings.Join(want, "; ") {
				t.Errorf("the forge took %q, want %q", got, want)
			}
			cancel()
			<-done
		})
	}
}

// posting is the real client with an outbox on a server.
func posting(t *testing.T, g *forgetest.GitHub, web string) *outbox.Outbox {
	t.Helper()
	c, err := github.New(github.Options{WebURL: web, Repository: forgetest.Repo, Token: secret.FromString("t")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := outbox.New(t.TempDir(), c, outbox.Options{
		Pace: -1, PerHour: -1, RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond, AuthPause: 50 * time.Millisecond, CallTimeout: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

func flushed(t *testing.T, b *outbox.Outbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := b.Flush(ctx); err != nil {
		t.Fatal(err, b.Health())
	}
}

func check(s state.CommitState, d string) state.CommitStatus {
	return state.CommitStatus{Context: "ichor/check", State: s, Description: d, TargetURL: "https://example.com/r"}
}

// TestAThousandChecksPostOnce: a thousand checks of an unchanged commit are one request; red, green, red are three.
func TestAThousandChecksPostOnce(t *testing.T) {
	g := forgetest.StartGitHub(t)
	b := posting(t, g, g.HTTP.URL)
	sha := g.Commit()
	for range 1000 {
		if err := b.Set(sha, check(state.StateFailure, "1 error"), outbox.High); err != nil {
			t.Fatal(err)
		}
		flushed(t, b)
	}
	if n := len(g.Posts()); n != 1 {
		t.Fatalf("%d posts for a thousand checks", n)
	}
	for _, s := range []state.CommitState{state.StateSuccess, state.StateSuccess, state.StateFailure, state.StateFailure} {
		if err := b.Set(sha, check(s, "x"), outbox.High); err != nil {
			t.Fatal(err)
		}
		flushed(t, b)
	}
	posts := 0
	for _, r := range g.Asked() {
		if strings.HasPrefix(r, "POST ") {
			posts++
		}
	}
	if posts != 3 || len(g.Posts()) != 3 {
		t.Fatalf("%d requests and %d statuses for red, green, red", posts, len(g.Posts()))
	}
}

// TestAServerThatIsNotThere: nothing listens, then something that can't prove who it is, then the forge.
func TestAServerThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	g := forgetest.NewGitHub()
	b := posting(t, g, "http://"+addr)
	sha := g.Commit()
	if err := b.Set(sha, check(state.StateFailure, "1 error"), outbox.High); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); b.Health().LastError == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", b.Health())
		}
	}
	if h := b.Health(); h.Queued != 1 {
		t.Fatalf("%+v", h)
	}
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Skip("the port was taken: ", err)
	}
	srv := &http.Server{Handler: g}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	flushed(t, b)
	if p := g.Posts(); len(p) != 1 || p[0].State != "failure" {
		t.Fatalf("%+v", p)
	}
}

// TestAServerThatIsNotTrusted keeps the status and says that a person has to look.
func TestAServerThatIsNotTrusted(t *testing.T) {
	g := forgetest.NewGitHub()
	srv := httptest.NewTLSServer(g)
	t.Cleanup(srv.Close)
	b := posting(t, g, srv.URL)
	if err := b.Set(g.Commit(), check(state.StateFailure, "1 error"), outbox.High); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !b.Health().Refused; {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", b.Health())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if h := b.Health(); h.Queued != 1 || len(g.Posts()) != 0 || !strings.Contains(h.LastError, "certificate") {
		t.Fatalf("%+v", h)
	}
}
