package forgetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sort"
	"strings"
	"testing"
	"unicode/utf8"
)

// GitLab is a small server with one project. Its answers have the fields of GitLab's published API description (checked by
// sync/forge/gitlab's tests) with the nulls that are recorded in GitLab's own Go client (gitlab.com/gitlab-org/api/client-go
// v1.46.0: testdata/get_merge_requests.json, commits_test.go); what it refuses, and how it is worded, is what
// lib/api/commit_statuses.rb and app/services/ci/create_commit_status_service.rb refuse.
type GitLab struct {
	core
	// Repo is the project's path. Base is what the server's own address has before /api/v4.
	Repo, Base string
	// Pages is how a list is paged: "" by number, "keyset" by a cursor that only Link tells, "bare" by number without a word of
	// it (a proxy that drops headers).
	Pages string
	ids   int64
	id    int64
	// moved are former paths of the project.
	moved map[string]bool
	// unlisted are commits on no branch: heads of forks.
	unlisted map[string]bool
	rows     []*gitlabStatus
}

type gitlabStatus struct {
	ID          int64   `json:"id"`
	SHA         string  `json:"sha"`
	Ref         string  `json:"ref"`
	Status      string  `json:"status"`
	Name        string  `json:"name"`
	TargetURL   *string `json:"target_url"`
	Description *string `json:"description"`
	Pipeline    int64   `json:"pipeline_id"`
	Coverage    *string `json:"coverage"`
}

// GitLabRepo lies in a subgroup, which GitHub and Gitea have not.
const GitLabRepo = "acme/infra/fleet"

// StartGitLab starts it. Requests need a token.
func StartGitLab(tb testing.TB) *GitLab {
	g := &GitLab{Repo: GitLabRepo, ids: 90, id: RepoID, moved: map[string]bool{}, unlisted: map[string]bool{}}
	g.start(tb, g)
	return g
}

// Open opens a merge request. The head of a fork is on no branch of the project.
func (g *GitLab) Open(p Pull) int {
	n := g.core.Open(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unlisted[p.Head] = p.Fork
	return n
}

// Rename gives the project another path; the old one leads to it.
func (g *GitLab) Rename(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moved[g.Repo] = true
	g.Repo = path
}

// Replace puts another project in the path of this one.
func (g *GitLab) Replace() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.id++
}

// Restore puts the project back that Replace took away.
func (g *GitLab) Restore() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.id = RepoID
}

func escaped(path string) string { return strings.ReplaceAll(path, "/", "%2F") }

// find tells what of the path is below the project; false where it was answered.
func (g *GitLab) find(w http.ResponseWriter, r *http.Request) (string, bool) {
	below, ok := strings.CutPrefix(r.URL.EscapedPath(), g.Base+"/api/v4/projects/")
	if !ok {
		reply(w, http.StatusNotFound, map[string]string{"error": "404 Not Found"})
		return "", false
	}
	project, rest, _ := strings.Cut(below, "/") // the project's path is one segment, its slashes escaped
	if rest != "" {
		rest = "/" + rest
	}
	switch {
	case project == escaped(g.Repo), project == fmt.Sprint(g.id):
		return rest, true
	case g.moved[strings.ReplaceAll(project, "%2F", "/")]:
		// Grape's redirect(url, permanent: true)
		to := fmt.Sprintf("%s%s/api/v4/projects/%d%s", g.HTTP.URL, g.Base, g.id, rest)
		w.Header().Set("Location", to)
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusMovedPermanently)
		_, _ = fmt.Fprintf(w, "This resource has been moved permanently to %s", to)
		return "", false
	}
	message(w, http.StatusNotFound, "404 Project Not Found")
	return "", false
}

