package apply_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// BenchmarkIdlePass reads workers at rest, each with its configuration, over kept connections: SPEC 9 wants at most 5 s
// for 1,000. ICHOR_BENCH_NODES says how many (100). The nodes run in the same process, so it measures both sides.
func BenchmarkIdlePass(b *testing.B) {
	n := 100
	if s := os.Getenv("ICHOR_BENCH_NODES"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		must(b, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	secrets, err := made[0]()
	must(b, err)
	l, err := lab.New(ctx, lab.Options{StateDir: b.TempDir()})
	must(b, err)
	defer l.Close() //nolint:errcheck // the end of a benchmark
	r := &rig{T: &testing.T{}, bundle: secrets, net: 200}
	spec := &observe.Cluster{Name: "bench", Bundle: secrets, Interval: time.Minute, Grace: time.Minute, Retry: time.Second, FingerprintKey: []byte("k")}
	cp := r.config(secrets, mtype.TypeControlPlane, "cp1")
	_, err = l.AddConfigured(node.Spec{Name: "cp1", Address: r.addr(1)}, cp)
	must(b, err)
	for i := range n {
		name := fmt.Sprintf("w%d", i)
		cfg := r.config(secrets, mtype.TypeWorker, name)
		addr := netip.AddrFrom4([4]byte{127, 72, byte(i / 250), byte(1 + i%250)})
		_, err := l.AddConfigured(node.Spec{Name: name, Address: addr}, cfg)
		must(b, err)
		masked, err := mask.Config(cfg, nil)
		must(b, err)
		spec.Machines = append(spec.Machines, observe.Machine{Name: name, Role: plan.RoleWorker, Endpoint: addr.String(), Wish: secret.New(cfg), Masked: masked, Digest: masked.Digest()})
	}
	o := observe.New(observe.Options{})
	defer o.Close()
	for {
		facts, err := o.Observe(ctx, spec, nil)
		must(b, err)
		ok := 0
		for _, f := range facts {
			if f.Reach == plan.ReachOK && f.Config != nil && f.Config.Equal {
				ok++
			}
		}
		if ok == n {
			break
		}
		must(b, ctx.Err())
	}
	before := cpuTime()
	b.ResetTimer()
	for b.Loop() {
		_, err := o.Observe(ctx, spec, nil)
		must(b, err)
	}
	b.StopTimer()
	b.ReportMetric(float64((cpuTime()-before).Microseconds())/1000/float64(b.N)/float64(n), "cpu-ms/node")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N)/float64(n), "ms/node")
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapInuse)/float64(n)/1024, "KiB/node")
}

// cpuTime of this process: on a busy machine it says more than the clock. Nodes and Observer share the process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
