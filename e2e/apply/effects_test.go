package apply_test

import (
	"strings"
	"testing"

	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/render/effect"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// changes is one change for each row of the table of effects that is about the v1alpha1 document, by the row's path: what
// is set at a path of a control plane's configuration. A nil takes away.
var changes = map[string]struct {
	path  string
	value any
}{
	"debug":                                     {"debug", true},
	"machine.token":                             {"machine.token", "abcdef.0123456789abcdef"},
	"machine.disks":                             {"machine.disks", []any{map[string]any{"device": "/dev/vdb", "partitions": []any{map[string]any{"mountpoint": "/var/mnt/x"}}}}},
	"machine.files":                             {"machine.files", []any{map[string]any{"path": "/var/x", "content": "x", "permissions": 0o600, "op": "create"}}},
	"machine.env":                               {"machine.env.A", "b"},
	"machine.systemDiskEncryption":              {"machine.systemDiskEncryption.ephemeral", map[string]any{"provider": "luks2", "keys": []any{map[string]any{"slot": 0, "nodeID": map[string]any{}}}}},
	"machine.udev":                              {"machine.udev.rules", []any{`SUBSYSTEM=="drm", MODE="0660"`}},
	"machine.baseRuntimeSpecOverrides":          {"machine.baseRuntimeSpecOverrides", map[string]any{"process": map[string]any{"rlimits": []any{}}}},
	"machine.features.rbac":                     {"machine.features.rbac", false},
	"machine.features.apidCheckExtKeyUsage":     {"machine.features.apidCheckExtKeyUsage", false},
	"machine.features.diskQuotaSupport":         {"machine.features.diskQuotaSupport", false},
	"machine.acceptedCAs":                       {"machine.acceptedCAs", []any{map[string]any{"crt": "$machine.ca.crt"}}},
	"machine.certSANs":                          {"machine.certSANs", []any{"extra.example.com"}},
	"machine.time":                              {"machine.time.servers", []any{"time.example.com"}},
	"machine.network":                           {"machine.network.extraHostEntries", []any{map[string]any{"ip": "10.9.9.9", "aliases": []any{"x"}}}},
	"machine.sysctls":                           {"machine.sysctls", map[string]any{"net.core.somaxconn": "4096"}},
	"machine.sysfs":                             {"machine.sysfs", map[string]any{"devices.system.cpu.cpu0.cpufreq.scaling_governor": "performance"}},
	"machine.logging":                           {"machine.logging.destinations", []any{map[string]any{"endpoint": "tcp://10.9.9.9:5000", "format": "json_lines"}}},
	"machine.kernel":                            {"machine.kernel.modules", []any{map[string]any{"name": "br_netfilter"}}},
	"machine.pods":                              {"machine.pods", []any{map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "x"}}}},
	"machine.seccompProfiles":                   {"machine.seccompProfiles", []any{map[string]any{"name": "a.json", "value": map[string]any{"defaultAction": "SCMP_ACT_LOG"}}}},
	"machine.nodeLabels":                        {"machine.nodeLabels", map[string]any{"a": "b"}},
	"machine.nodeAnnotations":                   {"machine.nodeAnnotations", map[string]any{"a": "b"}},
	"machine.nodeTaints":                        {"machine.nodeTaints", map[string]any{"a": "b:NoSchedule"}},
	"machine.registries":                        {"machine.registries.mirrors", map[string]any{"docker.io": map[string]any{"endpoints": []any{"https://mirror.example.com"}}}},
	"machine.features.kubernetesTalosAPIAccess": {"machine.features.kubernetesTalosAPIAccess", map[string]any{"enabled": true, "allowedRoles": []any{"os:reader"}, "allowedKubernetesNamespaces": []any{"x"}}},
	"machine.features.kubePrism":                {"machine.features.kubePrism.port", 7446},
	"machine.features.hostDNS":                  {"machine.features.hostDNS.resolveMemberNames", true},
	"machine.features.imageCache":               {"machine.features.imageCache.localEnabled", true},
	"machine.features.nodeAddressSortAlgorithm": {"machine.features.nodeAddressSortAlgorithm", "v2"},
	"machine.install":                           {"machine.install.wipe", true},
	"machine.kubelet":                           {"machine.kubelet.extraArgs", map[string]any{"v": "4"}},
	"machine.controlPlane.controllerManager":    {"machine.controlPlane.controllerManager.disabled", true},
	"machine.controlPlane.scheduler":            {"machine.controlPlane.scheduler.disabled", true},
	"cluster.apiServer":                         {"cluster.apiServer.extraArgs", map[string]any{"v": "4"}},
	"cluster.controllerManager":                 {"cluster.controllerManager.extraArgs", map[string]any{"v": "4"}},
	"cluster.scheduler":                         {"cluster.scheduler.extraArgs", map[string]any{"v": "4"}},
	"cluster.etcd":                              {"cluster.etcd.extraArgs", map[string]any{"quota-backend-bytes": "1"}},
	"cluster.secretboxEncryptionSecret":         {"cluster.secretboxEncryptionSecret", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="},
	"cluster.aescbcEncryptionSecret":            {"cluster.aescbcEncryptionSecret", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="},
	"cluster.acceptedCAs":                       {"cluster.acceptedCAs", []any{map[string]any{"crt": "$cluster.ca.crt"}}},
	"cluster.token":                             {"cluster.token", "abcdef.0123456789abcdef"},
	"cluster.controlPlane.endpoint":             {"cluster.controlPlane.endpoint", "https://10.9.9.9:6443"},
	"cluster.controlPlane.localAPIServerPort":   {"cluster.controlPlane.localAPIServerPort", 6444},
	"cluster.network.dnsDomain":                 {"cluster.network.dnsDomain", "other.local"},
	"cluster.network.podSubnets":                {"cluster.network.podSubnets", []any{"10.9.0.0/16"}},
	"cluster.network.serviceSubnets":            {"cluster.network.serviceSubnets", []any{"10.8.0.0/16"}},
	"cluster.network.cni":                       {"cluster.network.cni", map[string]any{"name": "none"}},
	"cluster.proxy":                             {"cluster.proxy.disabled", true},
	"cluster.coreDNS":                           {"cluster.coreDNS.disabled", true},
	"cluster.extraManifests":                    {"cluster.extraManifests", []any{"https://example.com/x.yaml"}},
	"cluster.extraManifestHeaders":              {"cluster.extraManifestHeaders", map[string]any{"A": "b"}},
	"cluster.inlineManifests":                   {"cluster.inlineManifests", []any{map[string]any{"name": "x", "contents": "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n"}}},
	"cluster.adminKubeconfig":                   {"cluster.adminKubeconfig.certLifetime", "1h"},
	"cluster.allowSchedulingOnControlPlanes":    {"cluster.allowSchedulingOnControlPlanes", true},
	"cluster.discovery":                         {"cluster.discovery.enabled", false},
	"cluster.externalCloudProvider":             {"cluster.externalCloudProvider.enabled", true},
	"cluster.clusterName":                       {"cluster.clusterName", "other"},
	"cluster.id":                                {"cluster.id", "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyb3Q="},
	"cluster.secret":                            {"cluster.secret", "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyb3Q="},
}

// untried are rows that a dry run can't be asked about, with the reason.
var untried = map[string]string{
	"version":                         "there is one version",
	"persist":                         "the node takes no other value than true",
	"machine.type":                    "the rest of a configuration is of its type, and the node refuses another before it says anything else",
	"machine.features.stableHostname": "the HostnameConfig document, which the contract renders, excludes it",
	"machine.ca":                      "a new authority would have to be made; Talos copies the field over as it does acceptedCAs",
	"cluster.ca":                      "as machine.ca",
	"cluster.aggregatorCA":            "as machine.ca",
	"cluster.serviceAccount":          "as machine.ca",
}

// TestTableOfEffectsIsWhatNodesSay compares each row about the v1alpha1 document with what a node of Talos 1.13 answers
// to a dry run: whether it takes the change without a reboot. A node of 1.14 takes everything and never says that it
// waits for a boot, so that there the table alone decides.
func TestTableOfEffectsIsWhatNodesSay(t *testing.T) {
	for minor, version := range map[int]string{13: "v1.13.5", 14: "v1.14.0-rc.1"} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t)
			_, err := r.lab.AddNode(node.Spec{Name: "cp1", Address: r.addr(1), TalosVersion: version})
			must(t, err)
			must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
			endpoint := r.addr(1).String()
			r.spec.Machines = append(r.spec.Machines, observe.Machine{Name: "cp1", Role: plan.RoleControlPlane, Endpoint: endpoint})
			r.wish("cp1", r.config(r.bundle, mtype.TypeControlPlane, "cp1"))
			r.desired.Machines = append(r.desired.Machines, plan.DesiredMachine{Name: "cp1", Role: plan.RoleControlPlane, Hostname: "cp1", Endpoint: endpoint})
			r.bringUp()
			dialer, err := r.observer.Dialer(r.spec)
			must(t, err)
			c, err := dialer.Secure(endpoint, talos.Admin)
			must(t, err)

			asked, refused := 0, 0
			for _, row := range effect.Table() {
				if row.Document != "v1alpha1" || minor < row.From || row.To != 0 && minor > row.To || untried[row.Path] != "" {
					continue
				}
				ch, ok := changes[row.Path]
				if !ok {
					if minor == 13 {
						t.Errorf("row %s: no change to ask the node about", row.Path)
					}
					continue
				}
				_, err := c.Apply(r.ctx, talos.Apply{Config: secret.New(r.changed(ch.path, ch.value)), Mode: talos.NoReboot, DryRun: true})
				kind := talos.KindOf(err)
				if err != nil && kind != talos.NeedsReboot {
					t.Errorf("row %s: the node answers %v", row.Path, err)
					continue
				}
				asked++
				if err != nil {
					refused++
				}
				tableSays := row.Effect == effect.Reboot
				switch {
				case minor == 13 && tableSays != (kind == talos.NeedsReboot):
					t.Errorf("row %s: the table says %s, the node says %v", row.Path, row.Effect, err)
				case minor == 14 && err != nil:
					t.Errorf("row %s: a node of 1.14 refuses: %v", row.Path, err)
				}
				if e, _ := effect.Of(minor, "v1alpha1", ch.path); (e == effect.Reboot) != tableSays {
					t.Errorf("row %s does not decide for %s: %s", row.Path, ch.path, e)
				}
			}
			if asked < 50 || minor == 13 && refused < 10 {
				t.Errorf("%d rows asked, %d refused: the test asks too little", asked, refused)
			}
		})
	}
}

// changed gives the machine's configuration with one value set.
func (r *rig) changed(path string, value any) []byte {
	r.Helper()
	docs := strings.SplitN(string(r.machine("cp1").Wish.Reveal()), "\n---\n", 2)
	var doc map[string]any
	must(r, yaml.Unmarshal([]byte(docs[0]), &doc))
	steps := strings.Split(path, ".")
	at := doc
	for _, s := range steps[:len(steps)-1] {
		next, ok := at[s].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[s] = next
		}
		at = next
	}
	at[steps[len(steps)-1]] = resolved(doc, value)
	out, err := yaml.Marshal(doc)
	must(r, err)
	return []byte(string(out) + "---\n" + docs[1])
}

// resolved puts the value of another field in the place of "$path".
func resolved(doc map[string]any, value any) any {
	switch v := value.(type) {
	case string:
		if path, is := strings.CutPrefix(v, "$"); is {
			var at any = doc
			for _, s := range strings.Split(path, ".") {
				m, _ := at.(map[string]any)
				at = m[s]
			}
			return at
		}
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = resolved(doc, x)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = resolved(doc, x)
		}
		return out
	}
	return value
}
