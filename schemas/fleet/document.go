package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// kindTypes are the Go types behind the kinds.
var kindTypes = map[string]reflect.Type{
	v1alpha1.KindTalosCluster:     reflect.TypeFor[v1alpha1.TalosCluster](),
	v1alpha1.KindTalosMachine:     reflect.TypeFor[v1alpha1.TalosMachine](),
	v1alpha1.KindTalosConfigPatch: reflect.TypeFor[v1alpha1.TalosConfigPatch](),
	v1alpha1.KindTalosEtcdBackup:  reflect.TypeFor[v1alpha1.TalosEtcdBackup](),
	v1alpha1.KindTalosPolicy:      reflect.TypeFor[v1alpha1.TalosPolicy](),
	v1alpha1.KindTalosOperation:   reflect.TypeFor[v1alpha1.TalosOperation](),
}

// kindNames are the kinds' names, sorted.
var kindNames = []string{
	v1alpha1.KindTalosCluster, v1alpha1.KindTalosConfigPatch, v1alpha1.KindTalosEtcdBackup,
	v1alpha1.KindTalosMachine, v1alpha1.KindTalosOperation, v1alpha1.KindTalosPolicy,
}

// parsed is what one file gave.
type parsed struct {
	manifest bool
	docs     []parsedDoc
	problems []Problem
	unknown  []Unknown
	// nodes of its manifests, with aliases expanded; expanded are what the aliases add
	nodes, expandedNodes, expandedBytes int
}

// parsedDoc is one good manifest: a pointer to the kind's type, and a patch's entries.
type parsedDoc struct {
	Object
	manifest any
	entries  []PatchEntry
}

// source is a run of YAML documents in a file: the whole file, or, where that does not parse, one document of it.
type source struct {
	file       string
	data       []byte
	lineOffset int
	firstDoc   int
	maxDepth   int
	// sops is true where the file carries SOPS metadata.
	sops bool
}

// namesGroup tells whether a file has to do with us at all; others are not even parsed.
func namesGroup(data []byte) bool { return bytes.Contains(data, []byte(v1alpha1.Group)) }

// parseFile reads all documents of a YAML file.
func parseFile(file string, data []byte, maxDepth int) *parsed {
	out := &parsed{}
	if !namesGroup(data) {
		return out
	}
	src := source{file: file, data: data, maxDepth: maxDepth}
	nodes, err := decodeNodes(data)
	if err == nil {
		src.sops = anySops(nodes)
		for i, n := range nodes {
			src.document(out, n, i)
		}
		out.bound(file)
		return out
	}
	if !bytes.Contains(data, []byte(v1alpha1.Group+"/")) {
		return out
	}
	out.manifest = true
	out.salvage(src, err)
	out.bound(file)
	return out
}

// maxFileProblems and maxFileUnknown bound what one file says; past that, the file as a whole is unknown.
const (
	maxFileProblems = 200
	maxFileUnknown  = 200
)

// bound keeps a hostile file from filling the report.
func (out *parsed) bound(file string) {
	if len(out.problems) > maxFileProblems {
		out.problems = append(slices.Clone(out.problems[:maxFileProblems]), Problem{
			Rule: ruleLimits, Severity: Error, File: file,
			Message: fmt.Sprintf("more than %d problems in this file; the rest is left out", maxFileProblems),
		})
	}
	if len(out.unknown) > maxFileUnknown {
		out.unknown = []Unknown{{File: file}}
	}
}

// decodeNodes parses a run of documents. A panic of the parser is an error like any other: the text is not ours.
func decodeNodes(data []byte) (nodes []*yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			nodes, err = nil, fmt.Errorf("the YAML parser gave up: %v", p)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		n := new(yaml.Node)
		switch err := dec.Decode(n); {
		case errors.Is(err, io.EOF):
			return nodes, nil
		case err != nil:
			return nil, err
		}
		if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
			n = n.Content[0]
		}
		nodes = append(nodes, n)
	}
}

// anySops tells whether a document carries SOPS metadata (SOPS writes it into the first and reads it there).
func anySops(nodes []*yaml.Node) bool {
	for _, n := range nodes {
		if m := lookup(n, sopsKey); m != nil && m.Kind == yaml.MappingNode {
			return true
		}
	}
	return false
}

// lookup finds a field by its steps, without merge keys; nil where it is not there.
func lookup(n *yaml.Node, steps ...string) *yaml.Node {
	for _, step := range steps {
		n = target(n)
		if n.Kind != yaml.MappingNode {
			return nil
		}
		var next *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == step {
				next = n.Content[i+1]
				break
			}
		}
		if next == nil {
			return nil
		}
		n = next
	}
	return target(n)
}

// text gives the text of a field, "" where it has none in plain.
func text(n *yaml.Node, steps ...string) string {
	if f := lookup(n, steps...); f != nil && f.Kind == yaml.ScalarNode && !isNull(f) && !isEncrypted(f) {
		return f.Value
	}
	return ""
}

