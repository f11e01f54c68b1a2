package render

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	jsonpatch "github.com/evanphx/json-patch"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// variant chooses what stands in the place of encrypted values.
type variant int

const (
	// first and second are two sets of stand-ins that differ in every encrypted value: where two renders with them
	// differ is where encrypted values come out.
	first variant = iota
	second
	// stripped leaves encrypted values out.
	stripped
	// opened has the real values.
	opened
	variants
)

// entry is one entry of a patch, parsed once for all machines of the cluster.
type entry struct {
	patch *fleet.Patch
	index int
	src   *fleet.PatchEntry
	// secret are the encrypted values in it, by path in the entry ("#1:" in front for its second document).
	secret []*cipherLeaf
	// loaded has one parse per variant; an entry without encrypted values has the same in each.
	loaded [variants]loadedPatch
	// perMachine: what the patch does may depend on hostname or endpoint, so machines can't share a render.
	perMachine bool
}

// loadedPatch is a parsed patch, or Talos's error.
type loadedPatch struct {
	patch configpatcher.Patch
	err   error
}

// cipherLeaf is one encrypted value.
type cipherLeaf struct {
	// doc and path are its place in the entry.
	doc  int
	path string
	// typ is its type as SOPS says it.
	typ string
	// shape is the index of its stand-in among the candidates for its path.
	shape int
	// plain is the real value, where it was opened.
	plain secret.Bytes
}

// errEmptyEntry is for an entry that says nothing: Talos would take it for an empty JSON patch.
var errEmptyEntry = errors.New("the patch entry is empty")

// loadEntries parses the entries of all patches of the cluster, in order.
func loadEntries(in Input, j *job) ([]*entry, error) {
	patches := slices.Clone(in.Cluster.Patches)
	sort.SliceStable(patches, func(a, b int) bool {
		x, y := patches[a], patches[b]
		if x.Manifest == nil || y.Manifest == nil || x.Manifest.Spec.Order == y.Manifest.Spec.Order {
			return x.Name < y.Name
		}
		return x.Manifest.Spec.Order < y.Manifest.Spec.Order
	})
	open := opener{values: in.Values, files: map[*fleet.File][]map[string]secret.Bytes{}}
	var out []*entry
	for _, p := range patches {
		if p.Manifest == nil {
			continue
		}
		for i := range p.Entries {
			e := &entry{patch: p, index: i, src: &p.Entries[i]}
			if raw := strings.TrimSpace(string(e.src.Raw)); bundle.IsEncrypted(raw) && bundle.EncryptedType(raw) == "comment" {
				continue // SOPS writes an encrypted comment of a list as an element of its own.
			}
			if err := e.load(open); err != nil {
				return nil, err
			}
			if len(e.secret) > 0 {
				j.chooseShapes(e)
			}
			out = append(out, e)
		}
	}
	return out, nil
}

// load parses the entry in each variant it needs.
func (e *entry) load(open opener) error {
	e.perMachine = e.src.JSON || marked(e.src.Raw) ||
		bytes.Contains(e.src.Raw, []byte("$patch")) &&
			(bytes.Contains(e.src.Raw, []byte("certSANs")) || bytes.Contains(bytes.ToLower(e.src.Raw), []byte("hostname")))
	if e.src.Sops == nil {
		l := parsePatch(e.src.Raw, e.src.JSON)
		if _, ok := l.patch.(jsonpatch.Patch); ok {
			e.perMachine = true
		}
		for v := range e.loaded {
			e.loaded[v] = l
		}
		return nil
	}
	docs, err := yamlDocs(e.src.Raw)
	if err != nil {
		for v := range e.loaded {
			e.loaded[v] = loadedPatch{err: err}
		}
		return nil
	}
	for i, d := range docs {
		walkEncrypted(d, func(path string, leaf *yaml.Node) {
			e.secret = append(e.secret, &cipherLeaf{doc: i, path: path, typ: bundle.EncryptedType(leaf.Value)})
		})
	}
	if open.values != nil {
		if err := e.open(open); err != nil {
			return err
		}
	}
	e.parseVariants()
	return nil
}

// open takes the entry's real values out of its file.
func (e *entry) open(open opener) error {
	values, err := open.open(e.src.Sops)
	if err != nil {
		return fmt.Errorf("patch %s: %w", e.patch.Name, err)
	}
	for _, leaf := range e.secret {
		doc := leaf.doc
		if e.src.SopsPath != "" {
			doc = e.src.SopsDoc // an entry of a manifest; a patch file is an entry whole
		}
		if doc >= len(values) {
			return fmt.Errorf("patch %s: %s has no document %d", e.patch.Name, e.src.Sops.Path, doc)
		}
		v, ok := values[doc][joinPath(e.src.SopsPath, leaf.path)]
		if !ok {
			return fmt.Errorf("patch %s: %s has no decrypted value at %s", e.patch.Name, e.src.Sops.Path, leaf.path)
		}
		leaf.plain = v
	}
	return nil
}

// joinPath puts a path that may begin with a list index behind another.
func joinPath(parent, child string) string {
	if parent == "" || strings.HasPrefix(child, "[") {
		return parent + child
	}
	return parent + "." + child
}

