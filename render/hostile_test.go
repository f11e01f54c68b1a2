package render_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// TestHostilePatches: what makes Talos's library fall over is an error of that patch, not the end of the process.
func TestHostilePatches(t *testing.T) {
	for _, raw := range []string{
		"machine:\n  network:\n    interfaces: [null]\n",
		"machine:\n  network:\n    interfaces: [{interface: a, vlans: [null]}]\n",
		"machine:\n  disks: [null]\n",
		"machine:\n  disks: [{device: /dev/sdb, partitions: [null]}]\n",
		"machine:\n  kubelet:\n    extraMounts: [null]\n",
		"machine:\n  systemDiskEncryption: {state: {keys: [null]}}\n",
		"machine:\n  files: [null]\n", "machine: null\n", "cluster: null\n", "machine:\n  install: null\n",
		"cluster:\n  inlineManifests: [null]\n", "cluster:\n  controlPlane: null\n",
		"apiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: x\ningress: [null]\n",
		"machine:\n  $patch: delete\n", "cluster:\n  $patch: delete\n", "$patch: delete\n", "version: v1alpha1\n$patch: delete\n",
		"machine: &a\n  env: *a\n", "a: &a [*a]\n", "- op: remove\n  path: /machine\n", "- op: test\n", "- {}\n", "- 1\n", "1\n", "!!binary x\n",
		"apiVersion: v1alpha1\nkind: KubeFlannelCNIConfig\n$patch: delete\n",
		"apiVersion: v1alpha1\nkind: KubeAPIServerConfig\n$patch: delete\n",
	} {
		for _, contract := range []string{"v1.11", "v1.13", "v1.14"} {
			for _, sops := range []bool{false, true} {
				c := threeAndOne(contract)
				p := addPatch(c, "p", 1, v1alpha1.Selector{}, raw)
				if sops {
					p.Entries[0].Sops = &fleet.File{Path: "x", Data: []byte(raw)}
				}
				for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
					if (r.Err == nil) != (r.Digest != "") {
						t.Errorf("%s %q: neither a render nor an error, or both", contract, raw)
					}
					if r.Err != nil && strings.Contains(r.Err.Talos, "panic") && r.Err.Patch != p {
						t.Errorf("%s %q: %v", contract, raw, r.Err)
					}
				}
			}
		}
	}
}

// TestManyEncryptedValuesAreBounded: a stranger can write many values that no stand-in suits.
func TestManyEncryptedValuesAreBounded(t *testing.T) {
	c := threeAndOne("v1.13")
	var raw strings.Builder
	raw.WriteString("machine:\n  install:\n    bogus: 1\n  disks: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\n  sysctls:\n")
	for i := range 3000 {
		raw.WriteString("    k" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + time.Duration(i).String() + ": ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\n")
	}
	p := addPatch(c, "p", 1, v1alpha1.Selector{}, raw.String())
	p.Entries[0].Sops = &fleet.File{Path: "x", Data: []byte(raw.String())}
	for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
		if r.Err == nil || r.Err.Patch != p {
			t.Fatalf("%v", r.Err)
		}
	}
}

