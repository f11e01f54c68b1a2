package check_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/validate/check"
)

// common is the repository that the examples of the rules' pages change.
func common(t testing.TB) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{}
	files, err := filepath.Glob("testdata/common/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = &fstest.MapFile{Data: data}
	}
	return out
}

// pageBlock finds the files in a page: fenced YAML whose first line names the file.
var pageBlock = regexp.MustCompile("(?ms)^```yaml\n# (base )?([^\n]+)\n(.*?)^```")

// TestPages: the example of each rule's page fails by that rule, and without it the repository passes.
func TestPages(t *testing.T) {
	if r, _ := run(t, common(t), common(t), false); r.Verdict != check.Passed || len(r.Problems) > 0 {
		t.Fatalf("the common repository does not pass:\n%s", story(r))
	}
	pages, err := filepath.Glob("../../docs/rules/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, page := range pages {
		rule := strings.TrimSuffix(filepath.Base(page), ".md")
		t.Run(rule, func(t *testing.T) {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{"# " + rule + ": ", "\nSeverity: ", "\n## What to do\n", "\n## Example that fails\n"} {
				if !bytes.Contains(text, []byte(part)) {
					t.Errorf("the page has no %q", strings.TrimSpace(part))
				}
			}
			want := fleet.Error
			if bytes.Contains(text, []byte("\nSeverity: warning")) {
				want = fleet.Warning
			}
			r, _, err := check.Run(t.Context(), pageInput(t, text))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range r.Problems {
				if p.Rule == rule && p.Severity == want {
					if p.Hint == "" {
						t.Errorf("no hint what to do:\n%s", story(r))
					}
					return
				}
			}
			t.Errorf("no %s of rule %s:\n%s", want, rule, story(r))
		})
	}
}

// pageInput makes the check of a page's example.
func pageInput(t *testing.T, text []byte) check.Input {
	t.Helper()
	head, base := common(t), common(t)
	in := check.Input{FS: head, BaseFS: base}
	blocks := pageBlock.FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("the page shows no file")
	}
	for _, b := range blocks {
		name, data := string(b[2]), b[3]
		if name == "last seen" {
			in.Observed = lastSeen(t, data)
			continue
		}
		side := head
		if len(b[1]) > 0 {
			side = base
		}
		if was := side[name]; was != nil {
			data = merged(t, was.Data, data)
		}
		side[name] = &fstest.MapFile{Data: data}
	}
	return in
}

func lastSeen(t *testing.T, data []byte) *state.Observation {
	t.Helper()
	var versions map[string]string
	if err := yaml.Unmarshal(data, &versions); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	cl := state.ObservedCluster{At: now.Add(-5 * time.Minute), Machines: map[string]state.ObservedMachine{}}
	for name, v := range versions {
		cl.Machines[name] = state.ObservedMachine{TalosVersion: v}
	}
	return &state.Observation{Now: now, Clusters: map[string]state.ObservedCluster{"prod": cl}}
}

// merged puts a part of a manifest over the whole.
func merged(t *testing.T, whole, part []byte) []byte {
	t.Helper()
	var a, b map[string]any
	if err := yaml.Unmarshal(whole, &a); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(part, &b); err != nil {
		t.Fatal(err)
	}
	out, err := yaml.Marshal(mergeMaps(a, b))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mergeMaps(a, b map[string]any) map[string]any {
	for k, v := range b {
		x, okA := a[k].(map[string]any)
		y, okB := v.(map[string]any)
		if okA && okB {
			v = mergeMaps(x, y)
		}
		a[k] = v
	}
	return a
}
