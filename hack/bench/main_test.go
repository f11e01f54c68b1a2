package main

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/validate/check"
)

// BenchmarkFolder is the same check inside one process, to be profiled:
//
//	go test ./hack/bench -run '^$' -bench 'Folder/100x100$' -cpuprofile cpu.prof
func BenchmarkFolder(b *testing.B) {
	sealed, err := sealedBundle()
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range sizes {
		b.Run(s.String(), func(b *testing.B) {
			dir := b.TempDir()
			if err := s.write(dir, sealed); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r, _, err := check.Run(b.Context(), check.Input{FS: os.DirFS(dir)})
				if err != nil || r.Verdict != check.Passed || len(r.Machines) != s.machines {
					b.Fatalf("%v: %+v", err, r)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*s.machines), "µs/machine")
		})
	}
}

// BenchmarkOneChange is the check of a commit that changes one machine, as the daemon does it: from Git's objects, with
// the files of the base known already.
func BenchmarkOneChange(b *testing.B) {
	sealed, err := sealedBundle()
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range sizes[1:] {
		b.Run(s.String(), func(b *testing.B) {
			dir := b.TempDir()
			if err := s.write(dir, sealed); err != nil {
				b.Fatal(err)
			}
			base, heads := commitOneChange(b, dir)
			cache := &fleet.Cache{}
			known := &check.Cache{}
			in := check.Input{FS: base, Tree: "base", Load: fleet.Options{Cache: cache}, Cache: known}
			if _, _, err := check.Run(b.Context(), in); err != nil {
				b.Fatal(err)
			}
			in.BaseFS, in.BaseTree, in.ExcuseBase = base, "base", true
			n := 0
			best, before := time.Duration(math.MaxInt64), cpuTime()
			for b.Loop() {
				n++
				in.FS, in.Tree = heads[n%len(heads)], fmt.Sprint("head", n)
				begun := time.Now()
				r, _, err := check.Run(b.Context(), in)
				if err != nil || r.Verdict != check.Passed {
					b.Fatalf("%v: %+v", err, r)
				}
				best = min(best, time.Since(begun))
			}
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(best.Microseconds())/1000, "best-ms")
		})
	}
}

// cpuTime of this process: on a busy machine it says more than the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// commitOneChange makes a repository of dir, and commits on it that each change a machine's label in their own way; it
// gives their trees.
func commitOneChange(b *testing.B, dir string) (base fs.FS, heads []fs.FS) {
	b.Helper()
	run := func(args ...string) string {
		cmd := exec.CommandContext(b.Context(), "git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("init", "-q")
	run("config", "gc.auto", "0")
	run("add", ".")
	run("commit", "-qm", "base")
	run("gc", "-q")
	path := filepath.Join(dir, "c000/machines/m00007.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	const changes = 16 // more than the daemon remembers
	for i := range changes {
		text := strings.Replace(string(data), "rack: r7", fmt.Sprintf("rack: r%d", 8+i), 1)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
		run("commit", "-qam", "head")
	}
	repo, err := git.OpenLocal(dir)
	if err != nil {
		b.Fatal(err)
	}
	tree := func(rev string) fs.FS {
		commit, err := repo.Resolve(rev)
		if err != nil {
			b.Fatal(err)
		}
		t, err := repo.FS(commit)
		if err != nil {
			b.Fatal(err)
		}
		return t
	}
	for i := range changes {
		heads = append(heads, tree(fmt.Sprintf("HEAD~%d", i)))
	}
	return tree(fmt.Sprintf("HEAD~%d", changes)), heads
}
