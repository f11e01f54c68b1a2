package git_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

const status = "ichor/status"

var when = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func branch(t *testing.T, s *gittest.Server, change ...func(*git.Options)) *git.Branch {
	t.Helper()
	b, err := open(t, s, change...).Branch(status, git.BranchOptions{Author: git.Person{Name: "Ichor", Email: "ichor@example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func tipOf(t *testing.T, b *git.Branch) string {
	t.Helper()
	tip, err := b.Tip(t.Context())
	if errors.Is(err, git.ErrAbsent) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return tip.Hash
}

func put(path, data string) git.Change { return git.Change{Path: path, Data: []byte(data)} }

func TestABranchIsMadeAndWritten(t *testing.T) {
	s := gittest.Start(t)
	b := branch(t, s)
	ctx := t.Context()
	if _, err := b.Tip(ctx); !errors.Is(err, git.ErrAbsent) || git.ClassOf(err) != git.ClassGone {
		t.Fatalf("absent branch: %v", err)
	}
	h1, err := b.Commit(ctx, "", []git.Change{put("README.md", "hello"), put("checks/a.md", "A"), put("checks/b.md", "B")}, "Begin", when)
	if err != nil {
		t.Fatal(err)
	}
	h2, err := b.Commit(ctx, h1, []git.Change{put("checks/a.md", "A2"), {Path: "checks/b.md", Delete: true}, {Path: "none/x", Delete: true}}, "Go on", when)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Git("ls-tree", "-r", "--name-only", status); got != "README.md\nchecks/a.md" {
		t.Fatalf("files: %s", got)
	}
	if got := s.Git("log", "--format=%s %an %ct", status); got != fmt.Sprintf("Go on Ichor %d\nBegin Ichor %d", when.Unix(), when.Unix()) {
		t.Fatalf("log: %s", got)
	}
	if out := s.Git("fsck", "--strict"); strings.Contains(out, "error") {
		t.Fatal(out)
	}
	if h, err := b.Commit(ctx, h2, []git.Change{put("README.md", "hello")}, "nothing", when); err != nil || h != h2 {
		t.Fatalf("no change must make no commit: %s %v", h, err)
	}
	// A fresh reader sees the same.
	other := branch(t, s)
	tip, err := other.Tip(ctx)
	if err != nil || tip != (git.Tip{Hash: h2, Root: h1, Commits: 2}) {
		t.Fatalf("%+v %v", tip, err)
	}
	if data, err := other.ReadFile(ctx, h2, "checks/a.md"); err != nil || string(data) != "A2" {
		t.Fatal(string(data), err)
	}
	if _, err := other.ReadFile(ctx, h2, "checks"); !errors.Is(err, git.ErrNoFile) {
		t.Fatal(err)
	}
	if files, err := other.Files(ctx, h2, "checks"); err != nil || len(files) != 1 || files[0] != "checks/a.md" {
		t.Fatal(files, err)
	}
	if _, err := b.Commit(ctx, h2, []git.Change{put("../x", "")}, "bad", when); err == nil {
		t.Fatal("a path that leaves the tree was taken")
	}
}

// A writer that lost the race is told so, and what the other wrote is never overwritten (facts 3.2, E4).
func TestAStaleParentIsRefused(t *testing.T) {
	s := gittest.Start(t)
	a, b := branch(t, s), branch(t, s)
	h1, err := a.Commit(t.Context(), "", []git.Change{put("a", "1")}, "a", when)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(t.Context(), "", []git.Change{put("b", "1")}, "b", when); !errors.Is(err, git.ErrMoved) || git.ClassOf(err) != git.ClassRaced {
		t.Fatalf("creating what exists: %v", err)
	}
	if got := tipOf(t, b); got != h1 {
		t.Fatal(got)
	}
	h2, err := a.Commit(t.Context(), h1, []git.Change{put("a", "2")}, "a", when)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(t.Context(), h1, []git.Change{put("b", "2")}, "b", when); !errors.Is(err, git.ErrMoved) {
		t.Fatal(err)
	}
	if _, err := b.Compact(t.Context(), h1, nil, "compact", when); !errors.Is(err, git.ErrMoved) {
		t.Fatalf("compaction over an unseen tip: %v", err)
	}
	if got := s.Git("rev-parse", status); got != h2 {
		t.Fatalf("tip %s, want %s", got, h2)
	}
}

// The ref moves on the server after the advertisement: the server's own comparison decides.
func TestARaceInsideThePushIsSeen(t *testing.T) {
	s := gittest.Start(t)
	a := branch(t, s)
	h1, err := a.Commit(t.Context(), "", []git.Change{put("a", "1")}, "a", when)
	if err != nil {
		t.Fatal(err)
	}
	other := s.Commit("theirs", "x", "1")
	s.Push("refs/heads/theirs")
	var once sync.Once
	s.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "git-receive-pack") {
			once.Do(func() { s.Git("update-ref", "refs/heads/"+status, other) })
		}
		return true
	})
	if _, err := a.Commit(t.Context(), h1, []git.Change{put("a", "2")}, "a", when); !errors.Is(err, git.ErrMoved) {
		t.Fatal(err)
	}
	if got := s.Git("rev-parse", status); got != other {
		t.Fatalf("theirs was overwritten: %s", got)
	}
}

