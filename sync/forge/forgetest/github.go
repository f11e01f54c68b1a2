package forgetest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// Repo is what the server calls its repository; RepoID its numeric ID.
const (
	Repo   = "acme/fleet"
	RepoID = 4711
)

// GitHub is a server with one repository. Its answers have GitHub's form where Ichor reads them: paging by Link,
// ETags, 422 of each kind, descriptions over 140 characters refused, statuses append-only.
type GitHub struct {
	HTTP *httptest.Server

	mu      sync.Mutex
	before  func(http.ResponseWriter, *http.Request) bool
	after   func(http.ResponseWriter, *http.Request) bool
	commits map[string]bool
	posts   []Post
	pulls   []Pull
	closed  map[int]bool
	asked   []string
	begun   time.Time
	// MaxStatuses per commit and context (GitHub: 1000).
	MaxStatuses int
}

// Post is a status that was taken.
type Post struct {
	SHA         string `json:"-"`
	Context     string `json:"context"`
	State       string `json:"state"`
	Description string `json:"description"`
	TargetURL   string `json:"target_url"`
}

// StartGitHub starts the server on a loopback address, with the API below /api/v3/.
func StartGitHub(tb testing.TB) *GitHub {
	g := NewGitHub()
	g.HTTP = httptest.NewServer(g)
	tb.Cleanup(g.HTTP.Close)
	return g
}

// NewGitHub gives the handler alone.
func NewGitHub() *GitHub {
	return &GitHub{commits: map[string]bool{}, closed: map[int]bool{}, begun: time.Now(), MaxStatuses: 1000}
}

// Before is asked for each request; false means that it answered itself.
func (g *GitHub) Before(fn func(http.ResponseWriter, *http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before = fn
}

// AfterPost is asked when a status was taken and before it is answered; false means that it answered itself.
func (g *GitHub) AfterPost(fn func(http.ResponseWriter, *http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.after = fn
}

// Commit makes a commit known.
func (g *GitHub) Commit() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	sha := fmt.Sprintf("%x", sha256.Sum256([]byte(strconv.Itoa(len(g.commits)))))[:40]
	g.commits[sha] = true
	return sha
}

// Know makes a given commit known.
func (g *GitHub) Know(sha string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.commits[sha] = true
}

// Open opens a pull request and gives its number.
func (g *GitHub) Open(p Pull) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pulls = append(g.pulls, p)
	return len(g.pulls)
}

// ClosePull closes one.
func (g *GitHub) ClosePull(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed[n] = true
}

// Posts gives the statuses that were taken, in order.
func (g *GitHub) Posts() []Post {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]Post(nil), g.posts...)
}

// Asked gives the requests since the last call, as "METHOD path".
func (g *GitHub) Asked() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.asked
	g.asked = nil
	return out
}

// ServeHTTP implements http.Handler.
func (g *GitHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	before := g.before
	g.asked = append(g.asked, r.Method+" "+r.URL.Path)
	g.mu.Unlock()
	if before != nil && !before(w, r) {
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v3/repos/"+Repo)
	if !ok {
		fail(w, http.StatusNotFound, "Not Found")
		return
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "" && r.Method == http.MethodGet:
		g.answer(w, r, map[string]any{
			"id": RepoID, "full_name": Repo, "default_branch": "main", "html_url": "http://" + r.Host + "/" + Repo,
		})
	case path == "/pulls" && r.Method == http.MethodGet:
		g.listPulls(w, r)
	case len(parts) == 2 && parts[0] == "statuses" && r.Method == http.MethodPost:
		g.post(w, r, parts[1])
	case len(parts) == 3 && parts[0] == "commits" && parts[2] == "status" && r.Method == http.MethodGet:
		g.combined(w, r, parts[1])
	default:
		fail(w, http.StatusNotFound, "Not Found")
	}
}

func fail(w http.ResponseWriter, code int, message string, errs ...map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"message": message, "errors": errs})
}

