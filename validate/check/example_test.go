package check_test

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/validate/check"
)

// exampleFiles are made once: a bundle has an RSA key of 4096 bits.
var exampleFiles fstest.MapFS

// example is the repository of testdata/example with a real, encrypted secrets bundle.
func example(t testing.TB) fstest.MapFS {
	t.Helper()
	if exampleFiles == nil {
		exampleFiles = makeExample(t)
	}
	return maps.Clone(exampleFiles)
}

func makeExample(t testing.TB) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{}
	files, err := filepath.Glob("testdata/example/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no example: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = &fstest.MapFile{Data: data}
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	_, plain, err := bundle.Generate("v1.13", secrets.NewClock())
	if err != nil {
		t.Fatal(err)
	}
	to := []string{id.Recipient().String()}
	for name, text := range map[string][]byte{
		"secrets.sops.yaml": plain, "s3.sops.yaml": []byte("accessKeyID: a\nsecretAccessKey: b\n"),
	} {
		sealed, err := bundle.Encrypt(text, name, to, "")
		if err != nil {
			t.Fatal(err)
		}
		out[name] = &fstest.MapFile{Data: sealed}
	}
	return out
}

// edit gives the files with one of them changed.
func edit(files fstest.MapFS, name string, pairs ...string) fstest.MapFS {
	out := maps.Clone(files)
	out[name] = &fstest.MapFile{Data: []byte(strings.NewReplacer(pairs...).Replace(string(files[name].Data)))}
	return out
}

func run(t testing.TB, head, base fs.FS, excuse bool) (*check.Report, *check.Detail) {
	t.Helper()
	in := check.Input{FS: head, Commit: "head", ExcuseBase: excuse}
	if base != nil {
		in.BaseFS, in.Base = base, "base"
	}
	r, d, err := check.Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return r, d
}

func TestExamplePassesUnder113(t *testing.T) {
	r, d := run(t, example(t), nil, false)
	if r.Verdict != check.Passed {
		t.Fatalf("verdict %s:\n%s", r.Verdict, story(r))
	}
	if !r.ClusterPassed("prod") {
		t.Error("cluster prod did not pass")
	}
	if len(r.Machines) != 4 {
		t.Fatalf("%d machines, want 4", len(r.Machines))
	}
	for _, m := range r.Machines {
		if m.Change != check.ChangeNew || m.Effect != "install" || !strings.HasPrefix(m.Digest, "sha256:") ||
			d.Digests["prod"][m.Name] != m.Digest {
			t.Errorf("%+v", m)
		}
	}
	var acts []string
	for _, s := range r.Plan {
		acts = append(acts, s.Action+" "+s.Machine)
	}
	want := []string{
		"install cp1", "install cp2", "install cp3", "bootstrap cp1", "join cp1", "join cp2", "join cp3", "install w1", "join w1",
	}
	if !slices.Equal(acts, want) {
		t.Errorf("plan %q, want %q", acts, want)
	}
}

// TestExampleFailsUnder114 is the example of SPEC section 2: Talos's own text, and the place of the guilty entry.
func TestExampleFailsUnder114(t *testing.T) {
	files := example(t)
	for name, head := range map[string]fstest.MapFS{
		"contract": edit(files, "cluster.yaml", "contract: v1.13", "contract: v1.14"),
		"version":  edit(files, "cluster.yaml", "contract: v1.13", "contract: v1.14", "v1.13.5", "v1.14.0"),
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := run(t, head, files, true)
			if r.Verdict != check.Failed || r.ClusterPassed("prod") {
				t.Fatalf("verdict %s:\n%s", r.Verdict, story(r))
			}
			i := slices.IndexFunc(r.Problems, func(p fleetProblem) bool { return p.Rule == "render" })
			if i < 0 {
				t.Fatalf("no render problem:\n%s", story(r))
			}
			p := r.Problems[i]
			if !strings.Contains(p.Message, "kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)") ||
				!strings.Contains(p.Message, "hits 3 control planes: cp1, cp2, cp3") {
				t.Errorf("message %q", p.Message)
			}
			line := 1 + slices.Index(strings.Split(string(head["patches.yaml"].Data), "\n"), "    - cluster:")
			if p.File != "patches.yaml" || p.Line != line || p.Object != "TalosConfigPatch/apiserver-verbosity" ||
				p.Path != "spec.documents[0]" || p.Machine != "" {
				t.Errorf("%s:%d (want line %d) %s %s machine %q", p.File, p.Line, line, p.Object, p.Path, p.Machine)
			}
		})
	}
}