func TestTwoWritersInATightLoop(t *testing.T) {
	s := gittest.Start(t)
	const each = 12
	var wg sync.WaitGroup
	for w := range 2 {
		b := branch(t, s, func(o *git.Options) { o.Limits.Packs = 5 })
		wg.Go(func() {
			for i := range each {
				for {
					tip := ""
					if at, err := b.Tip(t.Context()); err == nil {
						tip = at.Hash
					} else if !errors.Is(err, git.ErrAbsent) {
						t.Error(err)
						return
					}
					_, err := b.Commit(t.Context(), tip, []git.Change{put(fmt.Sprintf("w%d/%d", w, i), "x")}, "m", when)
					if err == nil {
						break
					}
					if !errors.Is(err, git.ErrMoved) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	files := strings.Fields(s.Git("ls-tree", "-r", "--name-only", status))
	commits := s.Git("rev-list", "--count", status)
	if len(files) != 2*each || commits != fmt.Sprint(2*each) {
		t.Fatalf("%d files, %s commits, want %d of each", len(files), commits, 2*each)
	}
}

// The server took the push and the reply was lost: listing the ref settles it.
func TestALostReplyIsSettledByListing(t *testing.T) {
	s := gittest.Start(t)
	b := branch(t, s)
	s.After(func(r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "git-receive-pack") {
			panic(http.ErrAbortHandler)
		}
	})
	h, err := b.Commit(t.Context(), "", []git.Change{put("a", "1")}, "a", when)
	if err != nil || s.Git("rev-parse", status) != h {
		t.Fatal(h, err)
	}
	// And when the server can't be asked either, it is said that nobody knows.
	s.After(nil)
	var cut bool
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.RequestURI(), "git-receive-pack") && r.Method == http.MethodPost {
			cut = true
		} else if cut {
			w.WriteHeader(http.StatusBadGateway)
			return false
		}
		return true
	})
	_, err = b.Commit(t.Context(), h, []git.Change{put("a", "2")}, "a", when)
	if !errors.Is(err, git.ErrUnknownOutcome) || git.ClassOf(err) != git.ClassTransient {
		t.Fatal(err)
	}
}

func TestAProtectedBranch(t *testing.T) {
	s := gittest.Start(t)
	b := branch(t, s)
	h, err := b.Commit(t.Context(), "", []git.Change{put("a", "1")}, "a", when)
	if err != nil {
		t.Fatal(err)
	}
	hook := filepath.Join(s.Dir, "hooks", "pre-receive")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho 'GH006: Protected branch update failed' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = b.Commit(t.Context(), h, []git.Change{put("a", "2")}, "a", when)
	if !errors.Is(err, git.ErrProtected) || git.ClassOf(err) != git.ClassProtected || !strings.Contains(err.Error(), "GH006") {
		t.Fatal(err)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.RequestURI(), "git-receive-pack") {
			w.WriteHeader(http.StatusForbidden)
			return false
		}
		return true
	})
	_, err = b.Commit(t.Context(), h, []git.Change{put("a", "2")}, "a", when)
	wantClass(t, err, git.ClassAccess)
}

func TestCompaction(t *testing.T) {
	s := gittest.Start(t)
	b := branch(t, s)
	tip := ""
	for i := range 5 {
		var err error
		if tip, err = b.Commit(t.Context(), tip, []git.Change{put(fmt.Sprintf("checks/%d", i), "x"), put("inventory.yaml", fmt.Sprint(i))}, "m", when); err != nil {
			t.Fatal(err)
		}
	}
	h, err := b.Compact(t.Context(), tip, func(p string) bool { return p != "checks/1" }, "Compact", when)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Git("rev-list", "--count", status); got != "1" {
		t.Fatalf("%s commits", got)
	}
	if got := s.Git("ls-tree", "-r", "--name-only", status); got != "checks/0\nchecks/2\nchecks/3\nchecks/4\ninventory.yaml" {
		t.Fatal(got)
	}
	after, err := branch(t, s).Tip(t.Context())
	if err != nil || after.Hash != h || after.Root != h || after.Commits != 1 {
		t.Fatalf("%+v %v", after, err)
	}
	if _, err := b.Commit(t.Context(), h, []git.Change{put("inventory.yaml", "9")}, "m", when); err != nil {
		t.Fatal(err)
	}
}
