package node

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
)

// Directory is the discovery service of a lab: who belongs to which cluster. What it knows of a cluster is the same
// for all of its nodes, so its Affiliates and Members exist once and each node shows them as its own: with a record
// for each pair of nodes, a thousand nodes would need a million.
type Directory struct {
	mu       sync.Mutex
	clusters map[string]*affiliates
}

// NewDirectory returns an empty one.
func NewDirectory() *Directory { return &Directory{clusters: map[string]*affiliates{}} }

// of gives what is known of a cluster.
func (d *Directory) of(clusterID string) *affiliates {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.clusters[clusterID]
	if a == nil {
		core := newCore(cluster.NamespaceName)
		a = &affiliates{core: core, state: state.WrapCore(core), byID: map[string]peerInfo{}, readers: map[*boot]bool{}}
		d.clusters[clusterID] = a
	}
	return a
}

// affiliates are the nodes of one cluster.
type affiliates struct {
	core  state.CoreState
	state state.State

	mu      sync.Mutex
	byID    map[string]peerInfo
	readers map[*boot]bool
}

// add takes a node in, or what changed of it, and forgets an earlier machine at its address. It gives the boots whose
// endpoints may have changed by it.
func (a *affiliates) add(b *boot, p peerInfo) []*boot {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.readers[b] = true
	planes := p.kind.IsControlPlane()
	for id, old := range a.byID {
		if id != p.id && old.addr != p.addr {
			continue
		}
		planes = planes || old.kind.IsControlPlane()
		if id != p.id {
			delete(a.byID, id)
			a.drop("cluster.AffiliateMergeController", cluster.NewAffiliate(cluster.NamespaceName, id).Metadata())
		}
		if old.host != p.host {
			a.drop("cluster.MemberController", cluster.NewMember(cluster.NamespaceName, old.host).Metadata())
		}
	}
	a.byID[p.id] = p
	a.show(b, p)
	if !planes {
		return nil
	}
	out := make([]*boot, 0, len(a.readers))
	for r := range a.readers {
		out = append(out, r)
	}
	return out
}

// leave is the end of a boot.
func (a *affiliates) leave(b *boot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.readers, b)
}

// planes are the control planes' addresses, in order.
func (a *affiliates) planes() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []netip.Addr
	for _, p := range a.byID {
		if p.kind.IsControlPlane() {
			out = append(out, p.addr)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// show writes the Affiliate and Member of a node. They outlive its boot, so they are not written in its name.
func (a *affiliates) show(b *boot, p peerInfo) {
	var cp *cluster.ControlPlane
	if p.kind.IsControlPlane() {
		cp = &cluster.ControlPlane{APIServerPort: 6443}
	}
	err := cmp.Or(
		modify(a.state, "cluster.AffiliateMergeController", cluster.NewAffiliate(cluster.NamespaceName, p.id), func(r *cluster.Affiliate) {
			*r.TypedSpec() = cluster.AffiliateSpec{
				NodeID: p.id, Addresses: []netip.Addr{p.addr}, Hostname: p.host, Nodename: p.host,
				OperatingSystem: p.system, MachineType: p.kind, ControlPlane: cp,
			}
		}),
		modify(a.state, "cluster.MemberController", cluster.NewMember(cluster.NamespaceName, p.host), func(r *cluster.Member) {
			*r.TypedSpec() = cluster.MemberSpec{
				NodeID: p.id, Addresses: []netip.Addr{p.addr}, Hostname: p.host,
				MachineType: p.kind, OperatingSystem: p.system, ControlPlane: cp,
			}
		}))
	if err != nil {
		b.node.emit("error", "announce: "+err.Error())
	}
}

func modify[T resource.Resource](st state.State, owner string, r T, fn func(T)) error {
	return safe.StateModify(context.Background(), st, r, func(r T) error {
		fn(r)
		return nil
	}, state.WithUpdateOwner(owner))
}

func (a *affiliates) drop(owner string, md *resource.Metadata) {
	// it may be gone with another entry of that name
	_ = a.state.Destroy(context.Background(), md, state.WithDestroyOwner(owner))
}

// newCore is the state of one namespace, with the depth of history that Talos keeps.
func newCore(ns resource.Namespace) state.CoreState {
	return inmem.NewStateWithOptions(
		inmem.WithHistoryInitialCapacity(8), inmem.WithHistoryMaxCapacity(1024), inmem.WithHistoryGap(4))(ns)
}

// clusterCore is a node's namespace "cluster": its own identity, and, once it announced itself, what the lab's
// directory knows of the others.
type clusterCore struct {
	state.CoreState
	b *boot
}

func (c clusterCore) pick(t resource.Type) state.CoreState {
	if t == cluster.AffiliateType || t == cluster.MemberType {
		if a := c.b.affiliates(); a != nil {
			return a.core
		}
	}
	return c.CoreState
}

// Get implements state.CoreState.
func (c clusterCore) Get(ctx context.Context, p resource.Pointer, o ...state.GetOption) (resource.Resource, error) {
	return c.pick(p.Type()).Get(ctx, p, o...)
}

// List implements state.CoreState.
func (c clusterCore) List(ctx context.Context, k resource.Kind, o ...state.ListOption) (resource.List, error) {
	return c.pick(k.Type()).List(ctx, k, o...)
}

// Watch implements state.CoreState.
func (c clusterCore) Watch(ctx context.Context, p resource.Pointer, ch chan<- state.Event, o ...state.WatchOption) error {
	return c.pick(p.Type()).Watch(ctx, p, ch, o...)
}

// WatchKind implements state.CoreState.
func (c clusterCore) WatchKind(ctx context.Context, k resource.Kind, ch chan<- state.Event, o ...state.WatchKindOption) error {
	return c.pick(k.Type()).WatchKind(ctx, k, ch, o...)
}

// WatchKindAggregated implements state.CoreState.
func (c clusterCore) WatchKindAggregated(ctx context.Context, k resource.Kind, ch chan<- []state.Event, o ...state.WatchKindOption) error {
	return c.pick(k.Type()).WatchKindAggregated(ctx, k, ch, o...)
}

// affiliates are those of the node's cluster, nil while it has not announced itself.
func (b *boot) affiliates() *affiliates {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cluster
}

// announce registers the node with the directory, as a node does with the discovery service, and tells the others
// of its cluster when their control planes change by it.
func (b *boot) announce() {
	me, ok := b.info()
	b.mu.Lock()
	known, before := b.announced, b.cluster
	b.announced = me
	if !ok {
		b.cluster = nil // with discovery off it knows nobody
	}
	b.mu.Unlock()
	switch {
	case !ok && before != nil:
		before.leave(b)
	case ok && me != known:
		a := b.node.opts.Directory.of(b.config().Cluster().ID())
		b.mu.Lock()
		b.cluster = a
		b.mu.Unlock()
		if before != nil && before != a {
			before.leave(b)
		}
		for _, other := range a.add(b, me) {
			if other != b {
				other.showEndpoints()
			}
		}
	}
	b.showEndpoints()
}
