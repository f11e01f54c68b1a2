package check_test

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/check"
)

type fleetProblem = fleet.Problem

var update = flag.Bool("update", false, "write what the checks give into the want sections")

// sides takes the files of head and base out of an archive; base is nil where it has none.
func sides(a *txtar.Archive) (head, base fs.FS) {
	h, b := fstest.MapFS{}, fstest.MapFS{}
	for _, f := range a.Files {
		if name, ok := strings.CutPrefix(f.Name, "head/"); ok {
			h[name] = &fstest.MapFile{Data: f.Data}
		}
		if name, ok := strings.CutPrefix(f.Name, "base/"); ok {
			b[name] = &fstest.MapFile{Data: f.Data}
		}
	}
	if len(b) == 0 {
		return h, nil
	}
	return h, b
}

// story is a report as the want section tells it.
func story(r *check.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Verdict)
	for _, p := range r.Problems {
		onBase := ""
		if p.OnBase {
			onBase = " (on base)"
		}
		fmt.Fprintf(&b, "%s:%d:%d %s %s%s\n\tcluster=%s machine=%s object=%s path=%s\n\t%s\n", p.File, p.Line, p.Column,
			p.Severity, p.Rule, onBase, p.Cluster, p.Machine, p.Object, p.Path, strings.ReplaceAll(p.Message, "\n", "\n\t"))
		if p.Hint != "" {
			fmt.Fprintf(&b, "\thint: %s\n", p.Hint)
		}
	}
	return b.String()
}

// TestRules: each archive has a commit, its base where there is one, and what the check says, with exact places.
func TestRules(t *testing.T) {
	files, err := filepath.Glob("testdata/rules/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head, base := sides(a)
			r, _, err := check.Run(t.Context(), check.Input{FS: head, BaseFS: base, ExcuseBase: true})
			if err != nil {
				t.Fatal(err)
			}
			got := []byte(story(r))
			want := &a.Files[len(a.Files)-1]
			if want.Name != "want" {
				t.Fatalf("the last file is %s, not want", want.Name)
			}
			if *update {
				want.Data = got
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want.Data) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want.Data)
			}
		})
	}
}
