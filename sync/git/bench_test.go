package git_test

import (
	"fmt"
	"io/fs"
	"testing"

	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/git/gittest"
)

// BenchmarkTree reads a tree of 10,000 files: sizes alone (what an unchanged file costs) and contents.
func BenchmarkTree(b *testing.B) {
	s := gittest.Start(b)
	for i := range 10_000 {
		s.Write(fmt.Sprintf("clusters/c%03d/m%05d.yaml", i/100, i), fmt.Sprintf("kind: TalosMachine\nmetadata: {name: m%d}\nspec: {role: worker}\n", i))
	}
	s.Commit("many")
	s.Push("refs/heads/main")
	m, err := git.Open(b.Context(), git.Options{Dir: b.TempDir(), URL: s.URL})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	mv, err := m.FetchBranch(b.Context(), "main")
	if err != nil {
		b.Fatal(err)
	}
	walk := func(b *testing.B, read bool) {
		for b.Loop() {
			fsys, err := m.FS(mv.New)
			if err != nil {
				b.Fatal(err)
			}
			err = fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				if read {
					_, err = fs.ReadFile(fsys, p)
				} else {
					_, err = d.Info()
				}
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("sizes", func(b *testing.B) { walk(b, false) })
	b.Run("contents", func(b *testing.B) { walk(b, true) })
	b.Run("unchanged poll", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.FetchBranch(b.Context(), "main"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
