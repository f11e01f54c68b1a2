// Package forgetest holds the suite that every forge must pass, and a server that speaks enough of GitHub's API, with
// GitHub's own limits and faults, to run it on.
package forgetest

import (
	"errors"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
)

// Fixture is one forge with a repository to try it on.
type Fixture struct {
	Forge forge.Forge
	// Commit makes a commit the forge knows.
	Commit func() string
	// Open opens a pull request; its Head is a commit that Commit made.
	Open func(Pull) int
	// Close closes one.
	Close func(number int)
	// DeletedCloses: a pull request ends with its fork.
	DeletedCloses bool
	// Few: opening pull requests is slow here.
	Few bool
}

// Pull is a pull request to open.
type Pull struct {
	Head, Base, Title    string
	Draft, Fork, Deleted bool
}

// Run runs the suite; make gives a fresh fixture.
func Run(t *testing.T, make func(*testing.T) Fixture) {
	t.Run("repository", func(t *testing.T) { testRepository(t, make(t)) })
	t.Run("pull requests", func(t *testing.T) { testPulls(t, make(t)) })
	t.Run("statuses", func(t *testing.T) { testStatuses(t, make(t)) })
	t.Run("unknown commit", func(t *testing.T) { testUnknownCommit(t, make(t)) })
	t.Run("red green red", func(t *testing.T) { testTransitions(t, make(t)) })
	t.Run("many pull requests", func(t *testing.T) { testManyPulls(t, make(t)) })
	t.Run("addresses", func(t *testing.T) { testAddresses(t, make(t)) })
}

func testRepository(t *testing.T, f Fixture) {
	a, err := f.Forge.Repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Forge.Repository(t.Context())
	if err != nil || a != b {
		t.Fatalf("%+v, then %+v %v", a, b, err)
	}
	if a.ID == "" || strings.Trim(a.ID, "0123456789") != "" || a.DefaultBranch == "" || a.WebURL == "" || a.FullName == "" {
		t.Errorf("incomplete: %+v", a)
	}
}

