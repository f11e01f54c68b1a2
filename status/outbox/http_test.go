package outbox_test

import (
	"context"
	"fmt"
	"net/http"
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
			b, err := outbox.New(t.TempDir(), c, outbox.Options{Pace: -1, RetryMin: 10 * time.Millisecond, CallTimeout: 300 * time.Millisecond})
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
