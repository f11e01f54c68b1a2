package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/validate/check"
)

// oneChange checks commits that each change one machine, as the daemon does it: from Git's objects, after the fetch, with
// the base known.
type oneChange struct {
	in    check.Input
	heads []fs.FS
	n     int
}

// newOneChange makes a repository of dir and checks its first commit.
func newOneChange(ctx context.Context, dir string) (*oneChange, error) {
	base, heads, err := commitOneChange(ctx, dir)
	if err != nil {
		return nil, err
	}
	o := &oneChange{heads: heads, in: check.Input{
		FS: base, Tree: "base", Load: fleet.Options{Cache: &fleet.Cache{}}, Cache: &check.Cache{},
	}}
	if _, _, err := check.Run(ctx, o.in); err != nil {
		return nil, err
	}
	o.in.BaseFS, o.in.BaseTree, o.in.ExcuseBase = base, "base", true
	return o, nil
}

// next checks one commit that was not checked before.
func (o *oneChange) next(ctx context.Context) error {
	o.n++
	o.in.FS, o.in.Tree = o.heads[o.n%len(o.heads)], fmt.Sprint("head", o.n)
	r, _, err := check.Run(ctx, o.in)
	if err != nil {
		return err
	}
	changed := slices.DeleteFunc(slices.Clone(r.Machines), func(m check.Machine) bool { return m.Change == check.ChangeNone })
	if r.Verdict != check.Passed || len(changed) != 1 {
		return fmt.Errorf("verdict %s, %d machines changed: %+v", r.Verdict, len(changed), r.Problems)
	}
	return nil
}

// measureOneChange prints the time of each of some checks in nanoseconds, and after them the processor time of all.
func measureOneChange(dir string) error {
	ctx := context.Background()
	o, err := newOneChange(ctx, dir)
	if err != nil {
		return err
	}
	before := cpuTime()
	for range 40 {
		begun := time.Now()
		if err := o.next(ctx); err != nil {
			return err
		}
		fmt.Println(time.Since(begun).Nanoseconds())
	}
	fmt.Println((cpuTime() - before).Nanoseconds())
	return nil
}

// cpuTime of this process: on a busy machine it says more than the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// changes are more than the daemon remembers.
const changes = 16

// commitOneChange makes a repository of dir, and commits on it that each change a machine's label in their own way; it
// gives their trees.
func commitOneChange(ctx context.Context, dir string) (base fs.FS, heads []fs.FS, err error) {
	run := func(args ...string) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		if out, failed := cmd.CombinedOutput(); failed != nil && err == nil {
			err = fmt.Errorf("git %s: %w\n%s", args[0], failed, out)
		}
	}
	run("init", "-q")
	run("config", "gc.auto", "0")
	run("add", ".")
	run("commit", "-qm", "base")
	run("gc", "-q")
	path := filepath.Join(dir, "c000/machines/m00007.yaml")
	data, readErr := os.ReadFile(path)
	if err := errors.Join(err, readErr); err != nil {
		return nil, nil, err
	}
	for i := range changes {
		text := strings.Replace(string(data), "rack: r7", fmt.Sprintf("rack: r%d", 8+i), 1)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, nil, err
		}
		run("commit", "-qam", "head")
	}
	repo, openErr := git.OpenLocal(dir)
	if err := errors.Join(err, openErr); err != nil {
		return nil, nil, err
	}
	for i := range changes + 1 {
		commit, err := repo.Resolve(fmt.Sprintf("HEAD~%d", i))
		if err != nil {
			return nil, nil, err
		}
		tree, err := repo.FS(commit)
		if err != nil {
			return nil, nil, err
		}
		heads = append(heads, tree)
	}
	return heads[changes], heads[:changes], nil
}
