package fleet_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// FuzzLoad loads any text as a manifest beside a good cluster. Nothing may panic or take long, the good cluster must
// stay, every problem must say where it is, and the same text must give the same fleet.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/problems/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatalf("no archives: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range txtar.Parse(data).Files {
			if part.Name != "want" {
				f.Add(string(part.Data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		fsys := fstest.MapFS{
			"cluster.yaml":      {Data: []byte(strings.Replace(clusterYAML, "prod", "zz-good", 1))},
			"secrets.sops.yaml": {Data: []byte("sops: {}\n")},
			"x.yaml":            {Data: []byte(text)},
		}
		start := time.Now()
		fl, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Fatalf("it took %v", took)
		}
		if fl.Cluster("zz-good").Manifest == nil {
			t.Fatal("the good cluster is gone")
		}
		lines := 2 // and what YAML counts as a line break
		for _, b := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} {
			lines += strings.Count(text, b)
		}
		for _, p := range problems {
			if p.File == "" || p.Line < 0 || p.Line > lines && p.File == "x.yaml" || p.Rule == "" || p.Message == "" || p.Severity == "" {
				t.Fatalf("problem %+v", p)
			}
		}
		again, problems2, err := fleet.Load(context.Background(), fsys, fleet.Options{})
		if err != nil || describe(fl, problems) != describe(again, problems2) {
			t.Fatal("a second load gives another fleet")
		}
	})
}
