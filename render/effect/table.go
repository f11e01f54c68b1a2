package effect

// Row says what a change of a path and everything below it does.
type Row struct {
	// Document is v1alpha1, a kind, or * for every kind but v1alpha1.
	Document string
	// Path is a dotted prefix, * for any one step, "" for the whole document.
	Path string
	// From and To bound the Talos minors (1.x) that the row is for; To 0 is no bound.
	From, To int
	Effect   Effect
	// Service that restarts, for Restart.
	Service string
	// Source names where this comes from.
	Source string
}

// Sources.
const (
	// canApply is Runtime.CanApplyImmediate of Talos 1.12 and 1.13 (v1alpha1_runtime.go), by talos.md 3.4.
	canApply = "talos v1.13.9 v1alpha1_runtime.go CanApplyImmediate: not copied over, so compared (talos.md 3.4)"
	// canApplyLive is the same function's list of fields that may change at run time.
	canApplyLive = "talos v1.13.9 v1alpha1_runtime.go CanApplyImmediate: copied over before comparing (talos.md 3.4)"
	// boot is what Talos 1.14 reads at boot alone.
	boot = "talos v1.14 v1alpha1_sequencer_tasks.go reads it at boot alone (talos.md 3.5)"
	// seen114 was observed on nodes of 1.14.0-rc.1.
	seen114 = "observed on 1.14.0-rc.1 (talos-observed-114 section 1)"
	// installer is read by the installer alone.
	installer = "read by the installer alone, at install and upgrade (talos.md 3.5)"
	// volumes are read when a volume is provisioned or opened.
	volumes = "read when a volume is provisioned or opened (talos.md 3.5)"
	// static pods and services follow their resources; their controllers restart them.
	staticPods = "a controller renders the static pod anew, the kubelet restarts it (talos k8s controllers)"
	kubeletSvc = "the kubelet service controller restarts the kubelet (talos k8s.KubeletServiceController)"
	etcdSvc    = "the etcd spec controller renders etcd's arguments; etcd restarts with them (talos etcd.SpecController)"
	manifests  = "a bootstrap manifest; the control planes apply it, no service of the node restarts (talos k8s.ManifestApplyController)"
	network    = "network controllers follow the configuration (talos network controllers)"
	certs      = "a certificate is issued anew and its service reads it (talos secrets controllers)"
	criSvc     = "part of the container runtime's configuration (talos.md 3.5)"
	oldDocs    = "up to 1.13 only the v1alpha1 document is compared; every other kind applies live (talos.md 3.4)"
)

