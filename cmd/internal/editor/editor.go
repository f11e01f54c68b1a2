// Package editor makes the JSON Schemas that editors complete and mark manifests with: those of Ichor's kinds, and in
// a TalosConfigPatch those of Talos's own documents.
package editor

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"

	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/ichor/schemas"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Folder is where a repository keeps its schemas, from its root.
const Folder = ".ichor/schemas"

// talos holds Talos's own schemas by contract, made by hack/gen-talos-schemas from the machinery module
// (config/schemas/config.schema.json, MPL-2.0).
//
//go:embed talos/*.json
var talos embed.FS

// Contracts lists the contracts whose Talos schema is there, oldest first ("v1.12").
func Contracts() []string {
	files, err := fs.Glob(talos, "talos/*.json")
	if err != nil || len(files) == 0 {
		panic("no schema of Talos is embedded")
	}
	var out []string
	for _, f := range files {
		out = append(out, strings.TrimSuffix(path.Base(f), ".json"))
	}
	// They are all of v1.1x, so that order by text is order by version.
	sort.Strings(out)
	return out
}

// Nearest gives the contract whose schema serves the given one: its own, else the next later that is there, else the
// newest. Talos's schemas leave out what is deprecated in their version, though Talos still takes it (since 1.12
// machine.network, for one): an editor marks that, the check doesn't.
func Nearest(contract string) (string, error) {
	want, err := talosconfig.ParseContractFromVersion(contract)
	if err != nil {
		return "", fmt.Errorf("contract %q is no Talos version such as v1.13", contract)
	}
	all := Contracts()
	for _, c := range all {
		if have, err := talosconfig.ParseContractFromVersion(c); err == nil && !want.Greater(have) {
			return c, nil
		}
	}
	return all[len(all)-1], nil
}

// FileName is the name of a kind's schema in Folder. A patch's has the contract in it: two clusters of a repository may
// have two.
func FileName(kind, contract string) string {
	if kind == v1alpha1.KindTalosConfigPatch {
		return strings.ToLower(kind) + "-" + contract + ".schema.json"
	}
	return strings.ToLower(kind) + ".schema.json"
}

// Header is the line that YAML language servers read, for a manifest at file (from the repository's root).
func Header(kind, contract, file string) string {
	up := strings.Repeat("../", strings.Count(path.Clean(file), "/"))
	return "# yaml-language-server: $schema=" + up + Folder + "/" + FileName(kind, contract) + "\n"
}

// Files gives every kind's schema by its file name, the patches' for each of the contracts.
func Files(contracts []string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, kind := range schemas.Kinds() {
		if kind != v1alpha1.KindTalosConfigPatch {
			out[FileName(kind, "")] = schemas.JSONSchema(kind)
			continue
		}
		for _, c := range contracts {
			near, err := Nearest(c)
			if err != nil {
				return nil, err
			}
			data, err := Schema(kind, near)
			if err != nil {
				return nil, err
			}
			out[FileName(kind, near)] = data
		}
	}
	return out, nil
}

// Schema gives the JSON Schema of a kind; in a TalosConfigPatch's, documents follow Talos's own schema of the contract.
func Schema(kind, contract string) ([]byte, error) {
	if kind != v1alpha1.KindTalosConfigPatch {
		return schemas.JSONSchema(kind), nil
	}
	near, err := Nearest(contract)
	if err != nil {
		return nil, err
	}
	var own, theirs map[string]any
	if err := json.Unmarshal(schemas.JSONSchema(kind), &own); err != nil {
		return nil, fmt.Errorf("read schema of %s: %w", kind, err)
	}
	text, err := talos.ReadFile("talos/" + near + ".json")
	if err != nil {
		return nil, fmt.Errorf("read Talos's schema: %w", err)
	}
	if err := json.Unmarshal(text, &theirs); err != nil {
		return nil, fmt.Errorf("read Talos's schema of %s: %w", near, err)
	}
	if err := join(own, theirs); err != nil {
		return nil, fmt.Errorf("make schema of %s for %s: %w", kind, near, err)
	}
	own["description"] = "Documents follow Talos's schema of contract " + near + "."
	return json.MarshalIndent(own, "", " ")
}

