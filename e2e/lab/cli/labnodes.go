package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"golang.org/x/sync/errgroup"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/kube"
	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// refusal is what a node says that was told to refuse.
const refusal = "configuration refused: the lab was told so"

// configuredWait bounds how long --configured waits for the clusters to run.
const configuredWait = 5 * time.Minute

// labNodes are the simulated machines of package lab.
type labNodes struct {
	lab  *lab.Lab
	opt  NodesOptions
	mu   sync.Mutex
	info map[string]Machine
	// faults that this process put on, by node; they end with it, as the network's do.
	faults map[string][]string
	undo   map[string][]func()
	// kubernetes behind the nodes; nil where there is none.
	kubernetes *kube.Kubernetes
}

// NewNodes opens the simulated machines in a folder; those that are there go on where they were.
func NewNodes(ctx context.Context, o NodesOptions) (Nodes, error) {
	profile := lab.Fast
	if o.Real {
		profile = lab.Real
	}
	var k *kube.Kubernetes
	var behind node.Kubernetes
	if o.Kubernetes != nil {
		k = kube.New(kube.Options{Tools: *o.Kubernetes, Real: o.Real})
		behind = k
	}
	l, err := lab.New(ctx, lab.Options{StateDir: o.Dir, Profile: profile, Kubernetes: behind, OnEvent: func(e node.Event) {
		o.OnEvent("node."+e.Kind, map[string]any{"node": e.Node, "detail": e.Detail})
	}})
	if err != nil {
		return nil, err
	}
	return &labNodes{lab: l, kubernetes: k, opt: o, info: map[string]Machine{}, faults: map[string][]string{}, undo: map[string][]func(){}}, nil
}

// Start implements Nodes.
func (n *labNodes) Start(ctx context.Context, machines []Machine, conf *Configured) error {
	var fresh []Machine
	at := map[netip.Addr]string{}
	for _, x := range n.lab.Nodes() {
		at[x.Spec().Address] = x.Name()
	}
	for _, m := range machines {
		// a name that another cluster's machine takes too does not rename the node that is there
		if name := at[m.Address]; name == m.Name || name == m.Cluster+"."+m.Name {
			m.Node = name
		}
		n.info[m.Node] = m
		switch x := n.lab.Node(m.Node); {
		case x == nil:
			fresh = append(fresh, m)
		case x.Spec().Address != m.Address:
			n.opt.Log.Warn("node is not where the repository says; ichor-lab node move brings it there", "node", m.Node, "address", x.Spec().Address, "endpoint", m.Address)
		}
	}
	if conf != nil {
		return n.startConfigured(ctx, fresh, conf)
	}
	for _, m := range fresh {
		if _, err := n.lab.AddNode(m.spec()); err != nil {
			return err
		}
	}
	return nil
}

// spec of a machine that was never there before. It has the disk that its installation means.
func (m Machine) spec() node.Spec {
	s := node.Spec{Name: m.Node, Address: m.Address, UUID: m.UUID, TalosVersion: m.TalosVersion}
	if m.Disk != "" || len(m.Selector) > 0 {
		s.Disks = []node.Disk{m.disk()}
	}
	return s
}

// startConfigured starts new machines as members of running clusters, cluster by cluster.
func (n *labNodes) startConfigured(ctx context.Context, fresh []Machine, conf *Configured) error {
	ctx, cancel := context.WithTimeout(ctx, configuredWait)
	defer cancel()
	byCluster := map[string][]Machine{}
	for _, m := range fresh {
		byCluster[m.Cluster] = append(byCluster[m.Cluster], m)
	}
	// All clusters at once: bringing up one is mostly waiting.
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range conf.Fleet.Clusters {
		g.Go(func() error {
			if err := n.lab.EnsureEtcd(ctx, n.planes(c.Name)); err != nil {
				return err
			}
			if list := byCluster[c.Name]; len(list) > 0 {
				return n.startCluster(ctx, c.Name, list, conf)
			}
			return nil
		})
	}
	return g.Wait()
}

// rendering keeps renders of several clusters one after another: each uses all cores.
var rendering sync.Mutex

