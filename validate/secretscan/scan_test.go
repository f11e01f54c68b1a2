package secretscan

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Values of the shape of real secrets; none of them opens anything.
const (
	fakeToken  = "qwerty.0123456789abcdef"
	fakeAge    = "AGE-SECRET-KEY-1QQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQ"
	fakeAgePQ  = "AGE-SECRET-KEY-PQ-1QQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQ"
	fakePEM    = "-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJpUUrFFvGvEvUvUvUvUvUvUvUvUvUvUvUvUvUvUvUvU\n-----END ED25519 PRIVATE KEY-----\n"
	fakeBase32 = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0MTI="
)

var fakeB64PEM = base64.StdEncoding.EncodeToString([]byte(fakePEM))

// indent puts every line of s behind n blanks.
func indent(s string, n int) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n"+pad) + "\n"
}

// secretFiles: a file, and the lines at which a secret must be found.
var secretFiles = []struct {
	name, text string
	lines      []int
}{
	{"secrets bundle", "cluster:\n    id: aaaa\n    secret: " + fakeBase32 + "\nsecrets:\n    bootstraptoken: " + fakeToken +
		"\n    secretboxencryptionsecret: " + fakeBase32 + "\n    aescbcencryptionsecret: " + fakeBase32 +
		"\ntrustdinfo:\n    token: " + fakeToken + "\ncerts:\n    etcd:\n        crt: LS0t\n        key: " + fakeB64PEM +
		"\n    k8sserviceaccount:\n        key: " + fakeB64PEM + "\n", []int{3, 5, 6, 7, 9, 13, 15}},
	{"secrets bundle as JSON", `{"Cluster":{"Id":"a","Secret":"` + fakeBase32 + `"},` + "\n" + `"Secrets":{"BootstrapToken":"` +
		fakeToken + `"},` + "\n" + `"TrustdInfo":{"Token":"` + fakeToken + `"}}` + "\n", []int{1, 2, 3}},
	{"partly encrypted bundle", "cluster:\n    secret: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\nsecrets:\n    bootstraptoken: " +
		fakeToken + "\ntrustdinfo:\n    token: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\nsops:\n    mac: x\n", []int{4}},
	{"PEM", "x\n" + fakePEM, []int{2}},
	{"PEM of OpenSSH", strings.ReplaceAll(fakePEM, "ED25519", "OPENSSH"), []int{1}},
	{"PEM without a kind", strings.ReplaceAll(fakePEM, "ED25519 ", ""), []int{1}},
	{"PEM, encrypted", strings.ReplaceAll(fakePEM, "ED25519", "ENCRYPTED"), []int{1}},
	{"PEM, RSA and EC", strings.ReplaceAll(fakePEM, "ED25519", "RSA") + strings.ReplaceAll(fakePEM, "ED25519", "EC"), []int{1, 4}},
	{"PEM with CRLF", strings.ReplaceAll(fakePEM, "\n", "\r\n"), []int{1}},
	{"PEM in a JSON string", `{"k": "` + strings.ReplaceAll(fakePEM, "\n", `\n`) + `"}`, []int{1}},
	{"PEM in a block of YAML", "files:\n  - content: |\n" + indent(fakePEM, 6), []int{3}},
	{"age identity", "# created: 2026-01-01\n# public key: age1\n" + fakeAge + "\n", []int{3}},
	{"age identity, post-quantum", fakeAgePQ, []int{1}},
	{"talosconfig", "context: prod\ncontexts:\n  prod:\n    endpoints: [10.0.0.1]\n    ca: LS0t\n    crt: LS0t\n    key: " + fakeB64PEM + "\n", []int{7}},
	{"kubeconfig", "users:\n- name: admin\n  user:\n    client-certificate-data: LS0t\n    client-key-data: " + fakeB64PEM +
		"\n- name: bot\n  user:\n    token: eyJhbGciOi.payload.sig\n", []int{5, 8}},
	{
		"machine configuration", "version: v1alpha1\nmachine:\n  type: worker\n  token: secret-of-the-machine\n  ca:\n    crt: LS0t\n    key: " + fakeB64PEM +
			"\ncluster:\n  secret: short\n  token: " + fakeToken + "\n  aescbcEncryptionSecret: x1\n  secretboxEncryptionSecret: y1\n  serviceAccount:\n    key: z1\n  etcd:\n    ca:\n      key: w1\n  aggregatorCA:\n    key: v1\n",
		[]int{4, 7, 9, 10, 11, 12, 14, 17, 19},
	},
	{"patch of ours", "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosConfigPatch\nmetadata:\n  name: p\nspec:\n  clusterRef:\n    name: c\n  documents:\n" +
		"    - machine:\n        token: any-text-at-all\n        registries:\n          config:\n            reg.example.com:\n              auth:\n                username: u\n                password: hunter22\n                identityToken: it\n" +
		"        network:\n          interfaces:\n            - interface: wg0\n              wireguard:\n                privateKey: " + fakeBase32 +
		"\n    - apiVersion: v1alpha1\n      kind: RegistryAuthConfig\n      name: r\n      password: hunter23\n    - apiVersion: v1alpha1\n      kind: WireguardConfig\n      name: wg1\n      privateKey: abc\n      peers:\n        - presharedKey: psk1\n", []int{10, 16, 17, 22, 26, 30, 32}},
	{"JSON patch of ours", "kind: TalosConfigPatch\nspec:\n  jsonPatch:\n    - op: add\n      path: /machine/token\n      value: any-text\n    - op: add\n      path: /machine/ca\n      value:\n        key: xyz\n    - op: add\n      path: /machine/registries/config/reg.example.com~1v2/auth\n      value: {username: u, password: hunter24}\n", []int{6, 10, 13}},
	{"raw patch", "machine:\n  systemDiskEncryption:\n    ephemeral:\n      keys:\n        - slot: 0\n          static:\n            passphrase: open sesame\n", []int{7}},
	{"alias", "x: &t " + fakeToken + "\nmachine:\n  token: *t\n", []int{3}},
	{"SideroLink", "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: https://siderolink.example.com/?jointoken=abcdef\n", []int{3}},
	{"S3 credentials", "accessKeyID: AKIAIOSFODNN7EXAMPLE\nsecretAccessKey: wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY\n", []int{2}},
	{"S3 credentials as INI", "[default]\naws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY\n", []int{2}},
	{"S3 credentials as variables", "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY\n", []int{1}},
	{"Kubernetes Secret", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: tls\ndata:\n  tls.crt: LS0t\n  tls.key: " + fakeB64PEM + "\n  sops.agekey: " + base64.StdEncoding.EncodeToString([]byte("# x\n"+fakeAge+"\n")) + "\n", []int{7, 8}},
	{"Kubernetes Secret with a bundle", "kind: Secret\ndata:\n  bundle: " + base64.StdEncoding.EncodeToString([]byte("trustdinfo:\n  token: abc\n")) + "\n", []int{3}},
	{"Kubernetes Secret in plain", "kind: Secret\nstringData:\n  key: |\n" + indent(fakePEM, 4), []int{4}},
	{"snippet in Markdown", "# How\n```yaml\nmachine:\n  token: " + fakeToken + "\n```\nand {{ broken\n", []int{4}},
	{"template", "{{- if .x }}\ncluster:\n  secretboxEncryptionSecret: " + fakeBase32 + "\n{{- end }}\n", []int{3}},
	{"WireGuard file", "[Interface]\nPrivateKey = " + fakeBase32 + "\n", []int{2}},
}

// harmlessFiles are what people keep beside it and must not be bothered about.
var harmlessFiles = map[string]string{
	"placeholder":       "machine:\n  token: <secret>\n  ca:\n    key: \"\"\ncluster:\n  token: ${TOKEN}\n  secret: \"{{ .Values.secret }}\"\n",
	"dots":              "machine:\n  token: ...\n  ca:\n    key: LS0tLS1CRUdJTi...\n",
	"PEM in a document": "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n",
	"PEM of a public":   strings.ReplaceAll(fakePEM, "PRIVATE", "PUBLIC"),
	"certificate":       "ca: " + base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")) + "\n",
	"encrypted":         "certs:\n  os:\n    key: ENC[AES256_GCM,data:a,iv:b,tag:c,type:str]\nsops:\n  age:\n    - recipient: age1x\n      enc: |\n        -----BEGIN AGE ENCRYPTED FILE-----\n        YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOQ==\n        -----END AGE ENCRYPTED FILE-----\n",
	"Helm values":       "cluster:\n  secret: my-secret-name\n  token: see-vault\nmachine:\n  token: later\n",
	"age recipient":     "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p\n",
	"prose":             "The token: it is kept in a safe. The secret = what nobody tells.\n",
	"paths of keys":     "etcd:\n  ca:\n    key: /etc/ssl/etcd.key\ncontexts:\n  a:\n    key: b\nuser:\n  token: t\n  password: p\n",
	"token of others":   "token: abc\nuser:\n  name: x\n",
	"Kubernetes Secret": "kind: Secret\ndata:\n  password: aHVudGVyMg==\n",
	"our manifest":      "kind: TalosCluster\nspec:\n  secretsRef:\n    path: secrets.sops.yaml\n",
	"stars":             "machine:\n  token: \"********\"\n",
	"alias to itself":   "a: &a\n  token: *a\n",
	"mask":              "machine:\n  token: <secret>\n  ca: {crt: <secret>, key: <secret>}\n",
}

func TestSecretFiles(t *testing.T) {
	for _, f := range secretFiles {
		found := File([]byte(f.text), false)
		var lines []int
		for _, x := range found {
			lines = append(lines, x.Line)
			if x.Digest == "" || x.Value.Empty() || x.What == "" {
				t.Errorf("%s: incomplete Finding at line %d", f.name, x.Line)
			}
		}
		if fmt.Sprint(lines) != fmt.Sprint(f.lines) {
			t.Errorf("%s: found at lines %v, want %v", f.name, lines, f.lines)
			for _, x := range found {
				t.Logf("  %d:%d %s %s", x.Line, x.Column, x.Path, x.What)
			}
		}
	}
}

func TestHarmlessFiles(t *testing.T) {
	for name, text := range harmlessFiles {
		for _, x := range File([]byte(text), false) {
			t.Errorf("%s: line %d: %s %s", name, x.Line, x.Path, x.What)
		}
	}
}

// TestFindingsNeverShowTheValue: what a finding says of itself, in every form of printing, holds nothing of the value.
func TestFindingsNeverShowTheValue(t *testing.T) {
	for _, f := range secretFiles {
		for _, x := range File([]byte(f.text), false) {
			shown := fmt.Sprintf("%v %+v %#v", x, x, x)
			for _, v := range []string{fakeToken, fakeAge, fakeBase32, fakeB64PEM, "hunter2", "MC4CAQ", "wJalr", "sesame"} {
				if strings.Contains(shown, v) {
					t.Errorf("%s: value shown in %q", f.name, shown)
				}
			}
		}
	}
}

// TestMachineManifestsAreNotParsed: the quick look keeps the scan of a large fleet cheap (see BenchmarkSecretScan).
func TestMachineManifestsAreNotParsed(t *testing.T) {
	file := "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMachine\nmetadata:\n  name: w\nspec:\n  clusterRef:\n    name: c\n" +
		"  role: worker\n  approvalState: approved\n  endpoint: 10.0.0.1\n  hostname: w\n"
	if mayHoldFields([]byte(file)) {
		t.Error("a machine manifest is parsed for secrets: the quick look is too wide")
	}
}

// hostileFiles begin a secret everywhere, or repeat themselves by aliases, to be expensive.
func hostileFiles(size int) map[string][]byte {
	fill := func(s string) []byte { return []byte(strings.Repeat(s, size/len(s))) }
	secretOfSize := "kind: Secret\ndata:\n  a: " + strings.Repeat("QUFB", size/8) + "\n"
	return map[string][]byte{
		"base64 begins everywhere": fill("LS0tLS1CRUdJTi"),
		"PEM begins everywhere":    fill("-----BEGIN RSA PRIVATE KEY-----"),
		"age begins everywhere":    fill("AGE-SECRET-KEY-1"),
		"one line of tokens":       fill(`token: qwerty.0123456789abcdef `),
		"long key over many":       []byte("? " + strings.Repeat("k", size/2) + "\n: [" + strings.Repeat("{token: a},", size/32) + "]\n"),
		"aliases of a Secret":      []byte("a: &s\n  " + strings.ReplaceAll(secretOfSize, "\n", "\n  ") + "\nb: [" + strings.Repeat("*s,", size/8) + "]\n"),
		"aliases of aliases":       []byte("token: x\na: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"),
		"colons":                   fill(":"),
		"brackets":                 fill("token: ["),
	}
}

// TestHostileFiles: eight times the size takes about eight times as long, not sixty-four times. Times are compared with
// each other, so that a slow or busy machine changes nothing.
func TestHostileFiles(t *testing.T) {
	measure := func(data []byte) time.Duration {
		best := time.Hour
		for range 3 {
			began := time.Now()
			File(data, false)
			best = min(best, time.Since(began))
		}
		return best
	}
	const size = 16 << 10
	small, large := hostileFiles(size), hostileFiles(8*size)
	for name, data := range large {
		// What is over in no time has no shape that could be measured.
		long := measure(data)
		if short := max(measure(small[name]), 2*time.Millisecond); long > 32*short {
			t.Errorf("%s: %s for %d KiB, %s for %d KiB", name, short, size>>10, long, 8*size>>10)
		}
	}
}

func BenchmarkSecretScan(b *testing.B) {
	file := bytes.Repeat([]byte("spec:\n  clusterRef:\n    name: c\n  endpoint: 10.0.0.1\n"), 20)
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		File(file, false)
	}
}

// FuzzSecretScan: no file panics, hangs or gives a place outside of itself.
func FuzzSecretScan(f *testing.F) {
	for _, s := range secretFiles {
		f.Add([]byte(s.text))
	}
	for _, s := range harmlessFiles {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + bytes.Count(data, []byte("\u0085")) +
			bytes.Count(data, []byte("\u2028")) + bytes.Count(data, []byte("\u2029")) + 1
		for _, x := range File(data, false) {
			if x.Line < 1 || x.Line > lines || x.Digest == "" {
				t.Fatalf("line %d of %d", x.Line, lines)
			}
		}
	})
}
