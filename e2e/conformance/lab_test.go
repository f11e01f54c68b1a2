package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	talosconfigs "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// version112 is a 1.12 whose maintenance server the lab has.
const version112 = "v1.12.5"

// knownDeviations of the lab, by statement; docs/lab.md has them too.
var knownDeviations = map[string]string{}

func runOnLab(t *testing.T) {
	for _, version := range []string{version113, version114, version112} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			Run(t, Target{
				Version: version, Known: knownDeviations, Patience: 2 * time.Minute,
				NewBench: func(t *testing.T, _ string) Bench { return newLabBench(t) },
			})
		})
	}
}

// bundles are the cluster's secrets and a foreign cluster's; an RSA key costs seconds.
var bundles = sync.OnceValues(func() ([2]*secrets.Bundle, error) {
	var out [2]*secrets.Bundle
	for i := range out {
		b, err := secrets.NewBundle(secrets.NewFixedClock(time.Now().Add(-time.Minute)), talosconfigs.TalosVersion1_13)
		if err != nil {
			return out, err
		}
		out[i] = b
	}
	return out, nil
})

// nextNet hands out a loopback network of its own to each bench.
var nextNet atomic.Int32

// labSlots bounds how many labs run at once: each has etcd members, and CI has two cores.
var labSlots = make(chan struct{}, 5)

// labBench is a lab as a Bench.
type labBench struct {
	t     *testing.T
	ctx   context.Context
	lab   *lab.Lab
	own   *secrets.Bundle
	other *secrets.Bundle
	net   byte
	mu    sync.Mutex
	addrs []netip.Addr
}

func newLabBench(t *testing.T, change ...func(*node.Timings)) *labBench {
	t.Helper()
	labSlots <- struct{}{}
	t.Cleanup(func() { <-labSlots })
	b, err := bundles()
	if err != nil {
		t.Fatal(err)
	}
	timings := node.Fast()
	// Long enough to be looked at.
	timings.Install, timings.Stop, timings.CRI = 1200*time.Millisecond, 400*time.Millisecond, 600*time.Millisecond
	timings.PromoteRetry = 2 * time.Second // a learner, too; real ones need some 20 s
	for _, c := range change {
		c(&timings)
	}
	l, err := lab.New(t.Context(), lab.Options{StateDir: t.TempDir(), Timings: &timings, OnEvent: func(e node.Event) {
		t.Logf("%s %s %s %.300s", e.Time.Format("05.000"), e.Node, e.Kind, e.Detail)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return &labBench{t: t, ctx: t.Context(), lab: l, own: b[0], other: b[1], net: byte(120 + nextNet.Add(1))}
}

func (b *labBench) must(err error) {
	if err != nil {
		b.t.Error(err)
	}
}

// Add implements Bench.
func (b *labBench) Add(name, version string) string {
	b.mu.Lock()
	a := netip.AddrFrom4([4]byte{127, 0, b.net, byte(1 + len(b.addrs))})
	b.addrs = append(b.addrs, a)
	b.mu.Unlock()
	_, err := b.lab.AddNode(node.Spec{Name: name, Hostname: name, Address: a, TalosVersion: version})
	b.must(err)
	return a.String()
}

// configured adds a machine that runs already.
func (b *labBench) configured(name string, kind mtype.Type) string {
	b.mu.Lock()
	a := netip.AddrFrom4([4]byte{127, 0, b.net, byte(1 + len(b.addrs))})
	b.addrs = append(b.addrs, a)
	b.mu.Unlock()
	_, err := b.lab.AddConfigured(node.Spec{Name: name, Hostname: name, Address: a, TalosVersion: version113}, b.Config(kind, name, 13))
	b.must(err)
	return a.String()
}

// Config implements Bench.
func (b *labBench) Config(kind mtype.Type, hostname string, minor int) []byte {
	contract := talosconfigs.TalosVersion1_13
	if minor >= 14 {
		contract = talosconfigs.TalosVersion1_14
	}
	in, err := generate.NewInput("lab", fmt.Sprintf("https://127.0.%d.1:6443", b.net), "1.36.0",
		generate.WithSecretsBundle(b.own), generate.WithVersionContract(contract), generate.WithInstallDisk("/dev/vda"))
	if err != nil {
		b.t.Error(err)
		return nil
	}
	p, err := in.Config(kind)
	if err != nil {
		b.t.Error(err)
		return nil
	}
	data, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	b.must(err)
	return []byte(strings.Replace(string(data), "auto: stable", "hostname: "+hostname, 1))
}

func (b *labBench) credential(bundle *secrets.Bundle, r role.Role) *clientconfig.Config {
	cert, err := bundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(r), time.Hour)
	b.must(err)
	return clientconfig.NewConfig("lab", nil, bundle.Certs.OS.Crt, cert)
}

// Talosconfig implements Bench.
func (b *labBench) Talosconfig() *clientconfig.Config { return b.credential(b.own, role.Admin) }

// Reader implements Bench.
func (b *labBench) Reader() *clientconfig.Config { return b.credential(b.own, role.Reader) }

// Foreign implements Bench.
func (b *labBench) Foreign() *clientconfig.Config { return b.credential(b.other, role.Admin) }

// Absent implements Bench.
func (b *labBench) Absent() string { return netip.AddrFrom4([4]byte{127, 0, b.net, 250}).String() }

// Kill implements Bench.
func (b *labBench) Kill(name string) { b.must(b.lab.Kill(name)) }

// Start implements Bench.
func (b *labBench) Start(name string) { b.must(b.lab.Start(name)) }

// Wipe implements Bench.
func (b *labBench) Wipe(name string) { b.must(b.lab.Wipe(name)) }

// Cut implements Bench.
func (b *labBench) Cut(name string) { b.must(b.lab.Cut(name)) }

// Heal implements Bench.
func (b *labBench) Heal(name string) { b.must(b.lab.Heal(name)) }

// SetNodeReady implements Bench.
func (b *labBench) SetNodeReady(name string, ready bool) { b.lab.Node(name).SetNodeReady(ready) }

// Reinstall implements Bench.
func (b *labBench) Reinstall(name, version string) {
	b.must(b.lab.Node(name).Reinstall(version))
}