// startCluster starts the new machines of one cluster and waits until they run.
func (n *labNodes) startCluster(ctx context.Context, cluster string, list []Machine, conf *Configured) error {
	rendering.Lock()
	configs, err := realConfigs(ctx, conf, cluster)
	rendering.Unlock()
	if err != nil {
		return err
	}
	var start []lab.Configured
	first := ""
	for _, m := range list {
		cfg, approved := configs[m.Name]
		if !approved {
			// pending and rejected machines wait in maintenance mode, as nobody configured them
			if _, err := n.lab.AddNode(m.spec()); err != nil {
				return err
			}
			continue
		}
		if m.Role == v1alpha1.RoleControlPlane && first == "" {
			first = m.Node
		}
		start = append(start, lab.Configured{Spec: m.spec(), Config: cfg})
	}
	if len(list) < len(addresses(n.all(), cluster)) {
		first = "" // the others run already: etcd is there to be joined
	}
	if err := n.lab.FromConfigured(ctx, start, first); err != nil {
		return fmt.Errorf("start configured cluster %s: %w", cluster, err)
	}
	return nil
}

// planes are the names of a cluster's control planes, in order.
func (n *labNodes) planes(cluster string) []string {
	var out []string
	for _, m := range n.all() {
		if m.Cluster == cluster && m.Role == v1alpha1.RoleControlPlane {
			out = append(out, m.Node)
		}
	}
	slices.Sort(out)
	return out
}

func (n *labNodes) all() []Machine {
	var res []Machine
	for _, m := range n.info {
		res = append(res, m)
	}
	return res
}

// realConfigs renders the approved machines of a cluster with its real secrets.
func realConfigs(ctx context.Context, conf *Configured, cluster string) (map[string][]byte, error) {
	c := conf.Fleet.Cluster(cluster)
	results, err := render.Cluster(ctx, render.Input{Cluster: c, Bundle: conf.Bundles[cluster], Values: conf.Keys})
	if err != nil {
		return nil, fmt.Errorf("render cluster %s: %w", cluster, err)
	}
	res := map[string][]byte{}
	for _, r := range results {
		if r.Machine.Manifest.Spec.ApprovalState != v1alpha1.ApprovalApproved {
			continue
		}
		if r.Err != nil {
			return nil, fmt.Errorf("render machine %s of cluster %s: it does not render; \"ichor check\" says why", r.Machine.Name, cluster)
		}
		res[r.Machine.Name] = r.Config.Reveal()
	}
	return res, nil
}

// List implements Nodes.
func (n *labNodes) List() []NodeInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	res := []NodeInfo{}
	for _, x := range n.lab.Nodes() {
		m, c := n.info[x.Name()], x.Counters()
		res = append(res, NodeInfo{
			Name: x.Name(), Cluster: m.Cluster, Role: m.Role, Address: x.Spec().Address.String(), UUID: x.Spec().UUID, Stage: x.Stage(),
			Faults: strings.Join(n.faults[x.Name()], ","), Configurations: c.ApplyConfiguration, Bootstraps: c.Bootstrap, Reboots: c.Reboot,
			Fingerprint: x.MaintenanceFingerprint(),
		})
	}
	return res
}

// strangerConfig is the configuration of a control plane of a cluster that nobody knows.
func strangerConfig(addr netip.Addr) ([]byte, error) {
	b, _, err := bundle.Generate("v1.13", secrets.NewFixedClock(time.Now().Add(-time.Hour)))
	if err != nil {
		return nil, err
	}
	in, err := generate.NewInput("stranger", "https://"+addr.String()+":6443", "1.36.0", generate.WithSecretsBundle(b.Secrets()),
		generate.WithVersionContract(config.TalosVersion1_13), generate.WithInstallDisk("/dev/vda"))
	if err != nil {
		return nil, err
	}
	p, err := in.Config(mtype.TypeControlPlane)
	if err != nil {
		return nil, err
	}
	return p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
}

// Close implements Nodes.
func (n *labNodes) Close() error {
	err := n.lab.Close()
	if n.kubernetes != nil {
		n.kubernetes.Close()
	}
	return err
}
