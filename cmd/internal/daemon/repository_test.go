package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/loop"
)

// fakeLooker hands out the work that a test puts in.
type fakeLooker struct {
	work          loop.Work
	done, retried []string
}

func (l *fakeLooker) Look(context.Context) loop.Work { return l.work }
func (l *fakeLooker) Done(j loop.CheckJob)           { l.done = append(l.done, j.Commit) }
func (l *fakeLooker) Retry(j loop.CheckJob)          { l.retried = append(l.retried, j.Commit) }

// fakeJournal holds an inventory, or doesn't.
type fakeJournal struct {
	inv    *state.Inventory
	status journal.Status
	// load, take and holding are the errors of these methods.
	load, take, holding error
	acked               []string
	takes               int
}

func (j *fakeJournal) Cluster(name string) *state.ClusterInventory {
	if j.inv == nil {
		return nil
	}
	if c := j.inv.Clusters[name]; c != nil {
		return c
	}
	return &state.ClusterInventory{}
}

func (j *fakeJournal) Holding(time.Time) error     { return j.holding }
func (j *fakeJournal) Inventory() *state.Inventory { return j.inv }
func (j *fakeJournal) Status() journal.Status      { return j.status }

func (j *fakeJournal) Load(context.Context, time.Time) (journal.Status, error) {
	return j.status, j.load
}

func (j *fakeJournal) Take(context.Context, time.Time) error {
	j.takes++
	if j.take == nil {
		j.status.State, j.status.Mine = journal.Known, true
		if j.inv == nil {
			j.inv = &state.Inventory{}
		}
	}
	return j.take
}

func (j *fakeJournal) Answer(context.Context, time.Time) error { return nil }

func (j *fakeJournal) Acknowledge(_ context.Context, _ time.Time, head string) error {
	j.acked = append(j.acked, head)
	j.status = journal.Status{State: journal.Known, Mine: true}
	j.inv = &state.Inventory{UnknownAt: head}
	return nil
}

// repo is a repositoryLoop on fakes.
type repo struct {
	*repositoryLoop
	history  *fakeHistory
	looker   *fakeLooker
	journal  *fakeJournal
	pages    *fakePages
	statuses *fakeStatuses
	// assigned targets, of each call.
	assigned []map[string]*target
	accepted []string
	root     string
}

func newRepo() *repo {
	say, pages, statuses, _ := newSay()
	say.now = time.Now
	r := &repo{
		history: newHistory(), looker: &fakeLooker{}, pages: pages, statuses: statuses,
		journal: &fakeJournal{status: journal.Status{State: journal.Fresh}},
	}
	r.repositoryLoop = &repositoryLoop{
		log: quiet(), now: time.Now, looker: r.looker, commits: newCommits(r.history), journal: r.journal, say: say,
		metrics: say.metrics, branch: "main", finding: func() (string, string) { return "", "" },
		foreign: func() string { return r.root },
		accept:  func(root string) error { r.accepted = append(r.accepted, root); r.root = ""; return nil },
	}
	r.assign = func(t map[string]*target) { r.assigned = append(r.assigned, t) }
	return r
}

// at makes the next looks find this head, with a check of it.
func (r *repo) at(head string) {
	parent, err := r.history.Parent(head)
	must(err)
	r.looker.work = loop.Work{Head: head, Checks: []loop.CheckJob{{Commit: head, Base: parent, Kind: loop.KindHead}}}
}

const checkContext = "ichor/check"

func (r *repo) wantStatus(t *testing.T, commit string, want ...state.CommitState) {
	t.Helper()
	if got := r.statuses.of(commit, checkContext); !slices.Equal(got, want) {
		t.Errorf("%s went through %v, want %v", short(commit), got, want)
	}
}

func TestALookChecksSaysAndAssigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		one := r.history.commit("one", "", tree("cp1"))
		r.at(one)
		if err := r.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.wantStatus(t, one, state.StateSuccess)
		if s := r.statuses.last(); s.TargetURL != "https://forge/"+one || s.Description == "" {
			t.Errorf("%+v", s)
		}
		if r.pages.count("checks/"+one+".md") != 1 || r.pages.count("checks/"+one+".json") != 1 {
			t.Errorf("pages %v", r.pages.puts)
		}
		if len(r.assigned) != 1 || r.assigned[0]["prod"].commit != one || !slices.Equal(r.looker.done, []string{one}) {
			t.Fatalf("assigned %v, done %v", r.assigned, r.looker.done)
		}
		if r.journal.takes != 1 || !r.looked.Load() {
			t.Errorf("taken %d times, looked %t", r.journal.takes, r.looked.Load())
		}
		// Nothing new: the same target stays, so that no secret is opened and nothing rendered again.
		r.looker.work.Checks = nil
		if err := r.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r.assigned[1]["prod"] != r.assigned[0]["prod"] || r.journal.takes != 1 {
			t.Error("a look without news made another target, or took the inventory again")
		}
		// A failing head.
		two := r.history.commit("two", one, broken(tree("cp1")))
		r.at(two)
		if err := r.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.wantStatus(t, two, state.StateFailure)
		want := "# HELP ichor_check_head_passed 1 if the check of the watched branch's head passed, else 0.\n" +
			"# TYPE ichor_check_head_passed gauge\nichor_check_head_passed 0\n"
		if err := testutil.GatherAndCompare(r.metrics.Registry(), strings.NewReader(want), "ichor_check_head_passed"); err != nil {
			t.Error(err)
		}
	})
}

func TestPendingIsSaidOnlyOfWhatTakesLong(t *testing.T) {
	for _, tc := range []struct {
		slow time.Duration
		want []state.CommitState
	}{
		{slow - time.Millisecond, []state.CommitState{state.StateSuccess}},
		{slow + time.Millisecond, []state.CommitState{state.StatePending, state.StateSuccess}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRepo()
			one := r.history.commit("one", "", tree("cp1"))
			r.history.slow = tc.slow
			r.at(one)
			if err := r.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute) // whatever could still come
			synctest.Wait()
			r.wantStatus(t, one, tc.want...)
		})
	}
}

func TestACheckThatCannotBeDoneIsAnErrorUntilItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		one := r.history.commit("one", "", tree("cp1"))
		r.at(one)
		r.history.slow, r.history.down = slow+time.Second, errors.New("the disk is broken")
		r.looker.work.More = true
		for range 3 {
			_ = r.look(t.Context())
			if r.more {
				t.Error("what can't be done is tried again without a pause")
			}
		}
		// Pending never stays; and while nothing changes, nothing is posted again but the pending of a new try.
		got := r.statuses.of(one, checkContext)
		if got[len(got)-1] != state.StateError || !strings.Contains(r.statuses.last().Description, "the disk is broken") {
			t.Errorf("went through %v, last %+v", got, r.statuses.last())
		}
		if len(r.looker.done) != 0 || len(r.looker.retried) != 3 || len(r.assigned) != 0 {
			t.Errorf("done %v, retried %v, assigned %v", r.looker.done, r.looker.retried, r.assigned)
		}
		if !strings.Contains(r.pages.staged["checks/"+one+".md"], "the disk is broken") {
			t.Errorf("the report does not say why:\n%s", r.pages.staged["checks/"+one+".md"])
		}
		r.history.down = nil
		_ = r.look(t.Context())
		if !r.more {
			t.Error("what was left is not done at once")
		}
		if got := r.statuses.of(one, checkContext); got[len(got)-1] != state.StateSuccess {
			t.Errorf("went through %v", got)
		}
		if !slices.Equal(r.looker.done, []string{one}) {
			t.Errorf("done %v", r.looker.done)
		}
	})
}