// document reads one document, number i of its source, if it is of our group.
func (s source) document(out *parsed, n *yaml.Node, i int) {
	apiVersion := text(n, "apiVersion")
	if apiVersion != v1alpha1.Group && !strings.HasPrefix(apiVersion, v1alpha1.Group+"/") {
		return
	}
	out.manifest = true
	pos := Position{File: s.file, Line: n.Line + s.lineOffset, Column: n.Column}
	d := &docDecoder{file: s.file, lineOffset: s.lineOffset, idx: newFieldIndex(pos), bad: map[string]bool{}}
	u := identify(n, s.file)
	d.who = u.who()
	e, err := measure(n)
	out.nodes += e.totalNodes
	out.expandedNodes += e.nodes
	out.expandedBytes += e.bytes
	switch {
	case err != nil:
		d.fail(root, err.Error(), "")
	case out.expandedNodes > maxExpandedNodes || out.expandedBytes > maxExpandedBytes:
		d.limit(fmt.Sprintf("YAML aliases expand to more than %d values or %d MiB", maxExpandedNodes, maxExpandedBytes>>20))
	case e.depth > s.maxDepth:
		d.limit(fmt.Sprintf("nested more than %d levels deep", s.maxDepth))
	default:
		if doc, ok := s.object(d, n, u, i); ok {
			out.docs = append(out.docs, doc)
		}
	}
	if len(d.problems) > 0 {
		out.problems = append(out.problems, d.problems...)
		out.unknown = append(out.unknown, u.Unknown)
	}
}

// limit reports that a document is over a limit.
func (d *docDecoder) limit(message string) {
	d.fail(root, message, "")
	p := &d.problems[len(d.problems)-1]
	p.Rule, p.Hint = ruleLimits, "write it with less nesting and fewer aliases; a manifest needs neither"
}

// identity is what a document says it is, read without trusting it.
type identity struct{ Unknown }

func identify(n *yaml.Node, file string) identity {
	u := identity{Unknown: Unknown{Kind: text(n, "kind"), Name: text(n, "metadata", "name"), File: file}}
	u.setCluster(text(n, "spec", "clusterRef", "name"))
	return u
}

// setCluster fills in the cluster: a TalosCluster is its own. A kind that is not ours is no kind.
func (u *identity) setCluster(ref string) {
	if kindTypes[u.Kind] == nil {
		u.Kind = ""
	}
	u.Cluster = ref
	if u.Kind == v1alpha1.KindTalosCluster {
		u.Cluster = u.Name
	}
}

// who fills the fields of a problem that say whose it is.
func (u identity) who() Problem {
	p := Problem{Cluster: u.Cluster}
	if u.Kind != "" && u.Name != "" {
		p.Object = u.Kind + "/" + u.Name
	}
	if u.Kind == v1alpha1.KindTalosMachine {
		p.Machine = u.Name
	}
	return p
}

// object decodes and checks one manifest of our group.
func (s source) object(d *docDecoder, n *yaml.Node, u identity, i int) (parsedDoc, bool) {
	if v := text(n, "apiVersion"); v != v1alpha1.APIVersion {
		d.failTop(n, "apiVersion", "unknown version "+quoted(v), "the versions known are: "+v1alpha1.APIVersion)
		return parsedDoc{}, false
	}
	kind := lookup(n, "kind")
	if kind == nil || isNull(kind) || kind.Kind != yaml.ScalarNode {
		d.failPath("kind", `required field "kind" is missing`, "valid are: "+strings.Join(kindNames, ", "))
		return parsedDoc{}, false
	}
	t := kindTypes[kind.Value]
	if t == nil {
		if isEncrypted(kind) {
			d.failTop(n, "kind", "the value is SOPS-encrypted, and Ichor reads this field in plain text",
				"encrypt only values within spec.documents or spec.jsonPatch")
		} else {
			d.failTop(n, "kind", "unknown kind "+quoted(kind.Value), suggest(kind.Value, kindNames))
		}
		return parsedDoc{}, false
	}
	v := reflect.New(t)
	d.value(n, v.Elem(), root, nil)
	doc := parsedDoc{Object: Object{Kind: u.Kind, fields: d.idx, Pos: d.idx.pos(root)}, manifest: v.Interface()}
	d.check(&doc)
	if u.Kind == v1alpha1.KindTalosConfigPatch && len(d.problems) == 0 {
		doc.entries = s.entries(d, n, i)
	}
	return doc, len(d.problems) == 0
}

// failTop reports a problem of a top-level field that is not decoded.
func (d *docDecoder) failTop(n *yaml.Node, key, message, hint string) {
	n = target(n)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			d.report(d.posOf(n.Content[i]), key, message, hint)
			return
		}
	}
	d.failPath(key, message, hint)
}
