package fleet_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

var update = flag.Bool("update", false, "write the golden parts of testdata/problems anew")

// TestProblems loads each archive of testdata/problems and compares what the loader says with its "want" part: the
// problems, the objects that are there, and what is unknown.
func TestProblems(t *testing.T) {
	files, err := filepath.Glob("testdata/problems/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			fsys, want := archiveFS(ar)
			f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := describe(f, problems)
			if *update {
				writeWant(t, file, ar, got)
				return
			}
			if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// archiveFS makes a file system of an archive; what every repository needs is added unless it is there. In file
// names ending in .crlf the lines end so, and the ending is cut off.
func archiveFS(ar *txtar.Archive) (fstest.MapFS, string) {
	fsys, want := fstest.MapFS{}, ""
	for _, f := range ar.Files {
		if f.Name == "want" {
			want = string(f.Data)
			continue
		}
		name, data := f.Name, f.Data
		if n, ok := strings.CutSuffix(name, ".crlf"); ok {
			name, data = n, bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))
		}
		fsys[name] = &fstest.MapFile{Data: data, Mode: 0o644}
	}
	for name, data := range map[string]string{"secrets.sops.yaml": "sops: {}\n", "s3.sops.yaml": "sops: {}\n"} {
		if fsys[name] == nil {
			fsys[name] = &fstest.MapFile{Data: []byte(data), Mode: 0o644}
		}
	}
	return fsys, want
}

// describe writes what a load gave as text.
func describe(f *fleet.Fleet, problems []fleet.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		pos := fleet.Position{File: p.File, Line: p.Line, Column: p.Column}
		fmt.Fprintf(&b, "%s %s %s [%s|%s|%s] %s\n    %s\n", pos, p.Severity, p.Rule, p.Cluster, p.Machine, p.Object, p.Path, p.Message)
		if p.Hint != "" {
			fmt.Fprintf(&b, "    hint: %s\n", p.Hint)
		}
	}
	object := func(o fleet.Object) { fmt.Fprintf(&b, "object %s of %q at %s\n", o.ID(), o.Cluster, o.Pos) }
	for _, c := range f.Clusters {
		if c.Manifest != nil {
			object(c.Object)
		} else {
			fmt.Fprintf(&b, "no manifest of cluster %s\n", c.Name)
		}
		for _, x := range c.Machines {
			object(x.Object)
		}
		for _, x := range c.Patches {
			object(x.Object)
			for _, e := range x.Entries {
				fmt.Fprintf(&b, "  entry at %s json=%t sops=%t %d %s\n", e.Pos, e.JSON, e.Sops != nil, e.SopsDoc, e.SopsPath)
				for line := range strings.Lines(string(e.Raw)) {
					fmt.Fprintf(&b, "  | %q\n", line)
				}
			}
		}
		for _, x := range c.Backups {
			object(x.Object)
		}
		for _, x := range c.Policies {
			object(x.Object)
		}
		for _, x := range c.Operations {
			object(x.Object)
		}
	}
	for _, p := range f.Policies {
		object(p.Object)
	}
	for _, u := range f.Unknown {
		fmt.Fprintf(&b, "unknown kind=%q name=%q cluster=%q file=%q\n", u.Kind, u.Name, u.Cluster, u.File)
	}
	return b.String()
}

func writeWant(t *testing.T, file string, ar *txtar.Archive, got string) {
	t.Helper()
	kept := ar.Files[:0]
	for _, f := range ar.Files {
		if f.Name != "want" {
			kept = append(kept, f)
		}
	}
	ar.Files = append(kept, txtar.File{Name: "want", Data: []byte(got)})
	if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
		t.Fatal(err)
	}
}
