package mask_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ichor.maesh.dev/ichor/render/mask"
)

// node is a configuration as Talos 1.14.0-rc.1 writes it: kinds that the library does not know, and secrets where
// only a name tells. Every secret is a canary.
const node = `# comment
version: v1alpha1
machine:
  type: controlplane
  token: canary.01
  ca: {crt: canary-02, key: canary-03}
  files:
    - content: |
        password=canary-04
      path: /var/x
  env:
    PROXY: http://u:canary-05@proxy
  registries:
    config:
      r.example.com:
        auth: {username: me, password: canary-06, auth: canary-07, identityToken: canary-08}
        tls: {clientIdentity: {crt: public, key: canary-09}}
  network:
    interfaces:
      - interface: wg0
        wireguard: {privateKey: canary-10, peers: [{publicKey: shown, presharedKey: canary-11}]}
        vip: {ip: 192.0.2.1, hcloud: {apiToken: canary-12}}
  systemDiskEncryption:
    state: {keys: [{slot: 0, static: {passphrase: canary-13}}]}
  nodeLabels: {token: shown-label}
cluster:
  id: canary-14
  secret: canary-15
  token: canary.16
  etcd: {ca: {crt: canary-17, key: canary-18}}
  aggregatorCA: {crt: canary-19, key: canary-20}
  serviceAccount: {key: canary-21}
  secretboxEncryptionSecret: canary-22
  inlineManifests:
    - {name: x, contents: "data: canary-23"}
  extraManifestHeaders: {Authorization: canary-24}
  controlPlane: {endpoint: "https://10.0.0.1:6443"}
---
apiVersion: v1alpha1
kind: KubeServiceAccountConfig
issuer: {privateKey: canary-25, issuerURL: canary-26}
---
apiVersion: v1alpha1
kind: KubeAPIServerCAConfig
issuingCA: {cert: canary-27, key: canary-28}
acceptedCAs: [canary-29]
---
apiVersion: v1alpha1
kind: DiscoveryIdentityConfig
id: canary-30
secret: canary-31
---
apiVersion: v1alpha1
kind: SideroLinkConfig
apiUrl: https://x/?jointoken=canary-32
uniqueToken: canary-33
---
apiVersion: v1alpha1
kind: BrandNewConfig
name: a
nested: [{clientSecret: canary-34, blob: "-----BEGIN EC PRIVATE KEY-----\ncanary-35"}]
key: a.b/c
---
apiVersion: v1alpha1
kind: KubeEtcdEncryptionConfig
config: {resources: [{providers: [{secretbox: {keys: [{name: key2, secret: canary-36}]}}], resources: [secrets]}]}
`

func TestRawShowsNoSecret(t *testing.T) {
	r, err := mask.Raw([]byte(node))
	if err != nil {
		t.Fatal(err)
	}
	text := string(r.YAML()) + string(r.JSON())
	if i := strings.Index(text, "canary"); i >= 0 {
		t.Fatalf("a canary is shown: %s", text[max(0, i-200):i+12])
	}
	for _, shown := range []string{"shown-label", "publicKey: shown", "https://10.0.0.1:6443", "/var/x", "key: a.b/c", "name: key2", "username: me"} {
		if !strings.Contains(text, shown) {
			t.Errorf("%s is hidden", shown)
		}
	}
	var ids []string
	for _, d := range r.Documents {
		ids = append(ids, d.ID)
	}
	want := []string{"v1alpha1", "BrandNewConfig/a", "DiscoveryIdentityConfig", "KubeAPIServerCAConfig", "KubeEtcdEncryptionConfig", "KubeServiceAccountConfig", "SideroLinkConfig"}
	if !reflect.DeepEqual(ids, want) {
		t.Error(ids)
	}
}

