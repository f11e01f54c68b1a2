package github_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/forgetest"
	"ichor.maesh.dev/ichor/sync/forge/github"
)

func client(t *testing.T, g *forgetest.GitHub, change ...func(*github.Options)) *github.Client {
	t.Helper()
	o := github.Options{WebURL: g.HTTP.URL, Repository: forgetest.Repo, Token: secret.FromString("canary-token"), Timeout: 5 * time.Second}
	for _, c := range change {
		c(&o)
	}
	c, err := github.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var green = state.CommitStatus{Context: "ichor/check", State: state.StateSuccess, Description: "ok"}

func TestConformance(t *testing.T) {
	forgetest.Run(t, func(t *testing.T) forgetest.Fixture {
		g := forgetest.StartGitHub(t)
		return forgetest.Fixture{Forge: client(t, g), Commit: g.Commit, Open: g.Open, Close: g.ClosePull}
	})
}

func TestManyPullRequestsComeInPages(t *testing.T) {
	g := forgetest.StartGitHub(t)
	for range 250 {
		g.Open(forgetest.Pull{Head: g.Commit(), Base: "main"})
	}
	got, err := client(t, g).PullRequests(t.Context(), "main")
	if err != nil || len(got) != 250 {
		t.Fatalf("%d %v", len(got), err)
	}
}

// An unchanged list is answered by 304, and the caller sees no difference.
func TestUnchangedAnswersComeFromTheCache(t *testing.T) {
	g := forgetest.StartGitHub(t)
	g.Open(forgetest.Pull{Head: g.Commit(), Base: "main"})
	var mu sync.Mutex
	conditional := 0
	g.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("If-None-Match") != "" {
			conditional++
		}
		return true
	})
	c := client(t, g)
	for i := range 3 {
		if got, err := c.PullRequests(t.Context(), "main"); err != nil || len(got) != 1 {
			t.Fatal(i, got, err)
		}
	}
	g.Open(forgetest.Pull{Head: g.Commit(), Base: "main"})
	if got, err := c.PullRequests(t.Context(), "main"); err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if mu.Lock(); conditional != 3 {
		t.Errorf("%d conditional requests, want 3", conditional)
	}
	mu.Unlock()
}

func TestFaultsHaveTheirKind(t *testing.T) {
	limited := func(h map[string]string, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			for k, v := range h {
				w.Header().Set(k, v)
			}
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(body))
		}
	}
	code := func(n int) func(http.ResponseWriter) { return func(w http.ResponseWriter) { w.WriteHeader(n) } }
	reset := time.Now().Add(30 * time.Minute)
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter)
		kind   forge.Kind
		wait   time.Duration
	}{
		"500":      {code(500), forge.KindTransient, 0},
		"502":      {code(502), forge.KindTransient, 0},
		"401":      {code(401), forge.KindAuth, 0},
		"403":      {code(403), forge.KindAuth, 0},
		"404":      {code(404), forge.KindHeld, 0},
		"410":      {code(410), forge.KindHeld, 0},
		"429":      {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) }, forge.KindRate, 7 * time.Second},
		"429 bare": {code(429), forge.KindRate, time.Minute},
		"primary": {limited(map[string]string{
			"X-RateLimit-Remaining": "0", "X-RateLimit-Limit": "5000",
			"X-RateLimit-Reset": fmt.Sprint(reset.Unix()),
		}, `{"message":"API rate limit exceeded"}`), forge.KindRate, 30 * time.Minute},
		"secondary": {limited(map[string]string{"Retry-After": "60"},
			`{"message":"You have exceeded a secondary rate limit","documentation_url":"https://docs.github.com/rest/overview/resources-in-the-rest-api#secondary-rate-limits"}`), forge.KindRate, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := forgetest.StartGitHub(t)
			sha := g.Commit()
			g.Before(func(w http.ResponseWriter, _ *http.Request) bool { tc.answer(w); return false })
			c := client(t, g)
			err := c.PostStatus(t.Context(), sha, green)
			var e *forge.Error
			if !errors.As(err, &e) || e.Kind != tc.kind {
				t.Fatalf("%v, want %s", err, tc.kind)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Fatal(err)
			}
			if tc.kind != forge.KindRate {
				return
			}
			if d := time.Until(e.Until) - tc.wait; d > 5*time.Second || d < -5*time.Second {
				t.Errorf("wait until %s", e.Until)
			}
			// The limit holds for reads too, and nothing is asked meanwhile.
			g.Asked()
			if _, err := c.Statuses(t.Context(), sha); forge.KindOf(err) != forge.KindRate || len(g.Asked()) != 0 {
				t.Errorf("a read during the limit: %v", err)
			}
		})
	}
}