// join puts Talos's definitions, made sparse, beside our own, and points spec.documents at them.
func join(own, theirs map[string]any) error {
	defs, _ := own["$defs"].(map[string]any)
	spec, _ := defs["TalosConfigPatchSpec"].(map[string]any)
	props, _ := spec["properties"].(map[string]any)
	documents, _ := props["documents"].(map[string]any)
	if documents == nil {
		return fmt.Errorf("our schema has no documents")
	}
	their, _ := theirs["$defs"].(map[string]any)
	branches, kinds := []any{}, []any{}
	for _, one := range theirs["oneOf"].([]any) {
		ref := one.(map[string]any)
		name := strings.TrimPrefix(ref["$ref"].(string), "#/$defs/")
		kind := kindOf(their[name])
		if kind == "" {
			// The v1alpha1 document has no kind.
			branches = append(branches, map[string]any{"if": map[string]any{"not": map[string]any{"required": []any{"kind"}}}, "then": ref})
			continue
		}
		kinds = append(kinds, kind)
		branches = append(branches, map[string]any{
			"if":   map[string]any{"properties": map[string]any{"kind": map[string]any{"const": kind}}, "required": []any{"kind"}},
			"then": map[string]any{"allOf": []any{ref, map[string]any{"required": []any{"apiVersion"}}}},
		})
	}
	for name, def := range their {
		if _, taken := defs[name]; taken {
			return fmt.Errorf("definition %s is there twice", name)
		}
		sparse(def)
		defs[name] = def
	}
	defs["patch.Delete"] = map[string]any{
		"type": "object", "additionalProperties": false, "required": []any{"$patch"},
		"properties": map[string]any{"$patch": map[string]any{"const": "delete", "description": "Deletes this field."}},
	}
	slices.SortFunc(kinds, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	documents["items"] = map[string]any{"anyOf": []any{
		map[string]any{
			"type": "object", "minProperties": 1, "properties": map[string]any{"kind": map[string]any{"enum": kinds}}, "allOf": branches,
		},
		// SOPS writes an encrypted comment of a list as an item of its own.
		map[string]any{"type": "string", "pattern": `^ENC\[AES256_GCM,.*,type:comment\]$`},
	}}
	return nil
}

// kindOf gives the kind that a document's definition asks for.
func kindOf(def any) string {
	d, _ := def.(map[string]any)
	props, _ := d["properties"].(map[string]any)
	kind, _ := props["kind"].(map[string]any)
	if list, _ := kind["enum"].([]any); len(list) == 1 {
		s, _ := list[0].(string)
		return s
	}
	return ""
}

// sparse lets a definition be written in parts, as a patch is: nothing is required, and "$patch: delete" may stand
// wherever fields do.
func sparse(v any) {
	switch x := v.(type) {
	case map[string]any:
		if props, ok := x["properties"].(map[string]any); ok {
			if _, list := x["required"].([]any); list {
				delete(x, "required")
			}
			props["$patch"] = map[string]any{"const": "delete", "description": "Deletes this part of the configuration."}
		}
		scalarOrDelete(x)
		for _, child := range x {
			sparse(child)
		}
	case []any:
		for _, child := range x {
			sparse(child)
		}
	}
}

// scalarOrDelete lets "$patch: delete" stand for a list or a single value too.
func scalarOrDelete(x map[string]any) {
	props, ok := x["properties"].(map[string]any)
	if !ok {
		return
	}
	for name, p := range props {
		field, ok := p.(map[string]any)
		if !ok || name == "kind" || name == "apiVersion" || name == "$patch" {
			continue
		}
		t, _ := field["type"].(string)
		if t == "" && field["enum"] == nil || t == "object" {
			continue
		}
		whole := map[string]any{}
		for k, v := range field {
			if k != "title" && k != "description" {
				whole[k] = v
				delete(field, k)
			}
		}
		field["anyOf"] = []any{whole, map[string]any{"$ref": "#/$defs/patch.Delete"}}
	}
}
