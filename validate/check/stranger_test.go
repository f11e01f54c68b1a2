package check_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/validate/check"
)

// TestAStrangerBringsOnlySoMuch: what base has counts for nothing, what comes on top is bounded; a commit that is no stranger's
// is not.
func TestAStrangerBringsOnlySoMuch(t *testing.T) {
	crowd := func(n int) fstest.MapFS {
		files := fstest.MapFS{}
		for f := range n / 1000 {
			var b strings.Builder
			for i := range 1000 {
				fmt.Fprintf(&b, "---\napiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMachine\nmetadata: {name: m%d}\nspec: {clusterRef: {name: gone}, role: worker, approvalState: pending, endpoint: 10.%d.%d.%d}\n",
					f*1000+i, f, i/250, 1+i%250)
			}
			files[fmt.Sprintf("f%d.yaml", f)] = &fstest.MapFile{Data: []byte(b.String())}
		}
		return files
	}
	said := func(base, head fstest.MapFS, stranger bool) bool {
		t.Helper()
		in := check.Input{FS: head, Commit: "head", Stranger: stranger}
		if base != nil {
			in.BaseFS, in.Base = base, "base"
		}
		r, _, err := check.Run(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Problems {
			if p.Rule == "limits" && strings.Contains(p.Message, "values together") {
				return true
			}
		}
		return false
	}
	many, more := crowd(16_000), crowd(17_000)
	if !said(crowd(1000), many, true) {
		t.Error("16,000 machines of a stranger were taken")
	}
	if said(nil, many, false) {
		t.Error("16,000 machines of one's own were refused")
	}
	if said(many, more, true) {
		t.Error("1,000 machines beside 16,000 that base has were refused")
	}
}

// TestAStrangersBoundsDontOutliveThePullRequest: what was loaded within a stranger's bounds, and cut there, is loaded anew once it
// is on the branch.
func TestAStrangersBoundsDontOutliveThePullRequest(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosConfigPatch\nmetadata: {name: p}\nspec: {clusterRef: {name: gone}, documents: [{machine: {certSANs: [")
	for i := range 310_000 {
		fmt.Fprintf(&b, "a%d,", i%10)
	}
	b.WriteString("a]}}]}\n")
	head := fstest.MapFS{"p.yaml": {Data: []byte(b.String())}}
	base := fstest.MapFS{"README.md": {Data: []byte("nothing\n")}}
	cut := func(stranger bool, known *check.Cache) bool {
		t.Helper()
		r, _, err := check.Run(t.Context(), check.Input{
			FS: head, Commit: "head", Tree: "head", BaseFS: base, Base: "base", BaseTree: "base", Stranger: stranger, Cache: known,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Problems {
			if p.Rule == "limits" {
				return true
			}
		}
		return false
	}
	if cut(false, nil) {
		t.Fatal("refused on the branch without any memory")
	}
	known := &check.Cache{}
	if !cut(true, known) {
		t.Fatal("a stranger's was taken")
	}
	if cut(false, known) {
		t.Error("refused on the branch because a pull request had it before")
	}
}