func TestTheCapOfStatusesIsItsOwnKind(t *testing.T) {
	g := forgetest.StartGitHub(t)
	g.MaxStatuses = 1
	sha, c := g.Commit(), client(t, g)
	if err := c.PostStatus(t.Context(), sha, green); err != nil {
		t.Fatal(err)
	}
	if err := c.PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrTooMany) {
		t.Fatal(err)
	}
	long := green
	long.Description = strings.Repeat("x", 141)
	if err := c.PostStatus(t.Context(), g.Commit(), long); !errors.Is(err, forge.ErrPermanent) {
		t.Fatal(err)
	}
}

func TestRedirects(t *testing.T) {
	var leaks []string
	var mu sync.Mutex
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		leaks = append(leaks, r.URL.Path+" "+r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	g := forgetest.StartGitHub(t)
	sha, c := g.Commit(), client(t, g)
	for _, code := range []int{301, 302, 307, 308} {
		g.Before(func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, thief.URL+r.URL.Path, code)
			return false
		})
		if _, err := c.Repository(t.Context()); !errors.Is(err, forge.ErrHeld) {
			t.Errorf("GET %d: %v", code, err)
		}
		if err := c.PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrHeld) {
			t.Errorf("POST %d: %v", code, err)
		}
	}
	mu.Lock()
	if len(leaks) != 0 {
		t.Errorf("the other host was asked: %q", leaks)
	}
	mu.Unlock()
	// A renamed repository: GET 301 and POST 307 on the same host are followed, POST 301 is not turned into a GET.
	renamed := func(post int) {
		g.Before(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/old/name") {
				return true
			}
			code := http.StatusMovedPermanently
			if r.Method == http.MethodPost {
				code = post
			}
			http.Redirect(w, r, strings.Replace(r.URL.Path, "/old/name", "/"+forgetest.Repo, 1), code)
			return false
		})
	}
	old := client(t, g, func(o *github.Options) { o.Repository = "old/name" })
	renamed(http.StatusTemporaryRedirect)
	if r, err := old.Repository(t.Context()); err != nil || r.ID != fmt.Sprint(forgetest.RepoID) || r.FullName != forgetest.Repo {
		t.Errorf("%+v %v", r, err)
	}
	if err := old.PostStatus(t.Context(), sha, green); err != nil || len(g.Posts()) != 1 {
		t.Errorf("POST 307: %v", err)
	}
	renamed(http.StatusMovedPermanently)
	g.Asked()
	if err := old.PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrHeld) || !strings.Contains(err.Error(), "new name") {
		t.Errorf("POST 301: %v", err)
	}
	if asked := g.Asked(); len(asked) != 1 || len(g.Posts()) != 1 {
		t.Errorf("POST 301 went on as %v", asked)
	}
}

