package gitlab_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/forgetest"
	"ichor.maesh.dev/ichor/sync/forge/gitlab"
)

// TestListsOfEveryPaging: more than two pages, of merge requests and of statuses, whichever way the server tells of the next.
func TestListsOfEveryPaging(t *testing.T) {
	for _, pages := range []string{"", "keyset", "bare"} {
		t.Run("pages "+pages, func(t *testing.T) {
			g := forgetest.StartGitLab(t)
			g.Pages = pages
			c := client(t, checked(t, g.HTTP.URL))
			sha := g.Commit()
			for range 230 {
				g.Open(forgetest.Pull{Head: sha, Base: "main"})
			}
			got, err := c.PullRequests(t.Context(), "main")
			if err != nil || len(got) != 230 {
				t.Fatalf("%d of 230, %v", len(got), err)
			}
			for i := range 201 {
				st := state.CommitStatus{Context: fmt.Sprintf("c%d", i), State: state.StateSuccess}
				if err := c.PostStatus(t.Context(), sha, st); err != nil {
					t.Fatal(err)
				}
			}
			if all, err := c.Statuses(t.Context(), sha); err != nil || len(all) != 201 {
				t.Errorf("%d of 201 statuses, %v", len(all), err)
			}
		})
	}
}

// TestAListWithoutAnEndEnds: a server that always names a next page keeps nobody.
func TestAListWithoutAnEndEnds(t *testing.T) {
	g := forgetest.StartGitLab(t)
	sha := g.Commit()
	g.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("X-Next-Page", "2")
		_, _ = w.Write([]byte("[]"))
		return false
	})
	c := client(t, g.HTTP.URL)
	if _, err := c.PullRequests(t.Context(), "main"); forge.KindOf(err) != forge.KindTransient {
		t.Errorf("merge requests: %v", err)
	}
	if _, err := c.Statuses(t.Context(), sha); forge.KindOf(err) != forge.KindTransient {
		t.Errorf("statuses: %v", err)
	}
}

// TestAServerBelowAPath: a GitLab of one's own may lie at https://example.org/gitlab.
func TestAServerBelowAPath(t *testing.T) {
	g := forgetest.StartGitLab(t)
	g.Base = "/gitlab"
	for _, web := range []string{g.HTTP.URL + "/gitlab", g.HTTP.URL + "/gitlab/"} {
		c := client(t, web)
		r, err := c.Repository(t.Context())
		if err != nil || !strings.HasSuffix(r.WebURL, "/gitlab/"+forgetest.GitLabRepo) {
			t.Fatalf("%+v %v", r, err)
		}
		if got := c.FileURL("ichor/status", "a b.md"); got != g.HTTP.URL+"/gitlab/"+forgetest.GitLabRepo+"/-/blob/ichor/status/a%20b.md" {
			t.Error(got)
		}
		if err := c.PostStatus(t.Context(), g.Commit(), green); err != nil {
			t.Error(err)
		}
	}
	if _, err := client(t, g.HTTP.URL).Repository(t.Context()); !errors.Is(err, forge.ErrHeld) {
		t.Errorf("without the path: %v", err)
	}
}

// TestTheProjectsPathIsOneSegment: its slashes are escaped, else a subgroup would be another resource.
func TestTheProjectsPathIsOneSegment(t *testing.T) {
	g := forgetest.StartGitLab(t)
	g.Rename("a/b.c/d_e/f-g")
	c, err := gitlab.New(gitlab.Options{WebURL: g.HTTP.URL, Repository: "a/b.c/d_e/f-g", Token: secret.FromString("x")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Repository(t.Context()); err != nil {
		t.Fatal(err)
	}
	if asked := g.Asked(); !slices.Equal(asked, []string{"GET /api/v4/projects/a%2Fb.c%2Fd_e%2Ff-g"}) {
		t.Error(asked)
	}
}

// TestARenamedProject: what is asked by the old path is redirected; a POST would be lost by that, and goes to the number. The
// project's identity stays, and the new name can be read.
func TestARenamedProject(t *testing.T) {
	g := forgetest.StartGitLab(t)
	url := checked(t, g.HTTP.URL)
	known, fresh := client(t, url), client(t, url)
	sha := g.Commit()
	before, err := known.Repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.Rename("acme/elsewhere")
	after, err := known.Repository(t.Context())
	if err != nil || after.ID != before.ID || after.FullName != "acme/elsewhere" {
		t.Errorf("%+v %v, was %+v", after, err, before)
	}
	if err := known.PostStatus(t.Context(), sha, green); err != nil {
		t.Error(err)
	}
	if got, err := known.Statuses(t.Context(), sha); err != nil || len(got) != 1 {
		t.Errorf("%v %v", got, err)
	}
	// One that never read the project finds the redirect: a list follows it, a POST says what to do.
	if _, err := fresh.PullRequests(t.Context(), "main"); err != nil {
		t.Error(err)
	}
	if err := fresh.PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrHeld) || !strings.Contains(err.Error(), "new name") {
		t.Errorf("%v", err)
	}
	if n := len(g.Posts()); n != 1 {
		t.Errorf("%d posts", n)
	}
}

// TestAReplacedProject: another project in the place of the one that was read has another number, which can be seen, and gets
// none of the statuses.
func TestAReplacedProject(t *testing.T) {
	g := forgetest.StartGitLab(t)
	c := client(t, checked(t, g.HTTP.URL))
	sha := g.Commit()
	before, err := c.Repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.Replace()
	if err := c.PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrHeld) {
		t.Errorf("post: %v", err)
	}
	if _, err := c.PullRequests(t.Context(), "main"); !errors.Is(err, forge.ErrHeld) {
		t.Errorf("list: %v", err)
	}
	if after, err := c.Repository(t.Context()); err != nil || after.ID == before.ID {
		t.Errorf("%+v %v", after, err)
	}
	if len(g.Posts()) != 0 {
		t.Error("the other project was told")
	}
}