// ServeHTTP implements http.Handler.
func (g *GitLab) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("PRIVATE-TOKEN") == "" {
		message(w, http.StatusUnauthorized, "401 Unauthorized")
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	rest, ok := g.find(w, r)
	if !ok {
		return
	}
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	switch {
	case rest == "" && r.Method == http.MethodGet:
		reply(w, http.StatusOK, map[string]any{
			"id": g.id, "path_with_namespace": g.Repo, "default_branch": "main", "web_url": "http://" + r.Host + g.Base + "/" + g.Repo,
			"empty_repo": false, "archived": false, "description": nil, "visibility": "private",
		})
	case rest == "/merge_requests" && r.Method == http.MethodGet:
		g.list(w, r)
	case len(parts) == 2 && parts[0] == "statuses" && r.Method == http.MethodPost:
		g.post(w, r, parts[1])
	case len(parts) == 4 && parts[1] == "commits" && parts[3] == "statuses" && r.Method == http.MethodGet:
		g.statuses(w, r, parts[2])
	case len(parts) == 3 && parts[0] == "merge_requests" && parts[2] == "merge_ref" && r.Method == http.MethodGet:
		reply(w, http.StatusOK, map[string]string{"commit_id": strings.Repeat("ab", 20)})
	default:
		reply(w, http.StatusNotFound, map[string]string{"error": "404 Not Found"})
	}
}

func (g *GitLab) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	list := []map[string]any{}
	for i, p := range g.pulls {
		n := i + 1
		if (q.Get("state") == "opened" && g.closed[n]) || (q.Get("target_branch") != "" && q.Get("target_branch") != p.Base) {
			continue
		}
		m := map[string]any{
			"id": 1000 + n, "iid": n, "project_id": g.id, "title": p.Title, "state": "opened", "draft": p.Draft, "sha": p.Head,
			"target_branch": p.Base, "source_branch": "topic", "source_project_id": g.id, "target_project_id": g.id,
			"author": map[string]any{"username": "someone"}, "updated_at": g.updated(n), "merge_commit_sha": nil,
			"web_url": fmt.Sprintf("http://%s%s/%s/-/merge_requests/%d", r.Host, g.Base, g.Repo, n), "work_in_progress": p.Draft,
			"labels": []string{}, "merged_at": nil, "closed_at": nil, "squash_commit_sha": nil, "has_conflicts": false,
		}
		if g.closed[n] {
			m["state"] = "closed"
		}
		if p.Fork {
			m["source_project_id"] = 99
		}
		if p.Deleted {
			m["source_project_id"] = nil
		}
		list = append(list, m)
	}
	if q.Get("order_by") == "updated_at" && q.Get("sort") != "asc" {
		sort.SliceStable(list, func(i, j int) bool { return list[i]["iid"].(int) > list[j]["iid"].(int) })
	}
	g.page(w, r, list)
}

// page answers one page, and tells of the next as GitLab does.
func (g *GitLab) page(w http.ResponseWriter, r *http.Request, list []map[string]any) {
	if g.Pages == "keyset" {
		q := r.URL.Query()
		if c := q.Get("cursor"); c != "" {
			q.Set("page", strings.TrimPrefix(c, "after-"))
			r.URL.RawQuery = q.Encode()
		}
	}
	some, next := cut(r, list, "per_page", 100)
	link := ""
	if next > 0 {
		q := r.URL.Query()
		if g.Pages == "keyset" {
			q.Del("page")
			q.Set("pagination", "keyset")
			q.Set("cursor", fmt.Sprintf("after-%d", next))
		} else {
			q.Set("page", fmt.Sprint(next))
		}
		// The host is that of the server's configuration, which is not how it was asked here.
		link = fmt.Sprintf(`<https://gitlab.internal%s?%s>; rel="next", `, r.URL.EscapedPath(), q.Encode())
	}
	if g.Pages != "bare" {
		w.Header().Set("Link", link+`<https://gitlab.internal/first>; rel="first"`)
	}
	if g.Pages == "" {
		w.Header().Set("X-Next-Page", "")
		if next > 0 {
			w.Header().Set("X-Next-Page", fmt.Sprint(next))
		}
	}
	reply(w, http.StatusOK, some)
}

type gitlabPost struct {
	State, Name, Description, Ref string
	TargetURL                     string `json:"target_url"`
}

