package git_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// TestMergesOfPullRequests: the head where it holds all of base, the server's merge commit where it is of exactly these two,
// else the head alone against where it branched off, with the reason.
func TestMergesOfPullRequests(t *testing.T) {
	s := gittest.Start(t)
	fork := s.Commit("fork", "a", "1")
	s.Push("refs/heads/main")
	head := s.Commit("head", "b", "1")
	s.Push("refs/pull/7/head")
	m := open(t, s, func(o *git.Options) { o.MergeRef = "refs/pull/%d/merge" })
	fetch(t, m, "main")
	if err := m.FetchPull(t.Context(), 7, head); err != nil {
		t.Fatal(err)
	}
	want := func(what, base string, w git.Merge) {
		t.Helper()
		got, err := m.MergePull(t.Context(), 7, base, head)
		if err != nil || got.Commit != w.Commit || got.Against != w.Against || !strings.Contains(got.Why, w.Why) || (got.Why == "") != (w.Why == "") {
			t.Errorf("%s: %+v %v, want %+v", what, got, err, w)
		}
	}
	want("the head holds all of base", fork, git.Merge{Commit: head, Against: fork})

	// The base moves on; the server has no merge yet.
	s.WorkGit("checkout", "--quiet", "-B", "main", fork)
	base := s.Commit("base", "c", "1")
	s.Push("refs/heads/main")
	fetch(t, m, "main")
	want("no merge commit", base, git.Merge{Commit: head, Against: fork, Why: "no merge commit"})

	merge := func(parents ...string) string {
		t.Helper()
		args := []string{"commit-tree", head + "^{tree}", "-m", "merge"}
		for _, p := range parents {
			args = append(args, "-p", p)
		}
		sha := s.WorkGit(args...)
		s.WorkGit("push", "--quiet", "--force", "origin", sha+":refs/pull/7/merge")
		fetch(t, m, "main")
		return sha
	}
	merge(fork, head)
	want("of an older base", base, git.Merge{Commit: head, Against: fork, Why: "not of this base and head"})
	merge(head, base)
	want("the wrong way round", base, git.Merge{Commit: head, Against: fork, Why: "not of this base and head"})
	merge(base, head, fork)
	want("of three", base, git.Merge{Commit: head, Against: fork, Why: "not of this base and head"})
	merge(base)
	want("of one", base, git.Merge{Commit: head, Against: fork, Why: "not of this base and head"})
	good := merge(base, head)
	want("the very two", base, git.Merge{Commit: good, Against: base})
	if got := read(t, tree(t, m, good), "b"); got != "1" {
		t.Error(got)
	}
	s.Requests()
	want("asked again", base, git.Merge{Commit: good, Against: base})
	if asked := s.Requests(); len(asked) != 0 {
		t.Errorf("asked the server again: %v", asked)
	}

	// A server that makes none, and a history that has nothing in common.
	plain := open(t, s)
	fetch(t, plain, "main")
	if err := plain.FetchPull(t.Context(), 7, head); err != nil {
		t.Fatal(err)
	}
	if got, err := plain.MergePull(t.Context(), 7, base, head); err != nil || got.Against != fork || !strings.Contains(got.Why, "makes no merge commits") {
		t.Errorf("%+v %v", got, err)
	}
	s.WorkGit("checkout", "--quiet", "--orphan", "other")
	alien := s.Commit("alien", "z", "1")
	s.Push("refs/pull/7/head", "--force")
	if err := plain.FetchPull(t.Context(), 7, alien); err != nil {
		t.Fatal(err)
	}
	if got, err := plain.MergePull(t.Context(), 7, base, alien); err != nil || got.Commit != alien || got.Against != base || got.Why == "" {
		t.Errorf("%+v %v", got, err)
	}
}

