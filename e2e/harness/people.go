package harness

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/status/fold"
)

// StatusBranch is the branch that Ichor writes unless told otherwise.
const StatusBranch = "ichor/status"

// GitURL of the lab's repository with the token in it, for the git command.
func (l *Lab) GitURL() (string, error) {
	token, err := os.ReadFile(l.Value("ICHOR_TOKEN_FILE"))
	if err != nil {
		return "", err
	}
	return strings.Replace(l.Value("ICHOR_REPO"), "://", "://somebody:"+strings.TrimSpace(string(token))+"@", 1), nil
}

// Git runs git in a folder as a person would who isn't Ichor, and gives its output without the last newline.
func (l *Lab) Git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(
		os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Somebody", "GIT_AUTHOR_EMAIL=somebody@example.org",
		"GIT_COMMITTER_NAME=Somebody", "GIT_COMMITTER_EMAIL=somebody@example.org",
	)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// Clone clones one branch into dir.
func (l *Lab) Clone(ctx context.Context, branch, dir string) error {
	url, err := l.GitURL()
	if err != nil {
		return err
	}
	_, err = l.Git(ctx, ".", "clone", "-q", "-b", branch, url, dir)
	return err
}

// EditBranch is somebody who commits on a branch that is not theirs. A push that loses the race against Ichor is tried
// again on the new tip. It gives the commit.
func (l *Lab) EditBranch(ctx context.Context, branch, dir string, edit func(dir string) error) (string, error) {
	for {
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
		if err := l.Clone(ctx, branch, dir); err != nil {
			return "", err
		}
		if err := edit(dir); err != nil {
			return "", err
		}
		if _, err := l.Git(ctx, dir, "add", "-A"); err != nil {
			return "", err
		}
		if _, err := l.Git(ctx, dir, "commit", "-q", "-m", "Tidy up"); err != nil {
			return "", err
		}
		if _, err := l.Git(ctx, dir, "push", "-q", "origin", "HEAD:refs/heads/"+branch); err != nil {
			if ctx.Err() != nil {
				return "", err
			}
			continue
		}
		return l.Git(ctx, dir, "rev-parse", "HEAD")
	}
}

// DeleteBranch deletes a branch as anybody with the right to push may.
func (l *Lab) DeleteBranch(ctx context.Context, branch string) error {
	url, err := l.GitURL()
	if err != nil {
		return err
	}
	_, err = l.Git(ctx, l.gitDir(), "push", "-q", url, ":refs/heads/"+branch)
	return err
}

// ReplaceBranch puts an unrelated history in the place of a branch, and gives its root.
func (l *Lab) ReplaceBranch(ctx context.Context, branch, dir string) (string, error) {
	url, err := l.GitURL()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "."},
		{"commit", "-q", "--allow-empty", "-m", "A history of my own"},
		{"push", "-q", "--force", url, "HEAD:refs/heads/" + branch},
	} {
		if _, err := l.Git(ctx, dir, args...); err != nil {
			return "", err
		}
	}
	return l.Git(ctx, dir, "rev-parse", "HEAD")
}

// gitDir is the bare repository behind the forge, for reading without load on the forge and its request counts.
func (l *Lab) gitDir() string {
	dirs, err := filepath.Glob(filepath.Join(l.State, "forge", "repos", "*"))
	if err != nil || len(dirs) == 0 {
		return l.State
	}
	return dirs[0]
}

// GitDir is the bare repository behind the forge: what is put there comes past the forge's own checks, as on a server that has
// none.
func (l *Lab) GitDir() string { return l.gitDir() }

// Tip of a branch on the forge, "" where there is none.
func (l *Lab) Tip(ctx context.Context, branch string) string {
	out, err := l.Git(ctx, l.gitDir(), "rev-parse", "--verify", "--quiet", "refs/heads/"+branch)
	if err != nil {
		return ""
	}
	return out
}

// File of a branch or commit on the forge; an error where it is not there.
func (l *Lab) File(ctx context.Context, ref, path string) (string, error) {
	return l.Git(ctx, l.gitDir(), "cat-file", "blob", ref+":"+path)
}

// ClusterStatus reads clusters/<name>/status.yaml of the status branch.
func (l *Lab) ClusterStatus(ctx context.Context, cluster string) (fold.Cluster, error) {
	var c fold.Cluster
	text, err := l.File(ctx, StatusBranch, "clusters/"+cluster+"/status.yaml")
	if err != nil {
		return c, err
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return c, fmt.Errorf("read status.yaml of cluster %s: %w", cluster, err)
	}
	return c, nil
}

// Objects gives every object that the forge's repository ever took, one after another: what was pushed and replaced
// since is among them.
func (l *Lab) Objects(ctx context.Context) ([]byte, error) { return gitObjects(ctx, l.gitDir()) }

func gitObjects(ctx context.Context, dir string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", "--git-dir", dir, "cat-file", "--batch-all-objects", "--batch", "--buffer")
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("read the objects of %s: %w", dir, err)
	}
	return out, nil
}
