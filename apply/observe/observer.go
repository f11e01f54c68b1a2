package observe

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"ichor.maesh.dev/ichor/apply/etcd"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// DefaultParallel is how many machines are read at once.
const DefaultParallel = 64

// Cluster is what an Observer needs to know to read one.
type Cluster struct {
	Name string
	// Bundle with the real secrets. nil: they can't be opened, so nothing can be read.
	Bundle *bundle.Bundle
	// Interval between reads of a machine at rest, Grace after which one that does not answer counts as down, and Retry
	// between reads within it.
	Interval, Grace, Retry time.Duration
	// MaxIndexLag of a healthy member's applied index.
	MaxIndexLag uint64
	// FingerprintKey for plan.ConfigFact.Running; it must stay the same as long as fingerprints are compared.
	FingerprintKey []byte
	Machines       []Machine
}

// Machine is one to be read.
type Machine struct {
	Name, Role, Endpoint string
	// Wish is the configuration that the head renders for it, Masked its masked form and Digest that one's digest. Empty
	// where it does not render: then the configuration is not compared.
	Wish   secret.Bytes
	Masked mask.Render
	Digest string
	// NodeReadySeen is the inventory's.
	NodeReadySeen bool
}

// Options of an Observer.
type Options struct {
	// Now is the clock (time.Now).
	Now func() time.Time
	// Timeout of one call to a node (talos.DefaultTimeout).
	Timeout time.Duration
	// Parallel reads (DefaultParallel).
	Parallel int
	// Compare a running configuration with the wish (Compare).
	Compare Comparer
}

// Observer reads clusters. It is safe for concurrent use.
type Observer struct {
	opt Options
	// processKey tells bundles apart.
	processKey []byte

	mu       sync.Mutex
	clusters map[string]*cluster
}

// New makes an Observer.
func New(opt Options) *Observer {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Parallel == 0 {
		opt.Parallel = DefaultParallel
	}
	if opt.Compare == nil {
		opt.Compare = Compare
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails (Go 1.24)
	return &Observer{opt: opt, processKey: key, clusters: map[string]*cluster{}}
}

// cluster is what is kept of one.
type cluster struct {
	bundle string
	talos  *talos.Dialer
	etcd   *etcd.Clients

	mu       sync.Mutex
	machines map[string]*machine
}

// machine is what is kept of one.
type machine struct {
	endpoint string
	facts    plan.MachineFacts
	indexes  []sample
	compared comparison
}

// sample of a member's applied index, with the leader's at the same look.
type sample struct {
	at      time.Time
	member  string
	applied uint64
	leader  uint64
}

// cluster gives what is kept of one, with connections made of the present bundle.
func (o *Observer) cluster(spec *Cluster) (*cluster, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.clusters[spec.Name]
	if c == nil {
		c = &cluster{machines: map[string]*machine{}}
		o.clusters[spec.Name] = c
	}
	if spec.Bundle == nil {
		return c, nil
	}
	fp := spec.Bundle.Fingerprint(o.processKey)
	if c.talos != nil && c.bundle == fp {
		return c, nil
	}
	td, err := talos.NewDialer(spec.Bundle, talos.Options{Now: o.opt.Now, Timeout: o.opt.Timeout})
	if err != nil {
		return nil, err
	}
	ec, err := etcd.New(spec.Bundle, o.opt.Now)
	if err != nil {
		td.Close()
		return nil, err
	}
	c.close()
	c.bundle, c.talos, c.etcd = fp, td, ec
	return c, nil
}

func (c *cluster) close() {
	if c.talos != nil {
		c.talos.Close()
		c.etcd.Close()
	}
}

// Dialer gives the connections of a cluster, for acts on its nodes. It fails where the bundle is missing or of no use.
func (o *Observer) Dialer(spec *Cluster) (*talos.Dialer, error) {
	c, err := o.cluster(spec)
	if err != nil {
		return nil, err
	}
	if c.talos == nil {
		return nil, errNoBundle
	}
	return c.talos, nil
}

// Forget drops a cluster with its connections.
func (o *Observer) Forget(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.clusters[name]; c != nil {
		c.close()
		delete(o.clusters, name)
	}
}

// Close drops everything.
func (o *Observer) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, c := range o.clusters {
		c.close()
		delete(o.clusters, name)
	}
}

