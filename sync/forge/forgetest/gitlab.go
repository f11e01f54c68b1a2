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

// GitLab is a small server with one project. The shapes of its answers are those recorded in GitLab's own Go client
// (gitlab.com/gitlab-org/api/client-go v1.46.0: testdata/get_merge_requests.json, commits_test.go) and of the published
// documentation (doc/api/commits.md, doc/api/merge_requests.md); refusals are worded as lib/api/commit_statuses.rb does.
type GitLab struct {
	core
	// Repo is the project's path.
	Repo string
	ids  int64
	rows []*gitlabStatus
}

type gitlabStatus struct {
	ID          int64   `json:"id"`
	SHA         string  `json:"sha"`
	Ref         string  `json:"ref"`
	Status      string  `json:"status"`
	Name        string  `json:"name"`
	TargetURL   *string `json:"target_url"`
	Description *string `json:"description"`
}

// GitLabRepo lies in a subgroup, which GitHub and Gitea have not.
const GitLabRepo = "acme/infra/fleet"

// StartGitLab starts it. Requests need the token "t".
func StartGitLab(tb testing.TB) *GitLab {
	g := &GitLab{Repo: GitLabRepo, ids: 90}
	g.start(tb, g)
	return g
}

// ServeHTTP implements http.Handler.
func (g *GitLab) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("PRIVATE-TOKEN") == "" {
		message(w, http.StatusUnauthorized, "401 Unauthorized")
		return
	}
	// The project's path is one segment, its slashes escaped.
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api/v4/projects/"+strings.ReplaceAll(g.Repo, "/", "%2F"))
	if !ok {
		message(w, http.StatusNotFound, "404 Project Not Found")
		return
	}
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case rest == "" && r.Method == http.MethodGet:
		reply(w, http.StatusOK, map[string]any{
			"id": RepoID, "path_with_namespace": g.Repo, "default_branch": "main", "web_url": "http://" + r.Host + "/" + g.Repo,
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
			"id": 1000 + n, "iid": n, "project_id": RepoID, "title": p.Title, "state": "opened", "draft": p.Draft, "sha": p.Head,
			"target_branch": p.Base, "source_branch": "topic", "source_project_id": RepoID, "target_project_id": RepoID,
			"author": map[string]any{"username": "someone"}, "updated_at": g.updated(n), "merge_commit_sha": nil,
			"web_url": fmt.Sprintf("http://%s/%s/-/merge_requests/%d", r.Host, g.Repo, n),
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

func (g *GitLab) page(w http.ResponseWriter, r *http.Request, list []map[string]any) {
	some, next := cut(r, list, "per_page", 100)
	w.Header().Set("X-Next-Page", "")
	if next > 0 {
		w.Header().Set("X-Next-Page", fmt.Sprint(next))
	}
	reply(w, http.StatusOK, some)
}

// post follows GitLab's machine of states: one that is pending or running goes on, one that has ended gets a successor,
// and the same state once more is no transition.
func (g *GitLab) post(w http.ResponseWriter, r *http.Request, sha string) {
	var in struct {
		State, Name, Description, Ref string
		TargetURL                     string `json:"target_url"`
	}
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		reply(w, http.StatusBadRequest, map[string]string{"error": "The request body is not valid JSON"})
		return
	}
	switch {
	case in.State != "pending" && in.State != "running" && in.State != "success" && in.State != "failed" && in.State != "canceled" && in.State != "skipped":
		reply(w, http.StatusBadRequest, map[string]string{"error": "state does not have a valid value"})
		return
	case !g.commits[sha]:
		message(w, http.StatusNotFound, "404 Commit Not Found")
		return
	case utf8.RuneCountInString(in.Description) > 255 || len(in.TargetURL) > 255:
		reply(w, http.StatusBadRequest, map[string]any{"message": map[string]any{"description": []string{"is too long (maximum is 255 characters)"}}})
		return
	}
	row := g.live(sha, in.Name)
	if row != nil && row.Status == in.State {
		message(w, http.StatusBadRequest, fmt.Sprintf("Cannot transition status via :%s from :%s (Reason(s): Status cannot transition via \"%s\")",
			map[string]string{"pending": "enqueue", "running": "run"}[in.State], row.Status, in.State))
		return
	}
	if row == nil {
		g.ids++
		row = &gitlabStatus{ID: g.ids, SHA: sha, Ref: "main", Name: in.Name}
		g.rows = append(g.rows, row)
	}
	row.Status, row.Description, row.TargetURL = in.State, &in.Description, &in.TargetURL
	g.posts = append(g.posts, Post{SHA: sha, Context: in.Name, State: in.State, Description: in.Description, TargetURL: in.TargetURL})
	reply(w, http.StatusCreated, row)
}

// live is the status of a name that has not ended.
func (g *GitLab) live(sha, name string) *gitlabStatus {
	for _, s := range g.rows {
		if s.SHA == sha && s.Name == name && (s.Status == "pending" || s.Status == "running") {
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
				"description": s.Description, "allow_failure": false, "coverage": nil,
			})
		}
	}
	g.page(w, r, list)
}
