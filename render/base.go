package render

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	talos "github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Where installer images come from. ghcr.io/siderolabs/installer ends with 1.13; later ones are the Image Factory's,
// of its empty schematic (talos-observed-114, section 3).
const (
	installerImage   = "ghcr.io/siderolabs/installer"
	factoryInstaller = "factory.talos.dev/metal-installer"
	emptySchematic   = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
	defaultAPIPort   = 6443
)

// identity is what tells one machine's render from that of others with the same fields and patches.
type identity struct{ hostname, address string }

func identityOf(m *fleet.Machine) identity {
	return identity{hostname: m.Manifest.Spec.Hostname, address: HostOf(m.Manifest.Spec.Endpoint)}
}

// HostOf takes the port off an endpoint: ip, ip:port, [ip6]:port.
func HostOf(endpoint string) string {
	if _, err := netip.ParseAddr(endpoint); err == nil {
		return endpoint
	}
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		return host
	}
	return strings.Trim(endpoint, "[]")
}

// base makes the configuration of a machine before any patch, sharing nothing with the bundle or other machines.
func (j *job) base(m *fleet.Machine, id identity) ([]config.Document, error) {
	in, err := generate.NewInput(j.in.Cluster.Name, j.endpointURL(), strings.TrimPrefix(j.spec.KubernetesVersion, "v"),
		generate.WithVersionContract(j.contract),
		generate.WithSecretsBundle(j.in.Bundle.Secrets()),
		generate.WithDNSDomain(orDefault(j.spec.Network.DNSDomain, "cluster.local")),
	)
	if err != nil {
		return nil, err
	}
	in.PodNet = orDefaults(j.spec.Network.PodSubnets, constants.DefaultIPv4PodNet)
	in.ServiceNet = orDefaults(j.spec.Network.ServiceSubnets, constants.DefaultIPv4ServiceNet)
	for _, cidr := range slices.Concat(in.PodNet, in.ServiceNet) {
		// The library panics on these under a multi-document contract.
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return nil, fmt.Errorf("parse subnet %q: %w", cidr, err)
		}
	}
	role := machine.TypeWorker
	if m.Manifest.Spec.Role == v1alpha1.RoleControlPlane {
		role = machine.TypeControlPlane
	}
	provider, err := in.Config(role)
	if err != nil {
		return nil, err
	}
	docs := provider.Clone().Documents()
	cfg, ok := docs[0].(*talos.Config)
	if !ok {
		return nil, fmt.Errorf("generate configuration: the first document is %T", docs[0])
	}
	j.identify(cfg, m, id)
	if err := j.install(cfg, m); err != nil {
		return nil, err
	}
	return j.documents(docs, cfg, m, id), nil
}

// identify sets what the machine's own fields say in the v1alpha1 document. The node adds its own addresses and
// names to the certificate of its API (talos.md 2.1); the endpoint may be another address (behind NAT), so it is
// always named, and on control planes the cluster's endpoint too, which may forward to the Talos API.
func (j *job) identify(cfg *talos.Config, m *fleet.Machine, id identity) {
	mc := cfg.MachineConfig
	mc.MachineCertSANs = []string{id.address}
	if e := j.spec.Endpoint.Address; m.Manifest.Spec.Role == v1alpha1.RoleControlPlane && e != id.address {
		mc.MachineCertSANs = append(mc.MachineCertSANs, e)
	}
	for k, v := range m.Manifest.Spec.NodeLabels {
		if mc.MachineNodeLabels == nil {
			mc.MachineNodeLabels = map[string]string{}
		}
		mc.MachineNodeLabels[k] = v
	}
	for k, v := range m.Manifest.Spec.NodeTaints {
		if mc.MachineNodeTaints == nil {
			mc.MachineNodeTaints = map[string]string{}
		}
		mc.MachineNodeTaints[k] = v
	}
	if id.hostname != "" && !j.contract.MultidocNetworkConfigSupported() {
		if mc.MachineNetwork == nil { //nolint:staticcheck // the form of contracts up to 1.11
			mc.MachineNetwork = &talos.NetworkConfig{} //nolint:staticcheck // as above
		}
		mc.MachineNetwork.NetworkHostname = id.hostname //nolint:staticcheck // as above
	}
	if j.contract.MultidocKubernetesConfigSupported() || m.Manifest.Spec.Role != v1alpha1.RoleControlPlane {
		return
	}
	if !flannel(j.spec) {
		cfg.ClusterConfig.ClusterNetwork.CNI = &talos.CNIConfig{CNIName: constants.NoneCNI} //nolint:staticcheck // contracts up to 1.13
	}
	if !kubeProxy(j.spec) {
		disabled := true
		cfg.ClusterConfig.ProxyConfig.Disabled = &disabled //nolint:staticcheck // contracts up to 1.13
	}
}

