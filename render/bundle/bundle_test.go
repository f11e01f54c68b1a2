package bundle_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

func newKeys(t testing.TB, n int) bundle.Keys {
	t.Helper()
	var text strings.Builder
	for range n {
		id, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "# created: today\n%s\n", id)
	}
	k, err := bundle.ParseKeys([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealed(t testing.TB, keys bundle.Keys) (*bundle.Bundle, []byte, []byte) {
	t.Helper()
	b, plain, err := bundle.Generate("v1.13", secrets.NewFixedClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
	if err != nil {
		t.Fatal(err)
	}
	cipher, err := bundle.Encrypt(plain, "secrets.sops.yaml", keys.Recipients(), "")
	if err != nil {
		t.Fatal(err)
	}
	return b, plain, cipher
}

func TestOpenGivesWhatWasSealed(t *testing.T) {
	keys := newKeys(t, 2)
	b, plain, cipher := sealed(t, keys)
	if bytes.Contains(cipher, []byte(b.Secrets().Cluster.Secret)) {
		t.Fatal("plain text in the ciphertext")
	}
	got, err := bundle.Open(cipher, "secrets.sops.yaml", keys)
	if err != nil {
		t.Fatal(err)
	}
	mac := keys.MACKeys("fingerprint")
	if got.Fingerprint(mac[0]) != b.Fingerprint(mac[0]) || got.Fingerprint(mac[0]) == got.Fingerprint(mac[1]) {
		t.Error("fingerprints")
	}
	// Encrypted anew, the same bundle keeps its fingerprint.
	again, err := bundle.Encrypt(plain, "x", keys.Recipients()[1:], "")
	if err != nil {
		t.Fatal(err)
	}
	got2, err := bundle.Open(again, "x", keys)
	if err != nil || got2.Fingerprint(mac[0]) != b.Fingerprint(mac[0]) {
		t.Error("fingerprint depends on the encryption", err)
	}
	if _, err := got.Secrets().GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(role.Reader), time.Hour); err != nil {
		t.Error("the clock is not set:", err)
	}
	if got.StandIn {
		t.Error("a real bundle is no stand-in")
	}
}

func TestOpenRefuses(t *testing.T) {
	keys := newKeys(t, 1)
	b, plain, cipher := sealed(t, keys)
	edit := func(f func(m map[string]any)) []byte {
		var m map[string]any
		if err := yaml.Unmarshal(cipher, &m); err != nil {
			t.Fatal(err)
		}
		f(m)
		out, err := yaml.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	sops := func(m map[string]any) map[string]any { return m["sops"].(map[string]any) }
	missing := bytes.Replace(plain, []byte("trustdinfo:"), []byte("trustdInfo:"), 1)
	lacking, err := bundle.Encrypt(missing, "x", keys.Recipients(), "")
	if err != nil {
		t.Fatal(err)
	}
	enc := []any{map[string]any{"enc": "x", "arn": "arn:aws:kms:eu:1:key/1"}}
	for name, tc := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"plain text":       {plain, bundle.ErrNotEncrypted, ""},
		"empty":            {nil, bundle.ErrMalformed, ""},
		"no YAML":          {[]byte("\t{"), bundle.ErrMalformed, ""},
		"kms":              {edit(func(m map[string]any) { sops(m)["kms"] = enc }), bundle.ErrKeyService, "kms"},
		"pgp":              {edit(func(m map[string]any) { sops(m)["pgp"] = enc }), bundle.ErrKeyService, "pgp"},
		"vault":            {edit(func(m map[string]any) { sops(m)["hc_vault"] = enc }), bundle.ErrKeyService, "hc_vault"},
		"a service to be":  {edit(func(m map[string]any) { sops(m)["quantum"] = enc }), bundle.ErrKeyService, "quantum"},
		"in a key group":   {edit(func(m map[string]any) { sops(m)["key_groups"] = []any{map[string]any{"gcp_kms": enc}} }), bundle.ErrKeyService, "gcp_kms"},
		"no recipient":     {edit(func(m map[string]any) { sops(m)["age"] = []any{} }), bundle.ErrMalformed, ""},
		"no mac":           {edit(func(m map[string]any) { delete(sops(m), "mac") }), bundle.ErrMalformed, ""},
		"value taken out":  {edit(func(m map[string]any) { delete(m["cluster"].(map[string]any), "id") }), bundle.ErrTampered, ""},
		"value in plain":   {edit(func(m map[string]any) { m["cluster"].(map[string]any)["id"] = "mine" }), bundle.ErrTampered, ""},
		"aliases":          {append([]byte("a: &a [1]\nb: *a\n"), cipher...), bundle.ErrMalformed, ""},
		"bundle not whole": {lacking, bundle.ErrMalformed, "trustdinfo"},
	} {
		_, err := bundle.Open(tc.data, "secrets.sops.yaml", keys)
		if !errors.Is(err, tc.want) || !strings.Contains(fmt.Sprint(err), tc.text) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), b.Secrets().TrustdInfo.Token) {
			t.Errorf("%s: the error quotes a secret", name)
		}
	}
	if _, err := bundle.Open(cipher, "x", newKeys(t, 1)); !errors.Is(err, bundle.ErrNoIdentity) {
		t.Error(err)
	}
	if _, err := bundle.Open(cipher, "x", bundle.Keys{}); !errors.Is(err, bundle.ErrNoKeys) {
		t.Error(err)
	}
}

