package render_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// snippets are patches that any contract takes, some of which touch places where secrets lie.
var snippets = []string{
	"machine:\n  sysctls:\n    net.core.somaxconn: \"4096\"\n",
	"machine:\n  nodeLabels:\n    token: visible\n    rack: r1\n",
	"machine:\n  files:\n    - content: hello\n      path: /var/x\n      op: create\n      permissions: 0o644\n",
	"machine:\n  kubelet:\n    extraArgs:\n      v: \"3\"\n",
	"machine:\n  certSANs:\n    - extra.example.com\n",
	"machine:\n  env:\n    A: b\n",
	"machine:\n  install:\n    wipe: true\n",
	"apiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: roots\ncertificates: |\n  -----BEGIN CERTIFICATE-----\n  x\n  -----END CERTIFICATE-----\n",
	"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: remote\nurl: tcp://192.0.2.9:5514/\n",
	"apiVersion: v1alpha1\nkind: NetworkDefaultActionConfig\ningress: block\n",
	"cluster:\n  allowSchedulingOnControlPlanes: true\n",
	"machine:\n  install:\n    $patch: delete\n---\nmachine:\n  install:\n    disk: /dev/vda\n",
}

// canaries lists every secret text of a bundle, in the forms in which it could occur.
func canaries(b *bundle.Bundle) []string {
	s := b.Secrets()
	out := []string{s.Cluster.ID, s.Cluster.Secret, s.Secrets.BootstrapToken, s.Secrets.SecretboxEncryptionSecret, s.TrustdInfo.Token}
	for _, pem := range [][]byte{
		s.Certs.Etcd.Crt, s.Certs.Etcd.Key, s.Certs.K8s.Crt, s.Certs.K8s.Key, s.Certs.K8sAggregator.Crt, s.Certs.K8sAggregator.Key,
		s.Certs.OS.Crt, s.Certs.OS.Key, s.Certs.K8sServiceAccount.Key,
	} {
		encoded := base64.StdEncoding.EncodeToString(pem)
		out = append(out, encoded, encoded[60:100])
		for _, line := range strings.Split(string(pem), "\n") {
			if len(line) > 40 && !strings.HasPrefix(line, "-----") {
				out = append(out, line)
			}
		}
	}
	return out
}

func noCanary(t interface{ Fatalf(string, ...any) }, where, text string, canaries []string) {
	for i, c := range canaries {
		if c != "" && strings.Contains(text, c) {
			t.Fatalf("%s holds canary %d", where, i)
		}
	}
}

// TestDigestIsTheSameWithRealSecrets is what the rollout trusts: what was checked is what is applied.
func TestDigestIsTheSameWithRealSecrets(t *testing.T) {
	reals := map[string][]*bundle.Bundle{}
	for _, contract := range []string{"v1.11", "v1.12", "v1.13", "v1.14"} {
		b, _ := realBundle(t, contract)
		reals[contract] = append(reals[contract], b)
	}
	other, _ := newBundle(t, "v1.13")
	for contract := range reals {
		reals[contract] = append(reals[contract], other)
	}
	rapid.Check(t, func(t *rapid.T) {
		contract := rapid.SampledFrom([]string{"v1.11", "v1.12", "v1.13", "v1.14"}).Draw(t, "contract")
		c := threeAndOne(contract)
		c.Manifest.Spec.Network.CNI.Preset = rapid.SampledFrom([]string{"", "flannel", "cilium", "none"}).Draw(t, "cni")
		proxy := rapid.Bool().Draw(t, "kubeProxy")
		c.Manifest.Spec.Network.KubeProxy = &proxy
		for i, s := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(snippets)-1), 0, 5, rapid.ID[int]).Draw(t, "patches") {
			addPatch(c, fmt.Sprint("p", i), i, v1alpha1.Selector{}, snippets[s])
		}
		b, err := bundle.StandIn(c.Name, nil)
		if err != nil {
			t.Fatal(err)
		}
		want, err := render.Cluster(t.Context(), render.Input{Cluster: c, Bundle: b})
		if err != nil {
			t.Fatal(err)
		}
		for n, real := range reals[contract] {
			got, err := render.Cluster(t.Context(), render.Input{Cluster: c, Bundle: real})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range got {
				if r.Err != nil || want[i].Err != nil {
					t.Fatalf("%s: %v, %v", r.Machine.Name, r.Err, want[i].Err)
				}
				if r.Digest != want[i].Digest || !reflect.DeepEqual(r.Masked, want[i].Masked) {
					t.Fatalf("%s: bundle %d changes the digest\n%s\n%s", r.Machine.Name, n, r.Masked.YAML(), want[i].Masked.YAML())
				}
				if bytes.Equal(r.Config.Reveal(), want[i].Config.Reveal()) {
					t.Fatalf("%s: the stand-in was rendered", r.Machine.Name)
				}
				noCanary(t, "masked form", string(r.Masked.JSON())+string(r.Masked.YAML()), canaries(real))
				text, _ := json.Marshal(r)
				noCanary(t, "result", fmt.Sprintf("%v %+v %s", r, r, text), canaries(real))
			}
		}
	})
}