// Observe reads the machines named in which now (nil: all) and gives the facts of every machine of spec that was ever
// read. An error means that the bundle is of no use; then nothing was read.
func (o *Observer) Observe(ctx context.Context, spec *Cluster, which []string) (map[string]plan.MachineFacts, error) {
	c, err := o.cluster(spec)
	if err != nil {
		return nil, err
	}
	c.prune(spec)
	if c.talos == nil {
		return map[string]plan.MachineFacts{}, nil
	}
	want := map[string]bool{}
	for _, name := range which {
		want[name] = true
	}
	var reads []*read
	for i := range spec.Machines {
		if m := &spec.Machines[i]; which == nil || want[m.Name] {
			reads = append(reads, &read{observer: o, cluster: c, spec: spec, machine: m, before: c.known(m)})
		}
	}
	var g errgroup.Group
	g.SetLimit(o.opt.Parallel)
	for _, r := range reads {
		g.Go(func() error { r.run(ctx); return nil })
	}
	_ = g.Wait() // the reads put what fails into the facts
	o.catchUp(ctx, c, spec, reads)
	o.through(ctx, c, spec, reads)
	if ctx.Err() != nil {
		// A read that was broken off says nothing of its node.
		return c.facts(spec), nil
	}
	for _, r := range reads {
		c.note(r)
	}
	return c.facts(spec), nil
}

// prune forgets machines that the cluster no longer has, and closes their connections.
func (c *cluster) prune(spec *Cluster) {
	have := map[string]bool{}
	var endpoints []string
	for _, m := range spec.Machines {
		have[m.Name] = true
		endpoints = append(endpoints, m.Endpoint)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.machines {
		if !have[name] {
			delete(c.machines, name)
		}
	}
	if c.talos != nil {
		c.talos.Keep(endpoints)
	}
}

// known gives a copy of what is kept of a machine; nothing is kept over a change of its endpoint.
func (c *cluster) known(m *Machine) machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.machines[m.Name]; k != nil && k.endpoint == m.Endpoint {
		return *k
	}
	return machine{endpoint: m.Endpoint}
}

// facts gives copies for every machine of spec that was read.
func (c *cluster) facts(spec *Cluster) map[string]plan.MachineFacts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]plan.MachineFacts, len(spec.Machines))
	for _, m := range spec.Machines {
		if k := c.machines[m.Name]; k != nil && k.endpoint == m.Endpoint {
			out[m.Name] = k.facts
		}
	}
	return out
}

// note keeps what a read found: when the present reach and the present wellness began.
func (c *cluster) note(r *read) {
	f, before := r.facts, r.before.facts
	f.Since = f.At
	if f.Reach == before.Reach && !before.Since.IsZero() {
		f.Since = before.Since
	}
	if plan.SeenWell(f, r.machine.Role, r.machine.NodeReadySeen) {
		f.WellSince = f.At
		if !before.WellSince.IsZero() && before.BootID == f.BootID {
			f.WellSince = before.WellSince
		}
	}
	if r.machine.Role == plan.RoleControlPlane && etcdFails(f) {
		f.EtcdFailingSince = f.At
		if !before.EtcdFailingSince.IsZero() {
			f.EtcdFailingSince = before.EtcdFailingSince
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.machines[r.machine.Name]; k != nil && k.endpoint == r.machine.Endpoint && k.facts.At.After(f.At) {
		// A read that began later was noted already.
		return
	}
	c.machines[r.machine.Name] = &machine{endpoint: r.machine.Endpoint, facts: f, indexes: r.indexes, compared: r.compared}
}
