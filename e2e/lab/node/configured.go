package node

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	yaml "go.yaml.in/yaml/v3"
)

// showConfig brings everything that follows from the active configuration in line with it.
func (b *boot) showConfig() {
	put(b, "config.MachineTypeController", configres.NewMachineType(), func(r *configres.MachineType) {
		r.SetMachineType(b.machineType())
	})
	hostname := b.hostname()
	before := b.members
	b.mu.Lock()
	b.members = hostname
	b.mu.Unlock()
	b.showHostname(hostname)
	b.node.mu.Lock()
	synced := !b.node.badTime
	b.node.mu.Unlock()
	b.showTime(synced)
	if b.complete() {
		b.showIdentity()
		b.showSecrets()
		b.showNode(hostname)
		b.announce()
		b.restartChanged()
		b.startKubernetes()
		if b.startedServices() {
			b.showEnvironment()
		}
	}
	if before != hostname || b.complete() {
		b.recertify()
	}
	b.refresh()
	b.refreshDetails()
}

// hostname is what the machine calls itself: the configuration's name, else what the platform
// says, else what the automatic naming of the configuration makes.
func (b *boot) hostname() string {
	cfg := b.config()
	spec := b.node.Spec()
	if h := HostnameOf(cfg); h != "" {
		return h
	}
	if spec.Hostname != "" {
		return spec.Hostname
	}
	if cfg == nil || cfg.NetworkHostnameConfig() == nil {
		return ""
	}
	switch cfg.NetworkHostnameConfig().AutoHostname() {
	case nethelpers.AutoHostnameKindAddr:
		return "talos-" + strings.ReplaceAll(spec.Address.String(), ".", "-")
	case nethelpers.AutoHostnameKindStable:
		if id := b.identity(); id != "" {
			return stableHostname(id)
		}
	}
	return ""
}

// HostnameOf is the name that a configuration gives the machine, "" where it gives none.
func HostnameOf(cfg config.Provider) string {
	if cfg == nil || cfg.NetworkHostnameConfig() == nil {
		return ""
	}
	return strings.SplitN(cfg.NetworkHostnameConfig().Hostname(), ".", 2)[0]
}

// stableHostname is Talos's name made from the node's identity: talos-xxx-xxx.
func stableHostname(nodeID string) string {
	sum := sha256.Sum256([]byte(nodeID))
	b36 := new(big.Int).SetBytes(sum[:8]).Text(36)
	return fmt.Sprintf("talos-%s-%s", b36[1:4], b36[4:7])
}

func (b *boot) showHostname(hostname string) {
	b.putNetworkStatus(hostname != "")
	if hostname == "" {
		remove(b, "network.HostnameSpecController", network.NewHostnameStatus(network.NamespaceName, network.HostnameID).Metadata())
		return
	}
	put(b, "network.HostnameSpecController", network.NewHostnameStatus(network.NamespaceName, network.HostnameID), func(r *network.HostnameStatus) {
		r.TypedSpec().Hostname = hostname
	})
	put(b, "secrets.MaintenanceCertSANsController", secrets.NewCertSAN(secrets.NamespaceName, secrets.CertSANMaintenanceID), func(r *secrets.CertSAN) {
		*r.TypedSpec() = secrets.CertSANSpec{
			IPs:      []netip.Addr{b.node.Spec().Address, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")},
			DNSNames: []string{hostname}, FQDN: "maintenance-service.talos.dev",
		}
	})
}

func (b *boot) putNetworkStatus(hostname bool) {
	put(b, "network.StatusController", network.NewStatus(network.NamespaceName, network.StatusID), func(r *network.Status) {
		*r.TypedSpec() = network.StatusSpec{AddressReady: true, ConnectivityReady: true, HostnameReady: hostname, EtcFilesReady: true}
	})
}

// identity is the node ID on STATE; a node without STATE has none. It is read once a boot.
func (b *boot) identity() string {
	b.mu.Lock()
	known := b.nodeID
	b.mu.Unlock()
	if known != "" {
		return known
	}
	data, err := os.ReadFile(b.disks.identity())
	if err != nil {
		return ""
	}
	var id cluster.IdentitySpec
	if yaml.Unmarshal(data, &id) != nil {
		return ""
	}
	b.mu.Lock()
	b.nodeID = id.NodeID
	b.mu.Unlock()
	return id.NodeID
}

// showIdentity makes the node's identity on STATE if there is none yet, and shows it. It survives
// reboots and goes with STATE.
func (b *boot) showIdentity() {
	if !exists(b.disks.state()) {
		return
	}
	id := b.identity()
	if id == "" {
		buf := make([]byte, 32)
		rand.Read(buf) //nolint:errcheck // never fails
		id = new(big.Int).SetBytes(buf).Text(62)
		if err := b.disks.write(b.disks.identity(), []byte("nodeId: "+id+"\n")); err != nil {
			b.node.emit("error", err.Error())
			return
		}
	}
	put(b, "cluster.NodeIdentityController", cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity), func(r *cluster.Identity) {
		r.TypedSpec().NodeID = id
	})
}