// TestChange: one sysctl changes on every machine, live; the rest stays.
func TestChange(t *testing.T) {
	base := example(t)
	r, _ := run(t, edit(base, "patches.yaml", `"4096"`, `"8192"`), base, true)
	if r.Verdict != check.Passed {
		t.Fatalf("%s", story(r))
	}
	for _, m := range r.Machines {
		want := []check.PathChange{{
			Document: "v1alpha1", Path: `machine.sysctls["net.core.somaxconn"]`, Effect: "live", Before: "4096", After: "8192",
		}}
		if m.Change != check.ChangeUpdate || m.Effect != "live" || !reflect.DeepEqual(m.Paths, want) {
			t.Errorf("%+v", m)
		}
	}
	r, _ = run(t, base, base, true)
	for _, m := range r.Machines {
		if m.Change != check.ChangeNone || m.Effect != "none" || len(m.Paths) != 0 || m.Digest == "" {
			t.Errorf("unchanged: %+v", m)
		}
	}
	if len(r.Plan) != 0 {
		t.Errorf("plan of no change: %+v", r.Plan)
	}
}

// TestRestartNamesTheService: a change of the API server's arguments restarts it on control planes alone.
func TestRestartNamesTheService(t *testing.T) {
	base := example(t)
	r, _ := run(t, edit(base, "patches.yaml", `v: "2"`, `v: "4"`), base, true)
	for _, m := range r.Machines {
		if m.Role == "worker" {
			if m.Change != check.ChangeNone {
				t.Errorf("%+v", m)
			}
			continue
		}
		if m.Effect != "restart" || len(m.Paths) != 1 || m.Paths[0].Service != "kube-apiserver" {
			t.Errorf("%+v", m)
		}
	}
	if len(r.Plan) != 3 || r.Plan[0].Action != "configure" || r.Plan[0].Disrupts == "" {
		t.Errorf("plan %+v", r.Plan)
	}
}

// TestSecretsChanged: another bundle changes every machine though no masked render shows it.
func TestSecretsChanged(t *testing.T) {
	base, other := example(t), makeExample(t)
	head := maps.Clone(base)
	head["secrets.sops.yaml"] = other["secrets.sops.yaml"]
	r, _ := run(t, head, base, true)
	if r.Verdict != check.Failed {
		t.Fatalf("a changed bundle passed:\n%s", story(r))
	}
	for _, m := range r.Machines {
		if m.Change != check.ChangeUpdate || len(m.Paths) != 1 || m.Paths[0].Document != "secrets" {
			t.Errorf("%+v", m)
		}
	}
}

// TestEncryptedValueChanged: the value of a patch that only its ciphertext shows.
func TestEncryptedValueChanged(t *testing.T) {
	patch := func(data string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: registry
spec:
  clusterRef:
    name: prod
  selector:
    roles: [worker]
  documents:
    - apiVersion: v1alpha1
      kind: RegistryAuthConfig
      name: registry.example.com
      username: puller
      password: ENC[AES256_GCM,data:` + data + `,iv:YWFhYWFhYWFhYWFhYWFhYQ==,tag:YWFhYWFhYWFhYWFhYWFhYQ==,type:str]
sops:
  mac: ENC[AES256_GCM,data:aaaa,iv:aaaa,tag:aaaa,type:str]
  encrypted_regex: ^password$
`)}
	}
	base := example(t)
	base["registry.yaml"] = patch("aGVsbG8=")
	head := maps.Clone(base)
	head["registry.yaml"] = patch("d29ybGQ=")
	r, _ := run(t, head, base, true)
	for _, m := range r.Machines {
		changed := m.Role == "worker"
		if (m.Change == check.ChangeUpdate) != changed {
			t.Errorf("%+v", m)
		}
		if changed && (len(m.Paths) != 1 || m.Paths[0].Document != "RegistryAuthConfig/registry.example.com" ||
			m.Paths[0].Path != "password" || strings.Contains(m.Paths[0].After, "ENC")) {
			t.Errorf("%+v", m.Paths)
		}
	}
}

// TestDeterminism: the same files give the same bytes, however often and on whatever goroutine schedule.
func TestDeterminism(t *testing.T) {
	base := example(t)
	head := edit(base, "cluster.yaml", "contract: v1.13", "contract: v1.14")
	head["plain.txt"] = &fstest.MapFile{Data: []byte("AGE-SECRET-KEY-1QQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQQQQPQ\n")}
	var first []byte
	for range 5 {
		r, _ := run(t, head, base, true)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		} else if string(first) != string(b) {
			t.Fatalf("two reports:\n%s\n%s", first, b)
		}
	}
}

// TestNoNullArrays: programs that read the JSON never meet null where a list belongs.
func TestNoNullArrays(t *testing.T) {
	for name, files := range map[string]fs.FS{"empty": fstest.MapFS{}, "example": example(t)} {
		r, _ := run(t, files, files, false)
		b, err := json.Marshal(r)
		if err != nil || strings.Contains(string(b), "null") {
			t.Errorf("%s: %v %s", name, err, b)
		}
	}
}
