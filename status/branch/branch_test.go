package branch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/branch"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

const name = "ichor/status"

// ichor is one process: a mirror, a state folder and a writer on a real Git server.
type ichor struct {
	t   *testing.T
	s   *gittest.Server
	dir string
	*branch.Writer
	inv *branch.Inventory
}

func start(t *testing.T, s *gittest.Server, dir string, change ...func(*branch.Options)) *ichor {
	t.Helper()
	m, err := git.Open(t.Context(), git.Options{Dir: filepath.Join(dir, "git"), URL: s.URL, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	b, err := m.Branch(name, git.BranchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	o := branch.Options{StateFile: filepath.Join(dir, "status-branch.json")}
	for _, c := range change {
		c(&o)
	}
	w, err := branch.New(b, o)
	if err != nil {
		t.Fatal(err)
	}
	return &ichor{t, s, dir, w, w.Inventory()}
}

func (i *ichor) flush() {
	i.t.Helper()
	if err := i.Flush(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
}

func (i *ichor) report(commit string, pull int) {
	i.Report(commit, pull, []byte("# "+commit), []byte(`{"commit":"`+commit+`"}`))
}

// write writes the inventory on top of what is there.
func (i *ichor) write(data string) string {
	i.t.Helper()
	_, prev, err := i.inv.Read(i.t.Context())
	if err != nil && !errors.Is(err, branch.ErrAbsent) && !errors.Is(err, branch.ErrNoFile) {
		i.t.Fatal(err)
	}
	rev, err := i.inv.Write(i.t.Context(), []byte(data), prev)
	if err != nil {
		i.t.Fatal(err)
	}
	return rev
}

func (i *ichor) want(finding, detail string) {
	i.t.Helper()
	h, err := i.Inspect(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	if h.Finding != finding || !strings.Contains(h.Detail, detail) || h.FindingAt.IsZero() != (finding == "") {
		i.t.Fatalf("finding %q (%s), want %q (%s)", h.Finding, h.Detail, finding, detail)
	}
}

func files(s *gittest.Server) []string {
	return strings.Fields(s.Git("ls-tree", "-r", "--name-only", name))
}

func show(s *gittest.Server, path string) string { return s.Git("show", name+":"+path) }

func count(s *gittest.Server) string { return s.Git("rev-list", "--count", name) }

func TestReportsGoOutInOneBatchAndOnChangeOnly(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir())
	i.report("aaa", 0)
	i.report("bbb", 7)
	i.Put(branch.ReadmePath, []byte("fleet"))
	i.Put(branch.ClusterStatus("a"), []byte("ok"))
	i.flush()
	if got := strings.Join(files(s), " "); got != "README.md checks/aaa.json checks/aaa.md checks/bbb.json checks/bbb.md checks/index.json clusters/a/status.yaml" {
		t.Fatal(got)
	}
	s.Requests()
	for range 3 {
		i.Put(branch.ReadmePath, []byte("fleet"))
		i.flush()
	}
	if n := s.Requests(); len(n) != 0 || count(s) != "1" {
		t.Fatalf("unchanged content was pushed: %v", n)
	}
	i.report("aaa", 0)
	i.flush()
	if count(s) != "1" {
		t.Fatal("an unchanged report made a commit")
	}
	i.Remove(branch.ClusterDir("a"))
	i.flush()
	i.Put(branch.ClusterStatus("a"), []byte("ok"))
	i.flush()
	if count(s) != "3" || show(s, "clusters/a/status.yaml") != "ok" {
		t.Fatal(count(s))
	}
	i.want("", "")
}

func TestAReportIsThereBeforeItsStatus(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir(), func(o *branch.Options) { o.Interval = time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	i.report("aaa", 0)
	if err := i.FlushReport(t.Context(), "aaa"); err != nil {
		t.Fatal(err)
	}
	if got := show(s, "checks/aaa.md"); got != "# aaa" {
		t.Fatal(got)
	}
	if err := i.FlushReport(t.Context(), "unknown"); err != nil {
		t.Fatal(err)
	}
	i.report("bbb", 0) // waits for the interval, but not longer than the process
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := show(s, "checks/bbb.md"); got != "# bbb" {
		t.Fatal(got)
	}
}

func TestTheInventoryIsComparedBeforeItIsSwapped(t *testing.T) {
	s := gittest.Start(t)
	a, b := start(t, s, t.TempDir()), start(t, s, t.TempDir())
	ctx := t.Context()
	if _, rev, err := a.inv.Read(ctx); !errors.Is(err, branch.ErrAbsent) || rev != "" {
		t.Fatal(rev, err)
	}
	a.report("aaa", 0)
	a.flush() // a report of ours makes the branch: still nothing but a first run
	if _, _, err := a.inv.Read(ctx); !errors.Is(err, branch.ErrAbsent) {
		t.Fatal(err)
	}
	r1, err := a.inv.Write(ctx, []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	a.report("bbb", 0)
	a.flush() // reports don't count as a move
	r2, err := a.inv.Write(ctx, []byte("two"), r1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.inv.Write(ctx, []byte("theirs"), r1); !errors.Is(err, branch.ErrMoved) {
		t.Fatal(err)
	}
	if _, err := b.inv.Write(ctx, []byte("theirs"), ""); !errors.Is(err, branch.ErrMoved) {
		t.Fatal(err)
	}
	data, rev, err := b.inv.Read(ctx)
	if err != nil || string(data) != "two" || rev != r2 {
		t.Fatal(string(data), rev, err)
	}
	b.report("ccc", 0)
	b.flush()
	if _, err := b.inv.Write(ctx, []byte("theirs"), r2); err != nil {
		t.Fatal(err)
	}
	if _, err := a.inv.Write(ctx, []byte("three"), r2); !errors.Is(err, branch.ErrMoved) {
		t.Fatal("a holder that was replaced could write")
	}
	if got := show(s, "inventory.yaml"); got != "theirs" {
		t.Fatal(got)
	}
	a.want("", "") // another Ichor is no tampering: the journal decides who may act
}

// The push arrived and its reply was lost: the same write again says so.
func TestALostReplyOfAnInventoryWrite(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir())
	r1 := i.write("one")
	var mu sync.Mutex
	cut := false
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "git-receive-pack") && r.Method == http.MethodPost {
			cut = true
		} else if cut {
			w.WriteHeader(http.StatusBadGateway)
			return false
		}
		return true
	})
	if _, err := i.inv.Write(t.Context(), []byte("two"), r1); err == nil || errors.Is(err, branch.ErrMoved) {
		t.Fatalf("nobody can know: %v", err)
	}
	s.Before(nil)
	r2, err := i.inv.Write(t.Context(), []byte("two"), r1)
	if err != nil || r2 == r1 || show(s, "inventory.yaml") != "two" || count(s) != "2" {
		t.Fatal(r2, err)
	}
	if _, rev, err := i.inv.Read(t.Context()); err != nil || rev != r2 {
		t.Fatal(rev, err)
	}
}

func TestTwoWritersInATightLoop(t *testing.T) {
	s := gittest.Start(t)
	const each = 12
	var wg sync.WaitGroup
	for n := range 2 {
		i := start(t, s, t.TempDir())
		wg.Go(func() {
			for k := range each {
				i.report(fmt.Sprintf("w%d-%d", n, k), 0)
				for {
					err := i.Flush(t.Context())
					if err == nil {
						break
					}
					if !errors.Is(err, branch.ErrMoved) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	var index map[string]any
	if err := json.Unmarshal([]byte(show(s, "checks/index.json")), &index); err != nil {
		t.Fatal(err)
	}
	if n := len(files(s)); n != 2*2*each+1 || len(index) != 2*each {
		t.Fatalf("%d files, %d in the index", n, len(index))
	}
}

func TestADeletedBranchIsMadeAnew(t *testing.T) {
	s := gittest.Start(t)
	dir := t.TempDir()
	i := start(t, s, dir)
	i.report("aaa", 0)
	i.flush()
	i.write("one")
	s.Git("update-ref", "-d", "refs/heads/"+name)
	i = start(t, s, dir) // even when it happened while Ichor was down
	i.want(state.ReasonStatusBranchLost, "deleted")
	if got := strings.Join(files(s), " "); got != "checks/aaa.json checks/aaa.md checks/index.json" {
		t.Fatalf("put back: %s", got)
	}
	// The inventory is the journal's to put back: it knows whether its copy is the newest.
	if _, _, err := i.inv.Read(t.Context()); !errors.Is(err, branch.ErrNoFile) {
		t.Fatal(err)
	}
	i.write("one")
	i.want(state.ReasonStatusBranchLost, "")
	if err := i.Forgive(); err != nil {
		t.Fatal(err)
	}
	i.want("", "")
}

func TestAnInventoryThatWasDeletedIsNotAFirstRun(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir())
	i.write("one")
	edit(s, "rm inventory.yaml")
	fresh := start(t, s, t.TempDir()) // no memory of its own
	if _, _, err := fresh.inv.Read(t.Context()); !errors.Is(err, branch.ErrNoFile) {
		t.Fatal(err)
	}
	i.want(state.ReasonStatusBranchTampered, "A U Thor")
}

// edit commits to the status branch as a person would: "rm FILE", "put FILE CONTENT", "reset REV".
func edit(s *gittest.Server, acts ...string) {
	s.WorkGit("fetch", "--quiet", "origin", name)
	s.WorkGit("checkout", "--quiet", "-f", "--detach", "FETCH_HEAD")
	for _, a := range acts {
		f := strings.Fields(a)
		switch f[0] {
		case "rm":
			s.WorkGit("rm", "--quiet", f[1])
		case "put":
			s.Write(f[1], f[2])
		case "reset":
			s.WorkGit("reset", "--quiet", "--hard", f[1])
			s.Push("refs/heads/"+name, "--force")
			return
		}
	}
	s.Commit("a person's edit")
	s.Push("refs/heads/" + name)
}

func TestAnEditIsFoundAndMendedButForTheInventory(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir())
	i.report("aaa", 0)
	i.report("bbb", 0)
	i.flush()
	i.write("one")
	edit(s, "put checks/aaa.md fake", "rm checks/bbb.md", "put extra.txt x", "put inventory.yaml forged")
	i.want(state.ReasonStatusBranchTampered, "author@example.com")
	if got := strings.Join(files(s), " "); got != "checks/aaa.json checks/aaa.md checks/bbb.json checks/bbb.md checks/index.json inventory.yaml" {
		t.Fatal(got)
	}
	if show(s, "checks/aaa.md") != "# aaa" || show(s, "inventory.yaml") != "forged" {
		t.Fatal("the reports are put back, the inventory is the journal's")
	}
	if got := s.Git("log", "--format=%s", name); !strings.Contains(got, "a person's edit") {
		t.Fatalf("the edit stays in the history: %s", got)
	}
}

func TestABranchThatWasSetBack(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir())
	i.write("one")
	i.report("aaa", 0)
	i.flush()
	i.write("two")
	edit(s, "reset FETCH_HEAD~2")
	i.want(state.ReasonStatusBranchTampered, "set back")
	if got := strings.Join(files(s), " "); got != "checks/aaa.json checks/aaa.md checks/index.json inventory.yaml" {
		t.Fatal(got)
	}
	if data, _, err := i.inv.Read(t.Context()); err != nil || string(data) != "one" {
		t.Fatalf("the older inventory is for the journal to find out: %s %v", data, err)
	}
}

func TestAForeignRootIsLeftAlone(t *testing.T) {
	for _, seen := range []bool{false, true} {
		t.Run(fmt.Sprintf("seen before=%v", seen), func(t *testing.T) {
			s := gittest.Start(t)
			i := start(t, s, t.TempDir())
			if seen {
				i.write("one")
			}
			s.Commit("somebody's own branch", "x", "1")
			s.Push("refs/heads/"+name, "--force")
			root := s.WorkGit("rev-parse", "HEAD")
			i.report("aaa", 0)
			if err := i.Flush(t.Context()); !errors.Is(err, branch.ErrForeign) {
				t.Fatal(err)
			}
			if _, _, err := i.inv.Read(t.Context()); !errors.Is(err, branch.ErrForeign) {
				t.Fatal(err)
			}
			if _, err := i.inv.Write(t.Context(), []byte("x"), ""); !errors.Is(err, branch.ErrForeign) {
				t.Fatal(err)
			}
			if h := i.Health(); h.ForeignRoot != root || h.Staged != 2 || h.LastError == "" {
				t.Fatalf("%+v", h)
			}
			if s.Git("rev-parse", name) != root {
				t.Fatal("it was written")
			}
			if err := i.Acknowledge(root); err != nil {
				t.Fatal(err)
			}
			i.flush()
			if got := strings.Join(files(s), " "); got != "checks/aaa.json checks/aaa.md checks/index.json x" {
				t.Fatal(got)
			}
			if h := i.Health(); h.ForeignRoot != "" || h.LastError != "" {
				t.Fatalf("%+v", h)
			}
		})
	}
}

// The state folder is lost: the branch itself says that it is Ichor's.
func TestALostStateFolder(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir())
	i.write("one")
	i.report("aaa", 0)
	i.flush()
	i = start(t, s, t.TempDir())
	i.want("", "")
	if data, _, err := i.inv.Read(t.Context()); err != nil || string(data) != "one" {
		t.Fatal(string(data), err)
	}
	if err := os.WriteFile(filepath.Join(i.dir, "status-branch.json"), []byte("{cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, s, i.dir).want("", "")
}

func TestHistoryIsCompacted(t *testing.T) {
	s := gittest.Start(t)
	a := start(t, s, t.TempDir(), func(o *branch.Options) { o.CompactAt = 6 })
	b := start(t, s, t.TempDir())
	rev := a.write("0")
	b.want("", "")
	for k := range 5 {
		a.report(fmt.Sprint("c", k), 0)
		a.flush()
	}
	if got := count(s); got != "1" {
		t.Fatalf("%s commits", got)
	}
	if n := len(files(s)); n != 12 {
		t.Fatalf("%d files", n)
	}
	b.want("", "") // an Ichor that compacts is no tampering
	a.want("", "")
	if _, err := a.inv.Write(t.Context(), []byte("1"), rev); err != nil {
		t.Fatal(err)
	}
	// A server that forbids it: reports go on.
	s.Git("config", "receive.denyNonFastForwards", "true")
	for k := range 8 {
		a.report(fmt.Sprint("d", k), 0)
		a.flush()
	}
	if got := count(s); got != "10" {
		t.Fatalf("%s commits", got)
	}
}

func TestAProtectedBranchIsSaidAndTriedAgain(t *testing.T) {
	s := gittest.Start(t)
	i := start(t, s, t.TempDir())
	hook := filepath.Join(s.Dir, "hooks", "pre-receive")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho no pushes here >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	i.report("aaa", 0)
	if err := i.Flush(t.Context()); git.ClassOf(err) != git.ClassProtected {
		t.Fatal(err)
	}
	if h := i.Health(); !strings.Contains(h.LastError, "no pushes here") || h.Staged != 2 {
		t.Fatalf("%+v", h)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	i.flush()
	if h := i.Health(); h.LastError != "" || h.Staged != 0 || h.LastPush.IsZero() {
		t.Fatalf("%+v", h)
	}
}