func testPulls(t *testing.T, f Fixture) {
	head := f.Commit()
	plain := f.Open(Pull{Head: head, Base: "main", Title: "plain"})
	draft := f.Open(Pull{Head: f.Commit(), Base: "main", Draft: true})
	fork := f.Open(Pull{Head: f.Commit(), Base: "main", Fork: true})
	f.Open(Pull{Head: f.Commit(), Base: "release"})
	closed := f.Open(Pull{Head: f.Commit(), Base: "main"})
	f.Close(closed)
	deleted := f.Open(Pull{Head: f.Commit(), Base: "main", Fork: true, Deleted: true})
	got, err := f.Forge.PullRequests(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	by := map[int]forge.PullRequest{}
	for i, p := range got {
		by[p.Number] = p
		if i > 0 && p.UpdatedAt.After(got[i-1].UpdatedAt) {
			t.Errorf("#%d is newer than the one before it", p.Number)
		}
	}
	want := 4
	if f.DeletedCloses {
		want = 3
	}
	if len(by) != want || len(got) != want {
		t.Fatalf("%d open pull requests against main, want %d: %+v", len(got), want, got)
	}
	if p := by[plain]; p.Head != head || p.Base != "main" || p.Title != "plain" || p.Draft || p.Fork || p.HeadRepo == "" || p.URL == "" {
		t.Errorf("plain: %+v", p)
	}
	if p := by[draft]; !p.Draft || p.Fork {
		t.Errorf("draft: %+v", p)
	}
	if p := by[fork]; !p.Fork || p.Draft {
		t.Errorf("fork: %+v", p)
	}
	if p, ok := by[deleted]; ok == f.DeletedCloses || (ok && !p.Fork) || p.HeadRepo != "" {
		t.Errorf("deleted fork: %+v", p)
	}
}

func testStatuses(t *testing.T, f Fixture) {
	sha := f.Commit()
	post := func(context string, s state.CommitState, description string) state.CommitStatus {
		t.Helper()
		st := state.CommitStatus{Context: context, State: s, Description: description, TargetURL: "https://example.com/" + context}
		if err := f.Forge.PostStatus(t.Context(), sha, st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	if got, err := f.Forge.Statuses(t.Context(), sha); err != nil || len(got) != 0 {
		t.Fatalf("a fresh commit has %v %v", got, err)
	}
	post("ichor/check", state.StatePending, "one")
	want := map[string]state.CommitStatus{}
	want["ichor/check"] = post("ichor/check", state.StateFailure, "two")
	want["ichor/apply/a"] = post("ichor/apply/a", state.StateError, strings.Repeat("ü", 140))
	got, err := f.Forge.Statuses(t.Context(), sha)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%v %v", got, err)
	}
	for _, s := range got {
		if s != want[s.Context] {
			t.Errorf("newest of %s is %+v, want %+v", s.Context, s, want[s.Context])
		}
	}
	if err := f.Forge.PostStatus(t.Context(), sha, state.CommitStatus{Context: "x", State: "nonsense"}); !errors.Is(err, forge.ErrPermanent) {
		t.Errorf("a wrong state: %v", err)
	}
}

func testUnknownCommit(t *testing.T, f Fixture) {
	err := f.Forge.PostStatus(t.Context(), strings.Repeat("0b", 20), state.CommitStatus{Context: "ichor/check", State: state.StateSuccess})
	if !errors.Is(err, forge.ErrNoCommit) {
		t.Errorf("posting: %v", err)
	}
}

// testTransitions: each state can follow each other one, and the newest is what is read.
func testTransitions(t *testing.T, f Fixture) {
	sha := f.Commit()
	states := []state.CommitState{
		state.StatePending, state.StateFailure, state.StateSuccess, state.StateFailure, state.StatePending, state.StateError,
		state.StatePending, state.StateSuccess, state.StateSuccess, state.StateError, state.StateFailure,
	}
	for i, s := range states {
		st := state.CommitStatus{Context: "ichor/check", State: s, Description: strings.Repeat("x", i+1), TargetURL: "https://example.com/r"}
		if err := f.Forge.PostStatus(t.Context(), sha, st); err != nil {
			t.Fatalf("%d: %s: %v", i, s, err)
		}
		got, err := f.Forge.Statuses(t.Context(), sha)
		if err != nil || len(got) != 1 || got[0] != st {
			t.Fatalf("%d: posted %+v, read %+v %v", i, st, got, err)
		}
	}
	// The very same once more is no error, whatever the forge thinks of it.
	again := state.CommitStatus{Context: "ichor/again", State: state.StatePending, Description: "x"}
	for range 2 {
		if err := f.Forge.PostStatus(t.Context(), sha, again); err != nil {
			t.Fatal(err)
		}
	}
}

// testManyPulls: more than a page of every forge.
func testManyPulls(t *testing.T, f Fixture) {
	if f.Few {
		t.Skip("opening many takes long here")
	}
	head := f.Commit()
	for range 120 {
		f.Open(Pull{Head: head, Base: "main"})
	}
	got, err := f.Forge.PullRequests(t.Context(), "main")
	if err != nil || len(got) != 120 {
		t.Fatalf("%d of 120, %v", len(got), err)
	}
}

func testAddresses(t *testing.T, f Fixture) {
	page := forge.ReportURL(f.Forge, "ichor/status", "abc")
	if !strings.HasPrefix(page, "http") || !strings.HasSuffix(page, "ichor/status/checks/abc.md") {
		t.Errorf("page of a report: %q", page)
	}
	head, _ := f.Forge.PullRefs()
	if !strings.HasPrefix(head, "refs/") || strings.Count(head, "%d") != 1 {
		t.Errorf("ref of a pull request's head: %q", head)
	}
}