// parseVariants parses the entry once per variant, with the stand-ins chosen so far.
func (e *entry) parseVariants() {
	for v := range variants {
		if v == opened && (len(e.secret) == 0 || e.secret[0].plain.Empty()) {
			e.loaded[v] = e.loaded[first]
			continue
		}
		e.loaded[v] = e.parse(v)
		if _, ok := e.loaded[v].patch.(jsonpatch.Patch); ok {
			e.perMachine = true
		}
	}
}

// parse puts the variant's values into the text that was written, all other scalars untouched, and parses it.
func (e *entry) parse(v variant) loadedPatch {
	docs, err := yamlDocs(e.src.Raw)
	if err != nil {
		return loadedPatch{err: err}
	}
	i := 0
	for _, d := range docs {
		// The same walk as the one that found the values, so they come in the same order.
		walkEncrypted(d, func(_ string, n *yaml.Node) {
			leaf := e.secret[i]
			if v == stripped {
				n.Tag = removeTag
			} else {
				setScalar(n, leaf.value(v, i), leaf.typ)
			}
			i++
		})
		dropComments(d)
		dropRemoved(d)
	}
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	for _, d := range docs {
		dropKey(d, "sops")
		if err := enc.Encode(d); err != nil {
			return loadedPatch{err: errors.New("the patch entry can't be written as YAML")}
		}
	}
	_ = enc.Close()
	return parsePatch(buf.Bytes(), e.src.JSON)
}

// removeTag marks a value that is to be taken out.
const removeTag = "!ichor-remove"

// walkEncrypted calls f for each encrypted value of a document, those of its SOPS metadata and encrypted comments
// left out.
func walkEncrypted(d *yaml.Node, f func(path string, leaf *yaml.Node)) {
	bundle.WalkLeaves(d, "", func(path string, leaf *yaml.Node) {
		if bundle.IsEncrypted(leaf.Value) && bundle.EncryptedType(leaf.Value) != "comment" && !strings.HasPrefix(path, "sops.") {
			f(path, leaf)
		}
	})
}

// dropRemoved takes marked values out of their mappings. A list keeps the place, so that the others keep their index.
func dropRemoved(n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		kept := n.Content[:0]
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i+1].Tag != removeTag {
				kept = append(kept, n.Content[i], n.Content[i+1])
			}
		}
		n.Content = kept
	}
	for _, c := range n.Content {
		if c.Tag == removeTag {
			setScalar(c, "", "str")
		}
		dropRemoved(c)
	}
}

// setScalar writes a value with the type that SOPS kept.
func setScalar(n *yaml.Node, value, typ string) {
	tag := "!!str"
	switch typ {
	case "int", "float", "bool":
		tag = "!!" + typ
	}
	*n = yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	if strings.Contains(value, "\n") {
		n.Style = yaml.LiteralStyle
	}
}

// dropComments takes out the list elements that are encrypted comments, in the form in which SOPS writes those.
func dropComments(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		n.Content = slices.DeleteFunc(n.Content, func(c *yaml.Node) bool {
			return c.Kind == yaml.ScalarNode && bundle.IsEncrypted(c.Value) && bundle.EncryptedType(c.Value) == "comment"
		})
	}
	for _, c := range n.Content {
		dropComments(c)
	}
}

// dropKey takes a key out of a document.
func dropKey(n *yaml.Node, key string) {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	for k := 0; k+1 < len(n.Content); k += 2 {
		if n.Content[k].Value == key {
			n.Content = slices.Delete(n.Content, k, k+2)
			return
		}
	}
}

// yamlDocs parses a stream into nodes. The parser's message names a line of the entry, no values.
func yamlDocs(raw []byte) ([]*yaml.Node, error) {
	var docs []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	for {
		n := &yaml.Node{}
		if err := dec.Decode(n); err != nil {
			if errors.Is(err, io.EOF) {
				return docs, nil
			}
			return nil, fmt.Errorf("decode error: %w", err)
		}
		if len(n.Content) == 1 {
			docs = append(docs, n)
		}
	}
}

// parsePatch lets Talos's loader read a patch.
func parsePatch(raw []byte, asJSON bool) (l loadedPatch) {
	defer func() {
		// The loader recovers from its own decoder's panics, but not from those of the JSON patch library.
		if p := recover(); p != nil {
			l = loadedPatch{err: fmt.Errorf("the patch can't be read: %v", p)}
		}
	}()
	p, err := configpatcher.LoadPatch(raw)
	if err != nil {
		if len(bytes.TrimSpace(raw)) == 0 || string(bytes.TrimSpace(raw)) == "{}" {
			err = errEmptyEntry
		}
		return loadedPatch{err: err}
	}
	jp, isJSON := p.(jsonpatch.Patch)
	switch {
	case isJSON && len(jp) == 0:
		return loadedPatch{err: errEmptyEntry}
	case asJSON && !isJSON:
		return loadedPatch{err: errors.New("a list of JSON patch operations is wanted")}
	}
	return loadedPatch{patch: p}
}

// opener opens each file once.
type opener struct {
	values bundle.Values
	files  map[*fleet.File][]map[string]secret.Bytes
}

func (o opener) open(f *fleet.File) ([]map[string]secret.Bytes, error) {
	if got, ok := o.files[f]; ok {
		return got, nil
	}
	got, err := o.values.Open(f)
	if err != nil {
		return nil, err
	}
	o.files[f] = got
	return got, nil
}