func TestATokenFileIsReadAgain(t *testing.T) {
	g := forgetest.StartGitHub(t)
	var mu sync.Mutex
	var seen []string
	g.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Header.Get("Authorization"))
		return true
	})
	file := filepath.Join(t.TempDir(), "token")
	c := client(t, g, func(o *github.Options) { o.Token = secret.Bytes{}; o.TokenFile = file })
	if _, err := c.Repository(t.Context()); !errors.Is(err, forge.ErrAuth) {
		t.Fatalf("no file: %v", err)
	}
	for _, v := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(v+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Repository(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Join(seen, ",") != "Bearer one,Bearer two" {
		t.Fatal(seen)
	}
}

// appServer answers like GitHub to an App: it checks the JWT, mints tokens and takes only the newest.
type appServer struct {
	t      *testing.T
	key    *rsa.PrivateKey
	offset time.Duration
	mu     sync.Mutex
	minted int
	repos  []string
}

func (a *appServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now().Add(a.offset)
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	auth := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch r.URL.Path {
	case "/api/v3/repos/acme/fleet/installation", "/api/v3/app/installations/55/access_tokens":
		if !a.validJWT(auth, now) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"id":55}`))
			return
		}
		a.minted++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":"ghs_%d","expires_at":%q}`, a.minted, now.Add(time.Hour).Format(time.RFC3339))
	default:
		a.repos = append(a.repos, auth)
		if auth != fmt.Sprintf("ghs_%d", a.minted) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"id":4711,"full_name":"acme/fleet","default_branch":"main"}`))
	}
}

func (a *appServer) validJWT(jwt string, now time.Time) bool {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return false
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	var c struct {
		Iat, Exp int64
		Iss      string
	}
	if err != nil || json.Unmarshal(b, &c) != nil {
		return false
	}
	// GitHub: not in the future, not longer than ten minutes.
	return c.Iss == "123" && c.Iat <= now.Unix() && c.Exp > now.Unix() && c.Exp <= now.Add(10*time.Minute).Unix()
}

func TestAppLogin(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	b := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	login := func(offset time.Duration) (*appServer, *github.Client) {
		a := &appServer{t: t, key: key, offset: offset}
		s := httptest.NewServer(a)
		t.Cleanup(s.Close)
		c, err := github.New(github.Options{WebURL: s.URL, Repository: "acme/fleet", App: &github.App{ID: "123", KeyFile: file}})
		if err != nil {
			t.Fatal(err)
		}
		return a, c
	}
	a, c := login(0)
	for range 3 {
		if _, err := c.Repository(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if a.minted != 1 {
		t.Fatalf("%d tokens for three calls", a.minted)
	}
	if tok, err := c.Token(t.Context()); err != nil || string(tok.Reveal()) != "ghs_1" {
		t.Fatal(tok, err)
	}
	// The token is revoked: one new one, once.
	a.mu.Lock()
	a.minted = 7
	a.mu.Unlock()
	if _, err := c.Repository(t.Context()); err != nil || a.minted != 8 {
		t.Fatal(a.minted, err)
	}
	// A clock that is a minute fast still works; one that is far off is named.
	if _, c := login(-time.Minute + 5*time.Second); c != nil {
		if _, err := c.Repository(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, c = login(-5 * time.Minute)
	if _, err := c.Repository(t.Context()); !errors.Is(err, forge.ErrAuth) || !strings.Contains(err.Error(), "clock") {
		t.Fatal(err)
	}
}

func TestAddresses(t *testing.T) {
	for _, o := range []github.Options{
		{WebURL: "https://github.com", Repository: "nothing"},
		{WebURL: "https://u:p@github.com", Repository: "a/b"},
		{WebURL: "ftp://github.com", Repository: "a/b"},
		{WebURL: "http://ghe.example", Repository: "a/b", Token: secret.FromString("x")},
		{WebURL: "https://github.com", Repository: "a/b", CAFile: "/nonexistent"},
		{WebURL: "https://github.com", Repository: "a/b", App: &github.App{ID: "1"}},
	} {
		if _, err := github.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if got := reportURL(t, "http://127.0.0.5:3000/"); got != "http://127.0.0.5:3000/acme/fleet/blob/ichor/status/checks/abc.md" {
		t.Error(got)
	}
}

func reportURL(t *testing.T, web string) string {
	t.Helper()
	c, err := github.New(github.Options{WebURL: web, Repository: "acme/fleet"})
	if err != nil {
		t.Fatal(err)
	}
	return forge.ReportURL(c, "ichor/status", "abc")
}
