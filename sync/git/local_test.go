package git_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

func TestALocalRepository(t *testing.T) {
	s := gittest.Start(t)
	c1 := s.Commit("one", "fleet/a.yaml", "1")
	s.WorkGit("tag", "-a", "v1", "-m", "x")
	c2 := s.Commit("two", "fleet/a.yaml", "2")
	s.Write("fleet/a.yaml", "dirty")
	s.WorkGit("gc", "--quiet")
	worktree := filepath.Join(t.TempDir(), "wt")
	s.WorkGit("worktree", "add", "--quiet", worktree, "-b", "side", c1)
	for dir, prefix := range map[string]string{s.Work: "", filepath.Join(s.Work, "fleet"): "fleet", filepath.Join(worktree, "fleet"): "fleet"} {
		l, err := git.OpenLocal(dir)
		if err != nil {
			t.Fatal(dir, err)
		}
		if l.Prefix() != prefix {
			t.Errorf("%s: prefix %q", dir, l.Prefix())
		}
		head := c2
		if filepath.Base(filepath.Dir(dir)) == "wt" {
			head = c1
		}
		for rev, want := range map[string]string{"HEAD": head, "main": c2, "main~1": c1, "v1": c1, c2[:10]: c2, c1: c1} {
			if got, err := l.Resolve(rev); err != nil || got != want {
				t.Errorf("%s: %s is %s %v, want %s", dir, rev, got, err, want)
			}
		}
		if _, err := l.Resolve("nope"); !errors.Is(err, git.ErrUnknownRevision) {
			t.Error(err)
		}
		fsys, err := l.FS(c2)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, fsys, "fleet/a.yaml"); got != "2" {
			t.Errorf("read %q: the checkout was looked at", got)
		}
		if p, err := l.FirstParent(c2); err != nil || p != c1 {
			t.Error(p, err)
		}
		if p, err := l.FirstParent(c1); err != nil || p != "" {
			t.Error(p, err)
		}
	}
	none := t.TempDir()
	if _, err := git.OpenLocal(none); !errors.Is(err, git.ErrNoRepository) {
		t.Error(err)
	}
	if _, err := git.OpenLocal(filepath.Join(none, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Objects that are borrowed from another repository are found; history that a shallow clone lacks is named as such.
func TestSharedAndShallowClones(t *testing.T) {
	s := gittest.Start(t)
	c1 := s.Commit("one", "a", "1")
	c2 := s.Commit("two", "a", "2")
	s.Push("refs/heads/main")
	shared, shallow := filepath.Join(t.TempDir(), "c"), filepath.Join(t.TempDir(), "c")
	s.WorkGit("clone", "--quiet", "--shared", s.Dir, shared)
	s.WorkGit("clone", "--quiet", "--depth=1", "file://"+s.Dir, shallow)
	l, err := git.OpenLocal(shared)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.Resolve("HEAD~1"); err != nil || got != c1 {
		t.Fatal(got, err)
	}
	fsys, err := l.FS(c2)
	if err != nil || read(t, fsys, "a") != "2" {
		t.Fatal(err)
	}
	if l, err = git.OpenLocal(shallow); err != nil {
		t.Fatal(err)
	}
	if fsys, err := l.FS(c2); err != nil || read(t, fsys, "a") != "2" {
		t.Fatal(err)
	}
	parent, err := l.FirstParent(c2)
	if err != nil || parent != c1 {
		t.Fatal(parent, err)
	}
	if _, err := l.FS(parent); !errors.Is(err, git.ErrUnknownRevision) || !strings.Contains(err.Error(), "shallow") {
		t.Fatal(err)
	}
	for _, rev := range []string{parent, "HEAD~1"} {
		if _, err := l.Resolve(rev); !errors.Is(err, git.ErrUnknownRevision) || !strings.Contains(err.Error(), "shallow") {
			t.Errorf("resolve %s: %v", rev, err)
		}
	}
}
