package branch_test

import (
	"fmt"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/status/branch"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

func TestReportsExpire(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir(), func(o *branch.Options) { o.KeepClosed = -1; o.KeepReports = 3 })
	i.report("pr1", 1)
	i.report("pr2", 2)
	i.report("merged", 1)
	i.flush()
	i.report("merged", 0) // it is on the branch now
	i.ClosePulls([]int{1})
	i.flush()
	i.Put(branch.ReadmePath, []byte("x"))
	i.flush()
	if got := strings.Join(files(s), " "); got != "README.md checks/index.json checks/merged.json checks/merged.md checks/pr2.json checks/pr2.md" {
		t.Fatal(got)
	}
	for k := range 5 {
		i.report(fmt.Sprint("m", k), 0)
	}
	i.flush()
	i.Put(branch.ReadmePath, []byte("y"))
	i.flush()
	if n := len(files(s)); n != 2+2*3 {
		t.Fatalf("%d files: %v", n, files(s))
	}
}

// What is open is said once after a start. A report that comes before that was pushed belongs to a pull request that was
// opened, or opened again, since.
func TestReportsOfWhatWasClosedMeanwhileExpire(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir(), func(o *branch.Options) { o.KeepClosed = -1 })
	i.report("pr1", 1)
	i.report("pr2", 2)
	i.report("pr4", 4)
	i.flush()
	i.OnlyPulls([]int{2})
	i.report("pr3", 3)
	i.ClosePulls([]int{4})
	i.report("again4", 4)
	i.flush()
	i.Put(branch.ReadmePath, []byte("x"))
	i.flush()
	got := strings.Join(files(s), " ")
	for name, there := range map[string]bool{"pr1": false, "pr2": true, "pr3": true, "again4": true} {
		if strings.Contains(got, "checks/"+name+".md") != there {
			t.Errorf("%s: want it there %t: %s", name, there, got)
		}
	}
}
