package main

import (
	"os"
	"testing"

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
// the base known already.
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
			o, err := newOneChange(b.Context(), dir)
			if err != nil {
				b.Fatal(err)
			}
			before := cpuTime()
			for b.Loop() {
				if err := o.next(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}