// TestAMergeIsFetchedAgainIntoAFreshStore: what was known of merges does not outlive the store that held them.
func TestAMergeIsFetchedAgainIntoAFreshStore(t *testing.T) {
	s := gittest.Start(t)
	fork := s.Commit("fork", "a", "1")
	s.Push("refs/heads/main")
	head := s.Commit("head", "b", "1")
	s.Push("refs/pull/7/head")
	s.WorkGit("checkout", "--quiet", "-B", "main", fork)
	base := s.Commit("base", "c", "1")
	s.Push("refs/heads/main")
	merge := s.WorkGit("commit-tree", head+"^{tree}", "-m", "merge", "-p", base, "-p", head)
	s.WorkGit("push", "--quiet", "origin", merge+":refs/pull/7/merge")
	dir := t.TempDir()
	m := open(t, s, func(o *git.Options) { o.Dir, o.MergeRef = dir, "refs/pull/%d/merge" })
	look := func() {
		t.Helper()
		fetch(t, m, "main")
		if err := m.FetchPull(t.Context(), 7, head); err != nil {
			t.Fatal(err)
		}
		got, err := m.MergePull(t.Context(), 7, base, head)
		if err != nil || got != (git.Merge{Commit: merge, Against: base}) {
			t.Fatalf("%+v %v", got, err)
		}
		if _, err := m.FS(got.Commit); err != nil {
			t.Error(err)
		}
	}
	look()
	if err := os.RemoveAll(dir); err != nil { // it may be deleted at any time
		t.Fatal(err)
	}
	look()
}

