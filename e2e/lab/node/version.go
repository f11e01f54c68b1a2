package node

import (
	"fmt"
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
	// bootIDResource: BootIDs.runtime.talos.dev and the other types that came with 1.14 exist.
	newResources bool
	// unknownKinds are configuration documents that came after this version.
	unknownKinds map[string]bool
	// etcd is the image tag that the node says it runs.
	etcd string
}

var kindsSince114 = set(
	"DiscoveryServiceConfig", "FilesystemTrimConfig", "HTTPProbeConfig", "LVMLogicalVolumeConfig",
	"LVMVolumeGroupConfig", "SysctlConfig", "SysfsConfig", "KubeAPIServerConfig",
	"KubeAdmissionControlConfig", "KubeAuditPolicyConfig", "KubeAuthenticationConfig",
	"KubeAuthorizerConfig", "KubeControllerManagerConfig", "KubeEtcdEncryptionConfig",
	"KubeFlannelCNIConfig", "KubeNetworkConfig", "KubeProxyConfig", "KubeSchedulerConfig",
	"ImageCacheConfig",
)

var releases = map[int]release{
	12: {minor: 12, canReboot: true, oldMaintenance: true, bootstrapWaits: true, unknownKinds: kindsSince114, etcd: "v3.6.8"},
	13: {minor: 13, canReboot: true, bootstrapWaits: true, unknownKinds: kindsSince114, etcd: "v3.6.12"},
	14: {minor: 14, newResources: true, etcd: "v3.7.1"},
}

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
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