func TestLoadKeys(t *testing.T) {
	a, _ := age.GenerateX25519Identity()
	b, _ := age.GenerateX25519Identity()
	file := filepath.Join(t.TempDir(), "keys.txt")
	if err := os.WriteFile(file, []byte("# comment\n"+b.String()+"\n"+a.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{bundle.EnvKey: a.String(), bundle.EnvKeyFile: file}
	k, err := bundle.LoadKeys(func(n string) string { return env[n] })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{a.Recipient().String(), b.Recipient().String()}; !reflect.DeepEqual(k.Recipients(), want) {
		t.Error(k.Recipients())
	}
	holder := struct{ hidden bundle.Keys }{k}
	for _, form := range []string{fmt.Sprintf("%v %+v %#v %s %d", k, k, k, k, k), fmt.Sprintf("%v %+v %#v", holder, holder, holder), func() string { b, _ := json.Marshal([]any{k}); return string(b) }()} {
		if strings.Contains(strings.ToUpper(form), "SECRET-KEY") || strings.Contains(form, "65 71 69 45 83") {
			t.Error("a key was printed:", form)
		}
	}
	if _, err := bundle.LoadKeys(func(string) string { return "" }); !errors.Is(err, bundle.ErrNoKeys) {
		t.Error(err)
	}
	broken := "AGE-SECRET-KEY-1CANARY"
	if _, err := bundle.LoadKeys(func(n string) string { return map[string]string{bundle.EnvKey: broken}[n] }); err == nil || strings.Contains(err.Error(), broken) {
		t.Error(err)
	}
}

func TestStandInShowsWhatTheFileShows(t *testing.T) {
	keys := newKeys(t, 1)
	_, plain, cipher := sealed(t, keys)
	key := []byte("k")
	for _, empty := range []string{"", "\n", "# to come\n", "---\n"} {
		if _, err := bundle.StandIn("prod", []byte(empty)); !errors.Is(err, bundle.ErrMalformed) {
			t.Errorf("the empty file %q: %v", empty, err)
		}
	}
	whole, err := bundle.StandIn("prod", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := whole.Secrets().Validate(); err != nil {
		t.Fatal(err)
	}
	same, err := bundle.StandIn("prod", cipher)
	if err != nil {
		t.Fatal(err)
	}
	other, err := bundle.StandIn("test", cipher)
	if err != nil {
		t.Fatal(err)
	}
	if same.Fingerprint(key) != whole.Fingerprint(key) || same.Fingerprint(key) == other.Fingerprint(key) || !same.StandIn {
		t.Error("a stand-in belongs to its cluster and to nothing else")
	}
	var base map[string]any
	if err := yaml.Unmarshal(plain, &base); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"cluster", "cluster.id", "cluster.secret", "secrets", "secrets.bootstraptoken", "secrets.secretboxencryptionsecret",
		"trustdinfo", "trustdinfo.token", "certs", "certs.etcd", "certs.etcd.crt", "certs.etcd.key", "certs.k8s.key", "certs.os",
		"certs.os.crt", "certs.k8saggregator.key", "certs.k8sserviceaccount", "certs.k8sserviceaccount.key",
	} {
		for _, empty := range []bool{false, true} {
			if empty && !strings.Contains(path, ".") {
				continue
			}
			text := without(t, plain, path, empty)
			cut, err := bundle.Encrypt(text, "x", keys.Recipients(), "")
			if err != nil {
				t.Fatal(err)
			}
			b, err := bundle.StandIn("prod", cut)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if b.Secrets().Validate() == nil {
				t.Errorf("%s (empty: %v) was invented", path, empty)
			}
			// The real bundle says the same, in the same words.
			if _, err := bundle.Open(cut, "x", keys); err == nil || !strings.HasSuffix(err.Error(), strings.TrimSpace(b.Secrets().Validate().Error())) {
				t.Errorf("%s (empty: %v): real %v, stand-in %v", path, empty, err, b.Secrets().Validate())
			}
		}
	}
}

// without takes a path out of a YAML file, or empties it.
func without(t *testing.T, plain []byte, path string, empty bool) []byte {
	t.Helper()
	var m map[string]any
	if err := yaml.Unmarshal(plain, &m); err != nil {
		t.Fatal(err)
	}
	steps := strings.Split(path, ".")
	at := m
	for _, s := range steps[:len(steps)-1] {
		at = at[s].(map[string]any)
	}
	last := steps[len(steps)-1]
	switch at[last].(type) {
	case map[string]any:
		delete(at, last)
	default:
		if empty {
			at[last] = ""
		} else {
			delete(at, last)
		}
	}
	out, err := yaml.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAESCBCAloneGetsNoSecretbox(t *testing.T) {
	keys := newKeys(t, 1)
	_, plain, _ := sealed(t, keys)
	old := bytes.Replace(plain, []byte("secretboxencryptionsecret"), []byte("aescbcencryptionsecret"), 1)
	cipher, err := bundle.Encrypt(old, "x", keys.Recipients(), "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := bundle.StandIn("prod", cipher)
	if err != nil {
		t.Fatal(err)
	}
	if s := b.Secrets().Secrets; s.SecretboxEncryptionSecret != "" || s.AESCBCEncryptionSecret == "" {
		t.Errorf("secretbox %v, aescbc %v", s.SecretboxEncryptionSecret != "", s.AESCBCEncryptionSecret != "")
	}
}

func TestValuesOfSeveralDocuments(t *testing.T) {
	keys := newKeys(t, 1)
	const plain = `# a comment
kind: A
spec:
  documents:
    - machine:
        token: "tok"
        "a.b":
          # in a list
          - x
          - y # inline
    # between
    - wireguard:
        privateKey: "k=="
        mtu: 1420
        on: true
---
kind: B
spec:
  token: "other"
`
	for _, regex := range []string{"", "^(token|privateKey|mtu|on|a\\.b)$"} {
		cipher, err := bundle.Encrypt([]byte(plain), "x", keys.Recipients(), regex)
		if err != nil {
			t.Fatal(err)
		}
		got, err := keys.Open(&fleet.File{Path: "x", Data: cipher})
		if err != nil {
			t.Fatalf("%v\n%s", err, cipher)
		}
		want := []map[string]string{{
			"spec.documents[0].machine.token": "tok", `spec.documents[0].machine["a.b"][1]`: "x",
			`spec.documents[0].machine["a.b"][3]`: "y", "spec.documents[1].wireguard.privateKey": "k==",
			"spec.documents[1].wireguard.mtu": "1420", "spec.documents[1].wireguard.on": "true",
		}, {"spec.token": "other"}}
		if regex == "" {
			// The comment between the documents is an element of the encrypted list.
			for _, k := range []string{"privateKey", "mtu", "on"} {
				want[0]["spec.documents[2].wireguard."+k] = want[0]["spec.documents[1].wireguard."+k]
				delete(want[0], "spec.documents[1].wireguard."+k)
			}
			want[0]["kind"], want[1]["kind"] = "A", "B"
		}
		for i := range want {
			if len(got[i]) != len(want[i]) {
				t.Errorf("document %d has %d values, not %d", i, len(got[i]), len(want[i]))
			}
			for path, v := range want[i] {
				if string(got[i][path].Reveal()) != v {
					t.Errorf("%s: %q", path, got[i][path].Reveal())
				}
			}
		}
		info, err := bundle.Shape(cipher)
		if err != nil || !reflect.DeepEqual(info.Recipients, keys.Recipients()) {
			t.Error(info, err)
		}
		tampered := bytes.Replace(cipher, []byte("- wireguard"), []byte("- wireguarb"), 1)
		if _, err := keys.Open(&fleet.File{Path: "x", Data: tampered}); !errors.Is(err, bundle.ErrTampered) {
			t.Error(err)
		}
	}
}

func TestMACKeysHavePurposes(t *testing.T) {
	k := newKeys(t, 1)
	if bytes.Equal(k.MACKeys("inventory")[0], k.MACKeys("fingerprint")[0]) || len(k.MACKeys("inventory")[0]) != 32 {
		t.Error("keys of two purposes are the same")
	}
	if !bytes.Equal(k.MACKeys("inventory")[0], k.MACKeys("inventory")[0]) {
		t.Error("not deterministic")
	}
}

func FuzzShapeAndStandIn(f *testing.F) {
	keys := newKeys(f, 1)
	_, plain, cipher := sealed(f, keys)
	f.Add(cipher)
	f.Add(plain)
	f.Add([]byte("certs: {os: {crt: [1]}}\nsops: {age: [{}], mac: x}"))
	f.Add([]byte("a: &a {b: *a}"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = bundle.Shape(data)
		if b, err := bundle.StandIn("x", data); err == nil {
			_ = b.Secrets().Validate()
		}
	})
}

func BenchmarkStandIn(b *testing.B) {
	for b.Loop() {
		if _, err := bundle.StandIn("prod", nil); err != nil {
			b.Fatal(err)
		}
	}
}
