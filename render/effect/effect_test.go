package effect_test

import (
	"testing"

	"ichor.maesh.dev/ichor/render/effect"
)

func TestOf(t *testing.T) {
	for _, tc := range []struct {
		minor          int
		document, path string
		want           effect.Effect
		service        string
	}{
		{13, "v1alpha1", "cluster.apiServer.extraArgs.v", effect.Restart, effect.APIServer},
		{14, "KubeAPIServerConfig", "extraArgs.v", effect.Restart, effect.APIServer},
		{13, "v1alpha1", "cluster.etcd.extraArgs", effect.Restart, effect.Etcd},
		{13, "v1alpha1", "machine.kubelet.extraArgs", effect.Restart, effect.Kubelet},
		{13, "v1alpha1", `machine.sysctls["net.core.somaxconn"]`, effect.Live, ""},
		{13, "v1alpha1", `machine.nodeLabels["a.b/c[\"x"]`, effect.Live, ""},
		{13, "v1alpha1", "machine.certSANs[3]", effect.Live, ""},
		{13, "v1alpha1", "machine.install.image", effect.Install, ""},
		{13, "v1alpha1", "machine.files[0].content", effect.Reboot, ""},
		{14, "v1alpha1", "machine.env.X", effect.Reboot, ""},
		{12, "v1alpha1", "machine.udev.rules[0]", effect.Reboot, ""},
		{14, "v1alpha1", "machine.udev.rules[0]", effect.Live, ""},
		{14, "v1alpha1", "machine.type", effect.Reboot, ""},
		{13, "v1alpha1", "machine.features.kubePrism.port", effect.Live, ""},
		{13, "v1alpha1", "machine.features.rbac", effect.Reboot, ""},
		{13, "v1alpha1", "machine.features.somethingNew", effect.Reboot, ""},
		{13, "v1alpha1", "machine", effect.Reboot, ""},
		{13, "v1alpha1", "somethingNew.x", effect.Reboot, ""},
		{13, "BrandNewConfig/x", "a.b", effect.Live, ""},
		{14, "BrandNewConfig/x", "a.b", effect.Reboot, ""},
		{14, "SysctlConfig", `params["a.b"]`, effect.Live, ""},
		{14, "HostnameConfig", "hostname", effect.Live, ""},
		{14, "SecurityProfileConfig", "workloadIsolation", effect.Reboot, ""},
		{14, "KubeNetworkConfig", "podSubnets[0]", effect.Restart, effect.ControllerManager},
		{13, "VolumeConfig/EPHEMERAL", "encryption.provider", effect.Live, ""},
		{14, "VolumeConfig/EPHEMERAL", "encryption.provider", effect.Reboot, ""},
	} {
		got, service := effect.Of(tc.minor, tc.document, tc.path)
		if got != tc.want || service != tc.service {
			t.Errorf("1.%d %s %s: %s %q, not %s %q", tc.minor, tc.document, tc.path, got, service, tc.want, tc.service)
		}
		if effect.NeedsReboot(tc.minor, tc.document, tc.path) != (tc.want == effect.Reboot) {
			t.Errorf("%s: NeedsReboot", tc.path)
		}
		if effect.AppliesImmediately(tc.minor, tc.document, tc.path) != (tc.want == effect.Live || tc.want == effect.Restart) {
			t.Errorf("%s: AppliesImmediately", tc.path)
		}
	}
}

// TestWorkersRunNoControlPlane: what restarts on a control plane does nothing on a worker, and the rest is the same.
func TestWorkersRunNoControlPlane(t *testing.T) {
	for _, tc := range []struct {
		role, document, path string
		want                 effect.Effect
		service              string
	}{
		{"controlplane", "v1alpha1", "cluster.apiServer.extraArgs.v", effect.Restart, effect.APIServer},
		{"worker", "v1alpha1", "cluster.apiServer.extraArgs.v", effect.Live, ""},
		{"worker", "v1alpha1", "cluster.etcd.extraArgs", effect.Live, ""},
		{"worker", "KubeSchedulerConfig", "extraArgs.v", effect.Live, ""},
		{"worker", "v1alpha1", "cluster.ca.crt", effect.Restart, effect.Kubelet},
		{"controlplane", "v1alpha1", "cluster.ca.crt", effect.Restart, effect.APIServer},
		{"worker", "v1alpha1", "cluster.network.dnsDomain", effect.Restart, effect.Kubelet},
		{"worker", "v1alpha1", "machine.kubelet.image", effect.Restart, effect.Kubelet},
		{"worker", "v1alpha1", "machine.env.A", effect.Reboot, ""},
	} {
		if got, service := effect.OfRole(13, tc.role, tc.document, tc.path); got != tc.want || service != tc.service {
			t.Errorf("%s %s: %s %q, not %s %q", tc.role, tc.path, got, service, tc.want, tc.service)
		}
	}
}

