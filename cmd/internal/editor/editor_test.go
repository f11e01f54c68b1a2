package editor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	jsonschema "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/cmd/internal/editor"
	"ichor.maesh.dev/ichor/schemas"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// compile makes a validator of a kind's schema, as an editor reads it.
func compile(t *testing.T, kind, contract string) *jsonschema.Schema {
	t.Helper()
	text, err := editor.Schema(kind, contract)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(kind+".json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(kind + ".json")
	if err != nil {
		t.Fatalf("%s of %s: %v", kind, contract, err)
	}
	return s
}

// documents reads YAML as a validator wants it.
func documents(t *testing.T, data []byte) []any {
	t.Helper()
	var out []any
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var v any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if v, err = jsonschema.UnmarshalJSON(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
}

// TestTheExamplesFitTheSchemas takes every manifest of examples/ and of the checks' example.
func TestTheExamplesFitTheSchemas(t *testing.T) {
	validators := map[string]*jsonschema.Schema{}
	for _, k := range schemas.Kinds() {
		validators[k] = compile(t, k, "v1.13")
	}
	seen := map[string]int{}
	for _, root := range []string{"../../../examples", "../../../validate/check/testdata/example"} {
		err := fs.WalkDir(os.DirFS(root), ".", func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || path.Ext(p) != ".yaml" {
				return err
			}
			data, err := os.ReadFile(filepath.Join(root, p))
			if err != nil || !bytes.Contains(data, []byte(v1alpha1.APIVersion)) {
				return err
			}
			for _, d := range documents(t, data) {
				m, _ := d.(map[string]any)
				kind, _ := m["kind"].(string)
				if m["apiVersion"] != v1alpha1.APIVersion {
					continue
				}
				if err := validators[kind].Validate(d); err != nil {
					t.Errorf("%s: %v", p, err)
				}
				seen[kind]++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen[v1alpha1.KindTalosConfigPatch] < 4 || seen[v1alpha1.KindTalosCluster] < 2 {
		t.Errorf("too little was validated: %v", seen)
	}
}

// patchOf wraps documents in a patch.
func patchOf(documents string) []byte {
	return []byte("apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosConfigPatch\nmetadata: {name: p}\nspec:\n  clusterRef: {name: c}\n  documents:\n" +
		"    " + strings.ReplaceAll(strings.TrimSpace(documents), "\n", "\n    ") + "\n")
}

func TestTalosFieldsAreMarked(t *testing.T) {
	validators := map[string]*jsonschema.Schema{}
	for _, c := range editor.Contracts() {
		validators[c] = compile(t, v1alpha1.KindTalosConfigPatch, c)
	}
	for name, tc := range map[string]struct {
		contract, documents string
		// marked is where the error must be; "" expects none.
		marked string
	}{
		"sparse v1alpha1":         {"v1.13", "- machine: {sysctls: {a.b: '1'}}", ""},
		"a field misspelt":        {"v1.13", "- machine: {sysctl: {a.b: '1'}}", "/spec/documents/0/machine"},
		"a root misspelt":         {"v1.13", "- machines: {}", "/spec/documents/0"},
		"a value of another type": {"v1.13", "- machine: {certSANs: yes-please}", "/spec/documents/0/machine/certSANs"},
		"a document":              {"v1.13", "- {apiVersion: v1alpha1, kind: HostnameConfig, hostname: a}", ""},
		"a document's field":      {"v1.13", "- {apiVersion: v1alpha1, kind: HostnameConfig, hostnam: a}", "/spec/documents/0"},
		"no apiVersion":           {"v1.13", "- {kind: HostnameConfig, hostname: a}", "/spec/documents/0"},
		"an unknown kind":         {"v1.13", "- {apiVersion: v1alpha1, kind: HostnamesConfig}", "/spec/documents/0/kind"},
		"a kind of 1.14 in 1.13":  {"v1.13", "- {apiVersion: v1alpha1, kind: KubeProxyConfig}", "/spec/documents/0/kind"},
		"a kind of 1.14":          {"v1.14", "- {apiVersion: v1alpha1, kind: KubeProxyConfig}", ""},
		"a document deleted":      {"v1.13", "- {apiVersion: v1alpha1, kind: HostnameConfig, $patch: delete}", ""},
		"a mapping deleted":       {"v1.13", "- machine: {sysctls: {$patch: delete}}", ""},
		"a list deleted":          {"v1.13", "- machine: {certSANs: {$patch: delete}}", ""},
		"an older contract":       {"v1.9", "- machine: {network: {hostname: a}}", ""},
		"the second of two":       {"v1.13", "- machine: {certSANs: [a]}\n- cluster: {apiServers: {}}", "/spec/documents/1/cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			near, err := editor.Nearest(tc.contract)
			if err != nil {
				t.Fatal(err)
			}
			err = validators[near].Validate(documents(t, patchOf(tc.documents))[0])
			switch {
			case tc.marked == "" && err != nil:
				t.Errorf("what is right is marked: %v", err)
			case tc.marked != "" && err == nil:
				t.Error("what is wrong is not marked")
			case tc.marked != "" && !strings.Contains(err.Error(), "at '"+tc.marked+"'"):
				t.Errorf("marked elsewhere than at %s: %v", tc.marked, err)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	for in, want := range map[string]string{"v1.13": "v1.13", "1.14": "v1.14", "v1.7": "v1.11", "v1.12": "v1.12", "v1.99": "v1.14", "v1.13.5": "v1.13"} {
		if got, err := editor.Nearest(in); err != nil || got != want {
			t.Errorf("Nearest(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
	if _, err := editor.Nearest("latest"); err == nil {
		t.Error("latest is taken for a version")
	}
}
