package node

import (
	"net/netip"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/files"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
)

// hostDNSAddress is where a node's own DNS answers pods and hosts (constants.HostDNSAddress).
var hostDNSAddress = netip.MustParseAddr("169.254.116.108")

var networkDetails = []detail{
	{[]string{network.LinkStatusType, network.HardwareAddrType, network.EthernetStatusType, network.LinkSpecType}, (*boot).detailLinks},
	{[]string{network.AddressStatusType, network.AddressSpecType, network.OperatorSpecType}, (*boot).detailAddresses},
	{[]string{network.RouteStatusType, network.RouteSpecType}, (*boot).detailRoutes},
	{[]string{network.ResolverStatusType, network.ResolverSpecType, network.HostDNSConfigType, network.DNSUpstreamType, network.DNSResolveCacheType}, (*boot).detailResolvers},
	{[]string{network.TimeServerStatusType, network.TimeServerSpecType, timeres.AdjtimeStatusType}, (*boot).detailTime},
	{[]string{network.HostnameSpecType, network.NodeAddressFilterType, network.NodeAddressSortAlgorithmType}, (*boot).detailNames},
	{[]string{files.EtcFileSpecType, files.EtcFileStatusType}, (*boot).detailEtcFiles},
}

// gateway is the last address of the node's prefix: no machine of a lab is likely to have it.
func (b *boot) gateway() netip.Addr {
	a := netip.PrefixFrom(b.node.Spec().Address, prefixBits).Masked().Addr().As4()
	a[3] = 254
	return netip.AddrFrom4(a)
}

