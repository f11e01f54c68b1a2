// Package kube is real Kubernetes for the lab: a real kube-apiserver, kube-controller-manager and kube-scheduler on the
// etcd members of a cluster's control planes, and simulated kubelets, which register Nodes, keep their leases and play
// the pods' part. docs/lab.md (section Kubernetes) says what is real and what is not.
package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// Ports of a control plane's own address behind its gates. Nothing but the programs of that machine uses them.
const (
	backendPort = 16443
	etcdPort    = 12379
)

// Options configure Kubernetes for a lab.
type Options struct {
	// Tools are the programs; FindTools finds them.
	Tools Tools
	// Real makes leases and elections as slow as they are by default; else a node that is cut off is NotReady after some
	// ten seconds.
	Real bool
	// Servers is how many control planes may have an API server, a controller manager and a scheduler of their own. Beyond
	// that, the control planes of a cluster share one set, that of the first of them. 0: as many as the memory that is
	// free now has room for. A cluster has one in any case.
	Servers int
}

// perControlPlane is what a control plane's three programs need, in bytes: measured 300 MB, 110 MB and 70 MB at rest,
// and some more.
const perControlPlane = 600 << 20

// Kubernetes runs behind the nodes of one lab. Close it after the lab.
type Kubernetes struct {
	opts   Options
	timing timing

	mu       sync.Mutex
	servers  int // how many may still be started
	clusters map[string]*cluster
}

// cluster is what the control planes of one cluster share.
type cluster struct {
	mu       sync.Mutex
	owners   map[string]*owner // control planes with programs of their own, by the lab's name
	changed  chan struct{}     // closed when owners change
	balancer *balancer
	members  map[netip.Addr]bool // control planes that ever ran here
	joined   chan struct{}       // closed when members change
}

// owner is a control plane that runs the programs.
type owner struct{ backend string }

var _ node.Kubernetes = (*Kubernetes)(nil)

// New makes Kubernetes for a lab; nothing runs before a control plane does.
func New(o Options) *Kubernetes {
	k := &Kubernetes{opts: o, timing: fast, servers: o.Servers, clusters: map[string]*cluster{}}
	if o.Real {
		k.timing = real
	}
	if k.servers == 0 {
		k.servers = max(1, int((freeMemory()-(1<<30))/perControlPlane))
	}
	return k
}

// Close ends what answers for whole clusters. The nodes' part ends with the nodes.
func (k *Kubernetes) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.clusters {
		c.mu.Lock()
		if c.balancer != nil {
			c.balancer.ln.Close()
		}
		c.mu.Unlock()
	}
}

// cluster of a configuration: it is known by its Kubernetes authority.
func (k *Kubernetes) cluster(cfg config.Provider) *cluster {
	id := string(cfg.Cluster().IssuingCA().Crt)
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.clusters[id]
	if c == nil {
		c = &cluster{owners: map[string]*owner{}, changed: make(chan struct{}), members: map[netip.Addr]bool{}, joined: make(chan struct{})}
		k.clusters[id] = c
	}
	return c
}

// own makes a control plane run programs of its own, if there is room or nobody else in the cluster does. Otherwise it
// gives what to wait for.
func (k *Kubernetes) own(c *cluster, h *node.Host, backend string) (release func(), wait <-chan struct{}) {
	name := h.Name()
	k.mu.Lock()
	defer k.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.servers <= 0 && c.nearest(h) != nil {
		return nil, c.changed
	}
	k.servers--
	c.owners[name] = &owner{backend: backend}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		k.servers++
		delete(c.owners, name)
		close(c.changed)
		c.changed = make(chan struct{})
	}, nil
}

// backend is where the API server for a control plane listens: its own, else one that the cluster's control planes share.
func (c *cluster) backend(h *node.Host) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.nearest(h); o != nil {
		return o.backend
	}
	return ""
}

// nearest gives a control plane's own programs, else those of the first control plane that it reaches, nil where there
// are none; c.mu is held.
func (c *cluster) nearest(h *node.Host) *owner {
	if o := c.owners[h.Name()]; o != nil {
		return o
	}
	for _, n := range slices.Sorted(maps.Keys(c.owners)) {
		if h.Net().Verdict(h.Name(), n) == wire.Open && h.Net().Verdict(n, h.Name()) == wire.Open {
			return c.owners[n]
		}
	}
	return nil
}

// join notes a control plane.
func (c *cluster) join(addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.members[addr] {
		c.members[addr] = true
		close(c.joined)
		c.joined = make(chan struct{})
	}
}

