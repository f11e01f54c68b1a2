package schemas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	jsonschema "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// compile makes validators of all schemas.
func compile(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	out := map[string]*jsonschema.Schema{}
	for _, kind := range append(schemas.Kinds(), schemas.Report) {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemas.JSONSchema(kind)))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource(kind+".json", doc); err != nil {
			t.Fatal(err)
		}
		if out[kind], err = c.Compile(kind + ".json"); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	return out
}

// load reads one of the loader's archives, every file of it.
func load(t *testing.T, file string) (*fleet.Fleet, []fleet.Problem, fstest.MapFS) {
	t.Helper()
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fsys := fstest.MapFS{}
	for _, f := range ar.Files {
		if f.Name != "want" {
			fsys[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
	f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f, problems, fsys
}

func archives(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("fleet/testdata/problems/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	return files
}

func TestEveryManifestThatLoadsValidates(t *testing.T) {
	validators := compile(t)
	seen := map[string]int{}
	for _, file := range archives(t) {
		f, _, _ := load(t, file)
		for id, m := range manifests(f) {
			kind, _, _ := strings.Cut(id, "/")
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			v, _ := jsonschema.UnmarshalJSON(bytes.NewReader(b))
			if err := validators[kind].Validate(v); err != nil {
				t.Errorf("%s: %s loads and does not validate: %v", file, id, err)
			}
			seen[kind]++
		}
	}
	for _, kind := range schemas.Kinds() {
		if seen[kind] == 0 {
			t.Errorf("no %s was validated", kind)
		}
	}
}

// manifests lists the manifests of a fleet by Kind/name (the same name in two clusters is one entry).
func manifests(f *fleet.Fleet) map[string]any {
	out := map[string]any{}
	for _, c := range f.Clusters {
		if c.Manifest != nil {
			out[c.ID()] = c.Manifest
		}
		for _, x := range c.Machines {
			out[x.ID()] = x.Manifest
		}
		for _, x := range c.Patches {
			out[x.ID()] = x.Manifest
		}
		for _, x := range c.Backups {
			out[x.ID()] = x.Manifest
		}
		for _, x := range c.Policies {
			out[x.ID()] = x.Manifest
		}
		for _, x := range c.Operations {
			out[x.ID()] = x.Manifest
		}
	}
	for _, p := range f.Policies {
		out[p.ID()] = p.Manifest
	}
	return out
}

// TestWhatIsStructurallyWrongDoesNotValidate takes the documents that the loader refuses for their structure. Each
// document of these archives is one; what only the loader can know (values, references) is not in them.
func TestWhatIsStructurallyWrongDoesNotValidate(t *testing.T) {
	validators := compile(t)
	checked := 0
	for _, name := range []string{"unknown-field", "missing", "wrong-type", "values"} {
		_, problems, fsys := load(t, "fleet/testdata/problems/"+name+".txtar")
		structural := map[string]bool{}
		for _, p := range problems {
			for _, sign := range []string{"unknown field", "unknown value", "unknown kind", "required field ", "wrong type", "is not within"} {
				if strings.HasPrefix(p.Message, sign) || strings.Contains(p.Message, sign) {
					structural[p.File] = true
				}
			}
		}
		for file := range structural {
			v, kind, ok := single(fsys[file].Data)
			if !ok || validators[kind] == nil {
				continue
			}
			checked++
			if err := validators[kind].Validate(v); err == nil {
				t.Errorf("%s: %s is refused by the loader and validates", name, file)
			}
		}
	}
	if checked < 8 {
		t.Errorf("only %d documents were checked", checked)
	}
}

// single reads a file of one document as JSON.
func single(data []byte) (v any, kind string, ok bool) {
	if bytes.Contains(data, []byte("\n---")) || yaml.Unmarshal(data, &v) != nil {
		return nil, "", false
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, "", false
	}
	v, err = jsonschema.UnmarshalJSON(bytes.NewReader(b))
	m, _ := v.(map[string]any)
	kind, _ = m["kind"].(string)
	return v, kind, err == nil
}

func TestTheSchemasAreThere(t *testing.T) {
	if schemas.JSONSchema("Nothing") != nil {
		t.Error("an unknown kind has a schema")
	}
	var report map[string]any
	if err := json.Unmarshal(schemas.JSONSchema(schemas.Report), &report); err != nil || report["properties"] == nil {
		t.Errorf("the report's schema: %v", err)
	}
}
