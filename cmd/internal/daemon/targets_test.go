package daemon

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/validate/check"
)

// targetsAt gives the targets of a head; it must be checkable.
func targetsAt(t *testing.T, c *commits, head string, inv *state.Inventory, only ...string) map[string]*target {
	t.Helper()
	res, err := c.head(t.Context(), head)
	if err != nil {
		t.Fatal(err)
	}
	out, unsettled, err := targets(t.Context(), c, res, inv, only)
	if err != nil || len(unsettled) > 0 {
		t.Fatal(err, unsettled)
	}
	return out
}

// unreadable is a tree whose files can't be read now: a disk that fails, not a commit that is gone.
type unreadable struct{ fs.FS }

func (unreadable) Open(string) (fs.File, error) { return nil, errors.New("input/output error") }

// TestALastGoodCommitThatCantBeJudgedNowIsNotGone: its cluster gets no other target by that, and the others theirs.
func TestALastGoodCommitThatCantBeJudgedNowIsNotGone(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1"))
	bad := h.commit("bad", one, broken(tree("cp1")))
	res, err := c.head(t.Context(), bad)
	if err != nil {
		t.Fatal(err)
	}
	inv := inventory(one, "cp1")
	judge := func() (map[string]*target, map[string]error) {
		t.Helper()
		c.known = check.Cache{} // as after a restart
		out, unsettled, err := targets(t.Context(), c, res, inv, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out, unsettled
	}
	good := h.trees[one]
	h.trees[one] = unreadable{good}
	if out, unsettled := judge(); out["prod"] != nil || unsettled["prod"] == nil {
		t.Errorf("a commit that can't be read: target %+v, unsettled %v", out["prod"], unsettled)
	}
	c.timeout = time.Nanosecond
	h.trees[one] = good
	if out, unsettled := judge(); out["prod"] != nil || unsettled["prod"] == nil {
		t.Errorf("a check that ran out of time: target %+v, unsettled %v", out["prod"], unsettled)
	}
	c.timeout, c.results, c.order = 0, nil, nil
	if out, unsettled := judge(); len(unsettled) > 0 || out["prod"] == nil || out["prod"].commit != one {
		t.Errorf("once it can be read: target %+v, unsettled %v", out["prod"], unsettled)
	}
}

// held lists the reasons of a target's holds.
func held(t *target) []string {
	var out []string
	for _, h := range t.holds {
		out = append(out, h.Reason)
	}
	return out
}

func TestAResultIsCheckedOnceAndOldOnesAreForgotten(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1"))
	first, err := c.head(t.Context(), one)
	if err != nil || !first.report.ClusterPassed("prod") {
		t.Fatalf("%v: %+v", err, first)
	}
	again, err := c.head(t.Context(), one)
	if err != nil || again != first || h.reads[one] != 1 {
		t.Fatalf("a second check read the tree %d times", h.reads[one])
	}
	// Excused or not is another question, so another result.
	if other, err := c.check(t.Context(), subject{commit: one, tree: one, excuse: true}); err != nil || other == first {
		t.Fatalf("the result for a pull request is the branch's: %v", err)
	}
	for i := range rememberChecks {
		c.remember(sha(string(rune('a'+i))), first)
		c.remember(sha(string(rune('a'+i))), first) // two that were under way at once
	}
	if len(c.results) != rememberChecks || len(c.order) != rememberChecks {
		t.Fatalf("%d results are kept, %d in order", len(c.results), len(c.order))
	}
	if _, err := c.head(t.Context(), one); err != nil || h.reads[one] != 3 {
		t.Fatalf("the forgotten result was not made again: %d reads, %v", h.reads[one], err)
	}
}

func TestACommitWithoutTreeIsAnErrorOfItsKind(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	two := h.commit("two", sha("gone"), tree("cp1"))
	for _, commit := range []string{two, sha("never")} {
		if _, err := c.head(t.Context(), commit); !errors.As(err, &errNoTree{}) {
			t.Errorf("%s: %v", short(commit), err)
		}
	}
	if got := c.baseline(t.Context(), sha("never"), "prod"); got != nil {
		t.Errorf("a baseline of nothing: %v", got)
	}
}

func TestBaselineIsWhatThisBuildRenders(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1", "w1"))
	res, err := c.head(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	reads := h.reads[one]
	if got := c.baseline(t.Context(), one, "prod"); !maps.Equal(got, res.detail.Digests["prod"]) || h.reads[one] != reads {
		t.Errorf("what the check found is not taken: %v after %d reads", got, h.reads[one]-reads)
	}
	c = newCommits(h)
	for range 2 {
		got := c.baseline(t.Context(), one, "prod")
		if len(got) != 2 || !maps.Equal(got, res.detail.Digests["prod"]) {
			t.Fatalf("baseline %v, check %v", got, res.detail.Digests["prod"])
		}
	}
	if h.reads[one] != reads+1 {
		t.Errorf("the baseline was rendered %d times", h.reads[one]-reads)
	}
	// There is room for one of each cluster of a large fleet.
	for i := range 200 {
		c.baseline(t.Context(), one, "other"+string(rune('a'+i)))
	}
	reads = h.reads[one]
	if got := c.baseline(t.Context(), one, "prod"); len(got) != 2 || h.reads[one] != reads {
		t.Errorf("the baseline was forgotten: %v", got)
	}
	if got := c.baseline(t.Context(), one, "other"); got != nil {
		t.Errorf("a cluster that is not there has a baseline: %v", got)
	}
}

func TestTheHeadIsTheTargetWhereItsPartPassed(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1", "w1"))
	got := targetsAt(t, c, one, nil)["prod"]
	if got == nil || got.commit != one || !got.passed || got.headNote != "" || len(got.holds) != 0 || len(got.digests) != 2 {
		t.Fatalf("%+v", got)
	}
	if got.mergedBy != "Ada <ada@example.com>" {
		t.Errorf("merged by %q", got.mergedBy)
	}
	if out := targetsAt(t, c, one, nil, "lab"); len(out) != 0 {
		t.Errorf("a cluster that this instance does not serve has a target: %v", out)
	}
}

func TestAFailedHeadLeavesTheLastGoodCommitInForce(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1"))
	two := h.commit("two", one, broken(tree("cp1")))
	got := targetsAt(t, c, two, inventory(one, "cp1"))["prod"]
	if got.commit != one || got.head != two || !got.passed || len(got.holds) != 0 || !strings.Contains(got.headNote, short(one)) {
		t.Fatalf("%+v", got)
	}
	// Nothing was ever applied: the head is shown, and does not pass.
	got = targetsAt(t, c, two, nil)["prod"]
	if got.commit != two || got.passed || got.headNote == "" {
		t.Fatalf("without a last good commit: %+v", got)
	}
	// What was applied does not pass any more (with this build): it is not taken for good.
	three := h.commit("three", two, broken(tree("cp1", "w1")))
	if got = targetsAt(t, c, three, inventory(two, "cp1"))["prod"]; got.passed {
		t.Fatalf("a bad commit is in force: %+v", got)
	}
}

func TestAClusterThatIsGoneIsHeldAndNotReleased(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1"))
	empty := h.commit("empty", one, fstest.MapFS{"README.md": {Data: []byte("nothing\n")}})
	got := targetsAt(t, c, empty, inventory(one, "cp1"))["prod"]
	if got == nil || got.commit != one {
		t.Fatalf("%+v", got)
	}
	want := []string{state.ReasonNotSupported, state.ReasonMassDeletion}
	if !slices.Equal(held(got), want) {
		t.Errorf("holds %v, want %v", held(got), want)
	}
	// Nobody knows the cluster: there is nothing to do.
	if out := targetsAt(t, c, empty, &state.Inventory{}); len(out) != 0 {
		t.Errorf("targets %v of an empty repository", out)
	}
}

func TestAManifestThatDoesNotParseRemovesNothing(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	one := h.commit("one", "", tree("cp1"))
	bad := h.commit("bad", one, edit(tree("cp1"), "cluster.yaml", "spec:", "spec: ["))
	got := targetsAt(t, c, bad, inventory(one, "cp1"))["prod"]
	if got == nil || got.commit != one || len(got.holds) != 0 || strings.Contains(got.headNote, "no longer has") {
		t.Fatalf("%+v", got)
	}
}

func TestForcePushAndItsAcknowledgement(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	a := tree("cp1")
	one := h.commit("one", "", a)
	applied := h.commit("applied", one, a)
	// The branch is set back to one and goes on from there.
	rewritten := h.commit("rewritten", one, a)
	acked := h.commit("acked", rewritten, acking(a, rewritten))

	is := func(head, last string, want ...string) {
		t.Helper()
		got := targetsAt(t, c, head, inventory(last, "cp1"))["prod"]
		if !slices.Equal(held(got), want) {
			t.Errorf("head %s after %s: held for %v, want %v", short(head), short(last), held(got), want)
		}
		for _, hold := range got.holds {
			if !strings.Contains(hold.Message, head) {
				t.Errorf("the hold does not name what is to be acknowledged: %s", hold.Message)
			}
		}
	}
	is(applied, one)
	is(one, applied, state.ReasonForcePush) // rewound, nothing new
	is(rewritten, applied, state.ReasonForcePush)
	is(acked, applied)
	is(acked, acked)

	// The acknowledgement is used up when what it excused was applied: the next rewind needs its own.
	onward := h.commit("onward", acked, acking(a, rewritten))
	fork := h.commit("fork", acked, acking(a, rewritten))
	is(onward, acked)
	is(fork, onward, state.ReasonForcePush)
	// Even where the old, acknowledging commit itself is gone back to.
	is(acked, onward, state.ReasonForcePush)
	// A commit that the head does not bring can't be acknowledged, nor a short hash.
	elsewhere := h.commit("elsewhere", one, acking(a, applied))
	is(elsewhere, applied, state.ReasonForcePush)
	clipped := h.commit("clipped", rewritten, acking(a, rewritten[:12]))
	is(clipped, applied, state.ReasonForcePush)
	// Of a lost mirror: the commit that was applied is not to be had. That is no ancestor.
	is(rewritten, sha("lost"), state.ReasonForcePush)
}

func TestMassDeletion(t *testing.T) {
	names := func(prefix string, n int) []string {
		var out []string
		for i := range n {
			out = append(out, prefix+string(rune('a'+i)))
		}
		return out
	}
	nine := append([]string{"cp1"}, names("w", 8)...)
	for _, tc := range []struct {
		name   string
		known  []string
		head   fstest.MapFS
		reason string
	}{
		{"nothing goes", nine, tree(nine...), ""},
		{"three of nine go", nine, tree(nine[:6]...), ""},
		{"three of eight go", nine[:8], tree(nine[:5]...), ""},
		{"four of nine go", nine, tree(nine[:5]...), "4 of 9 machines"},
		{"four of fourteen go", append(nine, names("x", 5)...), tree(append(slices.Clone(nine), "xa")...), ""},
		{"the last machine of a cluster goes", []string{"w1"}, tree("cp1"), "every machine of cluster prod"},
		{"every cluster goes", nine, fstest.MapFS{}, "every cluster"},
		{"files that don't parse remove nothing", nine, unparsable(tree(nine...)), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHistory()
			c := newCommits(h)
			res, err := c.head(t.Context(), h.commit("head", "", tc.head))
			if err != nil {
				t.Fatal(err)
			}
			why := massDeletion(res.detail.Head, inventory(sha("one"), tc.known...), res.commit)
			if (why["prod"] == "") != (tc.reason == "") || !strings.Contains(why["prod"], tc.reason) {
				t.Errorf("got %q, want %q", why["prod"], tc.reason)
			}
		})
	}
}

// unparsable breaks every machine's file.
func unparsable(files fstest.MapFS) fstest.MapFS {
	for path := range files {
		if strings.HasPrefix(path, "machines/") {
			files = edit(files, path, "spec:", "spec: [")
		}
	}
	return files
}

func TestMassDeletionLooksAtWhatIsThereAndAtAllClusters(t *testing.T) {
	h := newHistory()
	res, err := newCommits(h).head(t.Context(), h.commit("head", "", tree("cp1")))
	if err != nil {
		t.Fatal(err)
	}
	inv := inventory(sha("one"), "cp1", "w1")
	inv.Clusters["prod"].Machines["w1"].RemovedAt = t0
	if why := massDeletion(res.detail.Head, inv, res.commit); len(why) != 0 {
		t.Errorf("a machine that left before is gone again: %v", why)
	}
	// Another cluster loses all it has: it is held, and the one that loses nothing is not.
	inv.Clusters["lab"] = inventory("", "a", "b").Clusters["prod"]
	why := massDeletion(res.detail.Head, inv, res.commit)
	if len(why) != 1 || !strings.Contains(why["lab"], "every machine of cluster lab") {
		t.Errorf("%v", why)
	}
	if why := massDeletion(res.detail.Head, nil, res.commit); len(why) != 0 {
		t.Errorf("without an inventory: %v", why)
	}
}

func TestMassDeletionIsAcknowledgedByItsCommit(t *testing.T) {
	h := newHistory()
	c := newCommits(h)
	full := tree("cp1", "w1", "w2", "w3", "w4")
	one := h.commit("one", "", full)
	inv := inventory(one, "cp1", "w1", "w2", "w3", "w4")
	few := tree("cp1")
	gone := h.commit("gone", one, few)
	got := targetsAt(t, c, gone, inv)["prod"]
	if !slices.Contains(held(got), state.ReasonMassDeletion) {
		t.Fatalf("held for %v", held(got))
	}
	if hold := got.holds[len(got.holds)-1]; !strings.Contains(hold.Message, `"`+gone+`"`) {
		t.Errorf("the hold does not name what is to be acknowledged: %s", hold.Message)
	}
	acked := h.commit("acked", gone, acking(few, gone))
	if got := targetsAt(t, c, acked, inv)["prod"]; slices.Contains(held(got), state.ReasonMassDeletion) {
		t.Errorf("acknowledged, and held for %v", held(got))
	}
	// An acknowledgement of something that was applied long ago excuses nothing.
	old := h.commit("old", one, acking(few, one))
	if got := targetsAt(t, c, old, inv)["prod"]; !slices.Contains(held(got), state.ReasonMassDeletion) {
		t.Errorf("an old acknowledgement lets a mass deletion through")
	}
}
