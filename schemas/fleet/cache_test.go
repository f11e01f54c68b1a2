package fleet_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// hashed gives each file the hash of its content, as a Git tree has it.
func hashed(fsys fstest.MapFS) fstest.MapFS {
	for _, f := range fsys {
		f.Sys = fmt.Sprintf("%x", sha256.Sum256(f.Data))
	}
	return fsys
}

func TestACacheReadsOnlyWhatChanged(t *testing.T) {
	cache := &fleet.Cache{}
	opt := fleet.Options{Cache: cache}
	first := hashed(bigFleet(250))
	f1, problems, err := fleet.Load(context.Background(), first, opt)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, say(problems))
	}
	second := hashed(bigFleet(250))
	const changed = "c001/m00123.yaml"
	second[changed] = &fstest.MapFile{Data: []byte(strings.Replace(string(second[changed].Data), "worker", "wrker", 1))}
	second["new.txt"] = &fstest.MapFile{Data: []byte("x")}
	hashed(second)
	for name, file := range second {
		if name != changed && name != "new.txt" {
			file.Data = []byte("a file that the cache has must not be read")
		}
	}
	f2, problems, err := fleet.Load(context.Background(), second, opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 1 || problems[0].File != changed {
		t.Errorf("problems: %s", say(problems))
	}
	if f2.Cluster("c001").Machine("m00123") != nil || f1.Cluster("c001").Machine("m00124").Manifest != f2.Cluster("c001").Machine("m00124").Manifest {
		t.Error("what changed must be read anew, and nothing else")
	}
	if len(f2.Files) != len(f1.Files)+1 {
		t.Errorf("%d files and %d", len(f1.Files), len(f2.Files))
	}
}

func TestLoadsThatShareACacheDoNotDisturbEachOther(t *testing.T) {
	cache := &fleet.Cache{}
	fsys := bigFleet(50)
	fsys["sops.yaml"] = &fstest.MapFile{Data: []byte(strings.Replace(patchYAML("sealed", 1), `"4096"`,
		`"ENC[AES256_GCM,data:x,iv:y,tag:z,type:str]"`, 1) + "sops: {mac: x}\n")}
	hashed(fsys)
	plain, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := describe(plain, problems)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 3 {
				f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{Cache: cache})
				if err != nil || describe(f, problems) != want {
					t.Errorf("%v: another fleet than without a cache", err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLoadCached(b *testing.B) {
	fsys := hashed(bigFleet(10_000))
	opt := fleet.Options{Cache: &fleet.Cache{}}
	if _, _, err := fleet.Load(context.Background(), fsys, opt); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := fleet.Load(context.Background(), fsys, opt); err != nil {
			b.Fatal(err)
		}
	}
}