// TestAForksHeadGetsItsStatus: it is on no branch of the project, so GitLab refuses a status that names no ref.
func TestAForksHeadGetsItsStatus(t *testing.T) {
	g := forgetest.StartGitLab(t)
	c := client(t, checked(t, g.HTTP.URL))
	g.Open(forgetest.Pull{Head: g.Commit(), Base: "main"})
	sha := g.Commit()
	g.Open(forgetest.Pull{Head: sha, Base: "main", Fork: true})
	if err := c.PostStatus(t.Context(), sha, green); !errors.Is(err, forge.ErrNoCommit) {
		t.Errorf("before it was listed: %v", err)
	}
	if _, err := c.PullRequests(t.Context(), "main"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []state.CommitState{state.StatePending, state.StateFailure, state.StateSuccess} {
		if err := c.PostStatus(t.Context(), sha, state.CommitStatus{Context: "ichor/check", State: s}); err != nil {
			t.Fatal(err)
		}
	}
	if refs := g.Refs(sha); !slices.Equal(refs, []string{"refs/merge-requests/2/head", "refs/merge-requests/2/head"}) {
		t.Errorf("on %q", refs)
	}
	if got, err := c.Statuses(t.Context(), sha); err != nil || len(got) != 1 || got[0].State != state.StateSuccess {
		t.Errorf("%v %v", got, err)
	}
}

// TestTransitionsThatAreRefused: what stands already is done; what does not stand is never taken for done.
func TestTransitionsThatAreRefused(t *testing.T) {
	g := forgetest.StartGitLab(t)
	c := client(t, checked(t, g.HTTP.URL))
	sha := g.Commit()
	pending := state.CommitStatus{Context: "ichor/check", State: state.StatePending}
	for i := range 2 {
		if err := c.PostStatus(t.Context(), sha, pending); err != nil {
			t.Fatalf("pending %d: %v", i, err)
		}
	}
	g.Run(sha, "ichor/check")
	if err := c.PostStatus(t.Context(), sha, pending); err != nil {
		t.Errorf("pending where it runs: %v", err)
	}
	for refusal, tc := range map[string]struct {
		want state.CommitState
		kind forge.Kind
	}{
		"Cannot transition status via :run from :success":                                                              {state.StateSuccess, ""},
		"Cannot transition status via :enqueue from :success":                                                          {state.StatePending, forge.KindTransient},
		"Cannot transition status via :drop from :success":                                                             {state.StateFailure, forge.KindTransient},
		"Cannot transition status via :success from :failed (Reason(s): Status cannot transition via \\\"success\\\")": {state.StateSuccess, forge.KindTransient},
		"Cannot transition status via :cancel from :canceled":                                                          {state.StateError, ""},
		"Cannot transition status via :drop from :somehow":                                                             {state.StateFailure, forge.KindTransient},
		"something else": {state.StateFailure, forge.KindPermanent},
	} {
		g.Before(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"message":"%s"}`, refusal)
			return false
		})
		err := c.PostStatus(t.Context(), sha, state.CommitStatus{Context: "ichor/check", State: tc.want})
		if forge.KindOf(err) != tc.kind {
			t.Errorf("%s, %s wanted: %v", refusal, tc.want, err)
		}
	}
}

// TestWhatIsTooLong: an address is left out, a description cut, a name refused with what to do.
func TestWhatIsTooLong(t *testing.T) {
	g := forgetest.StartGitLab(t)
	c := client(t, checked(t, g.HTTP.URL))
	sha := g.Commit()
	at := func(n int) string { return "https://example.com/" + strings.Repeat("x", n-len("https://example.com/")) }
	for n, want := range map[int]string{255: at(255), 256: ""} {
		st := state.CommitStatus{Context: fmt.Sprint("url", n), State: state.StateFailure, Description: strings.Repeat("ü", n), TargetURL: at(n)}
		if err := c.PostStatus(t.Context(), sha, st); err != nil {
			t.Fatal(n, err)
		}
		posts := g.Posts()
		got := posts[len(posts)-1]
		if got.TargetURL != want || len([]rune(got.Description)) != 255 {
			t.Errorf("%d: %d characters of description, address %q", n, len([]rune(got.Description)), got.TargetURL)
		}
	}
	if err := c.PostStatus(t.Context(), sha, state.CommitStatus{Context: strings.Repeat("n", 255), State: state.StateSuccess}); err != nil {
		t.Error(err)
	}
	err := c.PostStatus(t.Context(), sha, state.CommitStatus{Context: strings.Repeat("n", 256), State: state.StateSuccess})
	if !errors.Is(err, forge.ErrPermanent) || !strings.Contains(err.Error(), "255") {
		t.Errorf("%v", err)
	}
}

// TestLimitsHoldForAllCalls: the time that GitLab names is waited for, by every call, and one in the past is no invitation.
func TestLimitsHoldForAllCalls(t *testing.T) {
	in := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).Unix()) }
	for name, tc := range map[string]struct {
		header   map[string]string
		from, to time.Duration
	}{
		"Retry-After":     {map[string]string{"Retry-After": "90"}, 88 * time.Second, 91 * time.Second},
		"Retry-After 0":   {map[string]string{"Retry-After": "0"}, 500 * time.Millisecond, 2 * time.Second},
		"RateLimit-Reset": {map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": in(2 * time.Minute)}, 115 * time.Second, 121 * time.Second},
		"a clock behind":  {map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": in(-time.Hour)}, 55 * time.Second, 61 * time.Second},
		"both":            {map[string]string{"Retry-After": "5", "RateLimit-Remaining": "0", "RateLimit-Reset": in(time.Hour)}, 3 * time.Second, 6 * time.Second},
		"nothing":         {nil, 55 * time.Second, 61 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			g := forgetest.StartGitLab(t)
			c := client(t, g.HTTP.URL)
			sha := g.Commit()
			g.Before(func(w http.ResponseWriter, _ *http.Request) bool {
				for k, v := range tc.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(http.StatusTooManyRequests)
				_, _ = w.Write([]byte("Retry later\n"))
				return false
			})
			begun := time.Now()
			_, err := c.PullRequests(t.Context(), "main")
			var e *forge.Error
			if !errors.As(err, &e) || e.Kind != forge.KindRate || e.Until.Sub(begun) < tc.from || e.Until.Sub(begun) > tc.to {
				t.Fatalf("%v until %s from now", err, e.Until.Sub(begun))
			}
			g.Asked()
			if err := c.PostStatus(t.Context(), sha, green); forge.KindOf(err) != forge.KindRate {
				t.Errorf("%v", err)
			}
			if asked := g.Asked(); len(asked) != 0 {
				t.Errorf("asked in spite of the limit: %v", asked)
			}
		})
	}
}

// TestDraftsOfOldServers: before 13.2 they were work in progress. And a merge request that is being merged (locked) or has no
// commit has nothing to check.
func TestDraftsOfOldServers(t *testing.T) {
	g := forgetest.StartGitLab(t)
	g.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(`[{"iid":1,"state":"opened","target_branch":"main","sha":"ab","work_in_progress":true,"title":"WIP: x"},
			{"iid":2,"state":"locked","target_branch":"main","sha":"cd"},{"iid":3,"state":"opened","target_branch":"main","sha":null}]`))
		return false
	})
	got, err := client(t, g.HTTP.URL).PullRequests(t.Context(), "main")
	if err != nil || len(got) != 1 || !got[0].Draft || got[0].Number != 1 {
		t.Errorf("%+v %v", got, err)
	}
}

// TestRefsOfMergeRequests: the commits that GitLab keeps of a merge request. That of a merge train (…/train) is not asked for.
func TestRefsOfMergeRequests(t *testing.T) {
	g := forgetest.StartGitLab(t)
	c := client(t, checked(t, g.HTTP.URL))
	head, merge := c.PullRefs()
	if fmt.Sprintf(head, 7) != "refs/merge-requests/7/head" || fmt.Sprintf(merge, 7) != "refs/merge-requests/7/merge" {
		t.Error(head, merge)
	}
	if err := c.AskMerge(t.Context(), 7); err != nil {
		t.Error(err)
	}
	// One that conflicts is answered 400: no merge commit, no more.
	g.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"message":"Merge request is not mergeable"}`))
		return false
	})
	if err := c.AskMerge(t.Context(), 7); !errors.Is(err, forge.ErrPermanent) {
		t.Errorf("%v", err)
	}
}
