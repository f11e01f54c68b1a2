package gitlab_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/forgetest"
	"ichor.maesh.dev/ichor/sync/forge/gitlab"
)

func client(t *testing.T, web string) *gitlab.Client {
	t.Helper()
	c, err := gitlab.New(gitlab.Options{WebURL: web, Repository: forgetest.GitLabRepo, Token: secret.FromString("canary-token"), Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConformance(t *testing.T) {
	forgetest.Run(t, func(t *testing.T) forgetest.Fixture {
		g := forgetest.StartGitLab(t)
		return forgetest.Fixture{Forge: client(t, checked(t, g.HTTP.URL)), Commit: g.Commit, Open: g.Open, Close: g.Close}
	})
}

var green = state.CommitStatus{Context: "ichor/check", State: state.StateSuccess, Description: "ok"}

// TestFaultsHaveTheirKind: facts/gitops.md section 8.
func TestFaultsHaveTheirKind(t *testing.T) {
	code := func(n int, kv ...string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			for i := 0; i+1 < len(kv); i += 2 {
				w.Header().Set(kv[i], kv[i+1])
			}
			w.WriteHeader(n)
		}
	}
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter)
		kind   forge.Kind
	}{
		"500": {code(500), forge.KindTransient}, "502": {code(502), forge.KindTransient},
		"401": {code(401), forge.KindAuth}, "403": {code(403), forge.KindAuth},
		"404": {code(404), forge.KindHeld}, "410": {code(410), forge.KindHeld},
		"429": {code(429, "Retry-After", "7"), forge.KindRate}, "429 bare": {code(429), forge.KindRate},
		"409":       {code(409), forge.KindTransient}, // another update holds the lock
		"429 until": {code(429, "RateLimit-Remaining", "0", "RateLimit-Reset", "4102444800"), forge.KindRate},
		"422":       {code(422), forge.KindPermanent}, "400": {code(400), forge.KindPermanent},
		"a page for logging in": {func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>log in</html>")) }, forge.KindTransient},
		"nothing":               {code(200), forge.KindTransient},
		"null":                  {func(w http.ResponseWriter) { _, _ = w.Write([]byte("null")) }, forge.KindTransient},
	} {
		t.Run(name, func(t *testing.T) {
			g := forgetest.StartGitLab(t)
			sha := g.Commit()
			g.Before(func(w http.ResponseWriter, _ *http.Request) bool { tc.answer(w); return false })
			errs := map[string]error{"post": client(t, g.HTTP.URL).PostStatus(t.Context(), sha, green)}
			_, errs["list"] = client(t, g.HTTP.URL).PullRequests(t.Context(), "main")
			_, errs["statuses"] = client(t, g.HTTP.URL).Statuses(t.Context(), sha)
			_, errs["repository"] = client(t, g.HTTP.URL).Repository(t.Context())
			for op, err := range errs {
				if forge.KindOf(err) != tc.kind {
					t.Errorf("%s: %v, want %s", op, err, tc.kind)
				}
				if err != nil && strings.Contains(err.Error(), "canary") {
					t.Error(err)
				}
			}
		})
	}
}

func TestARedirectDoesNotTakeTheTokenAlong(t *testing.T) {
	var leaks []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		leaks = append(leaks, r.URL.Path+" "+r.Header.Get("Authorization")+r.Header.Get("PRIVATE-TOKEN"))
	}))
	defer thief.Close()
	g := forgetest.StartGitLab(t)
	sha := g.Commit()
	for _, code := range []int{301, 302, 307, 308} {
		g.Before(func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, thief.URL+r.URL.Path, code)
			return false
		})
		if _, err := client(t, g.HTTP.URL).Repository(t.Context()); !errors.Is(err, forge.ErrHeld) {
			t.Errorf("GET %d: %v", code, err)
		}
		if err := client(t, g.HTTP.URL).PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrHeld) {
			t.Errorf("POST %d: %v", code, err)
		}
	}
	if len(leaks) != 0 {
		t.Errorf("the other host was asked: %q", leaks)
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for _, o := range []gitlab.Options{
		{WebURL: "https://forge.example", Repository: "nothing"},
		{WebURL: "https://forge.example", Repository: "a/../b"},
		{WebURL: "https://u:p@forge.example", Repository: forgetest.GitLabRepo},
		{WebURL: "ftp://forge.example", Repository: forgetest.GitLabRepo},
		{WebURL: "http://forge.example", Repository: forgetest.GitLabRepo, Token: secret.FromString("x")},
		{WebURL: "https://forge.example", Repository: forgetest.GitLabRepo, CAFile: "/nonexistent"},
	} {
		if _, err := gitlab.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
