package forge

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func getRateLimit(c *call, _ http.Header) (int, any, error) {
	l := &c.f.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	w, limit := l.window(c.who.login, c.f.now()), l.limit(c.who.login)
	if limit < 0 {
		return 0, nil, &Error{Status: http.StatusNotFound, Message: "Rate limiting is not enabled."}
	}
	rate := obj{"limit": limit, "used": w.used, "remaining": max(0, limit-w.used), "reset": w.reset.Unix()}
	return http.StatusOK, obj{"resources": obj{"core": rate, "search": rate}, "rate": rate}, nil
}

func getUser(c *call, _ http.Header) (int, any, error) {
	if c.who.login == "" {
		return 0, nil, &Error{Status: http.StatusUnauthorized, Message: "Requires authentication"}
	}
	u := c.f.userJSON(c.who.login)
	for _, k := range []string{"bio", "company", "email", "hireable", "location", "name"} {
		u[k] = nil
	}
	for _, k := range []string{"followers", "following", "public_gists", "public_repos"} {
		u[k] = 0
	}
	u["user_view_type"] = "public"
	u["blog"], u["created_at"], u["updated_at"] = "", stamp(c.f.main.Created), stamp(c.f.main.Created)
	return http.StatusOK, u, nil
}

func getRepository(c *call, _ http.Header) (int, any, error) {
	push := c.f.mayPush(c.repo, c.who)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	o := c.f.repositoryJSON(c.repo)
	o["network_count"], o["subscribers_count"] = 0, 0
	o["allow_merge_commit"], o["allow_squash_merge"], o["allow_rebase_merge"] = true, true, false
	if c.who.login != "" {
		o["permissions"] = obj{"admin": false, "maintain": false, "push": push, "triage": push, "pull": true}
	}
	if c.repo.Fork {
		o["parent"], o["source"] = c.f.repositoryJSON(c.f.main), c.f.repositoryJSON(c.f.main)
	}
	return http.StatusOK, o, nil
}

func (c *call) shortBranch(name, sha string) obj {
	return obj{"name": name, "commit": obj{"sha": sha, "url": c.f.repoURL(c.repo) + "/commits/" + sha}, "protected": contains(c.repo.Protected, name)}
}

func listBranches(c *call, h http.Header) (int, any, error) {
	refs, err := c.f.refs(c.r.Context(), c.repo, "refs/heads")
	if err != nil {
		return 0, nil, err
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	all := []obj{}
	for ref, sha := range refs {
		b := c.shortBranch(strings.TrimPrefix(ref, "refs/heads/"), sha)
		if want := c.r.URL.Query().Get("protected"); want == "" || want == strconv.FormatBool(b["protected"].(bool)) {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b obj) int { return cmp.Compare(a["name"].(string), b["name"].(string)) })
	return http.StatusOK, page(c, h, all), nil
}

func getBranch(c *call, _ http.Header) (int, any, error) {
	name := c.args["ref"]
	sha := c.f.resolve(c.r.Context(), c.repo, "refs/heads/"+name)
	if sha == "" {
		return 0, nil, &Error{Status: http.StatusNotFound, Message: "Branch not found"}
	}
	commit, err := c.f.commitJSON(c.r.Context(), c.repo, sha)
	if err != nil {
		return 0, nil, err
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	u := c.f.repoURL(c.repo) + "/branches/" + name
	protected := contains(c.repo.Protected, name)
	return http.StatusOK, obj{
		"name": name, "commit": commit, "protected": protected, "protection_url": u + "/protection",
		"_links":     obj{"self": u, "html": c.f.htmlURL(c.repo) + "/tree/" + name},
		"protection": obj{"enabled": protected, "required_status_checks": obj{"enforcement_level": "off", "contexts": []string{}, "checks": []obj{}}},
	}, nil
}

// commit of the ref argument. GitHub answers 422 for what can't be a commit here.
func (c *call) commit() (string, error) {
	if sha := c.f.resolve(c.r.Context(), c.repo, c.args["ref"]); sha != "" {
		return sha, nil
	}
	return "", &Error{Status: http.StatusUnprocessableEntity, Message: msgNoCommitForSHA + c.args["ref"]}
}

func getCommit(c *call, _ http.Header) (int, any, error) {
	sha, err := c.commit()
	if err != nil {
		if refs, refsErr := c.f.refs(c.r.Context(), c.repo, "refs/heads"); refsErr == nil && len(refs) == 0 {
			return 0, nil, &Error{Status: http.StatusConflict, Message: "Git Repository is empty."}
		}
		return 0, nil, err
	}
	if strings.Contains(c.r.Header.Get("Accept"), ".sha") {
		return http.StatusOK, text(sha), nil
	}
	o, err := c.f.commitJSON(c.r.Context(), c.repo, sha)
	return http.StatusOK, o, err
}

func combinedStatus(c *call, h http.Header) (int, any, error) {
	sha, err := c.commit()
	if err != nil {
		return 0, nil, notFound()
	}
	all := c.f.statuses.latest(c.repo.id(), sha)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	list := []obj{}
	for _, s := range page(c, h, all) {
		list = append(list, c.f.simpleStatusJSON(c.repo, s))
	}
	u := c.f.repoURL(c.repo) + "/commits/" + sha
	return http.StatusOK, obj{
		"state": combine(all), "statuses": list, "sha": sha, "total_count": len(all), "repository": c.f.repositoryJSON(c.repo),
		"commit_url": u, "url": u + "/status",
	}, nil
}

func listStatuses(c *call, h http.Header) (int, any, error) {
	sha, err := c.commit()
	if err != nil {
		return 0, nil, notFound()
	}
	all := c.f.statuses.list(c.repo.id(), sha)
	slices.Reverse(all)
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	list := []obj{}
	for _, s := range page(c, h, all) {
		list = append(list, c.f.statusJSON(c.repo, s))
	}
	return http.StatusOK, list, nil
}

func createStatus(c *call, h http.Header) (int, any, error) {
	// without the right to it GitHub answers as if nothing were there
	if c.who.login == "" || !c.who.rights.Statuses {
		return 0, nil, notFound()
	}
	var in struct {
		State       string  `json:"state"`
		TargetURL   *string `json:"target_url"`
		Description *string `json:"description"`
		Context     *string `json:"context"`
	}
	if err := c.decode(&in); err != nil {
		return 0, nil, err
	}
	sha := strings.ToLower(c.args["sha"])
	s := Status{SHA: sha, State: in.State, Creator: c.who.login, Created: c.f.now().UTC().Truncate(time.Second), Repository: c.repo.id()}
	for _, f := range []struct {
		from *string
		to   *string
	}{{in.TargetURL, &s.TargetURL}, {in.Description, &s.Description}, {in.Context, &s.Context}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if !c.f.hasCommit(c.r.Context(), c.repo, sha) {
		return 0, nil, &Error{Status: http.StatusUnprocessableEntity, Message: msgNoCommitForSHA + sha}
	}
	if err := s.validate(); err != nil {
		return 0, nil, err
	}
	s, err := c.f.statuses.add(s)
	if err != nil {
		return 0, nil, err
	}
	c.f.emit("forge.status", map[string]any{"sha": sha, "context": s.Context, "state": s.State, "description": s.Description, "targetURL": s.TargetURL})
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	h.Set("Location", c.f.repoURL(c.repo)+"/statuses/"+sha)
	return http.StatusCreated, c.f.statusJSON(c.repo, s), nil
}
