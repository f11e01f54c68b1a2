package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// bigFleet makes clusters of 100 machines, one file each, and 20 patches in the first cluster.
func bigFleet(machines int) fstest.MapFS {
	fsys := repo("secrets.sops.yaml", "sops: {}\n")
	for i := range machines {
		c := fmt.Sprintf("c%03d", i/100)
		if i%100 == 0 {
			fsys[c+"/cluster.yaml"] = &fstest.MapFile{Data: []byte(strings.Replace(clusterYAML, "name: prod", "name: "+c, 1))}
		}
		role := "worker"
		if i%100 < 3 {
			role = "controlplane"
		}
		fsys[fmt.Sprintf("%s/m%05d.yaml", c, i)] = &fstest.MapFile{Data: fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: m%05d
  labels:
    rack: r%d
spec:
  clusterRef:
    name: %s
  role: %s
  approvalState: approved
  endpoint: 10.%d.%d.%d
  hostname: %s-m%05d
  uuid: 4c4c4544-0051-3010-8057-%012x
  install:
    disk: /dev/sda
`, i, i%20, c, role, i>>16, i>>8&255, i&255, c, i, i)}
	}
	for i := range 20 {
		fsys[fmt.Sprintf("patches/p%02d.yaml", i)] = &fstest.MapFile{Data: []byte(
			strings.ReplaceAll(patchYAML(fmt.Sprintf("p%02d", i), i%10), "name: prod", "name: c000"))}
	}
	return fsys
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			fsys := bigFleet(n)
			b.ReportAllocs()
			for b.Loop() {
				f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
				if err != nil || len(problems) > 0 || len(f.Clusters) != (n+99)/100 {
					b.Fatalf("%v, %d clusters, %s", err, len(f.Clusters), say(problems))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/machine")
		})
	}
}
