package check_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/validate/check"
)

// canaries are secrets in plain text, each in another place where a repository can hold one. They are such that Talos
// or a diff would gladly repeat them.
func canaries() map[string]string {
	pem := "-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIcanarycanarycanarycanarycanarycanarycanary01\n-----END ED25519 PRIVATE KEY-----\n"
	b64 := base64.StdEncoding.EncodeToString([]byte(pem))
	key32 := func(n int) string { return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "canary-%025d", n)) }
	return map[string]string{
		"machine.token":   "canary.0123456789abcdef",
		"cluster.token":   "canar2.0123456789abcdef",
		"ca.key":          b64,
		"secretbox":       key32(1),
		"aescbc":          key32(2),
		"cluster.secret":  key32(3),
		"registry":        "canary-registry-password",
		"wireguard":       key32(4),
		"content":         pem,
		"passphrase":      "canary-passphrase",
		"s3":              "canaryS3canaryS3canaryS3",
		"age":             "AGE-SECRET-KEY-1CANARYCANARYCANARYCANARYCANARYCANARYCANARYCANARYCANARY0",
		"siderolink":      "canaryjointoken",
		"wrongly-spelled": "canar3.0123456789abcdef",
	}
}

// poisoned is the example with every canary in a patch or file; n makes two versions that differ in every secret.
func poisoned(t *testing.T, n string) (fstest.MapFS, []string) {
	t.Helper()
	c := canaries()
	var values []string
	for k, v := range c {
		if n != "" {
			v = strings.NewReplacer("canar", n, "CANAR", strings.ToUpper(n), "Y2FuYXJ5", base64.StdEncoding.EncodeToString([]byte(n+"y"))).Replace(v)
			if k == "ca.key" {
				v = base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(c["content"], "canar", n)))
			}
		}
		c[k] = v
		for line := range strings.SplitSeq(v, "\n") {
			if line != "" && !strings.HasPrefix(line, "-----") {
				values = append(values, line)
			}
		}
	}
	files := example(t)
	files["poison.yaml"] = &fstest.MapFile{Data: []byte(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: poison
spec:
  clusterRef:
    name: prod
  selector:
    roles: [controlplane]
  order: 30
  documents:
    - machine:
        token: ` + c["machine.token"] + `
        ca:
          crt: LS0t
          key: ` + c["ca.key"] + `
        registries:
          config:
            registry.example.com:
              auth:
                username: u
                password: ` + c["registry"] + `
        files:
          - path: /var/key
            permissions: 0o600
            op: create
            content: |
              ` + strings.ReplaceAll(strings.TrimSpace(c["content"]), "\n", "\n              ") + `
        systemDiskEncryption:
          state:
            provider: luks2
            keys:
              - slot: 0
                static:
                  passphrase: ` + c["passphrase"] + `
    - cluster:
        token: ` + c["cluster.token"] + `
        secret: ` + c["cluster.secret"] + `
        secretboxEncryptionSecret: ` + c["secretbox"] + `
        aescbcEncryptionSecret: ` + c["aescbc"] + `
    - apiVersion: v1alpha1
      kind: WireguardConfig
      name: wg0
      privateKey: ` + c["wireguard"] + `
    - apiVersion: v1alpha1
      kind: SideroLinkConfig
      apiUrl: https://siderolink.example.com/?jointoken=` + c["siderolink"] + `
`)}
	files["wrong.yaml"] = &fstest.MapFile{Data: []byte(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: wrong
spec:
  clusterRef:
    name: prod
  order: 40
  selector:
    machines: [w1]
  documents:
    - machine:
        unknown:
          token: ` + c["wrongly-spelled"] + `
`)}
	files["s3.sops.yaml"] = &fstest.MapFile{Data: []byte("accessKeyID: a\nsecretAccessKey: " + c["s3"] + "\n")}
	files["notes.txt"] = &fstest.MapFile{Data: []byte(c["age"] + "\n")}
	return files, values
}

// TestCanary: no secret of the repository, of either side, is in any form of the report or in a shown render.
func TestCanary(t *testing.T) {
	base, baseValues := poisoned(t, "")
	head, headValues := poisoned(t, "finch")
	for name, in := range map[string]check.Input{
		"head":    {FS: head},
		"changed": {FS: head, BaseFS: base, ExcuseBase: true},
		"removed": {FS: example(t), BaseFS: base, ExcuseBase: true},
	} {
		t.Run(name, func(t *testing.T) {
			in.KeepRenders = true
			r, d, err := check.Run(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if name != "removed" && r.Verdict != check.Failed {
				t.Errorf("plain-text secrets passed:\n%s", story(r))
			}
			shown := outputs(t, r)
			for cluster, machines := range d.Renders {
				for machine, m := range machines {
					shown["render "+cluster+"/"+machine] = d.Scrub(string(m.YAML()))
				}
			}
			if name != "removed" && !strings.Contains(shown["json"], secret.Redacted) {
				t.Error("nothing had to be scrubbed: the canaries test nothing")
			}
			for form, text := range shown {
				for _, v := range append(headValues, baseValues...) {
					if strings.Contains(text, v) {
						t.Errorf("%s shows %q", form, v)
					}
				}
			}
		})
	}
}

// outputs gives every form of a report.
func outputs(t *testing.T, r *check.Report) map[string]string {
	t.Helper()
	j, err := report.JSON(r)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"json": string(j), "raw": string(raw), "text": report.Text(r), "github": report.GitHub(r),
		"markdown": report.Markdown(r, report.Options{}), "description": report.Description(r),
	}
}
