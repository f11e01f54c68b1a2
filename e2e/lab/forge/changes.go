package forge

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// refChange is one branch that moved. Old or New is Zero where it was made or deleted.
type refChange struct {
	Branch, Old, New string
}

// changeRefs runs something that may move branches of r and then does what GitHub does after a push: pull
// requests follow, webhooks are sent.
func (f *Forge) changeRefs(r *repository, actor string, change func() error) error {
	f.push.Lock()
	defer f.push.Unlock()
	before, err := f.refs(f.ctx, r, "refs/heads")
	if err != nil {
		return err
	}
	changeErr := change()
	after, err := f.refs(f.ctx, r, "refs/heads")
	if err != nil {
		return cmp.Or(changeErr, err)
	}
	f.afterPush(r, actor, diffRefs(before, after))
	return changeErr
}

func diffRefs(before, after map[string]string) []refChange {
	var res []refChange
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if old := before[name]; old != after[name] {
			res = append(res, refChange{strings.TrimPrefix(name, "refs/heads/"), cmp.Or(old, Zero), after[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] == "" {
			res = append(res, refChange{strings.TrimPrefix(name, "refs/heads/"), before[name], Zero})
		}
	}
	return res
}

// afterPush follows the moved branches. push is held.
func (f *Forge) afterPush(r *repository, actor string, changes []refChange) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	r.Pushed = f.now().UTC()
	var pulls []*pull
	for _, p := range f.st.Pulls {
		if p.State == "open" {
			pulls = append(pulls, p)
		}
	}
	f.mu.Unlock()
	for _, c := range changes {
		f.emit("forge.push", map[string]any{"repository": r.fullName(), "branch": c.Branch, "before": c.Old, "after": c.New, "by": actor})
		if r == f.main {
			f.hooks.push(r, actor, c)
		}
		for _, p := range pulls {
			if p.HeadRepo == r.id() && p.Head == c.Branch {
				f.followHead(p, actor)
			}
			if r == f.main && p.Base == c.Branch {
				f.followBase(p, actor, c)
			}
		}
	}
	f.save()
}

// followHead takes over where the head branch of an open pull request stands now. push is held.
func (f *Forge) followHead(p *pull, actor string) {
	head := f.headRepository(p)
	if head == nil {
		return
	}
	tip := f.resolve(f.ctx, head, "refs/heads/"+p.Head)
	if tip == "" {
		f.closePull(p, actor, "")
		return
	}
	if tip == p.HeadSHA {
		f.queueCompute(p.Number)
		return
	}
	if err := f.setPullHead(p, head, tip); err != nil {
		f.log.Error("cannot follow the head of a pull request", "number", p.Number, "error", err)
		return
	}
	before := p.HeadSHA
	f.mu.Lock()
	p.HeadSHA, p.Updated, p.Mergeable = tip, f.now().UTC(), nil
	f.mu.Unlock()
	f.emit("forge.pull.synchronize", map[string]any{"number": p.Number, "before": before, "head": tip})
	f.hooks.pull(p, actor, "synchronize", map[string]any{"before": before, "after": tip})
	f.queueCompute(p.Number)
}

// setPullHead moves refs/pull/N/head, fetching the commits from a fork.
func (f *Forge) setPullHead(p *pull, head *repository, tip string) error {
	ref := fmt.Sprintf("refs/pull/%d/head", p.Number)
	if head != f.main {
		_, err := f.git(f.main).run(f.ctx, "fetch", "--quiet", "--no-tags", f.gitDir(head), "+refs/heads/"+p.Head+":"+ref)
		return err
	}
	_, err := f.git(f.main).run(f.ctx, "update-ref", ref, tip)
	return err
}

// followBase: a base that moved leaves mergeability unknown until somebody asks (the test merge stays behind, as
// on GitHub), closes the pull request when it is gone, and merges it when the head is in it. push is held.
func (f *Forge) followBase(p *pull, actor string, c refChange) {
	if p.State != "open" {
		return
	}
	if c.New == Zero {
		f.closePull(p, actor, "")
		return
	}
	if c.Old != Zero && !f.isAncestor(f.ctx, f.main, p.HeadSHA, c.Old) && f.isAncestor(f.ctx, f.main, p.HeadSHA, c.New) {
		f.closePull(p, actor, c.New)
		return
	}
	f.mu.Lock()
	p.Mergeable = nil
	f.mu.Unlock()
}

// PushOptions say what Push commits.
type PushOptions struct {
	// Dir whose files become the whole content of the branch (.git and what .gitignore names left out). "" keeps
	// the content as it is.
	Dir string
	// Branch to move. Default: the default branch.
	Branch string
	// From is the commit or branch that a new branch begins at. Default: the default branch.
	From string
	// Message of the commit. Default: "Update".
	Message string
	// Author of the commit and the push. Default: lab.
	Author string
	// Owner of the fork that is pushed to. Default: the main repository.
	Owner string
	// Force rewrites: the commit takes the place of the branch's tip instead of following it.
	Force bool
	// Orphan, with Force, gives the commit no parent at all: an unrelated history.
	Orphan bool
	// AllowEmpty commits even where nothing changed.
	AllowEmpty bool
}

// Push commits a folder's content on a branch as if somebody had pushed it, and gives the new tip. Where nothing
// changed the tip stays and is given.
func (f *Forge) Push(ctx context.Context, o PushOptions) (string, error) {
	r, err := f.ownRepository(o.Owner)
	if err != nil {
		return "", err
	}
	o.Branch = cmp.Or(o.Branch, r.DefaultBranch)
	o.Author = cmp.Or(o.Author, "lab")
	o.Message = cmp.Or(o.Message, "Update")
	if _, err := f.git(r).run(ctx, "check-ref-format", "--branch", o.Branch); err != nil {
		return "", fmt.Errorf("push to %q: not a branch name: %w", o.Branch, err)
	}
	var tip string
	err = f.changeRefs(r, o.Author, func() error {
		tip, err = f.commitDir(ctx, r, o)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("push to branch %s: %w", o.Branch, err)
	}
	return tip, nil
}

func (f *Forge) commitDir(ctx context.Context, r *repository, o PushOptions) (string, error) {
	tip := f.resolve(ctx, r, "refs/heads/"+o.Branch)
	parent := tip
	if parent == "" {
		parent = f.resolve(ctx, r, cmp.Or(o.From, r.DefaultBranch))
		if parent == "" && o.From != "" {
			return "", fmt.Errorf("find %q to begin at: no such branch or commit", o.From)
		}
	}
	tree, err := f.writeTree(ctx, r, o.Dir, parent)
	if err != nil {
		return "", err
	}
	if same, _ := f.git(r).run(ctx, "rev-parse", "--verify", "--quiet", parent+"^{tree}"); parent != "" && same == tree && !o.AllowEmpty && !o.Force {
		if tip != "" {
			return tip, nil
		}
		_, err := f.git(r).run(ctx, "update-ref", "refs/heads/"+o.Branch, parent, Zero)
		return parent, err
	}
	if o.Force && tip != "" {
		parent = f.resolve(ctx, r, cmp.Or(o.From, ""))
		if o.From == "" {
			parent, _ = f.git(r).run(ctx, "rev-parse", "--verify", "--quiet", tip+"^")
		}
		if o.Orphan {
			parent = ""
		}
	}
	commit, err := f.commitTree(ctx, r, tree, o.Author, o.Message, parent)
	if err != nil {
		return "", err
	}
	_, err = f.git(r).run(ctx, "update-ref", "-m", "push", "refs/heads/"+o.Branch, commit, cmp.Or(tip, Zero))
	return commit, err
}

// writeTree stores a folder as a tree through an index of its own, so that nothing is ever checked out.
func (f *Forge) writeTree(ctx context.Context, r *repository, dir, parent string) (string, error) {
	if dir == "" {
		if parent == "" {
			return f.git(r).run(ctx, "hash-object", "-t", "tree", "-w", "/dev/null")
		}
		return f.git(r).run(ctx, "rev-parse", "--verify", parent+"^{tree}")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if st, err := os.Stat(abs); err != nil || !st.IsDir() {
		return "", fmt.Errorf("read %s: not a folder", dir)
	}
	tmp, err := os.MkdirTemp(f.opt.Dir, "index-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	excludes, err := f.writeExcludes()
	if err != nil {
		return "", err
	}
	g := gitCmd{dir: abs, env: []string{"GIT_INDEX_FILE=" + filepath.Join(tmp, "index"), "GIT_DIR=" + f.gitDir(r), "GIT_WORK_TREE=" + abs}}
	// the bare repository's own "core.bare" would refuse a work tree
	if _, err := g.run(ctx, "-c", "core.bare=false", "-c", "core.excludesFile="+excludes, "add", "--all", "."); err != nil {
		return "", err
	}
	return g.run(ctx, "write-tree")
}

// writeExcludes writes the list of what is kept out of commits, and gives its path.
func (f *Forge) writeExcludes() (string, error) {
	path := filepath.Join(f.opt.Dir, "excludes")
	lines := append([]string{".ichor-lab/"}, f.opt.Exclude...)
	if err := writeFile(path, []byte(strings.Join(lines, "\n")+"\n")); err != nil {
		return "", fmt.Errorf("write the list of files to leave out: %w", err)
	}
	return path, nil
}

// commitTree makes a commit in the author's name; parents that are "" are left out.
func (f *Forge) commitTree(ctx context.Context, r *repository, tree, author, message string, parents ...string) (string, error) {
	args := []string{"commit-tree", tree, "-m", message}
	for _, p := range parents {
		if p != "" {
			args = append(args, "-p", p)
		}
	}
	g := f.git(r)
	date := fmt.Sprintf("%d +0000", f.now().Unix())
	g.env = []string{"GIT_AUTHOR_NAME=" + author, "GIT_AUTHOR_EMAIL=" + author + "@users.noreply.localhost", "GIT_AUTHOR_DATE=" + date, "GIT_COMMITTER_DATE=" + date}
	return g.run(ctx, args...)
}

// Import takes the history behind HEAD of a Git repository on disk as a branch of the main repository and gives
// its tip.
func (f *Forge) Import(ctx context.Context, dir, branch string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	err = f.changeRefs(f.main, "lab", func() error {
		_, err := f.git(f.main).run(ctx, "-c", "safe.directory=*", "fetch", "--quiet", "--no-tags", abs, "+HEAD:refs/heads/"+branch)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("take over the history of %s: %w", dir, err)
	}
	return f.Tip(branch), nil
}

// DeleteBranch deletes a branch, the default one too (which GitHub allows through its settings only).
func (f *Forge) DeleteBranch(ctx context.Context, branch string) error {
	err := f.changeRefs(f.main, "lab", func() error {
		_, err := f.git(f.main).run(ctx, "update-ref", "-d", "refs/heads/"+branch)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete branch %s: %w", branch, err)
	}
	return nil
}

// SetBranch moves a branch to a commit that is there, forward or not.
func (f *Forge) SetBranch(ctx context.Context, branch, commit string) error {
	err := f.changeRefs(f.main, "lab", func() error {
		_, err := f.git(f.main).run(ctx, "update-ref", "-m", "force", "refs/heads/"+branch, commit)
		return err
	})
	if err != nil {
		return fmt.Errorf("move branch %s: %w", branch, err)
	}
	return nil
}

// Tip of a branch of the main repository; "" where there is none.
func (f *Forge) Tip(branch string) string { return f.resolve(f.ctx, f.main, "refs/heads/"+branch) }

// ReadFile gives a file of a branch, tag or commit.
func (f *Forge) ReadFile(ref, path string) ([]byte, error) {
	commit := f.resolve(f.ctx, f.main, ref)
	if commit == "" {
		return nil, fmt.Errorf("read %s: no branch or commit %q", path, ref)
	}
	data, err := f.git(f.main).raw(f.ctx, "cat-file", "blob", commit+":"+path)
	if err != nil {
		return nil, fmt.Errorf("read %s at %s: %w", path, ref, err)
	}
	return data, nil
}

// Protect makes pushes to a branch fail as a protected branch's do, or lifts that. Merging a pull request goes on
// to work.
func (f *Forge) Protect(branch string, on bool) error {
	if strings.ContainsAny(branch, "'\n*?[\\") {
		return fmt.Errorf("protect branch %q: not a plain branch name", branch)
	}
	f.push.Lock()
	defer f.push.Unlock()
	f.mu.Lock()
	f.main.Protected = slices.DeleteFunc(f.main.Protected, func(b string) bool { return b == branch })
	if on {
		f.main.Protected = append(f.main.Protected, branch)
	}
	f.saveLocked()
	f.mu.Unlock()
	return f.writeProtection(f.main)
}

// Commit that a branch, tag or (cut) commit ID stands for; "" where there is none.
func (f *Forge) Commit(ref string) string { return f.resolve(f.ctx, f.main, ref) }
