package render

import (
	"fmt"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"pgregory.net/rapid"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// mergeable are patches that meet one another: the same fields, documents that come, merge and go, deletions of what
// is there and of what is not, lists that append and lists that replace.
var mergeable = []string{
	"machine:\n  sysctls:\n    a: b\n",
	"machine:\n  sysctls:\n    a: c\n    d: e\n",
	"machine:\n  sysctls:\n    $patch: delete\n",
	"machine:\n  ca:\n    crt: bmV3\n",
	"machine:\n  certSANs: [a, b]\n",
	"machine:\n  kubelet:\n    extraArgs: {v: \"2\"}\n    nodeIP: {validSubnets: [10.0.0.0/8]}\n",
	"machine:\n  kubelet:\n    extraMounts:\n      - {destination: /x, source: /x, type: bind, options: [bind]}\n",
	"cluster:\n  network:\n    podSubnets: [10.1.0.0/16]\n",
	"cluster:\n  apiServer:\n    auditPolicy: {apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None}]}\n",
	"cluster:\n  inlineManifests: [{name: a, contents: \"x: 1\"}]\n",
	"cluster:\n  inlineManifests: [{name: a, contents: \"x: 2\"}]\n",
	"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: a\nurl: tcp://192.0.2.1:1/\n",
	"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: a\nurl: tcp://192.0.2.2:2/\n",
	"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: a\n$patch: delete\n",
	"apiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: r\nportSelector: {ports: [1, 2], protocol: tcp}\ningress: [{subnet: 10.0.0.0/8}]\n",
	"apiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: r\nportSelector: {ports: [3], protocol: tcp}\ningress: [{subnet: 11.0.0.0/8}]\n",
	"apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n",
	"apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: v\nprovisioning: {diskSelector: {match: \"true\"}, maxSize: 1GiB}\n",
	"apiVersion: v1alpha1\nkind: ExistingVolumeConfig\nname: v\ndiscovery: {volumeSelector: {match: \"true\"}}\n",
	"machine:\n  network:\n    interfaces: [{interface: eth0, addresses: [10.0.0.2/8]}]\n",
	"machine:\n  network:\n    interfaces: [{interface: eth0, addresses: [10.0.0.3/8], mtu: 1400}]\n",
	"machine:\n  network:\n    interfaces:\n      - interface: eth0\n        $patch: delete\n",
}

func testJob(t testing.TB, contract string) (*job, *fleet.Machine) {
	t.Helper()
	b, err := bundle.StandIn("prod", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &fleet.Cluster{Object: fleet.NewObject("TalosCluster", "prod", "prod", fleet.Position{}), Manifest: &v1alpha1.TalosCluster{Spec: v1alpha1.TalosClusterSpec{
		TalosVersion: contract + ".0", KubernetesVersion: "1.34.1", Endpoint: v1alpha1.ClusterEndpoint{Address: "10.0.0.100"},
		Install: v1alpha1.InstallSpec{Disk: "/dev/sda"},
	}}}
	j, err := newJob(Input{Cluster: c, Bundle: b})
	if err != nil {
		t.Fatal(err)
	}
	return j, &fleet.Machine{Object: fleet.NewObject("TalosMachine", "cp1", "prod", fleet.Position{}), Manifest: &v1alpha1.TalosMachine{
		Spec: v1alpha1.TalosMachineSpec{Role: "controlplane", Endpoint: "10.0.0.1"},
	}}
}

// TestApplyIsTheLibrarys holds the merge in place equal to configpatcher.Apply, and sees that no patch or bundle is
// changed by it.
func TestApplyIsTheLibrarys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		j, m := testJob(t, rapid.SampledFrom([]string{"v1.11", "v1.12", "v1.13", "v1.14"}).Draw(rt, "contract"))
		docs, err := j.base(m, identityOf(m))
		if err != nil {
			rt.Fatal(err)
		}
		base, err := container.New(docs...)
		if err != nil {
			rt.Fatal(err)
		}
		picked := rapid.SliceOfN(rapid.SampledFrom(mergeable), 1, 6).Draw(rt, "patches")
		var patches []configpatcher.Patch
		for _, text := range picked {
			p, err := configpatcher.LoadPatch([]byte(text))
			if err != nil {
				rt.Fatal(text, err)
			}
			patches = append(patches, p)
		}
		var want string
		out, wantErr := configpatcher.Apply(configpatcher.WithConfig(base.Clone()), patches)
		if wantErr == nil {
			text, err := out.Bytes()
			if err != nil {
				rt.Fatal(err)
			}
			want = string(text)
		}
		for round := range 2 {
			got, err := j.base(m, identityOf(m))
			if err != nil {
				rt.Fatal(err)
			}
			for _, p := range patches {
				before, _ := encodeDocs(got)
				var changed bool
				if got, changed, err = apply(got, p); err != nil {
					break
				}
				if after, _ := encodeDocs(got); (string(before) != string(after)) && !changed {
					rt.Fatalf("a change was not seen:\n%s\n%s", before, after)
				}
			}
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				rt.Fatalf("round %d: %v, the library: %v", round, err, wantErr)
			}
			if err != nil {
				return
			}
			if text, err := encodeDocs(got); err != nil || string(text) != want {
				rt.Fatalf("round %d:\n%s\n---\n%s", round, text, want)
			}
		}
	})
}