// TestRebootListOf113 is the complete list of talos.md 3.4: whatever of v1alpha1 is not on the live list.
func TestRebootListOf113(t *testing.T) {
	for _, path := range []string{
		"version", "persist", "machine.type", "machine.token", "machine.disks", "machine.files", "machine.env",
		"machine.systemDiskEncryption", "machine.udev", "machine.baseRuntimeSpecOverrides", "machine.features.rbac",
		"machine.features.stableHostname", "machine.features.apidCheckExtKeyUsage", "machine.features.diskQuotaSupport",
	} {
		if !effect.NeedsReboot(13, "v1alpha1", path) || !effect.NeedsReboot(12, "v1alpha1", path+".x[0]") {
			t.Errorf("%s must need a reboot", path)
		}
	}
	for _, path := range []string{
		"debug", "machine.ca.crt", "machine.acceptedCAs", "machine.time", "machine.certSANs", "machine.network", "machine.sysfs", "machine.sysctls",
		"machine.logging", "machine.controlPlane.scheduler", "machine.kubelet", "machine.kernel", "machine.registries", "machine.pods", "machine.seccompProfiles",
		"machine.nodeAnnotations", "machine.nodeLabels", "machine.nodeTaints", "machine.features.kubernetesTalosAPIAccess",
		"machine.features.kubePrism", "machine.features.hostDNS", "machine.features.imageCache", "machine.features.nodeAddressSortAlgorithm",
	} {
		if !effect.AppliesImmediately(13, "v1alpha1", path) {
			t.Errorf("%s applies without a reboot", path)
		}
	}
}

func TestTableIsSound(t *testing.T) {
	type key struct {
		document, path string
		minor          int
	}
	seen := map[key]bool{}
	for _, r := range effect.Table() {
		if r.Source == "" || r.Document == "" || r.Effect == "" || r.Effect == effect.None {
			t.Errorf("row %+v lacks something", r)
		}
		if (r.Effect == effect.Restart) != (r.Service != "") {
			t.Errorf("row %+v: a restart names its service, and nothing else does", r)
		}
		for minor := 11; minor <= 15; minor++ {
			if minor < r.From || r.To != 0 && minor > r.To {
				continue
			}
			k := key{r.Document, r.Path, minor}
			if seen[k] {
				t.Errorf("two rows for %+v", k)
			}
			seen[k] = true
		}
	}
}

func TestWorst(t *testing.T) {
	for _, tc := range []struct {
		in   []effect.Effect
		want effect.Effect
	}{
		{nil, effect.None},
		{[]effect.Effect{effect.Install, effect.Live}, effect.Live},
		{[]effect.Effect{effect.Live, effect.Restart, effect.Install}, effect.Restart},
		{[]effect.Effect{effect.Restart, effect.Reboot}, effect.Reboot},
		{[]effect.Effect{effect.Install, effect.None}, effect.Install},
		{[]effect.Effect{"no such"}, effect.Reboot},
	} {
		if got := effect.Worst(tc.in...); got != tc.want {
			t.Errorf("%v: %s", tc.in, got)
		}
	}
}

func TestDisrupts(t *testing.T) {
	for _, tc := range []struct {
		e       effect.Effect
		service string
		want    bool
	}{
		{effect.Reboot, "", true},
		{effect.Restart, effect.Etcd, true},
		{effect.Restart, effect.APIServer, true},
		{effect.Restart, effect.Scheduler, false},
		{effect.Live, "", false},
		{effect.Install, "", false},
		{effect.Restart, "", true},
	} {
		if effect.Disrupts(tc.e, tc.service) != tc.want {
			t.Errorf("%s %s", tc.e, tc.service)
		}
	}
}