// showSecrets writes the resources that hold key material; readers are kept from them.
func (b *boot) showSecrets() {
	cfg := b.config()
	sec, cl := cfg.Machine().Security(), cfg.Cluster()
	put(b, "secrets.RootOSController", secrets.NewOSRoot(secrets.OSRootID), func(r *secrets.OSRoot) {
		*r.TypedSpec() = secrets.OSRootSpec{IssuingCA: sec.IssuingCA(), AcceptedCAs: sec.AcceptedCAs(), Token: sec.Token()}
	})
	put(b, "secrets.APICertSANsController", secrets.NewCertSAN(secrets.NamespaceName, secrets.CertSANAPIID), func(r *secrets.CertSAN) {
		h := b.hostname()
		*r.TypedSpec() = secrets.CertSANSpec{
			IPs:      []netip.Addr{b.node.Spec().Address, netip.MustParseAddr("127.0.0.1")},
			DNSNames: names(h), FQDN: h,
		}
	})
	if !b.machineType().IsControlPlane() || !kubernetes(cfg) {
		return
	}
	put(b, "secrets.RootEtcdController", secrets.NewEtcdRoot(secrets.EtcdRootID), func(r *secrets.EtcdRoot) {
		r.TypedSpec().EtcdCA = cl.Etcd().CA()
	})
	put(b, "secrets.RootKubernetesController", secrets.NewKubernetesRoot(secrets.KubernetesRootID), func(r *secrets.KubernetesRoot) {
		*r.TypedSpec() = secrets.KubernetesRootSpec{
			Name: cl.Name(), Endpoint: cl.Endpoint(), IssuingCA: cl.IssuingCA(), AcceptedCAs: cl.AcceptedCAs(),
			ServiceAccount: cl.ServiceAccount(), AggregatorCA: cl.AggregatorCA(),
			AESCBCEncryptionSecret: cl.AESCBCEncryptionSecret(), SecretboxEncryptionSecret: cl.SecretboxEncryptionSecret(),
			BootstrapTokenID: cl.Token().ID(), BootstrapTokenSecret: cl.Token().Secret(),
		}
	})
}

// inKubernetes says whether the node's address lies inside the pod or service networks: Talos then
// takes it for one of Kubernetes' (seen on 1.13.5: the API's certificate leaves it out).
func (b *boot) inKubernetes() bool {
	cfg, addr := b.config(), b.node.Spec().Address
	if cfg == nil || cfg.K8sNetworkConfig() == nil {
		return false
	}
	within := func(p netip.Prefix) bool { return p.Contains(addr) }
	return slices.ContainsFunc(cfg.K8sNetworkConfig().ServiceCIDRs(), within) || slices.ContainsFunc(cfg.K8sNetworkConfig().PodCIDRs(), within)
}