// shareCertificate makes the certificate of an API server that others share good for their addresses too, as they come.
// The server reads the files again by itself.
func (k *Kubernetes) shareCertificate(ctx context.Context, c *cluster, h *node.Host, l layout, cfg config.Provider) {
	for ctx.Err() == nil {
		k.mu.Lock()
		shared := k.servers <= 0
		k.mu.Unlock()
		c.mu.Lock()
		joined := c.joined
		var more []net.IP
		for a := range c.members {
			more = append(more, a.AsSlice())
		}
		c.mu.Unlock()
		if shared && len(more) > 1 {
			if err := l.writeServerCertificate(cfg, h, more); err != nil {
				h.Emit("error", err.Error())
			}
		}
		wait(ctx, joined)
	}
}

// balance lets the lab answer at the cluster's endpoint where no machine does.
func (c *cluster) balance(h *node.Host, cfg config.Provider) {
	addr, ok := loopback(cfg.Cluster().Endpoint().Hostname())
	if !ok || h.IsMachine(addr) {
		return
	}
	at := netip.AddrPortFrom(addr, endpointPort(cfg))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.balancer == nil {
		b, err := openBalancer(at)
		if err != nil {
			h.Emit("error", fmt.Sprintf("answer at the cluster's endpoint %s: %v", at, err))
			return
		}
		c.balancer = b
	}
	c.balancer.set(h.Name(), netip.AddrPortFrom(h.Spec().Address, apiPort(cfg)))
}

// ControlPlane implements node.Kubernetes.
func (k *Kubernetes) ControlPlane(ctx context.Context, h *node.Host, ready func(pod string, ok bool)) {
	cfg := h.Config()
	if cfg == nil || cfg.Cluster() == nil || cfg.Cluster().IssuingCA() == nil || len(cfg.Cluster().IssuingCA().Key) == 0 {
		h.Emit("error", "start Kubernetes: the configuration has no Kubernetes authority with a key")
		return
	}
	c := k.cluster(cfg)
	c.balance(h, cfg)
	c.join(h.Spec().Address)
	l := layout{
		dir: h.RunDir(), local: netip.AddrPortFrom(h.Spec().Address, backendPort),
		etcd: netip.AddrPortFrom(h.Spec().Address, etcdPort), timing: k.timing,
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	g := &gate{h: h, addr: netip.AddrPortFrom(h.Spec().Address, apiPort(cfg)), to: func() string { return c.backend(h) }}
	wg.Go(func() { g.follow(ctx) })
	wg.Go(func() { k.watchReady(ctx, h, cfg, ready) })
	said := ""
	say := func(text string) {
		if said != text {
			said = text
			h.Emit("kubernetes", text)
		}
	}
	for ctx.Err() == nil {
		release, other := k.own(c, h, l.local.String())
		if release == nil {
			say("shares the API server of another control plane: there is no memory for one more")
			// Looked at again and again, for a cut between the two says nothing.
			look, cancel := context.WithTimeout(ctx, time.Second)
			wait(look, other)
			cancel()
			continue
		}
		say("has an API server, a controller manager and a scheduler of its own")
		k.programs(ctx, c, h, l)
		release()
	}
}

// programs runs a control plane's programs until ctx ends. A change of the configuration restarts those whose command
// line or files it changes.
func (k *Kubernetes) programs(ctx context.Context, c *cluster, h *node.Host, l layout) {
	ln, err := net.Listen("tcp", l.etcd.String())
	if err != nil {
		h.Emit("error", "start Kubernetes: "+err.Error())
		sleep(ctx, time.Second)
		return
	}
	go serve(ln, dialer(h.Etcd))
	defer ln.Close()
	for ctx.Err() == nil {
		changed := h.ConfigChanged()
		cfg := h.Config()
		if cfg == nil || cfg.Cluster() == nil {
			wait(ctx, changed)
			continue
		}
		list, sum, err := k.components(h, l, cfg)
		if err != nil {
			h.Emit("error", "start Kubernetes: "+err.Error())
			wait(ctx, changed)
			continue
		}
		run, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for _, p := range list {
			wg.Go(func() { k.process(h, l, p).run(run) })
		}
		wg.Go(func() { k.shareCertificate(run, c, h, l, cfg) })
		wg.Go(func() { k.bootstrapped(run, h, cfg) })
		for ctx.Err() == nil {
			wait(ctx, changed)
			changed = h.ConfigChanged()
			if now := fingerprint(h.Config(), h); !bytes.Equal(now, sum) {
				break
			}
		}
		cancel()
		wg.Wait()
	}
}

func (k *Kubernetes) process(h *node.Host, l layout, c component) *process {
	grace := max(h.Timings().Stop, 2*time.Second)
	return &process{
		name: c.pod, path: c.path, args: c.args, env: c.env, log: l.file(c.pod + ".log"), grace: grace,
		lost: h.Lost, say: func(detail string) { h.Emit("kubernetes", detail) },
	}
}

// components writes the files of a control plane and gives its programs.
func (k *Kubernetes) components(h *node.Host, l layout, cfg config.Provider) ([]component, []byte, error) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(writeSecrets(l.dir, cfg, h), l.writeConfigs(cfg)); err != nil {
		return nil, nil, err
	}
	api, err1 := l.apiServer(k.opts.Tools, cfg, h)
	list := []component{api}
	var err2, err3 error
	if cfg.K8sControllerManagerConfig().Enabled() {
		var c component
		c, err2 = l.controllerManager(k.opts.Tools, cfg)
		list = append(list, c)
	}
	if cfg.K8sSchedulerConfig().Enabled() {
		var c component
		c, err3 = l.scheduler(k.opts.Tools, cfg)
		list = append(list, c)
	}
	return list, fingerprint(cfg, h), errors.Join(err1, err2, err3)
}