func TestErrorsOfTheWholeCluster(t *testing.T) {
	c := threeAndOne("v1.13")
	b := standIn(t, c)
	for name, in := range map[string]render.Input{
		"no cluster":  {Bundle: b},
		"no manifest": {Cluster: &fleet.Cluster{Object: c.Object}, Bundle: b},
		"no bundle":   {Cluster: c},
	} {
		if _, err := render.Cluster(context.Background(), in); err == nil {
			t.Error(name)
		}
	}
	c.Manifest.Spec.Contract = "soon"
	if _, err := render.Cluster(context.Background(), render.Input{Cluster: c, Bundle: b}); err == nil || !strings.Contains(err.Error(), "prod") {
		t.Error(err)
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := render.Cluster(done, render.Input{Cluster: threeAndOne("v1.13"), Bundle: b}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRejectedAndChosenMachines(t *testing.T) {
	c := threeAndOne("v1.13")
	c.Machines[1].Manifest.Spec.ApprovalState = v1alpha1.ApprovalRejected
	c.Machines[2].Manifest.Spec.ApprovalState = v1alpha1.ApprovalPending
	names := func(in render.Input) (out []string) {
		for _, r := range mustRender(t, in) {
			out = append(out, r.Machine.Name)
		}
		return out
	}
	b := standIn(t, c)
	if got := strings.Join(names(render.Input{Cluster: c, Bundle: b}), " "); got != "cp1 cp3 w1" {
		t.Error(got)
	}
	if got := strings.Join(names(render.Input{Cluster: c, Bundle: b, Machines: []string{"w1", "cp2"}}), " "); got != "w1" {
		t.Error(got)
	}
}

func TestInstallImages(t *testing.T) {
	for _, tc := range []struct {
		version string
		cluster v1alpha1.InstallSpec
		own     v1alpha1.InstallSpec
		want    string
	}{
		{"1.13.5", v1alpha1.InstallSpec{}, v1alpha1.InstallSpec{}, "ghcr.io/siderolabs/installer:v1.13.5"},
		{"v1.14.0", v1alpha1.InstallSpec{}, v1alpha1.InstallSpec{}, "factory.talos.dev/metal-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba:v1.14.0"},
		{"v1.13.5", v1alpha1.InstallSpec{Schematic: "abc"}, v1alpha1.InstallSpec{}, "factory.talos.dev/metal-installer/abc:v1.13.5"},
		{"v1.13.5", v1alpha1.InstallSpec{Image: "x/y:z"}, v1alpha1.InstallSpec{Schematic: "abc"}, "factory.talos.dev/metal-installer/abc:v1.13.5"},
		{"v1.13.5", v1alpha1.InstallSpec{Schematic: "abc"}, v1alpha1.InstallSpec{Image: "x/y:z"}, "x/y:z"},
	} {
		spec := &v1alpha1.TalosClusterSpec{TalosVersion: tc.version, Install: tc.cluster}
		m := &fleet.Machine{Manifest: &v1alpha1.TalosMachine{Spec: v1alpha1.TalosMachineSpec{Install: tc.own}}}
		if got := render.Image(spec, render.Install(spec, m)); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}

func TestNetworkFields(t *testing.T) {
	off := false
	for _, contract := range []string{"v1.11", "v1.13", "v1.14"} {
		for _, preset := range []string{"flannel", "cilium", "none"} {
			c := threeAndOne(contract)
			c.Manifest.Spec.Network = v1alpha1.NetworkSpec{
				PodSubnets: []string{"10.1.0.0/16", "fd01::/64"}, ServiceSubnets: []string{"10.2.0.0/16", "fd02::/112"}, DNSDomain: "k8s.example",
				CNI: v1alpha1.CNISpec{Preset: preset}, KubeProxy: &off,
			}
			for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				text := string(r.Config.Reveal())
				for _, want := range []string{"- 10.1.0.0/16", "- fd01::/64", "- 10.2.0.0/16", "dnsDomain: k8s.example", "https://127.10.0.100:6443"} {
					if !strings.Contains(text, want) {
						t.Errorf("%s: no %s", contract, want)
					}
				}
				if r.Machine.Manifest.Spec.Role == "worker" {
					continue
				}
				none, proxy := strings.Contains(text, "name: none"), "disabled: true"
				if contract == "v1.14" {
					none, proxy = !strings.Contains(text, "kind: KubeFlannelCNIConfig"), "kind: KubeProxyConfig\nenabled: false"
				}
				if none == (preset == "flannel") {
					t.Errorf("%s %s: CNI none: %t", contract, preset, none)
				}
				if !strings.Contains(text, proxy) {
					t.Errorf("%s: kube-proxy is not off", contract)
				}
			}
		}
	}
}
