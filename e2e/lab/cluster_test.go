package lab_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// nextNet hands out a loopback network of its own to each test: 127.0.1 and up; other packages begin at 127.0.90.
var nextNet atomic.Int32

// oneBundle makes the secrets that the tests share: an RSA key costs seconds.
var oneBundle = sync.OnceValues(func() (*secrets.Bundle, error) {
	return secrets.NewBundle(secrets.NewFixedClock(time.Now().Add(-time.Minute)), config.TalosVersion1_13)
})

// rig is a lab with one cluster's secrets, for tests.
type rig struct {
	t      *testing.T
	ctx    context.Context
	lab    *lab.Lab
	dir    string
	bundle *secrets.Bundle
	net    int32
	events events
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 180*time.Second)
	t.Cleanup(cancel)
	b, err := oneBundle()
	must(t, err)
	r := &rig{t: t, ctx: ctx, dir: t.TempDir(), bundle: b, net: nextNet.Add(1)}
	r.open()
	t.Cleanup(func() { r.lab.Close() })
	return r
}

func (r *rig) open() {
	r.t.Helper()
	l, err := lab.New(r.ctx, lab.Options{StateDir: r.dir, OnEvent: func(e node.Event) {
		r.events.add(e)
		r.t.Logf("%s %s %s %s", e.Time.Format("05.000"), e.Node, e.Kind, e.Detail)
	}})
	must(r.t, err)
	r.lab = l
}

// addr is the i-th address of the test's network.
func (r *rig) addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, byte(r.net), byte(i)}) }

func (r *rig) config(t mtype.Type, hostname string) []byte {
	r.t.Helper()
	in, err := generate.NewInput("lab", "https://"+r.addr(1).String()+":6443", "1.36.0",
		generate.WithSecretsBundle(r.bundle), generate.WithVersionContract(config.TalosVersion1_13),
		generate.WithInstallDisk("/dev/vda"))
	must(r.t, err)
	p, err := in.Config(t)
	must(r.t, err)
	b, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	must(r.t, err)
	return []byte(strings.Replace(string(b), "auto: stable", "hostname: "+hostname, 1))
}

func (r *rig) insecure(name string) *client.Client {
	r.t.Helper()
	c, err := client.New(r.ctx, client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}),
		client.WithEndpoints(r.lab.Node(name).Spec().Address.String()))
	must(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) secure(name string, roles ...role.Role) *client.Client {
	r.t.Helper()
	if len(roles) == 0 {
		roles = []role.Role{role.Admin}
	}
	cert, err := r.bundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(roles...), time.Hour)
	must(r.t, err)
	addr := r.lab.Node(name).Spec().Address.String()
	c, err := client.New(r.ctx, client.WithConfig(clientconfig.NewConfig("lab", []string{addr}, r.bundle.Certs.OS.Crt, cert)))
	must(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) apply(c *client.Client, data []byte, mode machine.ApplyConfigurationRequest_Mode) *machine.ApplyConfiguration {
	r.t.Helper()
	resp, err := c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: data, Mode: mode})
	must(r.t, err)
	return resp.Messages[0]
}

// bringUp makes n control planes (cp1...) and one worker (w1) and waits until all are ready.
func (r *rig) bringUp(controlPlanes int, worker bool) {
	r.t.Helper()
	for i := 1; i <= controlPlanes; i++ {
		r.add(fmt.Sprintf("cp%d", i), i)
	}
	if worker {
		r.add("w1", 9)
	}
	for _, n := range r.lab.Nodes() {
		must(r.t, r.lab.WaitMaintenance(r.ctx, n.Name()))
		kind := mtype.TypeControlPlane
		if n.Name() == "w1" {
			kind = mtype.TypeWorker
		}
		r.apply(r.insecure(n.Name()), r.config(kind, n.Name()), machine.ApplyConfigurationRequest_AUTO)
	}
	r.bootstrap("cp1")
	for _, n := range r.lab.Nodes() {
		must(r.t, r.lab.WaitReady(r.ctx, n.Name()))
	}
	must(r.t, r.lab.Wait(r.ctx, "all members to vote", func() bool { return r.voters() == controlPlanes }))
}

func (r *rig) add(name string, i int) {
	r.t.Helper()
	_, err := r.lab.AddNode(node.Spec{Name: name, Address: r.addr(i)})
	must(r.t, err)
}

// bootstrap calls Bootstrap as a client does: until it is accepted.
func (r *rig) bootstrap(name string) {
	r.t.Helper()
	c := r.secure(name)
	var last error
	err := r.lab.Wait(r.ctx, "bootstrap to be accepted", func() bool {
		ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
		defer cancel()
		last = c.Bootstrap(ctx, &machine.BootstrapRequest{})
		return last == nil
	})
	if err != nil {
		r.t.Fatalf("%v (last: %v)", err, last)
	}
}

func (r *rig) voters() int {
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
	defer cancel()
	cl, err := r.lab.EtcdClient(ctx)
	if err != nil {
		return 0
	}
	defer cl.Close()
	list, err := cl.MemberList(ctx)
	if err != nil {
		return 0
	}
	n := 0
	for _, m := range list.Members {
		if !m.IsLearner && m.Name != "" {
			n++
		}
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBringUp(t *testing.T) {
	r := newRig(t)
	r.bringUp(3, true)
	for _, n := range r.lab.Nodes() {
		c := n.Counters()
		if c.ApplyConfiguration != 1 || c.Reboot != 0 {
			t.Errorf("node %s was written to %+v", n.Name(), c)
		}
		if c.Bootstrap != map[string]int{"cp1": 1}[n.Name()] {
			t.Errorf("node %s was bootstrapped %d times", n.Name(), c.Bootstrap)
		}
	}
}

// withNode asks for another node through the one that is called.
func withNode(ctx context.Context, target string) context.Context {
	return client.WithNode(ctx, target)
}
