package forge

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"slices"
	"strings"
)

// maxPack is the largest body that is taken, in bytes.
const maxPack = 1 << 30

// gitService tells which of Git's services a request is for, "" for none.
func gitService(r *http.Request, segs []string) string {
	if len(segs) < 3 {
		return ""
	}
	switch rest := strings.Join(segs[2:], "/"); {
	case rest == "info/refs" && r.Method == http.MethodGet:
		return "info-refs"
	case (rest == "git-upload-pack" || rest == "git-receive-pack") && r.Method == http.MethodPost:
		return strings.TrimPrefix(rest, "git-")
	}
	return ""
}

// serveGit lets Git's http-backend answer, after GitHub's answers about access.
func (c *call) serveGit(w http.ResponseWriter) {
	f, r := c.f, c.r
	write := c.endpoint == "git.receive-pack" || c.endpoint == "git.info-refs" && r.URL.Query().Get("service") == "git-receive-pack"
	id, given, ok := f.who(r)
	repo, renamed := f.findRepository(c.args["owner"], c.args["repo"])
	switch {
	case !ok:
		askPassword(w, "Invalid username or token. Password authentication is not supported for Git operations.")
		return
	case !given && (repo == nil || !f.isPublic(repo) || write):
		askPassword(w, "Repository access needs a token.")
		return
	case repo == nil:
		gitRefusal(w, http.StatusNotFound, "Repository not found.")
		return
	case write && !f.mayPush(repo, id):
		gitRefusal(w, http.StatusForbidden, fmt.Sprintf("Permission to %s/%s.git denied to %s.", repo.Owner, c.args["repo"], id.login))
		return
	case renamed && r.Method == http.MethodGet:
		// GitHub sends clients of the old name on
		http.Redirect(w, r, f.cloneURL(repo)+"/info/refs?"+r.URL.RawQuery, http.StatusMovedPermanently)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPack))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			gitRefusal(w, http.StatusRequestEntityTooLarge, "pack exceeds maximum allowed size")
		}
		return
	}
	if c.endpoint != "git.receive-pack" {
		f.backend(w, r, repo, id.login, c.args["path"], body)
		return
	}
	if err := f.changeRefs(repo, id.login, func() error { f.backend(w, r, repo, id.login, c.args["path"], body); return nil }); err != nil {
		f.log.Error("cannot follow a push", "error", err)
	}
}

// backend runs git http-backend. net/http/cgi takes no chunked body, so the body is whole here.
func (f *Forge) backend(w http.ResponseWriter, r *http.Request, repo *repository, user, path string, body []byte) {
	git, err := exec.LookPath("git")
	if err != nil {
		gitRefusal(w, http.StatusInternalServerError, "git is not installed")
		return
	}
	env := append(gitEnv(), "GIT_PROJECT_ROOT="+f.gitDir(repo), "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER="+user)
	if p := r.Header.Get("Git-Protocol"); p != "" {
		env = append(env, "GIT_PROTOCOL="+p)
	}
	r2 := r.Clone(r.Context())
	r2.Body, r2.ContentLength, r2.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	r2.URL.Path, r2.URL.RawPath = "/"+path, ""
	// the token is nothing that git needs to know
	r2.Header.Del("Authorization")
	var errOut bytes.Buffer
	(&cgi.Handler{Path: git, Args: []string{"http-backend"}, Dir: f.gitDir(repo), Env: env, Stderr: &errOut}).ServeHTTP(w, r2)
	if errOut.Len() > 0 {
		f.log.Debug("git http-backend", "stderr", errOut.String())
	}
}

func (f *Forge) isPublic(r *repository) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return r.Public
}

// mayPush: the right to push is for the main repository, and for one's own fork; the token of Options may push
// everywhere.
func (f *Forge) mayPush(r *repository, id identity) bool {
	return id.rights.Contents || r != f.main && strings.EqualFold(r.Owner, id.login)
}

func askPassword(w http.ResponseWriter, message string) {
	w.Header().Set("WWW-Authenticate", `Basic realm="GitHub"`)
	gitRefusal(w, http.StatusUnauthorized, message)
}

// gitRefusal is an answer that git shows as "remote: …".
func gitRefusal(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, message+"\n")
}

// Branches of the main repository with their tips, sorted by name.
func (f *Forge) Branches() ([]Branch, error) {
	refs, err := f.refs(f.ctx, f.main, "refs/heads")
	if err != nil {
		return nil, fmt.Errorf("list branches: %w", err)
	}
	res := make([]Branch, 0, len(refs))
	for name, sha := range refs {
		res = append(res, Branch{Name: strings.TrimPrefix(name, "refs/heads/"), SHA: sha})
	}
	slices.SortFunc(res, func(a, b Branch) int { return cmp.Compare(a.Name, b.Name) })
	return res, nil
}

// Branch is a branch and its tip.
type Branch struct {
	Name string `json:"name"`
	SHA  string `json:"sha"`
}
