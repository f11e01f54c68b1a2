// Package schemas has the JSON Schemas of the kinds and of the report, for editors and for `ichor schema`. They are
// generated from the Go types (hack/gen-schemas).
package schemas

import (
	"embed"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

//go:embed v1alpha1/*.schema.json *.schema.json
var files embed.FS

// Report is the name under which JSONSchema gives the schema of the check's report (`-o json`).
const Report = "Report"

// Kinds lists the kinds of a repository, in the order in which people meet them.
func Kinds() []string {
	return []string{
		v1alpha1.KindTalosCluster, v1alpha1.KindTalosMachine, v1alpha1.KindTalosConfigPatch,
		v1alpha1.KindTalosEtcdBackup, v1alpha1.KindTalosPolicy, v1alpha1.KindTalosOperation,
	}
}

// FileName gives the path of a kind's schema within this folder.
func FileName(kind string) string {
	return "v1alpha1/" + strings.ToLower(kind) + ".schema.json"
}

// JSONSchema gives the schema of a kind, or of Report; nil where there is none.
func JSONSchema(kind string) []byte {
	name := "report.schema.json"
	if kind != Report {
		if !slices.Contains(Kinds(), kind) {
			return nil
		}
		name = FileName(kind)
	}
	b, err := files.ReadFile(name)
	if err != nil {
		return nil
	}
	return b
}
