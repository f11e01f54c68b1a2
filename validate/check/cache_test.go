package check_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/validate/check"
)

// withHashes gives every file the hash of its content.
func withHashes(files fstest.MapFS) fstest.MapFS {
	out := fstest.MapFS{}
	for name, f := range files {
		out[name] = &fstest.MapFile{Data: f.Data, Mode: f.Mode, Sys: fmt.Sprintf("%x", f.Data)}
	}
	return out
}

// TestACachedCheckSaysTheSame: whatever was checked before, in whatever order and at the same time, a check says what one
// without any memory says.
func TestACachedCheckSaysTheSame(t *testing.T) {
	base := withHashes(large(t, 30))
	commits := map[string]fstest.MapFS{"base": base}
	change := func(name, path string, pairs ...string) { commits[name] = withHashes(edit(base, path, pairs...)) }
	change("label", "machines/m00007.yaml", "rack: r7", "rack: r8")
	change("other-machine", "machines/m00003.yaml", "hostname: m00003", "hostname: renamed")
	change("patch", "patches/p03.yaml", `net.ipv4.conf.p3: "1"`, `net.ipv4.conf.p3: "2"`)
	change("bad-patch", "patches/p03.yaml", "sysctls:", "sysctlz:")
	change("moved-patch", "patches/p03.yaml", "apiVersion:", "# a line more\napiVersion:")
	change("rejected", "machines/m00009.yaml", "approvalState: approved", "approvalState: rejected")
	change("twice", "machines/m00010.yaml", "name: m00010", "name: m00011")
	change("secret", "machines/m00012.yaml", "apiVersion:", "# AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ\napiVersion:")
	gone := withHashes(base)
	delete(gone, "machines/m00001.yaml")
	commits["gone"] = gone

	say := func(commit string, known *check.Cache, load fleet.Options) string {
		in := check.Input{FS: commits[commit], Commit: commit, Tree: commit, Load: load, Cache: known}
		if commit != "base" {
			in.BaseFS, in.Base, in.BaseTree = base, "base", "base"
		}
		r, d, err := check.Run(t.Context(), in)
		if err != nil {
			t.Error(err)
			return ""
		}
		for _, c := range d.Head.Clusters {
			for _, m := range c.Machines {
				if c.Machine(m.Name) == nil {
					t.Errorf("%s: machine %s", commit, m.Name)
				}
			}
		}
		data, err := report.JSON(r)
		if err != nil {
			t.Error(err)
		}
		return string(bytes.TrimSpace(data))
	}
	fresh := map[string]string{}
	var names []string
	for name := range commits {
		names = append(names, name)
		fresh[name] = say(name, nil, fleet.Options{})
	}
	if strings.Count(fresh["bad-patch"], "sysctlz") == 0 || fresh["label"] == fresh["patch"] {
		t.Fatal("the commits don't differ")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	known, load := &check.Cache{}, fleet.Options{Cache: &fleet.Cache{}}
	for range 40 {
		name := names[rng.IntN(len(names))]
		if got := say(name, known, load); got != fresh[name] {
			t.Fatalf("%s, with a memory:\n%s\nwithout:\n%s", name, got, fresh[name])
		}
	}
	var wg sync.WaitGroup
	known = &check.Cache{}
	for _, name := range append(names, names...) {
		wg.Go(func() {
			if got := say(name, known, load); got != fresh[name] {
				t.Errorf("%s, at the same time as others:\n%s\nalone:\n%s", name, got, fresh[name])
			}
		})
	}
	wg.Wait()
}
