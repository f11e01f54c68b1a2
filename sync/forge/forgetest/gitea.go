package forgetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Gitea is a small server with one repository, for what is tried often; the conformance suite runs on the real one too
// (sync/forge/gitea/real_test.go), whose answers this one has.
type Gitea struct{ core }

// StartGitea starts it.
func StartGitea(tb testing.TB) *Gitea {
	g := &Gitea{}
	g.start(tb, g)
	return g
}

// ServeHTTP implements http.Handler.
func (g *Gitea) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") == "" {
		message(w, http.StatusNotFound, "The target couldn't be found.")
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/repos/"+Repo)
	if !ok {
		message(w, http.StatusNotFound, "The target couldn't be found.")
		return
	}
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case rest == "" && r.Method == http.MethodGet:
		reply(w, http.StatusOK, g.repo(r))
	case rest == "/pulls" && r.Method == http.MethodGet:
		g.list(w, r)
	case len(parts) == 2 && parts[0] == "statuses" && r.Method == http.MethodPost:
		g.post(w, r, parts[1])
	case len(parts) == 3 && parts[0] == "commits" && parts[2] == "status" && r.Method == http.MethodGet:
		g.combined(w, r, parts[1])
	default:
		message(w, http.StatusNotFound, "The target couldn't be found.")
	}
}

func (g *Gitea) repo(r *http.Request) map[string]any {
	return map[string]any{"id": RepoID, "full_name": Repo, "default_branch": "main", "html_url": "http://" + r.Host + "/" + Repo}
}

func (g *Gitea) list(w http.ResponseWriter, r *http.Request) {
	base := r.URL.Query().Get("base_branch")
	list := []map[string]any{}
	for i := len(g.pulls) - 1; i >= 0; i-- {
		p, n := g.pulls[i], i+1
		if g.closed[n] || (base != "" && base != p.Base) {
			continue
		}
		head := map[string]any{"ref": "topic", "sha": p.Head, "repo_id": RepoID, "repo": g.repo(r)}
		if p.Fork {
			head["repo_id"], head["repo"] = 99, map[string]any{"id": 99, "full_name": "someone/fleet"}
		}
		if p.Deleted {
			head["repo_id"], head["repo"] = -1, nil
		}
		list = append(list, map[string]any{
			"number": n, "state": "open", "title": p.Title, "draft": p.Draft, "head": head, "updated_at": g.updated(n),
			"base": map[string]any{"ref": p.Base, "sha": "", "repo_id": RepoID, "repo": g.repo(r)},
			"user": map[string]any{"login": "someone"}, "html_url": fmt.Sprintf("http://%s/%s/pulls/%d", r.Host, Repo, n),
		})
	}
	some, _ := cut(r, list, "limit", 50)
	reply(w, http.StatusOK, some)
}

func (g *Gitea) post(w http.ResponseWriter, r *http.Request, sha string) {
	var in Post
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		message(w, http.StatusUnprocessableEntity, "[]: invalid")
		return
	}
	if !shaForm(sha) || !g.commits[sha] {
		message(w, http.StatusNotFound, "object does not exist [id: "+sha+", rel_path: ]")
		return
	}
	in.SHA = sha
	g.posts = append(g.posts, in)
	reply(w, http.StatusCreated, giteaStatus(len(g.posts), in))
}

func giteaStatus(id int, p Post) map[string]any {
	return map[string]any{"id": id, "status": p.State, "context": p.Context, "description": p.Description, "target_url": p.TargetURL}
}

func (g *Gitea) combined(w http.ResponseWriter, r *http.Request, sha string) {
	if !g.commits[sha] {
		message(w, http.StatusNotFound, "object does not exist [id: "+sha+", rel_path: ]")
		return
	}
	newest := map[string]int{}
	for i, p := range g.posts {
		if p.SHA == sha {
			newest[p.Context] = i
		}
	}
	list := []map[string]any{}
	for i := len(g.posts) - 1; i >= 0; i-- {
		if p := g.posts[i]; p.SHA == sha && newest[p.Context] == i {
			list = append(list, giteaStatus(i+1, p))
		}
	}
	some, _ := cut(r, list, "limit", 50)
	reply(w, http.StatusOK, map[string]any{"sha": sha, "state": "", "total_count": len(list), "statuses": some})
}