// TestEveryBundleSecretIsRendered makes sure that the canaries above are worth something.
func TestEveryBundleSecretIsRendered(t *testing.T) {
	for _, contract := range []string{"v1.11", "v1.14"} {
		real, _ := realBundle(t, contract)
		c := threeAndOne(contract)
		res := mustRender(t, render.Input{Cluster: c, Bundle: real, Machines: []string{"cp1"}})
		noErrors(t, res)
		text := string(res[0].Config.Reveal())
		s := real.Secrets()
		for _, v := range []string{
			s.Cluster.ID, s.Cluster.Secret, s.Secrets.BootstrapToken, s.Secrets.SecretboxEncryptionSecret, s.TrustdInfo.Token,
			base64.StdEncoding.EncodeToString(s.Certs.Etcd.Key), base64.StdEncoding.EncodeToString(s.Certs.K8sServiceAccount.Key),
			base64.StdEncoding.EncodeToString(s.Certs.OS.Key),
		} {
			if !strings.Contains(text, v) {
				t.Errorf("%s: a secret of the bundle is not in the configuration", contract)
			}
		}
	}
}

// TestSharedIsTheSame holds the shared render of a group equal to that of each machine by itself.
func TestSharedIsTheSame(t *testing.T) {
	hosts := []string{"", "", "prod-cp1", "node-0", "123", "0x10", "1e3", "null", "on", "a.b.example.com"}
	addresses := []string{"127.10.0.100", "10.0.0.1", "fd00::1", "[fd00::2]:50000", "10.0.0.1:50001", "::ffff:10.0.0.9"}
	rapid.Check(t, func(t *rapid.T) {
		contract := rapid.SampledFrom([]string{"v1.11", "v1.12", "v1.13", "v1.14"}).Draw(t, "contract")
		c := newCluster(contract)
		for i := range rapid.IntRange(2, 6).Draw(t, "machines") {
			addMachine(c, fmt.Sprint("m", i), rapid.SampledFrom([]string{"controlplane", "worker"}).Draw(t, "role"),
				rapid.SampledFrom(addresses).Draw(t, "endpoint"), rapid.SampledFrom(hosts).Draw(t, "hostname"))
		}
		for i, s := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(snippets)-1), 0, 4, rapid.ID[int]).Draw(t, "patches") {
			addPatch(c, fmt.Sprint("p", i), i, v1alpha1.Selector{}, snippets[s])
		}
		if rapid.Bool().Draw(t, "sans") {
			addPatch(c, "q", 9, v1alpha1.Selector{}, "machine:\n  certSANs:\n    - $patch: delete\n      10.0.0.1: x\n")
		}
		b, err := bundle.StandIn(c.Name, nil)
		if err != nil {
			t.Fatal(err)
		}
		all, err := render.Cluster(t.Context(), render.Input{Cluster: c, Bundle: b})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			one, err := render.Cluster(t.Context(), render.Input{Cluster: c, Bundle: b, Machines: []string{r.Machine.Name}})
			if err != nil {
				t.Fatal(err)
			}
			if (r.Err == nil) != (one[0].Err == nil) || r.Err != nil && r.Err.Talos != one[0].Err.Talos {
				t.Fatalf("%s: %v, alone %v", r.Machine.Name, r.Err, one[0].Err)
			}
			if !bytes.Equal(r.Config.Reveal(), one[0].Config.Reveal()) || r.Digest != one[0].Digest ||
				!reflect.DeepEqual(r.Masked, one[0].Masked) || !reflect.DeepEqual(r.Patches, one[0].Patches) {
				t.Fatalf("%s differs from its render alone:\n%s\n---\n%s", r.Machine.Name, r.Config.Reveal(), one[0].Config.Reveal())
			}
			if r.Err == nil && r.Digest != r.Masked.Digest() {
				t.Fatalf("%s: digest", r.Machine.Name)
			}
		}
	})
}

// sealedPatch puts a patch file with encrypted values into a cluster, as fleet.Load gives it.
func sealedPatch(t testing.TB, c *fleet.Cluster, keys bundle.Keys, name string, order int, plain, regex string) *fleet.Patch {
	t.Helper()
	cipher, err := bundle.Encrypt([]byte(plain), name, keys.Recipients(), regex)
	if err != nil {
		t.Fatal(err)
	}
	p := addPatch(c, name, order, v1alpha1.Selector{}, string(cipher))
	p.Manifest.Spec.Path = name + ".yaml"
	p.Entries[0].Sops = &fleet.File{Path: name + ".yaml", Data: cipher}
	p.Entries[0].Pos = fleet.Position{File: name + ".yaml", Line: 1, Column: 1}
	return p
}