// fingerprint changes when something changes that the programs of a control plane are started with.
func fingerprint(cfg config.Provider, h *node.Host) []byte {
	if cfg == nil || cfg.Cluster() == nil {
		return nil
	}
	l := layout{}
	ips, dns := serverNames(cfg, h)
	var t Tools
	api, _ := l.apiServer(t, cfg, h)
	manager, _ := l.controllerManager(t, cfg)
	scheduler, _ := l.scheduler(t, cfg)
	var out bytes.Buffer
	for _, v := range []any{
		ips, dns, acceptedCAs(cfg), cfg.Cluster().IssuingCA().Crt, cfg.Cluster().ServiceAccount(), admissionControl(cfg), authorization(cfg),
		encryption(cfg), api.args, api.env, api.image, manager.args, manager.env, manager.image, scheduler.args, scheduler.env, scheduler.image,
	} {
		data, _ := json.Marshal(v) //nolint:errcheck // these are plain values
		out.Write(data)
	}
	return out.Bytes()
}

// near is the API server that a control plane's own programs, kubelet and Talos talk to: on the machine itself, which no
// fault of the network is in front of, unless it shares another's.
func (k *Kubernetes) near(h *node.Host, cfg config.Provider) netip.AddrPort {
	c := k.cluster(cfg)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owners[h.Name()] != nil {
		return netip.AddrPortFrom(h.Spec().Address, backendPort)
	}
	return netip.AddrPortFrom(h.Spec().Address, apiPort(cfg))
}

// admin is a client for the nearest API server, as Talos on a control plane has one.
func (k *Kubernetes) admin(h *node.Host, cfg config.Provider) (*client, error) {
	cert, err := issue(cfg.Cluster().IssuingCA(), identity{name: "talos:admin", organization: adminGroup, life: 24 * time.Hour})
	if err != nil {
		return nil, err
	}
	key, err := tls.X509KeyPair(cert.Crt, cert.Key)
	if err != nil {
		return nil, err
	}
	return newClient(h.Spec().Address, func() []netip.AddrPort { return []netip.AddrPort{k.near(h, cfg)} }, acceptedCAs(cfg), &key, ""), nil
}

// bootstrapped applies the bootstrap manifests, until that worked.
func (k *Kubernetes) bootstrapped(ctx context.Context, h *node.Host, cfg config.Provider) {
	c, err := k.admin(h, cfg)
	if err != nil {
		h.Emit("error", err.Error())
		return
	}
	defer c.close()
	for ctx.Err() == nil && applyManifests(ctx, c, cfg) != nil {
		sleep(ctx, k.timing.retry)
	}
}

// watchReady tells how the static pods are: the API server by its own word, the others by whether it lives, because
// they serve no port in the lab.
func (k *Kubernetes) watchReady(ctx context.Context, h *node.Host, cfg config.Provider, ready func(string, bool)) {
	c, err := k.admin(h, cfg)
	if err != nil {
		h.Emit("error", err.Error())
		return
	}
	defer c.close()
	was := false
	for first := true; ctx.Err() == nil; first = false {
		err := c.do(ctx, http.MethodGet, "/readyz", "", nil, nil)
		if ok := err == nil; (ok != was || first) && ctx.Err() == nil {
			was = ok
			for _, p := range node.StaticPods() {
				ready(p, ok)
			}
			h.Emit("kubernetes", map[bool]string{true: "the API server is ready", false: "the API server is not ready"}[ok])
		}
		sleep(ctx, k.timing.probe)
	}
}

// freeMemory is what the kernel says is available, in bytes.
func freeMemory() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for _, line := range bytes.Split(data, []byte("\n")) {
		f := bytes.Fields(line)
		if len(f) > 1 && string(f[0]) == "MemAvailable:" {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64) //nolint:errcheck // 0 then
			return n << 10
		}
	}
	return 0
}

func endpointPort(cfg config.Provider) uint16 {
	if n, err := strconv.ParseUint(cfg.Cluster().Endpoint().Port(), 10, 16); err == nil {
		return uint16(n)
	}
	return 443
}

func sortAddrs(list []netip.AddrPort) {
	slices.SortFunc(list, func(a, b netip.AddrPort) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Port(), b.Port()))
	})
}

// wait for a channel to close, or for the end.
func wait(ctx context.Context, c <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-c:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