func (g *GitHub) answer(w http.ResponseWriter, r *http.Request, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	etag := fmt.Sprintf(`"%x"`, sha256.Sum256(b))
	w.Header().Set("ETag", etag)
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(b)
}

// page cuts a list by page and per_page and sets Link.
func page[T any](w http.ResponseWriter, r *http.Request, all []T) []T {
	per, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
	if per <= 0 || per > 100 {
		per = 30
	}
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	n = max(n, 1)
	from, to := min((n-1)*per, len(all)), min(n*per, len(all))
	if to < len(all) {
		q := r.URL.Query()
		q.Set("page", strconv.Itoa(n+1))
		w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?%s>; rel="next"`, r.Host, r.URL.Path, q.Encode()))
	}
	return all[from:to]
}

func (g *GitHub) listPulls(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := []any{}
	for i := len(g.pulls) - 1; i >= 0; i-- {
		p, n := g.pulls[i], i+1
		if g.closed[n] || (r.URL.Query().Get("base") != "" && r.URL.Query().Get("base") != p.Base) {
			continue
		}
		head := map[string]any{"sha": p.Head, "ref": "topic", "repo": map[string]any{"id": RepoID, "full_name": Repo}}
		if p.Fork {
			head["repo"] = map[string]any{"id": 99, "full_name": "someone/fleet"}
		}
		if p.Deleted {
			head["repo"] = nil
		}
		list = append(list, map[string]any{
			"number": n, "state": "open", "title": p.Title, "draft": p.Draft, "head": head,
			"user": map[string]any{"login": "someone"}, "html_url": fmt.Sprintf("http://%s/%s/pull/%d", r.Host, Repo, n),
			"base":       map[string]any{"ref": p.Base, "repo": map[string]any{"id": RepoID, "full_name": Repo}},
			"updated_at": g.begun.Add(time.Duration(n) * time.Second).UTC().Format(time.RFC3339),
		})
	}
	g.answer(w, r, page(w, r, list))
}

func (g *GitHub) post(w http.ResponseWriter, r *http.Request, sha string) {
	var p Post
	b, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(b, &p) != nil {
		fail(w, http.StatusBadRequest, "Problems parsing JSON")
		return
	}
	p.SHA = sha
	g.mu.Lock()
	n := 0
	for _, o := range g.posts {
		if o.SHA == sha && strings.EqualFold(o.Context, p.Context) {
			n++
		}
	}
	known := g.commits[sha]
	refuse := ""
	switch {
	case !known:
	case n >= g.MaxStatuses:
		refuse = "This SHA and context has reached the maximum number of statuses."
	case utf8.RuneCountInString(p.Description) > 140:
		refuse = "description is too long (maximum is 140 characters)"
	case p.State != "pending" && p.State != "success" && p.State != "failure" && p.State != "error":
		refuse = "state is not included in the list"
	default:
		g.posts = append(g.posts, p)
	}
	after := g.after
	g.mu.Unlock()
	switch {
	case !known:
		fail(w, http.StatusUnprocessableEntity, "No commit found for SHA: "+sha)
	case refuse != "":
		fail(w, http.StatusUnprocessableEntity, "Validation Failed", map[string]string{"resource": "Status", "code": "custom", "message": refuse})
	default:
		if after != nil && !after(w, r) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(p)
	}
}

func (g *GitHub) combined(w http.ResponseWriter, r *http.Request, sha string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.commits[sha] {
		fail(w, http.StatusUnprocessableEntity, "No commit found for SHA: "+sha)
		return
	}
	newest := map[string]Post{}
	for _, p := range g.posts {
		if p.SHA == sha {
			newest[strings.ToLower(p.Context)] = p
		}
	}
	list := []Post{}
	for _, p := range newest {
		list = append(list, p)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Context < list[j].Context })
	g.answer(w, r, map[string]any{"sha": sha, "total_count": len(list), "statuses": page(w, r, list)})
}
