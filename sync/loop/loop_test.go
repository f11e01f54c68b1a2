package loop_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
	"ichor.maesh.dev/ichor/sync/loop"
)

// world is a real repository with a real mirror; only the forge's list is made up.
type world struct {
	t     *testing.T
	s     *gittest.Server
	m     *git.Mirror
	l     *loop.Loop
	pulls []forge.PullRequest
	down  error
	state string
	names map[string]string
}

func (w *world) PullRequests(context.Context, string) ([]forge.PullRequest, error) {
	return w.pulls, w.down
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, s: gittest.Start(t), state: filepath.Join(t.TempDir(), "loop"), names: map[string]string{}}
	m, err := git.Open(t.Context(), git.Options{Dir: t.TempDir(), URL: w.s.URL, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	w.m = m
	w.restart()
	return w
}

func (w *world) restart() {
	w.t.Helper()
	l, err := loop.New(loop.Options{Branch: "main", StateFile: w.state, History: 3}, w.m, w)
	if err != nil {
		w.t.Fatal(err)
	}
	w.l = l
}

// commit makes commits with these names in the clone.
func (w *world) commit(names ...string) {
	for _, n := range names {
		w.names[w.s.Commit(n, "file-"+n, n)] = n
	}
}

// look looks and gives the jobs as "kind:commit<base".
func (w *world) look() (string, loop.Work) {
	w.t.Helper()
	work := w.l.Look(w.t.Context())
	var out []string
	for _, j := range work.Checks {
		s := fmt.Sprintf("%s:%s<%s", j.Kind, w.names[j.Commit], w.names[j.Base])
		if j.Err != nil {
			s += "!" + string(git.ClassOf(j.Err))
		}
		out = append(out, s)
	}
	return strings.Join(out, " "), work
}

func (w *world) want(want string) loop.Work {
	w.t.Helper()
	got, work := w.look()
	if work.GitErr != nil || work.ForgeErr != nil {
		w.t.Fatal(work.GitErr, work.ForgeErr)
	}
	if got != want {
		w.t.Fatalf("due: %q, want %q", got, want)
	}
	return work
}

func (w *world) done(work loop.Work) {
	for _, j := range work.Checks {
		w.l.Done(j)
	}
}

func TestEachCommitOfAPushIsCheckedOnce(t *testing.T) {
	w := start(t)
	w.commit("a", "b")
	w.s.Push("refs/heads/main")
	work := w.want("head:b<a") // at first sight only the head
	w.want("")                 // handed out once
	w.l.Retry(work.Checks[0])
	work = w.want("head:b<a")
	w.done(work)
	w.want("")
	w.commit("c", "d", "e")
	w.s.Push("refs/heads/main")
	work = w.want("head:e<d history:d<c history:c<b")
	w.done(work)
	w.commit("f", "g", "h", "i", "j", "k")
	w.s.Push("refs/heads/main")
	w.done(w.want("head:k<j history:j<i history:i<h history:h<g")) // the limit is 3 below the head
	w.want("")
}

// Killed before the older commits of a push were checked: they are due again. Pushes while Ichor was down are found.
func TestARestartForgetsNoCommit(t *testing.T) {
	w := start(t)
	w.commit("a")
	w.s.Push("refs/heads/main")
	w.done(w.want("head:a<"))
	w.commit("b", "c")
	w.s.Push("refs/heads/main")
	work := w.want("head:c<b history:b<a")
	w.l.Done(work.Checks[0])
	w.restart()
	work = w.want("head:c<b history:b<a")
	w.done(work)
	w.restart()
	w.want("head:c<b") // a new process checks the head, so that it knows its verdict
	w.commit("d")
	w.s.Push("refs/heads/main")
	w.restart()
	w.want("head:d<c")
}

func TestARewriteIsCheckedDownToWhatWasKnown(t *testing.T) {
	w := start(t)
	w.commit("a", "b", "c")
	w.s.Push("refs/heads/main")
	w.done(w.want("head:c<b"))
	w.s.WorkGit("reset", "--hard", "HEAD~2")
	w.want("")
	w.commit("x", "y")
	w.s.Push("refs/heads/main", "--force")
	work := w.want("head:y<x history:x<a")
	if work.Move.Kind != git.MoveRewrite || w.names[work.Move.Old] != "c" {
		t.Fatalf("%+v", work.Move)
	}
	w.done(work)
	w.s.WorkGit("reset", "--hard", "HEAD~1")
	w.s.Push("refs/heads/main", "--force")
	w.done(w.want("head:x<a"))
	w.want("")
	w.s.Git("update-ref", "-d", "refs/heads/main")
	work = w.want("")
	if work.Move.Kind != git.MoveGone || w.names[work.Head] != "x" {
		t.Fatalf("a branch that is gone keeps its head: %+v", work)
	}
}

func (w *world) open(number int, name string) {
	w.s.WorkGit("checkout", "--quiet", "-B", "topic", "main")
	w.commit(name)
	head := w.s.WorkGit("rev-parse", "HEAD")
	w.s.Push(fmt.Sprintf("refs/pull/%d/head", number), "--force")
	w.s.WorkGit("checkout", "--quiet", "main")
	var rest []forge.PullRequest
	for _, p := range w.pulls {
		if p.Number != number {
			rest = append(rest, p)
		}
	}
	w.pulls = append(rest, forge.PullRequest{Number: number, Head: head, Base: "main"})
}

func TestPullRequests(t *testing.T) {
	w := start(t)
	w.commit("a")
	w.s.Push("refs/heads/main")
	w.open(1, "p")
	w.done(w.want("head:a< pull:p<a"))
	w.open(2, "q")
	w.done(w.want("pull:q<a"))
	// The base moves: a new one goes first, then those that were checked against the old base.
	w.commit("b")
	w.s.Push("refs/heads/main")
	w.open(3, "r")
	w.done(w.want("head:b<a pull:r<b pull:p<b pull:q<b"))
	// A new head replaces the old one.
	w.open(2, "q2")
	w.done(w.want("pull:q2<b"))
	// The forge's list is newer than the repository: nothing is invented, the next look has it.
	late := w.pulls[1]
	w.pulls[1].Head = strings.Repeat("0c", 20)
	w.want("")
	w.pulls[1] = late
	w.want("")
	// Closed, and re-opened later.
	closed := w.pulls[0]
	w.pulls = w.pulls[1:]
	if work := w.want(""); len(work.Closed) != 1 || work.Closed[0] != closed.Number {
		t.Fatalf("closed: %v", work.Closed)
	}
	// The forge is down: the list of before holds, and says so.
	w.down = errors.New("no answer")
	if got, work := w.look(); got != "" || work.ForgeErr == nil || len(work.Open) != 2 || work.Closed != nil {
		t.Fatalf("%q %+v", got, work)
	}
}

// A pull request that is merged by fast-forward is checked again as the head: there everything counts.
func TestAFastForwardMergeIsCheckedAsTheHead(t *testing.T) {
	w := start(t)
	w.commit("a")
	w.s.Push("refs/heads/main")
	w.open(1, "p")
	w.done(w.want("head:a< pull:p<a"))
	w.s.WorkGit("checkout", "--quiet", "main")
	w.s.WorkGit("merge", "--quiet", "--ff-only", "topic")
	w.s.Push("refs/heads/main")
	w.pulls = nil
	w.done(w.want("head:p<a"))
	// The same below the head: the pull request's answer is not the branch's.
	w.open(2, "q")
	w.done(w.want("pull:q<p"))
	w.s.WorkGit("checkout", "--quiet", "main")
	w.s.WorkGit("merge", "--quiet", "--ff-only", "topic")
	w.commit("r")
	w.s.Push("refs/heads/main")
	w.pulls = nil
	w.want("head:r<q history:q<p")
}

// A pull request or a place in the merge queue that the forge still lists after its commit landed is not checked: compared with
// itself it would always pass, and that would stand where the branch's answer was.
func TestWhatHasLandedIsCheckedOnTheBranchOnly(t *testing.T) {
	w := start(t)
	w.commit("a")
	w.s.Push("refs/heads/main")
	w.open(1, "p")
	w.s.WorkGit("checkout", "--quiet", "topic")
	w.commit("p2")
	w.pulls = append(w.pulls, forge.PullRequest{Number: 2, Head: w.s.WorkGit("rev-parse", "HEAD"), Base: "main"})
	w.s.Push("refs/pull/2/head")
	w.s.Push("refs/heads/gh-readonly-queue/main/pr-2-abc")
	w.done(w.want("head:a< queue:p2<a pull:p<a"))
	w.s.WorkGit("checkout", "--quiet", "main")
	w.s.WorkGit("merge", "--quiet", "--ff-only", "topic")
	w.s.Push("refs/heads/main")
	w.done(w.want("head:p2<p history:p<a"))
	w.want("")
	// The same by a merge commit: its second parent has landed too.
	w.open(3, "q")
	w.done(w.want("pull:q<p2"))
	w.s.WorkGit("checkout", "--quiet", "main")
	w.s.WorkGit("merge", "--quiet", "--no-ff", "-m", "m", "topic")
	w.names[w.s.WorkGit("rev-parse", "HEAD")] = "m"
	w.s.Push("refs/heads/main")
	w.done(w.want("head:m<p2"))
}

func TestOnePullRequestThatIsTooLargeHurtsNoOther(t *testing.T) {
	w := start(t)
	m, err := git.Open(t.Context(), git.Options{Dir: t.TempDir(), URL: w.s.URL, Limits: git.Limits{PullObjectBytes: 50_000}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	w.m = m
	w.restart()
	w.commit("a")
	w.s.Push("refs/heads/main")
	w.s.Write("big", strings.Repeat("0", 1<<20))
	w.open(1, "bomb")
	w.open(2, "fine")
	w.done(w.want("head:a< pull:bomb<a!limits pull:fine<a"))
	w.want("")
}

func TestTheMergeQueue(t *testing.T) {
	w := start(t)
	w.commit("a")
	w.s.Push("refs/heads/main")
	w.done(w.want("head:a<"))
	w.s.WorkGit("checkout", "--quiet", "-b", "queue")
	w.commit("m")
	w.s.Push("refs/heads/gh-readonly-queue/main/pr-1-abc")
	w.s.Push("refs/heads/gh-readonly-queue/other/pr-2-abc")
	w.done(w.want("queue:m<a"))
	w.s.Git("update-ref", "-d", "refs/heads/gh-readonly-queue/main/pr-1-abc")
	w.s.WorkGit("checkout", "--quiet", "main")
	w.s.WorkGit("merge", "--quiet", "--ff-only", "queue")
	w.s.Push("refs/heads/main")
	w.done(w.want("head:m<a"))
	w.want("")
}

func TestABadStateFileIsSaid(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "s"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := loop.New(loop.Options{Branch: "main", StateFile: filepath.Join(dir, "s")}, nil, nil); err == nil {
		t.Fatal("a folder was read as state")
	}
	if _, err := loop.New(loop.Options{}, nil, nil); err == nil {
		t.Fatal("no branch")
	}
}

func TestThePacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nudges := make(chan struct{}, 1)
		p := &loop.Pacer{Interval: 60 * time.Second, Rand: func() float64 { return 0.5 }}
		wait := func(want time.Duration, nudged bool) {
			t.Helper()
			begun := time.Now()
			got, err := p.Wait(t.Context(), nudges)
			if took := time.Since(begun); err != nil || got != nudged || took != want {
				t.Fatalf("waited %s (nudged %v, %v), want %s", took, got, err, want)
			}
		}
		wait(60*time.Second, false)
		nudges <- struct{}{}
		wait(0, true)
		wait(2*time.Second, false) // once more: the API may not have known
		wait(60*time.Second, false)
		for _, want := range []time.Duration{60, 120, 240, 480, 900, 900} {
			p.Report(errors.New("x"))
			wait(want*time.Second, false)
		}
		nudges <- struct{}{}
		wait(0, true) // a nudge is heard while backing off
		p.Report(nil)
		wait(2*time.Second, false)
		wait(60*time.Second, false)
		p.Rand = func() float64 { return 0 }
		wait(54*time.Second, false)
		p.Rand, p.Interval = func() float64 { return 0.999999 }, time.Millisecond
		begun := time.Now()
		_, _ = p.Wait(t.Context(), nudges)
		if d := time.Since(begun); d < 100*time.Millisecond || d > 110*time.Millisecond {
			t.Fatal(d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Wait(ctx, nudges); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}