func TestScalarsKeepTheirForm(t *testing.T) {
	docs, err := mask.Decode([]byte("a: off\nb: 0x10\nc: 1.10\nd: 2001-01-01\ne: ~\nf: true\ng: \"1\"\nh: 99999999999999999999\ni: .nan\nj: &x {k: 1}\nl: {<<: *x, m: 2}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"a": "off", "b": int64(16), "c": 1.1, "d": "2001-01-01", "e": nil, "f": true, "g": "1", "h": 1e20, "i": ".nan",
		"j": map[string]any{"k": int64(1)}, "l": map[string]any{"k": int64(1), "m": int64(2)},
	}
	if !reflect.DeepEqual(docs[0].Fields, want) {
		t.Errorf("%#v", docs[0].Fields)
	}
}

func TestDecodeIsBounded(t *testing.T) {
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		n, p := string(rune('1'+i)), string(rune('0'+i))
		bomb += "a" + n + ": &a" + n + " [*a" + p + ",*a" + p + ",*a" + p + ",*a" + p + ",*a" + p + ",*a" + p + ",*a" + p + ",*a" + p + ",*a" + p + "]\n"
	}
	for _, text := range []string{bomb, "a: &a {b: *a}", "\t", "- 1", "x"} {
		_, err := mask.Decode([]byte(text))
		if err == nil {
			t.Errorf("%.20q was decoded", text)
		}
	}
	if _, err := mask.Decode([]byte("token: canary\n  x: {")); err == nil || strings.Contains(err.Error(), "canary") {
		t.Error(err)
	}
}

func TestExtraPlacesAreMarked(t *testing.T) {
	const text = "machine:\n  install: {disk: /dev/sda}\n  list: [a, b]\n  sysctls: {net.a: x}\n"
	r, err := mask.Config([]byte(text), []mask.Path{
		{Document: "v1alpha1", Path: "machine.install.wipe"},
		{Document: "v1alpha1", Path: "machine.list[1]"},
		{Document: "v1alpha1", Path: `machine.sysctls["net.a"]`},
		{Document: "v1alpha1", Path: "machine.list[7]"},
		{Document: "v1alpha1", Path: "machine.new.deep"},
		{Document: "NoSuch", Path: "x"},
		{Document: "v1alpha1", Path: "machine.no[0].x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"documents":[{"id":"v1alpha1","fields":{"machine":{"install":{"disk":"/dev/sda","wipe":"<secret>"},"list":["a","<secret>"],"new":{"deep":"<secret>"},"sysctls":{"net.a":"<secret>"}}}}]}`
	if got := string(r.JSON()); got != want {
		t.Error(got)
	}
}

func TestPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		path := ""
		var want []mask.Step
		for range rapid.IntRange(0, 6).Draw(t, "n") {
			if path != "" && rapid.Bool().Draw(t, "list") {
				i := rapid.IntRange(0, 99).Draw(t, "i")
				path, want = mask.Index(path, i), append(want, mask.Step{Index: i, List: true})
			} else {
				k := rapid.OneOf(rapid.SampledFrom([]string{"", "a.b", "x[0]", `q"`, "a"}), rapid.String()).Draw(t, "k")
				path, want = mask.Key(path, k), append(want, mask.Step{Key: k})
			}
		}
		if got := mask.Steps(path); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %#v", path, got)
		}
	})
	if got := mask.Key("machine.sysctls", "net.core.somaxconn"); got != `machine.sysctls["net.core.somaxconn"]` {
		t.Error(got)
	}
}

func TestDiffering(t *testing.T) {
	a, _ := mask.Decode([]byte("machine: {a: 1, b: [x, y], c: {d: 1}}\n---\nkind: A\nx: 1\n"))
	b, _ := mask.Decode([]byte("machine: {a: 2, b: [x, z, w], e: 1, c: {d: 1}}\n---\nkind: B\nx: {y: 1}\n"))
	var got []string
	for _, p := range mask.Differing(a, b) {
		got = append(got, p.Document+" "+p.Path)
	}
	want := []string{"v1alpha1 machine.a", "v1alpha1 machine.b[1]", "v1alpha1 machine.b[2]", "v1alpha1 machine.e", "A kind", "A x", "B kind", "B x.y"}
	if !reflect.DeepEqual(got, want) {
		t.Error(got)
	}
}

// FuzzRaw: whatever a node sends is masked or refused, and what comes out is JSON that reads back.
func FuzzRaw(f *testing.F) {
	f.Add([]byte(node))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? {a: b}\n: c\n"))
	f.Add([]byte("kind: !!binary aGk=\nname: [1]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := mask.Raw(data)
		if err != nil {
			return
		}
		var back mask.Render
		if err := json.Unmarshal(r.JSON(), &back); err != nil {
			t.Fatal(err)
		}
		_ = r.YAML()
		again, err := mask.Raw(data)
		if err != nil || !bytes.Equal(again.JSON(), r.JSON()) {
			t.Fatal("not deterministic")
		}
	})
}