func TestACommitThatCannotBeHadIsAnErrorForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		one := r.history.commit("one", "", tree("cp1"))
		r.at(one)
		pull := loop.CheckJob{Commit: sha("pull"), Base: one, Kind: loop.KindPull, PR: 7, Err: errors.New("larger than the limit")}
		r.looker.work.Checks = append(r.looker.work.Checks, pull)
		_ = r.look(t.Context())
		r.wantStatus(t, one, state.StateSuccess)
		r.wantStatus(t, sha("pull"), state.StateError)
		if !slices.Equal(r.looker.done, []string{one, sha("pull")}) || len(r.looker.retried) != 0 {
			t.Errorf("done %v, retried %v", r.looker.done, r.looker.retried)
		}
	})
}

func TestAPullRequestIsExcusedWhatItsBaseHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		one := r.history.commit("one", "", broken(tree("cp1")))
		pull := r.history.commit("pull", one, edit(broken(tree("cp1")), "cluster.yaml", "annotations: {}", "labels: {a: b}"))
		r.at(one)
		r.looker.work.Checks = append(r.looker.work.Checks,
			loop.CheckJob{Commit: pull, Base: one, Kind: loop.KindPull, PR: 7},
			loop.CheckJob{Commit: pull, Base: one, Kind: loop.KindHistory})
		_ = r.look(t.Context())
		r.wantStatus(t, one, state.StateFailure)
		r.wantStatus(t, pull, state.StateSuccess, state.StateFailure) // as a pull request; on the branch
	})
}

func TestAStopLeavesChecksForTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		one := r.history.commit("one", "", tree("cp1"))
		r.at(one)
		ctx, stop := context.WithCancel(t.Context())
		r.history.slow = time.Minute
		time.AfterFunc(time.Second, stop)
		_ = r.look(ctx)
		if !slices.Equal(r.looker.retried, []string{one}) || len(r.looker.done) != 0 {
			t.Errorf("retried %v, done %v", r.looker.retried, r.looker.done)
		}
		r.wantStatus(t, one, state.StatePending) // the next start checks it again; no verdict is made up
		if len(r.assigned) != 0 {
			t.Error("targets were assigned in a shutdown")
		}
	})
}

func TestANewHeadSupersedesTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		one := r.history.commit("one", "", tree("cp1"))
		two := r.history.commit("two", one, tree("cp1", "w1"))
		r.at(one)
		_ = r.look(t.Context())
		r.say.post(one, state.CommitStatus{Context: applyContext, State: state.StatePending}, 0)
		r.at(two)
		_ = r.look(t.Context())
		if got := r.statuses.of(one, applyContext); !slices.Equal(got, []state.CommitState{state.StatePending, state.StateError}) {
			t.Errorf("the old head's apply went through %v", got)
		}
	})
}

func TestGitOutOfReachKeepsTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		r.looker.work = loop.Work{GitErr: errors.New("no route"), ForgeErr: errors.New("502")}
		if err := r.look(t.Context()); err == nil {
			t.Error("the back-off is not told")
		}
		if r.looked.Load() || len(r.assigned) != 0 {
			t.Error("ready without having read the repository")
		}
		if !strings.Contains(r.pages.staged["README.md"], "FetchFailed") {
			t.Errorf("the fleet's page does not say it:\n%s", r.pages.staged["README.md"])
		}
		one := r.history.commit("one", "", tree("cp1"))
		r.at(one)
		r.looker.work.GitErr = errors.New("no route")
		r.looker.work.Move.Kind = git.MoveGone
		_ = r.look(t.Context())
		if len(r.assigned) != 1 || !strings.Contains(r.pages.staged["README.md"], "BranchGone") {
			t.Errorf("assigned %v; page:\n%s", r.assigned, r.pages.staged["README.md"])
		}
	})
}

func TestALostInventoryWaitsForItsOwnAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := journal.Status{State: journal.Unknown, Message: "it is gone"}
		a := tree("cp1")
		r := newRepo()
		r.journal.status = lost
		one := r.history.commit("one", "", a)
		look := func(head string, want ...string) {
			t.Helper()
			r.at(head)
			_ = r.look(t.Context())
			if !slices.Equal(r.journal.acked, want) {
				t.Errorf("at %s: acknowledged at %v, want %v", short(head), r.journal.acked, want)
			}
		}
		look(one)
		// The page says what to write, letter for letter.
		if !strings.Contains(r.pages.staged["README.md"], "inventory:"+one) {
			t.Fatalf("the page does not say what to acknowledge:\n%s", r.pages.staged["README.md"])
		}
		// Something else is merged meanwhile; the acknowledgement of the head at which it was said still counts.
		other := r.history.commit("other", one, tree("cp1", "w1"))
		look(other)
		bare := r.history.commit("bare", other, acking(a, other)) // a commit's acknowledgement is not the inventory's
		look(bare)
		acked := r.history.commit("acked", bare, acking(a, "inventory:"+one))
		look(acked, acked)
		if r.journal.takes != 0 || !r.journal.status.Mine {
			t.Errorf("taken %d times, status %+v", r.journal.takes, r.journal.status)
		}

		// It is lost again later: the old acknowledgement excuses nothing.
		next := r.history.commit("next", acked, acking(tree("cp1", "w1"), "inventory:"+one))
		look(next, acked)
		r.journal.status = lost
		look(next, acked)
		again := r.history.commit("again", next, acking(tree("cp1", "w1"), "inventory:"+one, "inventory:"+next))
		look(again, acked, again)
	})
}

func TestAnUnknownInventoryIsNeverTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, st := range []journal.State{journal.Unknown, journal.Refused, journal.NotLoaded} {
			r := newRepo()
			r.journal.status = journal.Status{State: st}
			r.at(r.history.commit("one", "", tree("cp1")))
			_ = r.look(t.Context())
			if r.journal.takes != 0 {
				t.Errorf("an inventory in state %s was taken", st)
			}
		}
	})
}

func TestASecondIchorStandsByAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		r.journal.status = journal.Status{State: journal.Known}
		r.journal.take = errors.New("take the inventory: another Ichor holds it: east")
		r.at(r.history.commit("one", "", tree("cp1")))
		_ = r.look(t.Context())
		if p := r.pages.staged["README.md"]; !strings.Contains(p, state.ReasonFenced) || !strings.Contains(p, "east") {
			t.Errorf("the fleet's page does not say it:\n%s", p)
		}
		if len(r.assigned) != 1 {
			t.Error("the clusters are not even observed")
		}
		// The other is gone: the note goes.
		r.journal.take = nil
		_ = r.look(t.Context())
		if p := r.pages.staged["README.md"]; strings.Contains(p, state.ReasonFenced) {
			t.Errorf("the note stays:\n%s", p)
		}
	})
}

func TestAForeignStatusBranchIsAcceptedByItsRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepo()
		a := tree("cp1")
		one := r.history.commit("one", "", a)
		r.root = sha("root")
		r.finding = func() (string, string) { return state.ReasonStatusBranchTampered, "its root is not Ichor's" }
		r.at(one)
		_ = r.look(t.Context())
		if len(r.accepted) != 0 || !strings.Contains(r.pages.staged["README.md"], "root:"+sha("root")) {
			t.Fatalf("accepted %v; page:\n%s", r.accepted, r.pages.staged["README.md"])
		}
		r.at(r.history.commit("other", one, acking(a, "root:"+sha("another"))))
		_ = r.look(t.Context())
		if len(r.accepted) != 0 {
			t.Fatal("another root's acknowledgement was taken")
		}
		r.at(r.history.commit("two", one, acking(a, "root:"+sha("root"))))
		_ = r.look(t.Context())
		if !slices.Equal(r.accepted, []string{sha("root")}) {
			t.Errorf("accepted %v", r.accepted)
		}
	})
}