// post follows GitLab's machine of states.
func (g *GitLab) post(w http.ResponseWriter, r *http.Request, sha string) {
	var in gitlabPost
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		reply(w, http.StatusBadRequest, map[string]string{"error": "The request body is not valid JSON"})
		return
	}
	long := func(field string) {
		reply(w, http.StatusBadRequest, map[string]any{"message": map[string]any{field: []string{"is too long (maximum is 255 characters)"}}})
	}
	if in.Ref == "" {
		in.Ref = g.refOf(sha)
	}
	switch {
	case in.State != "pending" && in.State != "running" && in.State != "success" && in.State != "failed" && in.State != "canceled" && in.State != "skipped":
		reply(w, http.StatusBadRequest, map[string]string{"error": "state does not have a valid value"})
		return
	case !g.commits[sha]:
		message(w, http.StatusNotFound, "404 Commit Not Found")
		return
	case in.Ref == "":
		message(w, http.StatusNotFound, "404 References for commit Not Found")
		return
	case utf8.RuneCountInString(in.Description) > 255:
		long("description")
		return
	case utf8.RuneCountInString(in.TargetURL) > 255:
		long("target_url")
		return
	case utf8.RuneCountInString(in.Name) > 255:
		long("name")
		return
	}
	g.transit(w, sha, in)
}

// transit makes a status, or takes the one that has not ended on. One that has ended is not looked at: it gets a
// successor.
func (g *GitLab) transit(w http.ResponseWriter, sha string, in gitlabPost) {
	row := g.live(sha, in.Name, in.Ref)
	event := map[string]string{"pending": "enqueue", "running": "run"}[in.State]
	if row != nil && (in.State == "pending" || row.Status == "running" && in.State == "running") {
		message(w, http.StatusBadRequest, fmt.Sprintf("Cannot transition status via :%s from :%s (Reason(s): Status cannot transition via \"%[1]s\")",
			event, row.Status))
		return
	}
	if row == nil {
		g.ids++
		row = &gitlabStatus{ID: g.ids, SHA: sha, Ref: in.Ref, Name: in.Name, Pipeline: 7}
		g.rows = append(g.rows, row)
	}
	row.Status, row.Description, row.TargetURL = in.State, &in.Description, nil
	if in.TargetURL != "" {
		row.TargetURL = &in.TargetURL
	}
	g.posts = append(g.posts, Post{SHA: sha, Context: in.Name, State: in.State, Description: in.Description, TargetURL: in.TargetURL})
	reply(w, http.StatusCreated, row)
}

// refOf is the ref that a status goes to which names none: that of the commit's newest pipeline, else a branch that holds the
// commit, else none.
func (g *GitLab) refOf(sha string) string {
	for i := len(g.rows) - 1; i >= 0; i-- {
		if g.rows[i].SHA == sha {
			return g.rows[i].Ref
		}
	}
	if g.unlisted[sha] {
		return ""
	}
	return "main"
}

// Refs gives the refs of a commit's statuses, in order.
func (g *GitLab) Refs(sha string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, row := range g.rows {
		if row.SHA == sha {
			out = append(out, row.Ref)
		}
	}
	return out
}

// Run makes the status of a name run, as another client of the same user may.
func (g *GitLab) Run(sha, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.live(sha, name, g.refOf(sha)).Status = "running"
}

// live is the status of a name that has not ended.
func (g *GitLab) live(sha, name, ref string) *gitlabStatus {
	for _, s := range g.rows {
		if s.SHA == sha && s.Name == name && s.Ref == ref && (s.Status == "pending" || s.Status == "running") {
			return s
		}
	}
	return nil
}

func (g *GitLab) statuses(w http.ResponseWriter, r *http.Request, sha string) {
	if !g.commits[sha] {
		message(w, http.StatusNotFound, "404 Commit Not Found")
		return
	}
	list := []map[string]any{}
	for _, s := range g.rows {
		if s.SHA == sha { // old ones too: which is newest, the caller has to see
			list = append(list, map[string]any{
				"id": s.ID, "sha": sha, "ref": s.Ref, "status": s.Status, "name": s.Name, "target_url": s.TargetURL,
				"description": s.Description, "allow_failure": false, "coverage": nil, "pipeline_id": s.Pipeline,
			})
		}
	}
	g.page(w, r, list)
}
