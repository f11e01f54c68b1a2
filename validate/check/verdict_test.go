package check_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/check"
)

const ageIdentity = "AGE-SECRET-KEY-1QQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQ"

// second is another cluster beside the example's.
func second(files fstest.MapFS) fstest.MapFS {
	r := strings.NewReplacer("name: prod", "name: lab", "127.10.0.100", "127.11.0.100", "127.10.0.11", "127.11.0.11", "count: 3", "count: 1")
	for _, name := range []string{"cluster.yaml", "cp1.yaml"} {
		files["lab/"+name] = &fstest.MapFile{Data: []byte(r.Replace(string(files[name].Data)))}
	}
	return files
}

// TestClusterPassed: an error holds the clusters that it belongs to, never all.
func TestClusterPassed(t *testing.T) {
	base := second(example(t))
	base["notes.txt"] = &fstest.MapFile{Data: []byte("nothing\n")}
	r, _ := run(t, base, nil, false)
	if r.Verdict != check.Passed || !r.ClusterPassed("prod") || !r.ClusterPassed("lab") {
		t.Fatalf("%s", story(r))
	}
	for name, c := range map[string]struct {
		head      fstest.MapFS
		prod, lab bool
	}{
		"a patch of one":                      {edit(base, "patches.yaml", "sysctls:", "sysctlz:"), false, true},
		"a file of one that no longer parses": {edit(base, "lab/cp1.yaml", "spec:", "spec: [", "clusterRef", "x"), true, false},
		"a secret in a file of one":           {edit(base, "w1.yaml", "hostname: prod-w1", "hostname: prod-w1\n# "+ageIdentity), false, true},
		"a secret in nobody's file":           {edit(base, "notes.txt", "nothing", ageIdentity), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := run(t, c.head, base, true)
			if r.Verdict != check.Failed || r.ClusterPassed("prod") != c.prod || r.ClusterPassed("lab") != c.lab {
				t.Errorf("prod %t, lab %t:\n%s", r.ClusterPassed("prod"), r.ClusterPassed("lab"), story(r))
			}
		})
	}
	limited, _, err := check.Run(t.Context(), check.Input{FS: base, Load: fleet.Options{MaxFiles: 3}})
	if err != nil || limited.Verdict != check.Failed || limited.ClusterPassed("prod") || limited.ClusterPassed("lab") {
		t.Errorf("more files than the limit: %v\n%s", err, story(limited))
	}
}

// TestTimeout: a commit that takes too long fails by rule limits; a caller that gives up gets an error, no verdict.
func TestTimeout(t *testing.T) {
	r, _, err := check.Run(t.Context(), check.Input{FS: example(t), Timeout: time.Nanosecond})
	if err != nil || r.Verdict != check.Failed || len(r.Problems) != 1 || r.Problems[0].Rule != "limits" || r.ClusterPassed("prod") {
		t.Errorf("%v %+v", err, r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, _, err := check.Run(ctx, check.Input{FS: example(t)}); err == nil {
		t.Errorf("a verdict of a check that was given up: %+v", r)
	}
}

// brokenFS can't be read: that is no fault of the commit.
type brokenFS struct{}

var errBroken = errors.New("disk is gone")

func (brokenFS) Open(string) (fs.File, error) { return nil, errBroken }

func TestSurroundingsAreNotTheCommitsFault(t *testing.T) {
	if r, _, err := check.Run(t.Context(), check.Input{FS: brokenFS{}}); !errors.Is(err, errBroken) {
		t.Errorf("%v %+v", err, r)
	}
	if r, _, err := check.Run(t.Context(), check.Input{FS: example(t), BaseFS: brokenFS{}}); !errors.Is(err, errBroken) {
		t.Errorf("base: %v %+v", err, r)
	}
}

// TestResolve: what a look-up finds only warns.
func TestResolve(t *testing.T) {
	files := example(t)
	for host, want := range map[string]string{"10.96.0.9": "warning", "192.0.2.9": "", "127.10.0.11": "warning"} {
		r, _, err := check.Run(t.Context(), check.Input{FS: files, Resolve: func(_ context.Context, name string) ([]string, error) {
			if name != "s3.example.com" {
				t.Errorf("looked %q up", name)
			}
			return []string{host}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range r.Problems {
			if p.Rule == "backup-in-cluster" {
				got = string(p.Severity)
			}
		}
		if got != want || r.Verdict != check.Passed {
			t.Errorf("%s: %q, want %q:\n%s", host, got, want, story(r))
		}
	}
}
