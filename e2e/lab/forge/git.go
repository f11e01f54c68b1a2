package forge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Zero is the ID that Git uses for "no commit".
const Zero = "0000000000000000000000000000000000000000"

// gitEnv keeps the configuration of whoever runs the lab out of it.
func gitEnv(extra ...string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0", "GIT_AUTHOR_NAME=lab", "GIT_AUTHOR_EMAIL=lab@localhost", "GIT_COMMITTER_NAME=GitHub", "GIT_COMMITTER_EMAIL=noreply@github.com",
	}
	return append(env, extra...)
}

// gitCmd is one run of git in a bare repository.
type gitCmd struct {
	dir   string
	env   []string
	stdin io.Reader
}

// run gives the standard output without the last line end. Errors carry Git's own words.
func (g gitCmd) run(ctx context.Context, args ...string) (string, error) {
	out, err := g.raw(ctx, args...)
	return strings.TrimRight(string(out), "\n"), err
}

func (g gitCmd) raw(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = g.dir, gitEnv(g.env...), g.stdin
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("run git %s: %w: %s", args[0], err, strings.TrimSpace(errOut.String()))
	}
	return out.Bytes(), nil
}

// exitCode of a git that ran and failed; -1 for anything else.
func exitCode(err error) int {
	if ee, ok := errors.AsType[*exec.ExitError](err); ok {
		return ee.ExitCode()
	}
	return -1
}

func (f *Forge) gitDir(r *repository) string { return filepath.Join(f.opt.Dir, "repos", r.Folder) }

func (f *Forge) git(r *repository) gitCmd { return gitCmd{dir: f.gitDir(r)} }

// addRepository makes a bare repository, empty or as a copy of the folder from.
func (f *Forge) addRepository(owner, name, from string, public bool) (*repository, error) {
	f.mu.Lock()
	now := f.now().UTC()
	r := &repository{ID: f.id(), Owner: owner, Name: name, DefaultBranch: "main", Public: public, Created: now, Pushed: now, Fork: from != ""}
	r.Folder = fmt.Sprintf("%s-%s-%d.git", owner, name, r.id())
	f.mu.Unlock()
	if err := os.MkdirAll(filepath.Join(f.opt.Dir, "repos"), 0o700); err != nil {
		return nil, fmt.Errorf("make folder for repositories: %w", err)
	}
	args := []string{"init", "--quiet", "--bare", "--initial-branch=main", f.gitDir(r)}
	if from != "" {
		args = []string{"clone", "--quiet", "--bare", "--no-local", "--single-branch", from, f.gitDir(r)}
	}
	if _, err := (gitCmd{dir: f.opt.Dir}).run(f.ctx, args...); err != nil {
		return nil, fmt.Errorf("make repository %s/%s: %w", owner, name, err)
	}
	if err := f.configureRepository(r); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.st.Repos = append(f.st.Repos, r)
	f.saveLocked()
	f.mu.Unlock()
	return r, nil
}

// configureRepository sets what GitHub's servers do: pushes go anywhere but to refs/pull, the default branch
// can't be deleted, any commit can be fetched by its ID, nothing is ever collected behind the client's back.
func (f *Forge) configureRepository(r *repository) error {
	for _, kv := range [][2]string{
		{"http.receivepack", "true"},
		{"receive.hideRefs", "refs/pull"},
		{"receive.denyDeleteCurrent", "refuse"},
		{"receive.advertisePushOptions", "true"},
		{"receive.autogc", "false"},
		{"gc.auto", "0"},
		{"core.logAllRefUpdates", "true"},
		{"receive.fsckObjects", "true"},
		{"uploadpack.allowTipSHA1InWant", "true"},
		{"uploadpack.allowReachableSHA1InWant", "true"},
		{"uploadpack.allowFilter", "true"},
	} {
		if _, err := f.git(r).run(f.ctx, "config", kv[0], kv[1]); err != nil {
			return fmt.Errorf("configure repository %s/%s: %w", r.Owner, r.name(), err)
		}
	}
	return f.writeProtection(r)
}

// writeProtection makes the hook that refuses pushes to protected branches, with GitHub's words.
func (f *Forge) writeProtection(r *repository) error {
	path := filepath.Join(f.gitDir(r), "hooks", "update")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make folder for hooks: %w", err)
	}
	if len(r.Protected) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("lift protection: %w", err)
		}
		return nil
	}
	script := "#!/bin/sh\ncase \"$1\" in\n"
	for _, b := range r.Protected {
		script += "'refs/heads/" + b + "')\n  echo \"error: GH006: Protected branch update failed for $1.\" >&2\n" +
			"  echo 'error: Changes must be made through a pull request.' >&2\n  exit 1;;\n"
	}
	if err := os.WriteFile(path, []byte(script+"esac\n"), 0o700); err != nil {
		return fmt.Errorf("write protection: %w", err)
	}
	return nil
}

// refs of a repository: name to commit (tags: to whatever they name).
func (f *Forge) refs(ctx context.Context, r *repository, under string) (map[string]string, error) {
	out, err := f.git(r).run(ctx, "for-each-ref", "--format=%(objectname) %(refname)", under)
	if err != nil {
		return nil, err
	}
	refs := map[string]string{}
	for line := range strings.Lines(out) {
		if sha, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			refs[name] = sha
		}
	}
	return refs, nil
}

// resolve gives the commit that a SHA (full or cut), branch, tag or refs/… name stands for; "" where there is none.
// Branches come before tags, as with GitHub's "ref" parameters.
func (f *Forge) resolve(ctx context.Context, r *repository, ref string) string {
	if ref == "" || strings.HasPrefix(ref, "-") || strings.ContainsAny(ref, " ~^:?*[\\@") {
		return ""
	}
	var tries []string
	for _, p := range []string{"refs/heads/", "refs/tags/", "refs/"} {
		tries = append(tries, p+ref)
	}
	if strings.HasPrefix(ref, "refs/") || isHex(ref) && len(ref) >= 4 {
		tries = append(tries, ref)
	}
	if ref == "HEAD" {
		tries = []string{"refs/heads/" + r.DefaultBranch}
	}
	for _, t := range tries {
		if sha, err := f.git(r).run(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", t+"^{commit}"); err == nil {
			return sha
		}
	}
	return ""
}

func isHex(s string) bool {
	return s != "" && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

// hasCommit tells whether the full ID names a commit that the repository holds, reachable or not.
func (f *Forge) hasCommit(ctx context.Context, r *repository, sha string) bool {
	if len(sha) != 40 || !isHex(sha) {
		return false
	}
	kind, err := f.git(r).run(ctx, "cat-file", "-t", sha)
	return err == nil && kind == "commit"
}

// isAncestor tells whether old is reachable from tip.
func (f *Forge) isAncestor(ctx context.Context, r *repository, old, tip string) bool {
	_, err := f.git(r).run(ctx, "merge-base", "--is-ancestor", old, tip)
	return err == nil
}