// TestMergeBasesAreGits compares with git merge-base on random histories whose dates lie.
func TestMergeBasesAreGits(t *testing.T) {
	s := gittest.Start(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var all []string
	empty := s.WorkGit("hash-object", "-t", "tree", "-w", "/dev/null")
	for i := range 60 {
		args := []string{"commit-tree", empty, "-m", fmt.Sprint(i)}
		for _, k := range rng.Perm(len(all))[:min(len(all), 1+rng.IntN(2))] {
			if k < len(all)-12 {
				continue // near ones, so that there are many merges
			}
			args = append(args, "-p", all[k])
		}
		t.Setenv("GIT_COMMITTER_DATE", fmt.Sprintf("@%d +0000", 1_700_000_000+rng.IntN(1_000_000)))
		all = append(all, s.WorkGit(args...))
	}
	for i, c := range all {
		s.WorkGit("update-ref", fmt.Sprintf("refs/heads/c%d", i), c)
	}
	s.WorkGit("push", "--quiet", "origin", "refs/heads/*:refs/heads/*")
	m := open(t, s)
	for i := range all {
		fetch(t, m, fmt.Sprintf("c%d", i))
	}
	for range 150 {
		a, b := all[rng.IntN(len(all))], all[rng.IntN(len(all))]
		got, err := m.MergePull(t.Context(), rng.Int(), a, b)
		if err != nil {
			t.Fatal(err)
		}
		if out := s.WorkGit("for-each-ref", "--count=1", "--format=x", "--merged="+b, "--contains="+a); out == "" && a != b {
			bases := strings.ReplaceAll(mergeBases(s, a, b), "\n", " ")
			if bases == "" && got.Against != a {
				t.Errorf("%s and %s have nothing in common, got %s", a, b, got.Against)
			}
			if bases != "" && !strings.Contains(bases, got.Against) {
				t.Errorf("merge base of %s and %s: %s, git says %s", a, b, got.Against, bases)
			}
			continue
		}
		if got.Why != "" || got.Commit != b || got.Against != a {
			t.Errorf("%s is an ancestor of %s: %+v", a, b, got)
		}
	}
}

// TestAStrangersDatesDontMoveTheBase: a pull request that holds all of base by a commit with an old date, and an older commit
// of base beside it, is compared with base, not with the older one.
func TestAStrangersDatesDontMoveTheBase(t *testing.T) {
	s := gittest.Start(t)
	empty := s.WorkGit("hash-object", "-t", "tree", "-w", "/dev/null")
	commit := func(seconds int, parents ...string) string {
		t.Helper()
		t.Setenv("GIT_COMMITTER_DATE", fmt.Sprintf("@%d +0000", seconds))
		args := []string{"commit-tree", empty, "-m", "x"}
		for _, p := range parents {
			args = append(args, "-p", p)
		}
		return s.WorkGit(args...)
	}
	root := commit(1_700_000_000)
	older := commit(1_700_001_000, root)
	base := commit(1_700_003_000, commit(1_700_002_000, older))
	head := commit(1_700_009_000, commit(1000, base), older)
	s.WorkGit("push", "--quiet", "origin", base+":refs/heads/main", head+":refs/heads/head")
	m := open(t, s)
	fetch(t, m, "main")
	fetch(t, m, "head")
	if got, err := m.MergePull(t.Context(), 1, base, head); err != nil || got != (git.Merge{Commit: head, Against: base}) {
		t.Errorf("%+v %v, want it against %s", got, err, base)
	}
}

// TestTooMuchHistoryIsNotWalked: a stranger's endless history keeps nobody waiting. The forge's merge commit is believed all the
// same; without one the head is compared with base.
func TestTooMuchHistoryIsNotWalked(t *testing.T) {
	s := gittest.Start(t)
	fork := s.Commit("fork", "a", "1")
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/long\ncommitter E <e@example.org> 1 +0000\ndata 0\nfrom %s\n\n", fork)
	for range 31_000 {
		in.WriteString("commit refs/heads/long\ncommitter E <e@example.org> 1 +0000\ndata 0\n\n")
	}
	cmd := exec.CommandContext(t.Context(), "git", "fast-import", "--quiet")
	cmd.Dir, cmd.Stdin = s.Work, &in
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	head, base := s.WorkGit("rev-parse", "long"), s.Commit("base", "b", "1")
	merge := s.WorkGit("commit-tree", "HEAD^{tree}", "-m", "m", "-p", base, "-p", head)
	s.WorkGit("push", "--quiet", "origin", base+":refs/heads/main", head+":refs/pull/1/head", merge+":refs/pull/1/merge")
	for ref, want := range map[string]git.Merge{
		"":                   {Commit: head, Against: base, Why: "more than 30000 commits lie between it and its base"},
		"refs/pull/%d/merge": {Commit: merge, Against: base},
	} {
		m := open(t, s, func(o *git.Options) { o.MergeRef = ref })
		fetch(t, m, "main")
		if err := m.FetchPull(t.Context(), 1, head); err != nil {
			t.Fatal(err)
		}
		if got, err := m.MergePull(t.Context(), 1, base, head); err != nil || got != want {
			t.Errorf("%q: %+v %v", ref, got, err)
		}
	}
}

// mergeBases are all of git's; it exits 1 where there are none.
func mergeBases(s *gittest.Server, a, b string) string {
	return s.WorkGit("-c", "alias.mb=!git merge-base --all "+a+" "+b+" || true", "mb")
}

// TestPullRequestsAreWeighed: sizes that the forge tells are held against the limits, without what is here already.
func TestPullRequestsAreWeighed(t *testing.T) {
	s := gittest.Start(t)
	s.Commit("one", "a", strings.Repeat("x", 1000))
	s.Push("refs/heads/main")
	m := open(t, s, func(o *git.Options) {
		o.Limits.PullObjectBytes, o.Limits.PullTotalBytes, o.Limits.PullObjects = 500, 900, 3
	})
	fetch(t, m, "main")
	old := git.Object{Hash: s.WorkGit("rev-parse", "HEAD:a"), Size: 1000}
	fresh := func(n int, size int64) git.Object { return git.Object{Hash: fmt.Sprintf("%040x", n), Size: size} }
	for name, tc := range map[string]struct {
		list     []git.Object
		complete bool
		class    git.Class
	}{
		"little":             {[]git.Object{old, fresh(1, 400), fresh(2, 400)}, true, git.ClassNone},
		"the same twice":     {[]git.Object{fresh(1, 400), fresh(1, 400), fresh(1, 400)}, true, git.ClassNone},
		"a large file":       {[]git.Object{fresh(1, 501)}, true, git.ClassLimits},
		"too much together":  {[]git.Object{fresh(1, 400), fresh(2, 400), fresh(3, 400)}, true, git.ClassLimits},
		"too many":           {[]git.Object{fresh(1, 1), fresh(2, 1), fresh(3, 1), fresh(4, 1)}, true, git.ClassLimits},
		"a cut list":         {[]git.Object{old, fresh(1, 1)}, false, git.ClassNone},
		"nothing but new":    {[]git.Object{fresh(1, 1)}, false, git.ClassLimits},
		"nothing is listed":  {nil, false, git.ClassNone},
		"sizes below zero":   {[]git.Object{fresh(1, -1<<62), fresh(2, 501)}, true, git.ClassLimits},
		"hashes that aren't": {[]git.Object{{Hash: "zz", Size: 501}}, true, git.ClassLimits},
	} {
		if err := m.PullFits(7, tc.list, tc.complete); git.ClassOf(err) != tc.class {
			t.Errorf("%s: %v, want class %q", name, err, tc.class)
		}
	}
}
