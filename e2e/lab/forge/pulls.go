package forge

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Pull is a pull request as tests and the command see it.
type Pull struct {
	Number      int    `json:"number"`
	Title       string `json:"title"`
	State       string `json:"state"` // open or closed
	Merged      bool   `json:"merged"`
	Draft       bool   `json:"draft"`
	Author      string `json:"author"`
	Base        string `json:"base"`
	Head        string `json:"head"` // branch, with owner: in front for a fork
	HeadSHA     string `json:"headSHA"`
	MergeCommit string `json:"mergeCommit,omitempty"`
	URL         string `json:"url"`
}

// OpenOptions are the rarer wishes of OpenPull.
type OpenOptions struct {
	// Branch that is to be merged; of a fork: owner:branch.
	Branch string
	// Base branch. Default: the default branch.
	Base string
	// Title and Body.
	Title, Body string
	// Author of the pull request. Default: lab.
	Author string
	// Draft can't be merged.
	Draft bool
}

// OpenPR opens a pull request of a branch (owner:branch for a fork's) against a base ("" is the default branch)
// and gives its number.
func (f *Forge) OpenPR(branch, base, title string) (int, error) {
	return f.OpenPull(OpenOptions{Branch: branch, Base: base, Title: title})
}

// OpenPull opens a pull request and gives its number. Errors are *Error with GitHub's status codes.
func (f *Forge) OpenPull(o OpenOptions) (int, error) {
	f.push.Lock()
	defer f.push.Unlock()
	owner, branch, fork := strings.Cut(o.Branch, ":")
	if !fork {
		owner, branch = f.main.Owner, o.Branch
	}
	base := cmp.Or(o.Base, f.main.DefaultBranch)
	head, err := f.ownRepository(owner)
	if err != nil {
		return 0, invalid("PullRequest", "head", "invalid")
	}
	tip, baseTip := f.resolve(f.ctx, head, "refs/heads/"+branch), f.resolve(f.ctx, f.main, "refs/heads/"+base)
	switch {
	case tip == "":
		return 0, invalid("PullRequest", "head", "invalid")
	case baseTip == "":
		return 0, invalid("PullRequest", "base", "invalid")
	case o.Title == "":
		return 0, invalid("PullRequest", "title", "missing_field")
	}
	p := &pull{
		Title: o.Title, Body: o.Body, Author: cmp.Or(o.Author, "lab"), State: "open", Draft: o.Draft, Base: base, BaseSHA: baseTip,
		Head: branch, HeadRepo: head.id(), HeadOwner: head.Owner, HeadSHA: tip,
	}
	f.mu.Lock()
	for _, other := range f.st.Pulls {
		if other.State == "open" && other.HeadRepo == head.id() && other.Head == branch && other.Base == base {
			f.mu.Unlock()
			return 0, custom("PullRequest", "", fmt.Sprintf("A pull request already exists for %s:%s.", head.Owner, branch))
		}
	}
	p.ID, p.Number = f.id(), len(f.st.Pulls)+1
	p.Created = f.now().UTC()
	p.Updated = p.Created
	f.mu.Unlock()
	if err := f.setPullHead(p, head, tip); err != nil {
		return 0, fmt.Errorf("open pull request: %w", err)
	}
	if f.isAncestor(f.ctx, f.main, tip, baseTip) {
		return 0, custom("PullRequest", "", fmt.Sprintf("No commits between %s and %s", base, branch))
	}
	f.mu.Lock()
	f.st.Pulls = append(f.st.Pulls, p)
	f.saveLocked()
	f.mu.Unlock()
	f.emit("forge.pull.opened", map[string]any{"number": p.Number, "head": tip, "branch": branch, "base": base, "title": p.Title, "url": f.pullURL(p)})
	f.hooks.pull(p, p.Author, "opened", nil)
	f.queueCompute(p.Number)
	return p.Number, nil
}

// Pulls gives all pull requests, oldest first.
func (f *Forge) Pulls() []Pull {
	f.mu.Lock()
	defer f.mu.Unlock()
	var res []Pull
	for _, p := range f.st.Pulls {
		head := p.Head
		if p.HeadOwner != f.main.Owner {
			head = p.HeadOwner + ":" + p.Head
		}
		res = append(res, Pull{
			Number: p.Number, Title: p.Title, State: p.State, Merged: p.Merged != nil, Draft: p.Draft, Author: p.Author, Base: p.Base,
			Head: head, HeadSHA: p.HeadSHA, MergeCommit: p.MergeCommit, URL: f.pullURL(p),
		})
	}
	return res
}

func (f *Forge) pullURL(p *pull) string {
	return fmt.Sprintf("%s/%s/%s/pull/%d", f.url, f.main.Owner, f.main.name(), p.Number)
}

// findPull by number, nil where there is none.
func (f *Forge) findPull(n int) *pull {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.st.Pulls {
		if p.Number == n {
			return p
		}
	}
	return nil
}

