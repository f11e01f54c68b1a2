package render_test

import (
	"context"
	"fmt"
	"testing"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// bigCluster has n machines, three of them control planes, and 20 patches for all. With distinct, no two machines
// share a render.
func bigCluster(n int, distinct bool) *fleet.Cluster {
	c := newCluster("v1.13")
	for i := range n {
		role := "worker"
		if i < 3 {
			role = "controlplane"
		}
		m := addMachine(c, fmt.Sprintf("m%05d", i), role, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), fmt.Sprintf("node-%05d", i))
		if distinct {
			m.Manifest.Spec.NodeLabels = map[string]string{"example.com/serial": fmt.Sprint(i)}
		}
	}
	for p := range 20 {
		addPatch(c, fmt.Sprintf("p%02d", p), p, v1alpha1.Selector{}, fmt.Sprintf("machine:\n  sysctls:\n    net.example.x%d: \"%d\"\n", p, p))
	}
	return c
}

func BenchmarkCluster(b *testing.B) {
	for _, tc := range []struct {
		machines int
		distinct bool
	}{{100, false}, {1000, false}, {10000, false}, {1000, true}} {
		c := bigCluster(tc.machines, tc.distinct)
		b.Run(fmt.Sprintf("machines=%d/distinct=%t", tc.machines, tc.distinct), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				res, err := render.Cluster(context.Background(), render.Input{Cluster: c, Bundle: standIn(b, c), WithoutConfig: true})
				if err != nil || len(res) != tc.machines || res[0].Err != nil {
					b.Fatal(err, len(res))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(tc.machines), "µs/machine")
		})
	}
}