// showNode writes the node's Kubernetes name and addresses, and what etcd will run with.
func (b *boot) showNode(hostname string) {
	spec, cfg := b.node.Spec(), b.config()
	prefix := netip.PrefixFrom(spec.Address, prefixBits)
	own, k8sOnly := []netip.Prefix{prefix}, []netip.Prefix(nil)
	if b.inKubernetes() {
		own, k8sOnly = nil, own
	}
	for _, id := range []string{network.NodeAddressCurrentID, network.NodeAddressRoutedID, network.NodeAddressAccumulativeID} {
		b.putNodeAddress(network.FilteredNodeAddressID(id, k8s.NodeAddressFilterNoK8s), own...)
		b.putNodeAddress(network.FilteredNodeAddressID(id, k8s.NodeAddressFilterOnlyK8s), k8sOnly...)
	}
	if hostname == "" || !kubernetes(cfg) {
		return
	}
	put(b, "k8s.NodenameController", k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID), func(r *k8s.Nodename) {
		*r.TypedSpec() = k8s.NodenameSpec{
			Nodename: hostname, HostnameVersion: "1", SkipNodeRegistration: cfg.Machine().Kubelet().SkipNodeRegistration(),
		}
	})
	put(b, "k8s.NodeIPController", k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID), func(r *k8s.NodeIP) {
		r.TypedSpec().Addresses = []netip.Addr{spec.Address}
	})
	if !b.machineType().IsControlPlane() {
		return
	}
	put(b, "etcd.SpecController", etcd.NewSpec(etcd.NamespaceName, etcd.SpecID), func(r *etcd.Spec) {
		*r.TypedSpec() = etcd.SpecSpec{
			Name: hostname, AdvertisedAddresses: []netip.Addr{spec.Address},
			ListenPeerAddresses: []netip.Addr{netip.IPv4Unspecified()}, ListenClientAddresses: []netip.Addr{netip.IPv4Unspecified()},
			Image: "registry.k8s.io/etcd:" + b.release.etcd, ExtraArgs: map[string]etcd.ArgValues{},
		}
	})
}

// peerInfo is what a node tells the others of its cluster about itself.
type peerInfo struct {
	id, host, system string
	addr             netip.Addr
	kind             mtype.Type
}

// info is what the node would announce; not ok while it has no identity or name, or with discovery off.
func (b *boot) info() (peerInfo, bool) {
	if !b.complete() || !discovers(b.config()) {
		return peerInfo{}, false
	}
	spec := b.node.Spec()
	p := peerInfo{
		id: b.identity(), host: b.hostname(), addr: spec.Address, kind: b.machineType(),
		system: "Talos (" + spec.TalosVersion + ")",
	}
	return p, p.id != "" && p.host != ""
}

// discovers tells whether a configuration has discovery on: in v1alpha1, or since 1.14 as a document of its own.
func discovers(cfg config.Config) bool {
	return cfg.Cluster().Discovery().Enabled() || len(cfg.DiscoveryServiceConfigs()) > 0
}

// showEndpoints writes where the node believes control planes to be: the cluster endpoint's
// address, and who was discovered.
func (b *boot) showEndpoints() {
	if !b.complete() {
		return
	}
	// one at a time, so that an older list never replaces a newer one
	b.endpointMu.Lock()
	defer b.endpointMu.Unlock()
	var discovered []netip.Addr
	if a := b.affiliates(); a != nil {
		discovered = a.planes()
	}
	if len(discovered) > 0 {
		put(b, "k8s.EndpointController", k8s.NewEndpoint(k8s.ControlPlaneNamespaceName, k8s.ControlPlaneDiscoveredEndpointsID), func(r *k8s.Endpoint) {
			r.TypedSpec().Addresses = discovered
		})
	}
	if kubernetes(b.config()) {
		u := b.config().Cluster().Endpoint()
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			put(b, "k8s.EndpointController", k8s.NewEndpoint(k8s.ControlPlaneNamespaceName, k8s.ControlPlaneKubernetesEndpointsID), func(r *k8s.Endpoint) {
				r.TypedSpec().Addresses = []netip.Addr{addr}
			})
		}
	}
}

// controlPlanes are the machines behind the endpoints that this node knows.
func (b *boot) controlPlanes() []*Node {
	var out []*Node
	for _, addr := range b.endpoints() {
		if n := b.node.opts.At(addr); n != nil {
			out = append(out, n)
		}
	}
	return out
}