// headRepository of a pull request, nil where the fork was deleted.
func (f *Forge) headRepository(p *pull) *repository {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.st.Repos {
		if r.id() == p.HeadRepo {
			return r
		}
	}
	return nil
}

// ClosePR closes a pull request without merging it.
func (f *Forge) ClosePR(n int) error {
	f.push.Lock()
	defer f.push.Unlock()
	p := f.findPull(n)
	if p == nil {
		return notFound()
	}
	if p.State == "open" {
		f.closePull(p, "lab", "")
	}
	return nil
}

// ReopenPR opens a closed pull request again; one that was merged can't be.
func (f *Forge) ReopenPR(n int) error {
	f.push.Lock()
	defer f.push.Unlock()
	p := f.findPull(n)
	if p == nil {
		return notFound()
	}
	head := f.headRepository(p)
	if p.Merged != nil || head == nil || f.resolve(f.ctx, head, "refs/heads/"+p.Head) == "" {
		return custom("PullRequest", "state", "state cannot be changed. The pull request cannot be reopened.")
	}
	f.mu.Lock()
	p.State, p.Closed, p.Updated = "open", nil, f.now().UTC()
	f.saveLocked()
	f.mu.Unlock()
	f.hooks.pull(p, "lab", "reopened", nil)
	f.followHead(p, "lab")
	return nil
}

// SetDraft turns a pull request into a draft or makes it ready for review.
func (f *Forge) SetDraft(n int, draft bool) error {
	f.push.Lock()
	defer f.push.Unlock()
	p := f.findPull(n)
	if p == nil {
		return notFound()
	}
	f.mu.Lock()
	changed := p.Draft != draft
	p.Draft, p.Updated = draft, f.now().UTC()
	f.saveLocked()
	f.mu.Unlock()
	if changed {
		f.hooks.pull(p, "lab", map[bool]string{true: "converted_to_draft", false: "ready_for_review"}[draft], nil)
	}
	return nil
}

// SetBase points a pull request at another base branch.
func (f *Forge) SetBase(n int, base string) error {
	f.push.Lock()
	defer f.push.Unlock()
	p, tip := f.findPull(n), f.Tip(base)
	if p == nil {
		return notFound()
	}
	if tip == "" {
		return custom("PullRequest", "base", fmt.Sprintf("Proposed base branch '%s' was not found", base))
	}
	f.mu.Lock()
	from := p.Base
	p.Base, p.BaseSHA, p.Updated, p.Mergeable = base, tip, f.now().UTC(), nil
	f.saveLocked()
	f.mu.Unlock()
	f.hooks.pull(p, "lab", "edited", map[string]any{"changes": map[string]any{"base": map[string]any{"ref": map[string]any{"from": from}}}})
	f.queueCompute(p.Number)
	return nil
}

// closePull closes, as merged where a merge commit is given. push is held.
func (f *Forge) closePull(p *pull, actor, merged string) {
	now := f.now().UTC()
	f.mu.Lock()
	p.State, p.Closed, p.Updated = "closed", &now, now
	if merged != "" {
		p.Merged, p.MergedBy, p.MergeCommit = &now, actor, merged
	}
	f.saveLocked()
	f.mu.Unlock()
	if _, err := f.git(f.main).run(f.ctx, "update-ref", "-d", fmt.Sprintf("refs/pull/%d/merge", p.Number)); err != nil {
		f.log.Warn("cannot delete a test merge", "number", p.Number, "error", err)
	}
	f.emit("forge.pull.closed", map[string]any{"number": p.Number, "merged": merged != "", "commit": merged})
	f.hooks.pull(p, actor, "closed", nil)
}

// MergeOptions are the rarer wishes of Merge.
type MergeOptions struct {
	// Head that is expected, "" for any.
	Head string
	// Squash makes one commit with one parent.
	Squash bool
	// By is who merges. Default: lab.
	By string
	// Message of the commit. Default: GitHub's.
	Message string
}

// MergePR merges a pull request with a merge commit, which it gives.
func (f *Forge) MergePR(n int) (string, error) { return f.Merge(f.ctx, n, MergeOptions{}) }

