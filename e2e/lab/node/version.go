package node

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// release holds how nodes of one Talos minor version differ, as data. Source: the statements of
// the project's facts about 1.12, 1.13 and 1.14, seen on real nodes or read in Talos's code.
type release struct {
	minor int
	// canReboot: AUTO and REBOOT reboot the node and NO_REBOOT refuses what needs it (until 1.13).
	canReboot bool
	// oldMaintenance: the separate maintenance server of 1.12, with fewer calls.
	oldMaintenance bool
	// bootstrapWaits: Bootstrap waits up to a second for CRI before it says "not available yet".
	bootstrapWaits bool
	// newResources: the resource types that came with 1.14 exist.
	newResources bool
	// lifecycle: ImageService, LifecycleService and DebugService exist (since 1.13).
	lifecycle bool
	// multiDoc: what a cluster is may come from documents of its own, or be missing (since 1.14).
	multiDoc bool
	// laterKinds are configuration documents that came after this version: "not registered".
	laterKinds map[string]bool
	// newerKinds are documents that the node knows and the lab's machinery library doesn't.
	newerKinds map[string]bool
	// yamlError words an error of the YAML parser as the version's library does.
	yamlError func(error) error
	// etcd is the image tag that the node says it runs.
	etcd string
}

// Documents by the version that brought them, as the machinery libraries v1.12.5, v1.13.5 and
// v1.14.0-alpha.2 register them.
var (
	kindsSince113 = set(
		"BlackholeRouteConfig", "EnvironmentConfig", "ExternalVolumeConfig", "ImageVerificationConfig",
		"KubeSpanConfig", "RoutingRuleConfig", "TCPProbeConfig", "VRFConfig",
	)
	kindsSince114 = set(
		"DiscoveryServiceConfig", "FilesystemTrimConfig", "HTTPProbeConfig", "LVMLogicalVolumeConfig",
		"LVMVolumeGroupConfig", "SysctlConfig", "SysfsConfig", "KubeAPIServerConfig",
		"KubeAdmissionControlConfig", "KubeAuditPolicyConfig", "KubeAuthenticationConfig",
		"KubeAuthorizerConfig", "KubeControllerManagerConfig", "KubeEtcdEncryptionConfig",
		"KubeFlannelCNIConfig", "KubeNetworkConfig", "KubeProxyConfig", "KubeSchedulerConfig",
		"ImageCacheConfig",
	)
	// kindsOfRC1 are known to v1.14.0-rc.1 and not to v1.14.0-alpha.2 (talos-observed-114.md 3).
	kindsOfRC1 = set(
		"BGPInstanceConfig", "CRIBaseRuntimeSpecConfig", "CRICustomizationConfig", "ContainerConfig",
		"DiscoveryIdentityConfig", "EtcFileConfig", "FilesystemScrubConfig", "KernelModuleConfig",
		"KubeAPIServerCAConfig", "KubeAggregatorCAConfig", "KubeClusterConfig", "KubeCoreDNSConfig",
		"KubeCredentialProviderConfig", "KubeExternalManifestConfig", "KubeInlineManifestConfig",
		"KubeNodeConfig", "KubePrismConfig", "KubeServiceAccountConfig", "KubeStaticPodConfig",
		"KubeTalosAPIAccessConfig", "KubeletConfig", "RAIDArrayConfig", "SecurityProfileConfig",
		"UdevRulesConfig", "UnattendedInstallConfig", "VethConfig",
	)
)

var releases = map[int]release{
	12: {
		minor: 12, canReboot: true, oldMaintenance: true, bootstrapWaits: true, etcd: "v3.6.8",
		laterKinds: union(kindsSince113, kindsSince114, kindsOfRC1), yamlError: yamlError112,
	},
	13: {
		minor: 13, canReboot: true, bootstrapWaits: true, lifecycle: true, etcd: "v3.6.12",
		laterKinds: union(kindsSince114, kindsOfRC1), yamlError: yamlError113,
	},
	14: {
		minor: 14, newResources: true, lifecycle: true, multiDoc: true, etcd: "v3.7.1",
		newerKinds: kindsOfRC1, yamlError: yamlError114,
	},
}

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

func union(sets ...map[string]bool) map[string]bool {
	m := map[string]bool{}
	for _, s := range sets {
		maps.Copy(m, s)
	}
	return m
}

// releaseOf returns the behaviour of a Talos version such as "v1.13.5".
func releaseOf(version string) (release, error) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) == 3 && parts[0] == "1" {
		if minor, err := strconv.Atoi(parts[1]); err == nil {
			if r, ok := releases[minor]; ok {
				return r, nil
			}
		}
	}
	return release{}, fmt.Errorf("simulate Talos %q: the lab knows v1.12, v1.13 and v1.14 only", version)
}

// etcdMinor is the minor version of the etcd 3 that the release runs: members of 3.6 can't join a
// cluster of 3.7.
func (r release) etcdMinor() int {
	if r.minor >= 14 {
		return 7
	}
	return 6
}