// table holds what is known; the rest is Reboot. It is checked against what nodes answer to a dry-run: up to 1.13 the
// node's answer wins, from 1.14 (where a node never says that it needs a reboot) the table.
var table = []Row{
	// v1alpha1: what no node takes without a boot. These rows repeat the default, with their source.
	{Document: "v1alpha1", Path: "version", Effect: Reboot, Source: canApply},
	{Document: "v1alpha1", Path: "persist", Effect: Reboot, Source: canApply},
	{Document: "v1alpha1", Path: "machine.type", Effect: Reboot, Source: canApply + "; on 1.14 etcd and trustd are never started without one (talos-observed-114 section 1)"},
	{Document: "v1alpha1", Path: "machine.token", Effect: Reboot, Source: canApply},
	{Document: "v1alpha1", Path: "machine.disks", Effect: Reboot, Source: canApply + "; " + boot},
	{Document: "v1alpha1", Path: "machine.files", Effect: Reboot, Source: canApply + "; " + seen114},
	{Document: "v1alpha1", Path: "machine.env", Effect: Reboot, Source: canApply + "; " + seen114},
	{Document: "v1alpha1", Path: "machine.systemDiskEncryption", Effect: Reboot, Source: canApply + "; " + volumes},
	{Document: "v1alpha1", Path: "machine.udev", To: 13, Effect: Reboot, Source: canApply},
	{Document: "v1alpha1", Path: "machine.udev", From: 14, Effect: Live, Source: seen114 + ": the rules file is written at once"},
	{Document: "v1alpha1", Path: "machine.baseRuntimeSpecOverrides", Effect: Reboot, Source: canApply + "; " + criSvc},
	{Document: "v1alpha1", Path: "machine.features.rbac", Effect: Reboot, Source: canApply},
	{Document: "v1alpha1", Path: "machine.features.stableHostname", Effect: Reboot, Source: canApply},
	{Document: "v1alpha1", Path: "machine.features.apidCheckExtKeyUsage", Effect: Reboot, Source: canApply},
	{Document: "v1alpha1", Path: "machine.features.diskQuotaSupport", Effect: Reboot, Source: canApply},

	// v1alpha1: live.
	{Document: "v1alpha1", Path: "debug", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.ca", Effect: Restart, Service: APID, Source: certs},
	{Document: "v1alpha1", Path: "machine.acceptedCAs", Effect: Restart, Service: APID, Source: certs},
	{Document: "v1alpha1", Path: "machine.certSANs", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.time", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.network", Effect: Live, Source: network},
	{Document: "v1alpha1", Path: "machine.sysctls", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.sysfs", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.logging", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.kernel", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.seccompProfiles", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.nodeLabels", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.nodeAnnotations", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.nodeTaints", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.pods", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.registries", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.registries.config", From: 14, Effect: Restart, Service: CRI, Source: criSvc},
	{Document: "v1alpha1", Path: "machine.features.kubernetesTalosAPIAccess", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.features.kubePrism", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.features.hostDNS", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.features.imageCache", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "machine.features.nodeAddressSortAlgorithm", Effect: Live, Source: canApplyLive},

	// v1alpha1: only when Talos is installed or upgraded.
	{Document: "v1alpha1", Path: "machine.install", Effect: Install, Source: installer},

	// v1alpha1: services and static pods.
	{Document: "v1alpha1", Path: "machine.kubelet", Effect: Restart, Service: Kubelet, Source: kubeletSvc},
	{Document: "v1alpha1", Path: "machine.controlPlane.controllerManager", Effect: Restart, Service: ControllerManager, Source: staticPods},
	{Document: "v1alpha1", Path: "machine.controlPlane.scheduler", Effect: Restart, Service: Scheduler, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.apiServer", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.controllerManager", Effect: Restart, Service: ControllerManager, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.scheduler", Effect: Restart, Service: Scheduler, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.etcd", Effect: Restart, Service: Etcd, Source: etcdSvc},
	{Document: "v1alpha1", Path: "cluster.secretboxEncryptionSecret", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.aescbcEncryptionSecret", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.ca", Effect: Restart, Service: APIServer, Source: certs},
	{Document: "v1alpha1", Path: "cluster.acceptedCAs", Effect: Restart, Service: APIServer, Source: certs},
	{Document: "v1alpha1", Path: "cluster.aggregatorCA", Effect: Restart, Service: APIServer, Source: certs},
	{Document: "v1alpha1", Path: "cluster.serviceAccount", Effect: Restart, Service: APIServer, Source: certs},
	{Document: "v1alpha1", Path: "cluster.token", Effect: Restart, Service: Kubelet, Source: kubeletSvc},
	{Document: "v1alpha1", Path: "cluster.controlPlane.endpoint", Effect: Restart, Service: Kubelet, Source: "kubelet and API server use the endpoint (talos k8s controllers)"},
	{Document: "v1alpha1", Path: "cluster.controlPlane.localAPIServerPort", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.network.dnsDomain", Effect: Restart, Service: Kubelet, Source: kubeletSvc},
	{Document: "v1alpha1", Path: "cluster.network.podSubnets", Effect: Restart, Service: ControllerManager, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.network.serviceSubnets", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "v1alpha1", Path: "cluster.network.cni", Effect: Live, Source: manifests},
	{Document: "v1alpha1", Path: "cluster.proxy", Effect: Live, Source: manifests},
	{Document: "v1alpha1", Path: "cluster.coreDNS", Effect: Live, Source: manifests},
	{Document: "v1alpha1", Path: "cluster.extraManifests", Effect: Live, Source: manifests},
	{Document: "v1alpha1", Path: "cluster.extraManifestHeaders", Effect: Live, Source: manifests},
	{Document: "v1alpha1", Path: "cluster.inlineManifests", Effect: Live, Source: manifests},
	{Document: "v1alpha1", Path: "cluster.adminKubeconfig", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "cluster.allowSchedulingOnControlPlanes", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "cluster.discovery", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "cluster.externalCloudProvider", Effect: Restart, Service: Kubelet, Source: kubeletSvc},
	{Document: "v1alpha1", Path: "cluster.clusterName", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "cluster.id", Effect: Live, Source: canApplyLive},
	{Document: "v1alpha1", Path: "cluster.secret", Effect: Live, Source: canApplyLive},

	// Documents of their own. Services first, for every version; the general row for up to 1.13 gives way to them.
	{Document: "KubeAPIServerConfig", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "KubeAdmissionControlConfig", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "KubeAuditPolicyConfig", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "KubeAuthenticationConfig", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "KubeAuthorizerConfig", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "KubeEtcdEncryptionConfig", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "KubeControllerManagerConfig", Effect: Restart, Service: ControllerManager, Source: staticPods},
	{Document: "KubeSchedulerConfig", Effect: Restart, Service: Scheduler, Source: staticPods},
	{Document: "KubeNetworkConfig", Effect: Restart, Service: APIServer, Source: staticPods},
	{Document: "KubeNetworkConfig", Path: "dnsDomain", Effect: Restart, Service: Kubelet, Source: kubeletSvc},
	{Document: "KubeNetworkConfig", Path: "podSubnets", Effect: Restart, Service: ControllerManager, Source: staticPods},
	{Document: "KubeProxyConfig", Effect: Live, Source: manifests},
	{Document: "KubeFlannelCNIConfig", Effect: Live, Source: manifests},
	{Document: "KubeCoreDNSConfig", Effect: Live, Source: manifests},
	{Document: "KubeInlineManifestConfig", Effect: Live, Source: manifests},
	{Document: "KubeExternalManifestConfig", Effect: Live, Source: manifests},
	{Document: "KubeletConfig", Effect: Restart, Service: Kubelet, Source: kubeletSvc},
	{Document: "KubeCredentialProviderConfig", Effect: Restart, Service: Kubelet, Source: kubeletSvc},
	{Document: "KubeNodeConfig", Effect: Live, Source: seen114},
	{Document: "EnvironmentConfig", Effect: Live, Source: seen114},
	{Document: "SysctlConfig", Effect: Live, Source: seen114},
	{Document: "EtcFileConfig", Effect: Live, Source: seen114},
	{Document: "UdevRulesConfig", Effect: Live, Source: seen114},
	{Document: "CRICustomizationConfig", Effect: Restart, Service: CRI, Source: seen114},
	{Document: "CRIBaseRuntimeSpecConfig", Effect: Restart, Service: CRI, Source: criSvc},
	{Document: "RegistryAuthConfig", From: 14, Effect: Restart, Service: CRI, Source: criSvc},
	{Document: "SecurityProfileConfig", Effect: Reboot, Source: seen114 + ": the running sandboxd stays as it is"},
	{Document: "UnattendedInstallConfig", Effect: Install, Source: installer},
	{Document: "RegistryMirrorConfig", Effect: Live, Source: oldDocs},
	{Document: "RegistryTLSConfig", Effect: Live, Source: oldDocs},

	// Network documents, whose controllers follow the configuration in 1.14 as before.
	{Document: "HostnameConfig", Effect: Live, Source: network},
	{Document: "ResolverConfig", Effect: Live, Source: network},
	{Document: "TimeSyncConfig", Effect: Live, Source: network},
	{Document: "StaticHostConfig", Effect: Live, Source: network},
	{Document: "LinkConfig", Effect: Live, Source: network},
	{Document: "LinkAliasConfig", Effect: Live, Source: network},
	{Document: "DummyLinkConfig", Effect: Live, Source: network},
	{Document: "BondConfig", Effect: Live, Source: network},
	{Document: "BridgeConfig", Effect: Live, Source: network},
	{Document: "VLANConfig", Effect: Live, Source: network},
	{Document: "WireguardConfig", Effect: Live, Source: network},
	{Document: "VRFConfig", Effect: Live, Source: network},
	{Document: "DHCPv4Config", Effect: Live, Source: network},
	{Document: "DHCPv6Config", Effect: Live, Source: network},
	{Document: "BlackholeRouteConfig", Effect: Live, Source: network},
	{Document: "RoutingRuleConfig", Effect: Live, Source: network},
	{Document: "TCPProbeConfig", Effect: Live, Source: network},
	{Document: "HTTPProbeConfig", Effect: Live, Source: network},
	{Document: "EthernetConfig", Effect: Live, Source: network},
	{Document: "Layer2VIPConfig", Effect: Live, Source: network},
	{Document: "HCloudVIPConfig", Effect: Live, Source: network},
	{Document: "KubeSpanConfig", Effect: Live, Source: network},
	{Document: "KubeSpanEndpointsConfig", Effect: Live, Source: network},
	{Document: "NetworkRuleConfig", Effect: Live, Source: network},
	{Document: "NetworkDefaultActionConfig", Effect: Live, Source: network},
	{Document: "DiscoveryServiceConfig", Effect: Live, Source: "the discovery controller follows it (talos cluster controllers)"},
	{Document: "TrustedRootsConfig", Effect: Live, Source: "the CA file is written anew (talos secrets.TrustedRootsController)"},
	{Document: "EventSinkConfig", Effect: Live, Source: "controllers follow it (talos runtime controllers)"},
	{Document: "KmsgLogConfig", Effect: Live, Source: "controllers follow it (talos runtime controllers)"},
	{Document: "WatchdogTimerConfig", Effect: Live, Source: "controllers follow it (talos runtime controllers)"},
	{Document: "ExtensionServiceConfig", Effect: Restart, Service: "extension services", Source: "the extension service restarts with its configuration (talos runtime.ExtensionServiceConfigController)"},
	{Document: "SysfsConfig", Effect: Live, Source: "as SysctlConfig (talos runtime.KernelParamSpecController)"},
	{Document: "OOMConfig", Effect: Live, Source: "the OOM controller follows it (talos runtime.OOMController)"},
	{Document: "ZswapConfig", Effect: Live, Source: "controllers follow it (talos block.ZswapConfigController)"},
	{Document: "ImageVerificationConfig", Effect: Live, Source: "read at each pull (talos cri image verification)"},
	{Document: "FilesystemTrimConfig", Effect: Live, Source: "the trim schedule follows it (talos block controllers)"},

	// Volumes: a new one is provisioned at once; what is there keeps its form until it is opened anew.
	{Document: "UserVolumeConfig", Effect: Live, Source: volumes},
	{Document: "UserVolumeConfig", Path: "encryption", From: 14, Effect: Reboot, Source: volumes},
	{Document: "ExistingVolumeConfig", Effect: Live, Source: volumes},
	{Document: "RawVolumeConfig", Effect: Live, Source: volumes},
	{Document: "SwapVolumeConfig", Effect: Live, Source: volumes},
	{Document: "VolumeConfig", From: 14, Effect: Reboot, Source: volumes},

	{Document: "*", To: 13, Effect: Live, Source: oldDocs},
}

// Table gives a copy of the rows, for the reference page and for the test against nodes.
func Table() []Row { return append([]Row(nil), table...) }
