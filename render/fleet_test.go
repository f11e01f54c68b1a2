package render_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

var update = flag.Bool("update", false, "write golden files anew")

// repository is a small one in the format of SPEC section 1: three ways to patch, one patch with encrypted values.
func repository(t testing.TB, keys bundle.Keys) (fstest.MapFS, *bundle.Bundle) {
	t.Helper()
	real, plain := realBundle(t, "v1.13")
	seal := func(path, text, regex string) []byte {
		out, err := bundle.Encrypt([]byte(text), path, keys.Recipients(), regex)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const head = "apiVersion: ichor.maesh.dev/v1alpha1\nkind: "
	files := map[string][]byte{
		"secrets.sops.yaml": seal("secrets.sops.yaml", string(plain), ""),
		"cluster.yaml": []byte(head + "TalosCluster\nmetadata: {name: prod}\nspec:\n  talosVersion: v1.13.5\n  contract: v1.13\n  kubernetesVersion: v1.36.1\n" +
			"  endpoint: {type: loadBalancer, address: 127.10.0.100}\n  controlPlane: {count: 1}\n  secretsRef: {path: secrets.sops.yaml}\n  install: {diskSelector: {size: '> 100GB', type: ssd}}\n"),
		"m.yaml": []byte(head + "TalosMachine\nmetadata: {name: cp1}\nspec: {clusterRef: {name: prod}, role: controlplane, approvalState: approved, endpoint: 127.10.0.11, hostname: prod-cp1}\n---\n" +
			head + "TalosMachine\nmetadata: {name: w1}\nspec: {clusterRef: {name: prod}, role: worker, approvalState: pending, endpoint: '127.10.0.21:50000', install: {disk: /dev/vda}, nodeTaints: {dedicated: 'x:NoSchedule'}}\n"),
		"p.yaml": seal("p.yaml", head+"TalosConfigPatch\nmetadata: {name: sealed}\nspec:\n  clusterRef: {name: prod}\n  order: 5\n  documents:\n"+
			"    - machine:\n        sysctls:\n          net.core.somaxconn: \"4096\" # kept\n"+
			"    - apiVersion: v1alpha1\n      kind: WireguardConfig\n      name: wg0\n      privateKey: 6LLsqqsZOKWV9oaGRmrrYyVMvYhdk2iKlCTS4SzGAnY=\n", "^privateKey$"),
		"q.yaml":           []byte(head + "TalosConfigPatch\nmetadata: {name: file}\nspec: {clusterRef: {name: prod}, path: patches/env.yaml}\n"),
		"patches/env.yaml": seal("patches/env.yaml", "machine:\n  env:\n    PROXY: http://user:canary@proxy\n    OTHER: x\n---\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: r\nurl: tcp://192.0.2.1:1/\n", "^PROXY$"),
	}
	fsys := fstest.MapFS{}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: data}
	}
	return fsys, real
}

func load(t testing.TB, fsys fstest.MapFS) *fleet.Cluster {
	t.Helper()
	f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Severity == fleet.Error {
			t.Fatalf("%+v", p)
		}
	}
	return f.Cluster("prod")
}

// TestFromTheRepository goes the whole way: files, fleet, a check with stand-ins, a rollout with the real secrets.
func TestFromTheRepository(t *testing.T) {
	keys := testKeys(t)
	fsys, real := repository(t, keys)
	c := load(t, fsys)
	checked := mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)})
	noErrors(t, checked)
	opened, err := bundle.Open(c.Secrets.Data, c.Secrets.Path, keys)
	if err != nil {
		t.Fatal(err)
	}
	applied := mustRender(t, render.Input{Cluster: c, Bundle: opened, Values: keys})
	noErrors(t, applied)
	if len(applied) != 2 {
		t.Fatal(len(applied))
	}
	for i, r := range applied {
		if r.Digest != checked[i].Digest {
			t.Errorf("%s: %s\n---\n%s", r.Machine.Name, r.Masked.YAML(), checked[i].Masked.YAML())
		}
		text := string(r.Config.Reveal())
		for _, want := range []string{"http://user:canary@proxy", "privateKey: 6LLs", "OTHER: x", `net.core.somaxconn: "4096"`, real.Secrets().TrustdInfo.Token} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", r.Machine.Name, want)
			}
		}
		noCanary(t, r.Machine.Name, string(r.Masked.YAML())+string(r.Masked.JSON()), append(canaries(real), "canary", "6LLs"))
		if strings.Contains(text, "sops:") || strings.Contains(text, "ENC[") {
			t.Error("SOPS's own is in the configuration")
		}
	}
	if text := string(applied[1].Config.Reveal()); !strings.Contains(text, "disk: /dev/vda") || strings.Contains(text, "diskSelector") || !strings.Contains(text, "dedicated: x:NoSchedule") {
		t.Error("the worker's own fields", text)
	}
	if text := string(applied[0].Config.Reveal()); !strings.Contains(text, "diskSelector:") || strings.Contains(text, "disk: /dev") {
		t.Error("the control plane's disk selector", text)
	}
	before, err := render.EncryptedValues(c, keys)
	if err != nil || len(before) != 2 {
		t.Fatal(len(before), err)
	}
	// Encrypted anew, the values are the same; a changed one is seen.
	mac := keys.MACKeys("fingerprint")[0]
	again, _ := repository(t, keys)
	after, err := render.EncryptedValues(load(t, again), keys)
	if err != nil || bundle.FingerprintValues(mac, before) != bundle.FingerprintValues(mac, after) {
		t.Error("fingerprint of the same values", err)
	}
	for k := range after {
		delete(after, k)
		break
	}
	if bundle.FingerprintValues(mac, before) == bundle.FingerprintValues(mac, after) {
		t.Error("fingerprint of other values")
	}
}

// TestGoldenRenders pins what a check shows of the configurations, so that a new version of the library that renders
// them otherwise is seen before it meets a fleet. go test -run Golden -update writes them anew.
func TestGoldenRenders(t *testing.T) {
	for _, contract := range []string{"v1.11", "v1.13", "v1.14"} {
		c := threeAndOne(contract)
		for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c), Machines: []string{"cp1", "w1"}}) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			file := fmt.Sprintf("testdata/%s-%s.yaml", contract, r.Machine.Manifest.Spec.Role)
			got := r.Masked.YAML()
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what is rendered:\n%s", file, got)
			}
		}
	}
}