// TestEncryptedValues: shapes are found, places are masked, and check and rollout have the same digest.
func TestEncryptedValues(t *testing.T) {
	const wgKey = "6LLsqqsZOKWV9oaGRmrrYyVMvYhdk2iKlCTS4SzGAnY="
	for name, tc := range map[string]struct {
		plain, regex string
		secrets      []string
		contract     string
	}{
		"wireguard": {"apiVersion: v1alpha1\nkind: WireguardConfig\nname: wg0\nprivateKey: " + wgKey + "\nlistenPort: 51820\n", "^(privateKey|listenPort)$", []string{wgKey, "51820"}, "v1.13"},
		"registry auth": {
			"machine:\n  registries:\n    config:\n      reg.example.com:\n        auth:\n          username: canary-user\n          password: canary-password\n", "^(username|password)$",
			[]string{"canary-user", "canary-password"},
			"v1.11",
		},
		"a file":     {"machine:\n  files:\n    - content: canary-content\n      path: /var/x\n      op: create\n      permissions: 0o600\n", "^content$", []string{"canary-content"}, "v1.13"},
		"a manifest": {"cluster:\n  inlineManifests:\n    - name: x\n      contents: |\n        apiVersion: v1\n        kind: Secret\n        metadata:\n          name: canary-name\n", "^contents$", []string{"canary-name"}, "v1.13"},
		"a token":    {"cluster:\n  token: canary.0123456789abcdef\n", "^token$", []string{"canary.0123456789abcdef"}, "v1.13"},
		"a URL":      {"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: remote\nurl: tcp://canary.example.com:5514/\n", "^url$", []string{"canary.example.com"}, "v1.13"},
		"a bool":     {"machine:\n  sysctls:\n    a: canary-value\n  install:\n    wipe: true\n", "^(wipe|a)$", []string{"canary-value"}, "v1.12"},
		"a false":    {"machine:\n  sysctls:\n    a: canary-value\n  kubelet:\n    skipNodeRegistration: false\n", "^(skipNodeRegistration|a)$", []string{"canary-value"}, "v1.12"},
		"two documents": {
			"machine:\n  sysctls:\n    a: canary-value\n---\napiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: roots\ncertificates: canary-certificate\n", "^(a|certificates)$",
			[]string{"canary-value", "canary-certificate"},
			"v1.13",
		},
		"in a list": {"machine:\n  certSANs:\n    - canary-one\n    - canary-two\n", "^certSANs$", []string{"canary-one", "canary-two"}, "v1.13"},
	} {
		t.Run(name, func(t *testing.T) {
			keys := testKeys(t)
			c := threeAndOne(tc.contract)
			p := sealedPatch(t, c, keys, "sealed", 5, tc.plain, tc.regex)
			if name == "a manifest" || name == "a token" {
				p.Manifest.Spec.Selector = controlPlanes
			}
			addPatch(c, "after", 9, v1alpha1.Selector{}, snippets[0])
			checked := mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)})
			noErrors(t, checked)
			real, _ := realBundle(t, tc.contract)
			applied := mustRender(t, render.Input{Cluster: c, Bundle: real, Values: keys})
			noErrors(t, applied)
			for i, r := range applied {
				if len(checked[i].Warnings) > 0 && strings.Contains(checked[i].Warnings[0].Talos, "not checked") {
					t.Errorf("%s: %s", r.Machine.Name, checked[i].Warnings[0].Talos)
				}
				if r.Digest != checked[i].Digest {
					t.Errorf("%s: the digests differ:\n%s\n---\n%s", r.Machine.Name, checked[i].Masked.YAML(), r.Masked.YAML())
				}
				out := string(r.Masked.YAML()) + string(r.Masked.JSON()) + string(checked[i].Config.Reveal())
				noCanary(t, r.Machine.Name, out, tc.secrets)
				if fleet.Matches(p.Manifest.Spec.Selector, r.Machine) {
					for _, s := range tc.secrets {
						if !strings.Contains(string(r.Config.Reveal()), s) {
							t.Errorf("%s: the real value is not in the configuration\n%s", r.Machine.Name, r.Config.Reveal())
						}
					}
				}
			}
			values, err := render.EncryptedValues(c, keys)
			if err != nil || len(values) < len(tc.secrets) {
				t.Error(len(values), err)
			}
		})
	}
}
