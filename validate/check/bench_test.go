package check_test

import (
	"fmt"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/validate/check"
)

// large is the example with n machines more and 20 patches.
func large(tb testing.TB, n int) fstest.MapFS {
	tb.Helper()
	files := example(tb)
	for i := range n {
		files[fmt.Sprintf("machines/m%05d.yaml", i)] = &fstest.MapFile{Data: fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: m%05d
  labels:
    rack: r%d
spec:
  clusterRef:
    name: prod
  role: worker
  approvalState: approved
  endpoint: 10.%d.%d.%d
  hostname: m%05d
`, i, i%40, 1+i/65536, i/256%256, i%256, i)}
	}
	for i := range 18 {
		files[fmt.Sprintf("patches/p%02d.yaml", i)] = &fstest.MapFile{Data: fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: p%02d
spec:
  clusterRef:
    name: prod
  order: %d
  selector:
    matchLabels:
      rack: r%d
  documents:
    - machine:
        sysctls:
          net.ipv4.conf.p%d: "1"
`, i, 100+i, i, i)}
	}
	return files
}

// BenchmarkCheck is the cold check of SPEC section 9: machines and 20 patches, nothing to compare with.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			files := large(b, n)
			b.ReportAllocs()
			for b.Loop() {
				r, _, err := check.Run(b.Context(), check.Input{FS: files})
				if err != nil || r.Verdict != check.Passed {
					b.Fatalf("%v\n%s", err, story(r))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/machine")
		})
	}
}

// BenchmarkCheckOneChange compares two commits that differ in one machine.
func BenchmarkCheckOneChange(b *testing.B) {
	base := large(b, 1_000)
	head := edit(base, "machines/m00007.yaml", "rack: r7", "rack: r8")
	for b.Loop() {
		if _, _, err := check.Run(b.Context(), check.Input{FS: head, BaseFS: base, ExcuseBase: true}); err != nil {
			b.Fatal(err)
		}
	}
}
