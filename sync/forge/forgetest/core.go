package forgetest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// core is what the small servers of Gitea and GitLab share: commits, pull requests, statuses, hooks for faults. Their
// answers have the form of the real ones; what they refuse, the real ones refuse.
type core struct {
	HTTP *httptest.Server

	mu      sync.Mutex
	before  func(http.ResponseWriter, *http.Request) bool
	commits map[string]bool
	posts   []Post
	pulls   []Pull
	closed  map[int]bool
	asked   []string
	begun   time.Time
}

func (c *core) start(tb testing.TB, h http.Handler) {
	c.commits, c.closed, c.begun = map[string]bool{}, map[int]bool{}, time.Now()
	c.HTTP = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		before := c.before
		c.asked = append(c.asked, r.Method+" "+r.URL.EscapedPath())
		c.mu.Unlock()
		if before == nil || before(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	tb.Cleanup(c.HTTP.Close)
}

// Before is asked for each request; false means that it answered itself.
func (c *core) Before(fn func(http.ResponseWriter, *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = fn
}

// Commit makes a commit known.
func (c *core) Commit() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sha := fmt.Sprintf("%x", sha256.Sum256([]byte(strconv.Itoa(len(c.commits)))))[:40]
	c.commits[sha] = true
	return sha
}

// Know makes a commit known that a Git server has.
func (c *core) Know(sha string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commits[sha] = true
}

// Open opens a pull request and gives its number.
func (c *core) Open(p Pull) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pulls = append(c.pulls, p)
	return len(c.pulls)
}

// Close closes one.
func (c *core) Close(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed[n] = true
}

// Posts gives the statuses that were taken, in order.
func (c *core) Posts() []Post {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Post(nil), c.posts...)
}

// Asked gives the requests since the last call, as "METHOD path".
func (c *core) Asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.asked
	c.asked = nil
	return out
}

func (c *core) updated(n int) string {
	return c.begun.Add(time.Duration(n) * time.Second).UTC().Format(time.RFC3339)
}

// cut gives one page of a list, and whether there is another.
func cut[T any](r *http.Request, all []T, key string, most int) ([]T, int) {
	per, _ := strconv.Atoi(r.URL.Query().Get(key))
	if per <= 0 {
		per = 20
	}
	per = min(per, most)
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	n = max(n, 1)
	from, to := min((n-1)*per, len(all)), min(n*per, len(all))
	next := 0
	if to < len(all) {
		next = n + 1
	}
	return all[from:to], next
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func message(w http.ResponseWriter, code int, text string) {
	reply(w, code, map[string]string{"message": text})
}

// shaForm tells whether s is a full commit hash.
func shaForm(s string) bool { return len(s) == 40 && strings.Trim(s, "0123456789abcdef") == "" }
