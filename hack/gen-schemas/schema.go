package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"

	"ichor.maesh.dev/ichor/schemas"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/validate/check"
)

const (
	module = "ichor.maesh.dev/ichor"
	idBase = "https://ichor.maesh.dev/schemas/"
)

// kinds are the Go types of the kinds.
var kinds = map[string]any{
	v1alpha1.KindTalosCluster:     v1alpha1.TalosCluster{},
	v1alpha1.KindTalosMachine:     v1alpha1.TalosMachine{},
	v1alpha1.KindTalosConfigPatch: v1alpha1.TalosConfigPatch{},
	v1alpha1.KindTalosEtcdBackup:  v1alpha1.TalosEtcdBackup{},
	v1alpha1.KindTalosPolicy:      v1alpha1.TalosPolicy{},
	v1alpha1.KindTalosOperation:   v1alpha1.TalosOperation{},
}

// generate gives all generated files by their path from the root.
func generate(root string) (map[string][]byte, error) {
	comments, err := goComments(root, "schemas/v1alpha1", "schemas/fleet", "validate/check")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	var docs []kindDoc
	for _, kind := range schemas.Kinds() {
		s := reflectSchema(comments, kinds[kind], false)
		s.ID = jsonschema.ID(idBase + schemas.FileName(kind))
		finishKind(s, kind)
		if files["schemas/"+schemas.FileName(kind)], err = marshal(s); err != nil {
			return nil, err
		}
		docs = append(docs, kindDoc{kind, s})
	}
	// Fields may be added to the report; whoever validates it with this schema must not break then.
	report := reflectSchema(comments, check.Report{}, true)
	report.ID = idBase + "report.schema.json"
	if v, ok := report.Properties.Get("apiVersion"); ok {
		v.Const = check.ReportAPIVersion
	}
	if files["schemas/report.schema.json"], err = marshal(report); err != nil {
		return nil, err
	}
	files["docs/kinds.md"] = kindsPage(docs)
	return files, nil
}

// goComments reads the comments of packages, by the names that the reflector uses.
func goComments(root string, packages ...string) (map[string]string, error) {
	r := &jsonschema.Reflector{}
	// The reflector joins the import path and the folder that it is given, so it is run in the root.
	back, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find working folder: %w", err)
	}
	if err := os.Chdir(filepath.FromSlash(root)); err != nil {
		return nil, fmt.Errorf("enter %s: %w", root, err)
	}
	defer func() { _ = os.Chdir(back) }()
	for _, p := range packages {
		if err := r.AddGoComments(module, "./"+p, jsonschema.WithFullComment()); err != nil {
			return nil, fmt.Errorf("read comments of %s: %w", p, err)
		}
	}
	for name, text := range r.CommentMap {
		r.CommentMap[name] = strings.Join(strings.Fields(text), " ")
	}
	return r.CommentMap, nil
}

// reflectSchema makes a schema. open allows fields that it does not know.
func reflectSchema(comments map[string]string, v any, open bool) *jsonschema.Schema {
	r := &jsonschema.Reflector{
		ExpandedStruct: true, CommentMap: comments, Anonymous: true, Mapper: mapType, AllowAdditionalProperties: open,
	}
	return r.Reflect(v)
}

// mapType gives the schemas of types that reflection alone would leave too wide.
func mapType(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[v1alpha1.Duration]():
		return &jsonschema.Schema{Type: "string", Pattern: `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$`}
	case reflect.TypeFor[v1alpha1.IntOrPercent]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: "1"},
			{Type: "string", Pattern: `^0*([1-9][0-9]*|([1-9][0-9]?|100)%)$`},
		}}
	case reflect.TypeFor[[]any]():
		return &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			{Type: "object", MinProperties: ptr(uint64(1))},
			// SOPS writes an encrypted comment of a list as an item of its own.
			{Type: "string", Pattern: `^ENC\[AES256_GCM,.*,type:comment\]$`},
		}}}
	case reflect.TypeFor[fleet.Severity]():
		return enum(string(fleet.Error), string(fleet.Warning))
	case reflect.TypeFor[check.Verdict]():
		return enum(string(check.Passed), string(check.Failed), string(check.Errored))
	case reflect.TypeFor[check.Change]():
		return enum(string(check.ChangeNone), string(check.ChangeNew), string(check.ChangeUpdate), string(check.ChangeRemove))
	}
	return nil
}

func enum(values ...string) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, v := range values {
		s.Enum = append(s.Enum, v)
	}
	return s
}

func ptr[T any](v T) *T { return &v }

// finishKind fixes what a manifest of the kind says of itself, and allows SOPS's metadata beside it.
func finishKind(s *jsonschema.Schema, kind string) {
	s.Title = kind
	for name, value := range map[string]string{"apiVersion": v1alpha1.APIVersion, "kind": kind} {
		p, _ := s.Properties.Get(name)
		p.Const, p.Type = value, "string"
	}
	s.Properties.Set("sops", &jsonschema.Schema{Type: "object", Description: "Sops is the metadata of SOPS, where values of a patch are encrypted."})
	for name, def := range s.Definitions {
		for pair := def.Properties.Oldest(); pair != nil; pair = pair.Next() {
			finishProperty(name, pair.Key, pair.Value)
		}
	}
}

// finishProperty adds bounds that a Go type can't carry.
func finishProperty(definition, name string, p *jsonschema.Schema) {
	if definition == "ObjectMeta" && name == "name" || definition == "ClusterRef" && name == "name" {
		p.Pattern = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	}
	if p.Type == "array" && p.Items != nil && len(p.Enum) > 0 {
		// The reflector puts a list's enum on the list.
		p.Items.Enum, p.Enum = p.Enum, nil
	}
}

func marshal(s *jsonschema.Schema) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		return nil, fmt.Errorf("encode schema %s: %w", s.ID, err)
	}
	return b.Bytes(), nil
}