// linkLocal is the IPv6 address that the kernel makes of the card's hardware address.
func (b *boot) linkLocal() netip.Addr {
	m := b.node.Spec().mac()
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

func (b *boot) detailLinks(l *detailList) {
	mac := nethelpers.HardwareAddr(b.node.Spec().mac())
	dummy := append(nethelpers.HardwareAddr{0x0e}, mac[1:]...)
	broadcast := nethelpers.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	l.add("network.LinkStatusController", with(network.NewLinkStatus(network.NamespaceName, "dummy0"), network.LinkStatusSpec{
		Index: 3, Type: nethelpers.LinkEther, MTU: 1500, QueueDisc: "noop", Kind: "dummy", Driver: "dummy", DriverVersion: kernelVersion,
		Flags: nethelpers.LinkFlags(nethelpers.LinkBroadcast | nethelpers.LinkNoArp), HardwareAddr: dummy, BroadcastAddr: broadcast,
		OperationalState: nethelpers.OperStateDown, Port: nethelpers.Other, Duplex: nethelpers.Unknown,
	}))
	l.add("network.HardwareAddrController", with(network.NewHardwareAddr(network.NamespaceName, network.FirstHardwareAddr), network.HardwareAddrSpec{
		Name: "eth0", HardwareAddr: mac,
	}))
	up := true
	l.add("network.EthernetStatusController", with(network.NewEthernetStatus(network.NamespaceName, "eth0"), network.EthernetStatusSpec{
		LinkState: &up, Port: nethelpers.Other, Duplex: nethelpers.Unknown,
		Rings:    &network.EthernetRingsStatus{},
		Channels: &network.EthernetChannelsStatus{},
	}))
	for _, name := range []string{"eth0", "lo"} {
		kind := nethelpers.LinkEther
		if name == "lo" {
			kind = nethelpers.LinkLoopbck
		}
		l.add("network.LinkMergeController", with(network.NewLinkSpec(network.NamespaceName, name), network.LinkSpecSpec{
			Name: name, Up: true, Type: kind, ConfigLayer: network.ConfigDefault,
		}))
	}
}

func (b *boot) detailAddresses(l *detailList) {
	permanent := nethelpers.AddressFlags(nethelpers.AddressPermanent)
	status := func(link string, index uint32, p netip.Prefix, family nethelpers.Family, scope nethelpers.Scope) {
		l.add("network.AddressStatusController", with(network.NewAddressStatus(network.NamespaceName, link+"/"+p.String()), network.AddressStatusSpec{
			Address: p, LinkIndex: index, LinkName: link, Family: family, Scope: scope, Flags: permanent,
		}))
	}
	status("eth0", 2, netip.PrefixFrom(b.linkLocal(), 64), nethelpers.FamilyInet6, nethelpers.ScopeLink)
	status("lo", 1, netip.MustParsePrefix("::1/128"), nethelpers.FamilyInet6, nethelpers.ScopeHost)
	if b.complete() {
		status("lo", 1, netip.PrefixFrom(hostDNSAddress, 32), nethelpers.FamilyInet4, nethelpers.ScopeHost)
	}
	own := netip.PrefixFrom(b.node.Spec().Address, prefixBits)
	for link, p := range map[string]netip.Prefix{"eth0": own, "lo": netip.MustParsePrefix("127.0.0.1/8")} {
		spec := network.AddressSpecSpec{
			Address: p, LinkName: link, Family: nethelpers.FamilyInet4, Flags: permanent,
			Scope: nethelpers.ScopeHost, ConfigLayer: network.ConfigDefault,
		}
		if link == "eth0" {
			spec.Scope, spec.ConfigLayer = nethelpers.ScopeGlobal, network.ConfigOperator
		}
		l.add("network.AddressMergeController", with(network.NewAddressSpec(network.NamespaceName, link+"/"+p.String()), spec))
	}
	l.add("network.OperatorMergeController", with(network.NewOperatorSpec(network.NamespaceName, "dhcp4/eth0"), network.OperatorSpecSpec{
		Operator: network.OperatorDHCP4, LinkName: "eth0", RequireUp: true,
		DHCP4: network.DHCP4OperatorSpec{RouteMetric: network.DefaultRouteMetric}, ConfigLayer: network.ConfigDefault,
	}))
}

func (b *boot) detailRoutes(l *detailList) {
	addr, gw := b.node.Spec().Address, b.gateway()
	local := netip.PrefixFrom(addr, prefixBits).Masked()
	base := network.RouteStatusSpec{
		Family: nethelpers.FamilyInet4, OutLinkIndex: 2, OutLinkName: "eth0", Table: nethelpers.TableMain,
		Priority: network.DefaultRouteMetric, Type: nethelpers.TypeUnicast, Protocol: nethelpers.ProtocolKernel,
	}
	def := base
	def.Gateway, def.Source, def.Scope, def.Protocol = gw, addr, nethelpers.ScopeGlobal, nethelpers.ProtocolBoot
	l.add("network.RouteStatusController", with(network.NewRouteStatus(network.NamespaceName, "inet4/"+gw.String()+"//1024"), def))
	link := base
	link.Destination, link.Source, link.Scope, link.Priority = local, addr, nethelpers.ScopeLink, 0
	l.add("network.RouteStatusController", with(network.NewRouteStatus(network.NamespaceName, "inet4//"+local.String()+"/0"), link))
	v6 := base
	v6.Family, v6.Destination, v6.Priority, v6.Scope = nethelpers.FamilyInet6, netip.MustParsePrefix("fe80::/64"), 256, nethelpers.ScopeGlobal
	l.add("network.RouteStatusController", with(network.NewRouteStatus(network.NamespaceName, "inet6//fe80::/64/256"), v6))
	l.add("network.RouteMergeController", with(network.NewRouteSpec(network.NamespaceName, "inet4/"+gw.String()+"//1024"), network.RouteSpecSpec{
		Family: nethelpers.FamilyInet4, Gateway: gw, Source: addr, OutLinkName: "eth0", Table: nethelpers.TableMain,
		Priority: network.DefaultRouteMetric, Scope: nethelpers.ScopeGlobal, Type: nethelpers.TypeUnicast,
		Protocol: nethelpers.ProtocolBoot, ConfigLayer: network.ConfigOperator,
	}))
}

// resolvers are the DNS servers of the configuration, else what DHCP gave: the gateway.
func (b *boot) resolvers() ([]netip.Addr, network.ConfigLayer) {
	if cfg := b.config(); cfg != nil {
		if r := cfg.NetworkResolverConfig(); r != nil && len(r.Resolvers()) > 0 {
			var out []netip.Addr
			for _, server := range r.Resolvers() {
				out = append(out, server.Addr)
			}
			return out, network.ConfigMachineConfiguration
		}
	}
	return []netip.Addr{b.gateway()}, network.ConfigOperator
}

func (b *boot) detailResolvers(l *detailList) {
	servers, layer := b.resolvers()
	l.add("network.ResolverSpecController", with(network.NewResolverStatus(network.NamespaceName, network.ResolverID), network.ResolverStatusSpec{DNSServers: servers}))
	l.add("network.ResolverMergeController", with(network.NewResolverSpec(network.NamespaceName, network.ResolverID), network.ResolverSpecSpec{
		DNSServers: servers, ConfigLayer: layer,
	}))
	host := network.HostDNSConfigSpec{}
	if b.complete() {
		host = network.HostDNSConfigSpec{
			Enabled:               true,
			ListenAddresses:       []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53"), netip.AddrPortFrom(hostDNSAddress, 53)},
			ServiceHostDNSAddress: hostDNSAddress,
		}
		for _, proto := range []string{"tcp", "udp"} {
			l.add("network.DNSResolveCacheController", with(network.NewDNSResolveCache(proto+"-127.0.0.53:53"), network.DNSResolveCacheSpec{Status: "running"}))
		}
	}
	l.add("network.HostDNSConfigController", with(network.NewHostDNSConfig(network.HostDNSConfigID), host))
}

// timeServers are the servers of the configuration, else Talos's default.
func (b *boot) timeServers() ([]string, network.ConfigLayer) {
	if cfg := b.config(); cfg != nil {
		if t := cfg.NetworkTimeSyncConfig(); t != nil && len(t.Servers()) > 0 {
			return t.Servers(), network.ConfigMachineConfiguration
		}
	}
	return []string{constants.DefaultNTPServer}, network.ConfigDefault
}

func (b *boot) detailTime(l *detailList) {
	servers, layer := b.timeServers()
	l.add("network.TimeServerSpecController", with(network.NewTimeServerStatus(network.NamespaceName, network.TimeServerID), network.TimeServerStatusSpec{NTPServers: servers}))
	l.add("network.TimeServerMergeController", with(network.NewTimeServerSpec(network.NamespaceName, network.TimeServerID), network.TimeServerSpecSpec{
		NTPServers: servers, ConfigLayer: layer,
	}))
	l.add("time.AdjtimeStatusController", with(timeres.NewAdjtimeStatus(), timeres.AdjtimeStatusSpec{
		Offset: 112500, FrequencyAdjustmentRatio: 1.0000012, MaxError: 21500000, EstError: 0,
		Status: "STA_PLL | STA_NANO", Constant: 7, SyncStatus: b.checkTime() == "", State: "TIME_OK",
	}))
}

func (b *boot) detailNames(l *detailList) {
	if h := b.hostname(); h != "" {
		layer := network.ConfigOperator
		if cfg := b.config(); cfg != nil && cfg.NetworkHostnameConfig() != nil {
			layer = network.ConfigMachineConfiguration
		}
		l.add("network.HostnameMergeController", with(network.NewHostnameSpec(network.NamespaceName, network.HostnameID), network.HostnameSpecSpec{
			Hostname: h, ConfigLayer: layer,
		}))
	}
	l.add("network.NodeAddressSortAlgorithmController", with(network.NewNodeAddressSortAlgorithm(network.NamespaceName, network.NodeAddressSortAlgorithmID),
		network.NodeAddressSortAlgorithmSpec{Algorithm: nethelpers.AddressSortAlgorithmV1}))
	if !b.complete() {
		return
	}
	subnets := b.kubernetesSubnets()
	l.add("k8s.AddressFilterController", with(network.NewNodeAddressFilter(network.NamespaceName, "no-k8s"), network.NodeAddressFilterSpec{ExcludeSubnets: subnets}))
	l.add("k8s.AddressFilterController", with(network.NewNodeAddressFilter(network.NamespaceName, "only-k8s"), network.NodeAddressFilterSpec{IncludeSubnets: subnets}))
}

// kubernetesSubnets are the pods' and services' networks of the configuration.
func (b *boot) kubernetesSubnets() []netip.Prefix {
	var out []netip.Prefix
	pods, services := b.clusterCIDRs()
	for _, c := range append(pods, services...) {
		if p, err := netip.ParsePrefix(c); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// etcFiles are the files of /etc that Talos writes for the host.
func (b *boot) etcFiles() map[string]string {
	servers, _ := b.resolvers()
	resolv := "\n"
	if b.complete() {
		resolv = "nameserver 127.0.0.53\n"
	} else {
		for _, s := range servers {
			resolv = "nameserver " + s.String() + "\n"
		}
	}
	hosts := "127.0.0.1       localhost\n::1             localhost ip6-localhost ip6-loopback\nff02::1         ip6-allnodes\nff02::2         ip6-allrouters\n"
	h := b.hostname()
	if h != "" {
		hosts = "127.0.0.1       localhost\n" + b.node.Spec().Address.String() + "       " + h + "\n" + hosts[len("127.0.0.1       localhost\n"):]
	}
	return map[string]string{"hosts": hosts, "resolv.conf": "\n" + resolv, "machine-id": plainUUID(b.node.Spec().UUID) + "\n"}
}

func (b *boot) detailEtcFiles(l *detailList) {
	owner := map[string]string{"hosts": "network.EtcFileController", "resolv.conf": "network.EtcFileController", "machine-id": "files.MachineIDController"}
	for name, content := range b.etcFiles() {
		l.add(owner[name], with(files.NewEtcFileSpec(files.NamespaceName, name), files.EtcFileSpecSpec{
			Contents: []byte(content), Mode: 0o644, SelinuxLabel: constants.EtcSelinuxLabel,
		}))
		l.add("files.EtcFileController", with(files.NewEtcFileStatus(files.NamespaceName, name), files.EtcFileStatusSpec{SpecVersion: "1"}))
	}
}
