package forge

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commitJSON is "commit".
func (f *Forge) commitJSON(ctx context.Context, r *repository, sha string) (obj, error) {
	out, err := f.git(r).run(ctx, "show", "--no-patch", "--format=%T%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%B", sha)
	if err != nil {
		return nil, err
	}
	p := strings.SplitN(out, "\x00", 9)
	if len(p) != 9 {
		return nil, fmt.Errorf("read commit %s: git said %q", sha, out)
	}
	unix := func(s string) string {
		n, _ := strconv.ParseInt(s, 10, 64)
		return stamp(time.Unix(n, 0))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	u, web := f.repoURL(r), f.htmlURL(r)
	parents := []obj{}
	for _, x := range strings.Fields(p[1]) {
		parents = append(parents, obj{"sha": x, "url": u + "/commits/" + x, "html_url": web + "/commit/" + x})
	}
	return obj{
		"sha": sha, "node_id": nodeID("Commit", sha), "url": u + "/commits/" + sha, "html_url": web + "/commit/" + sha,
		"comments_url": u + "/commits/" + sha + "/comments", "author": nil, "committer": nil, "parents": parents,
		"commit": obj{
			"url": u + "/git/commits/" + sha, "message": strings.TrimRight(p[8], "\n"), "comment_count": 0,
			"author":       obj{"name": p[2], "email": p[3], "date": unix(p[4])},
			"committer":    obj{"name": p[5], "email": p[6], "date": unix(p[7])},
			"tree":         obj{"sha": p[0], "url": u + "/git/trees/" + p[0]},
			"verification": obj{"verified": false, "reason": "unsigned", "signature": nil, "payload": nil, "verified_at": nil},
		},
	}, nil
}

func listPulls(c *call, h http.Header) (int, any, error) {
	q := c.r.URL.Query()
	state := cmp.Or(q.Get("state"), "open")
	if state != "open" && state != "closed" && state != "all" {
		return 0, nil, invalid("PullRequest", "state", "invalid")
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	var all []*pull
	for _, p := range c.f.st.Pulls {
		if c.repo == c.f.main && (state == "all" || p.State == state) && (q.Get("base") == "" || p.Base == q.Get("base")) &&
			(q.Get("head") == "" || q.Get("head") == p.HeadOwner+":"+p.Head) {
			all = append(all, p)
		}
	}
	key := func(p *pull) time.Time { return p.Created }
	if q.Get("sort") == "updated" {
		key = func(p *pull) time.Time { return p.Updated }
	}
	// GitHub sorts by creation downwards, by anything else upwards, unless it is told
	desc := q.Get("direction") == "desc" || q.Get("direction") == "" && cmp.Or(q.Get("sort"), "created") == "created"
	slices.SortStableFunc(all, func(a, b *pull) int {
		n := cmp.Or(key(a).Compare(key(b)), cmp.Compare(a.Number, b.Number))
		if desc {
			return -n
		}
		return n
	})
	list := []obj{}
	for _, p := range page(c, h, all) {
		list = append(list, c.f.pullJSON(p))
	}
	return http.StatusOK, list, nil
}

// pull of the number argument.
func (c *call) pull() (*pull, error) {
	n, err := strconv.Atoi(c.args["number"])
	if err != nil || c.repo != c.f.main {
		return nil, notFound()
	}
	if p := c.f.findPull(n); p != nil {
		return p, nil
	}
	return nil, notFound()
}

func getPull(c *call, _ http.Header) (int, any, error) {
	p, err := c.pull()
	if err != nil {
		return 0, nil, err
	}
	return c.onePull(http.StatusOK, p)
}

// onePull answers with a pull request, its mergeability as it is known now; asking is what makes GitHub look
// again.
func (c *call) onePull(status int, p *pull) (int, any, error) {
	c.f.mu.Lock()
	o := c.f.fullPullJSON(p)
	base, head, open := p.Base, p.HeadSHA, p.State == "open"
	c.f.mu.Unlock()
	if open {
		c.f.queueCompute(p.Number)
	}
	// the three dots of a pull request: from where the branches parted
	from := c.f.Tip(base)
	if mb, err := c.f.git(c.f.main).run(c.r.Context(), "merge-base", cmp.Or(from, head), head); err == nil {
		from = mb
	}
	commits, files, added, deleted := c.f.extent(c.r.Context(), from, head)
	o["commits"], o["changed_files"], o["additions"], o["deletions"] = commits, files, added, deleted
	return status, o, nil
}

// extent counts what lies between two commits; a count that can't be had is zero.
func (f *Forge) extent(ctx context.Context, from, to string) (commits, files, added, deleted int) {
	if out, err := f.git(f.main).run(ctx, "rev-list", "--count", from+".."+to); err == nil {
		commits, _ = strconv.Atoi(out)
	}
	out, err := f.git(f.main).run(ctx, "diff", "--numstat", from, to)
	if err != nil {
		return commits, 0, 0, 0
	}
	for line := range strings.Lines(out) {
		p := strings.Fields(line)
		a, _ := strconv.Atoi(p[0])
		d, _ := strconv.Atoi(p[1])
		files, added, deleted = files+1, added+a, deleted+d
	}
	return commits, files, added, deleted
}

// needPulls refuses who may not write pull requests, in the words of a fine-grained token.
func (c *call) needPulls() error {
	if c.who.login == "" {
		return &Error{Status: http.StatusUnauthorized, Message: "Requires authentication"}
	}
	if !c.who.rights.Pulls {
		return &Error{Status: http.StatusForbidden, Message: "Resource not accessible by personal access token"}
	}
	return nil
}

func createPull(c *call, h http.Header) (int, any, error) {
	if err := c.needPulls(); err != nil {
		return 0, nil, err
	}
	if c.repo != c.f.main {
		return 0, nil, notFound()
	}
	var in struct {
		Title, Head, Base, Body string
		Draft                   bool
	}
	if err := c.decode(&in); err != nil {
		return 0, nil, err
	}
	if in.Base == "" {
		return 0, nil, invalid("PullRequest", "base", "missing_field")
	}
	n, err := c.f.OpenPull(OpenOptions{Branch: in.Head, Base: in.Base, Title: in.Title, Body: in.Body, Draft: in.Draft, Author: c.who.login})
	if err != nil {
		return 0, nil, err
	}
	h.Set("Location", fmt.Sprintf("%s/pulls/%d", c.f.repoURL(c.repo), n))
	return c.onePull(http.StatusCreated, c.f.findPull(n))
}

func updatePull(c *call, _ http.Header) (int, any, error) {
	p, err := c.pull()
	if err == nil {
		err = c.needPulls()
	}
	if err != nil {
		return 0, nil, err
	}
	var in struct{ Title, Body, State, Base *string }
	if err := c.decode(&in); err != nil {
		return 0, nil, err
	}
	if in.Base != nil && *in.Base != p.Base {
		err = c.f.SetBase(p.Number, *in.Base)
	}
	switch {
	case err != nil || in.State == nil:
	case *in.State == "closed":
		err = c.f.ClosePR(p.Number)
	case *in.State == "open":
		err = c.f.ReopenPR(p.Number)
	default:
		err = invalid("PullRequest", "state", "invalid")
	}
	if err != nil {
		return 0, nil, err
	}
	c.f.mu.Lock()
	if in.Title != nil {
		p.Title = *in.Title
	}
	if in.Body != nil {
		p.Body = *in.Body
	}
	p.Updated = c.f.now().UTC()
	c.f.saveLocked()
	c.f.mu.Unlock()
	return c.onePull(http.StatusOK, p)
}

func mergePull(c *call, _ http.Header) (int, any, error) {
	p, err := c.pull()
	if err == nil {
		err = c.needPulls()
	}
	if err != nil {
		return 0, nil, err
	}
	var in struct {
		SHA         string `json:"sha"`
		MergeMethod string `json:"merge_method"`
		CommitTitle string `json:"commit_title"`
	}
	if c.r.ContentLength != 0 {
		if err := c.decode(&in); err != nil {
			return 0, nil, err
		}
	}
	switch in.MergeMethod {
	case "", "merge", "squash":
	case "rebase":
		return 0, nil, &Error{Status: http.StatusMethodNotAllowed, Message: "Rebase merges are not allowed on this repository."}
	default:
		return 0, nil, invalid("PullRequest", "merge_method", "invalid")
	}
	sha, err := c.f.Merge(c.r.Context(), p.Number, MergeOptions{Head: in.SHA, Squash: in.MergeMethod == "squash", By: c.who.login, Message: in.CommitTitle})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, obj{"sha": sha, "merged": true, "message": "Pull Request successfully merged"}, nil
}

// pullsOfCommit lists the pull request that brought a commit to the default branch, or, for one that is not
// there, the open ones with it.
func pullsOfCommit(c *call, h http.Header) (int, any, error) {
	c.args["ref"] = c.args["sha"]
	sha, err := c.commit()
	if err != nil {
		return 0, nil, err
	}
	c.f.mu.Lock()
	pulls := slices.Clone(c.f.st.Pulls)
	c.f.mu.Unlock()
	var found []*pull
	for _, p := range pulls {
		c.f.mu.Lock()
		merge, head, merged, open := p.MergeCommit, p.HeadSHA, p.Merged != nil, p.State == "open"
		c.f.mu.Unlock()
		if merged && merge == sha || (merged || open) && c.f.isAncestor(c.r.Context(), c.f.main, sha, head) && !c.f.older(c.r.Context(), p, sha) {
			found = append(found, p)
		}
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	list := []obj{}
	for _, p := range page(c, h, found) {
		list = append(list, c.f.pullJSON(p))
	}
	return http.StatusOK, list, nil
}

// older tells whether a commit was on the base before the pull request.
func (f *Forge) older(ctx context.Context, p *pull, sha string) bool {
	f.mu.Lock()
	base := p.BaseSHA
	f.mu.Unlock()
	return base != "" && f.isAncestor(ctx, f.main, sha, base)
}