// documents sets what lies in documents of its own: hostname from contract 1.12, CNI and kube-proxy from 1.14.
func (j *job) documents(docs []config.Document, cfg *talos.Config, m *fleet.Machine, id identity) []config.Document {
	out := []config.Document{cfg}
	for _, d := range docs[1:] {
		switch d := d.(type) {
		case *network.HostnameConfigV1Alpha1:
			if id.hostname != "" {
				off := nethelpers.AutoHostnameKindOff
				d.ConfigAuto, d.ConfigHostname = &off, id.hostname
			}
		case *k8s.KubeFlannelCNIConfigV1Alpha1:
			if !flannel(j.spec) {
				continue
			}
		case *k8s.KubeProxyConfigV1Alpha1:
			if !kubeProxy(j.spec) {
				disabled := false
				d.ProxyEnabled = &disabled
			}
		}
		out = append(out, d)
	}
	return out
}

func flannel(spec *v1alpha1.TalosClusterSpec) bool {
	return spec.Network.CNI.Preset == "" || spec.Network.CNI.Preset == "flannel"
}

func kubeProxy(spec *v1alpha1.TalosClusterSpec) bool {
	return spec.Network.KubeProxy == nil || *spec.Network.KubeProxy
}

// endpointURL is https://address:port of the Kubernetes API.
func (j *job) endpointURL() string {
	port := j.spec.Endpoint.Port
	if port == 0 {
		port = defaultAPIPort
	}
	return "https://" + net.JoinHostPort(j.spec.Endpoint.Address, strconv.Itoa(port))
}

// install sets machine.install from the cluster's and the machine's fields.
func (j *job) install(cfg *talos.Config, m *fleet.Machine) error {
	spec := Install(j.spec, m)
	if cfg.MachineConfig.MachineInstall == nil {
		cfg.MachineConfig.MachineInstall = &talos.InstallConfig{}
	}
	in := cfg.MachineConfig.MachineInstall
	in.InstallDisk, in.InstallImage = spec.Disk, Image(j.spec, spec)
	if spec.Wipe != nil {
		in.InstallWipe = spec.Wipe
	}
	if len(spec.DiskSelector) == 0 {
		return nil
	}
	// The selector goes through Talos's own decoder, which knows its sizes, globs and types, and names a wrong key.
	text, err := yaml.Marshal(map[string]any{"machine": map[string]any{"install": map[string]any{"diskSelector": spec.DiskSelector}}})
	if err != nil {
		return fmt.Errorf("read diskSelector: %w", err)
	}
	p, err := configloader.NewFromBytes(text)
	if err != nil {
		return err
	}
	in.InstallDiskSelector = p.RawV1Alpha1().MachineConfig.MachineInstall.InstallDiskSelector
	return nil
}

// Install gives how a machine is installed: its own values over its cluster's, one by one. Disk and diskSelector
// override each other, and so do image and schematic.
func Install(spec *v1alpha1.TalosClusterSpec, m *fleet.Machine) v1alpha1.InstallSpec {
	out, own := spec.Install, m.Manifest.Spec.Install
	if own.Disk != "" || len(own.DiskSelector) > 0 {
		out.Disk, out.DiskSelector = own.Disk, own.DiskSelector
	}
	if own.Image != "" || own.Schematic != "" {
		out.Image, out.Schematic = own.Image, own.Schematic
	}
	if own.Wipe != nil {
		out.Wipe = own.Wipe
	}
	return out
}

// Image is the installer image: as given, of the schematic, or Talos's own of the cluster's version.
func Image(spec *v1alpha1.TalosClusterSpec, in v1alpha1.InstallSpec) string {
	version := "v" + strings.TrimPrefix(spec.TalosVersion, "v")
	switch {
	case in.Image != "":
		return in.Image
	case in.Schematic != "":
		return factoryInstaller + "/" + in.Schematic + ":" + version
	}
	if vc, err := talosconfig.ParseContractFromVersion(version); err == nil && vc.Greater(talosconfig.TalosVersion1_13) {
		return factoryInstaller + "/" + emptySchematic + ":" + version
	}
	return installerImage + ":" + version
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func orDefaults(list []string, def string) []string {
	if len(list) == 0 {
		return []string{def}
	}
	return slices.Clone(list)
}