// Merge merges a pull request. Errors are *Error: 404, 405 (closed, draft, conflict) or 409 (another head).
func (f *Forge) Merge(ctx context.Context, n int, o MergeOptions) (string, error) {
	p := f.findPull(n)
	if p == nil {
		return "", notFound()
	}
	o.By = cmp.Or(o.By, "lab")
	var commit string
	err := f.changeRefs(f.main, o.By, func() error {
		switch {
		case p.Draft:
			return &Error{Status: http.StatusMethodNotAllowed, Message: "Pull Request is still a draft"}
		case p.State != "open":
			return &Error{Status: http.StatusMethodNotAllowed, Message: "Pull Request is not mergeable"}
		case o.Head != "" && o.Head != p.HeadSHA:
			return &Error{Status: http.StatusConflict, Message: "Head branch was modified. Review and try the merge again."}
		}
		base := f.Tip(p.Base)
		tree, ok, err := f.mergeTree(ctx, base, p.HeadSHA)
		if err != nil {
			return err
		}
		if !ok {
			return &Error{Status: http.StatusMethodNotAllowed, Message: "Pull Request is not mergeable"}
		}
		second, message := p.HeadSHA, fmt.Sprintf("Merge pull request #%d from %s/%s\n\n%s", p.Number, p.HeadOwner, p.Head, p.Title)
		if o.Squash {
			second, message = "", fmt.Sprintf("%s (#%d)", p.Title, p.Number)
		}
		if commit, err = f.commitTree(ctx, f.main, tree, o.By, cmp.Or(o.Message, message), base, second); err != nil {
			return err
		}
		if _, err := f.git(f.main).run(ctx, "update-ref", "-m", "merge", "refs/heads/"+p.Base, commit, base); err != nil {
			return err
		}
		f.closePull(p, o.By, commit)
		return nil
	})
	return commit, err
}

// mergeTree merges two commits without a checkout; ok is false on a conflict.
func (f *Forge) mergeTree(ctx context.Context, base, head string) (tree string, ok bool, err error) {
	out, err := f.git(f.main).run(ctx, "merge-tree", "--write-tree", "--no-messages", base, head)
	if err != nil && exitCode(err) != 1 {
		return "", false, err
	}
	tree, _, _ = strings.Cut(out, "\n")
	return tree, err == nil, nil
}

// queueCompute asks for a test merge. A full queue drops the wish: the next question asks again.
func (f *Forge) queueCompute(n int) {
	select {
	case f.compute <- n:
	default:
	}
}

// computeLoop makes test merges in the background, as GitHub does: for a while mergeable is null and
// refs/pull/N/merge stale.
func (f *Forge) computeLoop() {
	defer f.wg.Done()
	for {
		select {
		case <-f.ctx.Done():
			return
		case n := <-f.compute:
			f.testMerge(n)
		}
	}
}

func (f *Forge) testMerge(n int) {
	f.push.Lock()
	defer f.push.Unlock()
	p := f.findPull(n)
	if p == nil || p.State != "open" {
		return
	}
	ref, base := fmt.Sprintf("refs/pull/%d/merge", n), f.Tip(p.Base)
	if p.Mergeable != nil && p.BaseSHA == base {
		return
	}
	tree, ok, err := f.mergeTree(f.ctx, base, p.HeadSHA)
	commit := ""
	if err == nil && ok {
		commit, err = f.commitTree(f.ctx, f.main, tree, p.Author, fmt.Sprintf("Merge %s into %s", p.HeadSHA, base), base, p.HeadSHA)
	}
	if err == nil {
		args := []string{"update-ref", ref, commit}
		if !ok {
			args = []string{"update-ref", "-d", ref}
		}
		_, err = f.git(f.main).run(f.ctx, args...)
	}
	if err != nil {
		if f.ctx.Err() == nil {
			f.log.Error("cannot make a test merge", "number", n, "error", err)
		}
		return
	}
	f.mu.Lock()
	p.Mergeable, p.BaseSHA = &ok, base
	if ok {
		p.MergeCommit = commit
	}
	f.saveLocked()
	f.mu.Unlock()
}

// Fork copies the main repository for another owner, whose token has the right to push to it.
func (f *Forge) Fork(owner string) error {
	if !validName(owner) || owner == f.main.Owner {
		return fmt.Errorf("fork for %q: not a name for another owner", owner)
	}
	if _, err := f.ownRepository(owner); err == nil {
		return fmt.Errorf("fork for %s: there is one already", owner)
	}
	_, err := f.addRepository(owner, f.main.name(), f.gitDir(f.main), f.main.Public)
	return err
}

// DeleteFork deletes a fork; its open pull requests stay open with a head repository of null, as GitHub leaves
// them.
func (f *Forge) DeleteFork(owner string) error {
	f.push.Lock()
	defer f.push.Unlock()
	r, err := f.ownRepository(owner)
	if err != nil || r == f.main {
		return fmt.Errorf("delete fork of %s: there is none", owner)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.st.Repos = slices.DeleteFunc(f.st.Repos, func(x *repository) bool { return x == r })
	f.saveLocked()
	return nil
}

// ownRepository finds the repository of an owner; "" is the main one.
func (f *Forge) ownRepository(owner string) (*repository, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.st.Repos {
		if strings.EqualFold(r.Owner, cmp.Or(owner, f.main.Owner)) {
			return r, nil
		}
	}
	return nil, fmt.Errorf("find repository of %s: there is none", owner)
}

// HasFork tells whether an owner has a copy of the main repository.
func (f *Forge) HasFork(owner string) bool {
	r, err := f.ownRepository(owner)
	return err == nil && r != f.main
}
