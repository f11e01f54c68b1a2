package git_test

import (
	"testing"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// TestMergesOfMergeRequests: with GitLab's refs the merge result is found, and the commit of a merge train, which holds the
// requests before it in the train too, is never taken for it. A request of another number has none.
func TestMergesOfMergeRequests(t *testing.T) {
	s := gittest.Start(t)
	fork := s.Commit("fork", "a", "1")
	s.Push("refs/heads/main")
	head := s.Commit("head", "b", "1")
	s.Push("refs/merge-requests/7/head")
	s.Push("refs/merge-requests/77/head")
	s.WorkGit("checkout", "--quiet", "-B", "main", fork)
	base := s.Commit("base", "c", "1")
	s.Push("refs/heads/main")
	merge := s.WorkGit("commit-tree", head+"^{tree}", "-m", "merge", "-p", base, "-p", head)
	s.WorkGit("push", "--quiet", "origin", merge+":refs/merge-requests/7/train")
	m := open(t, s, func(o *git.Options) {
		o.PullRef, o.MergeRef = "refs/merge-requests/%d/head", "refs/merge-requests/%d/merge"
	})
	want := func(number int, commit, against string, why bool) {
		t.Helper()
		fetch(t, m, "main")
		if err := m.FetchPull(t.Context(), number, head); err != nil {
			t.Fatal(err)
		}
		got, err := m.MergePull(t.Context(), number, base, head)
		if err != nil || got.Commit != commit || got.Against != against || (got.Why != "") != why {
			t.Errorf("merge request %d: %+v %v", number, got, err)
		}
	}
	want(7, head, fork, true)
	s.WorkGit("push", "--quiet", "origin", merge+":refs/merge-requests/7/merge")
	want(7, merge, base, false)
	want(77, head, fork, true)
}
