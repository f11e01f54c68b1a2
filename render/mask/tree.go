package mask

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds what one configuration may hold once its aliases are expanded; a real one has some thousands.
const maxNodes = 1_000_000

// V1Alpha1 is the ID of the document without a kind.
const V1Alpha1 = "v1alpha1"

// Decode reads the documents of a configuration without knowing their kinds, sorted by kind and name, v1alpha1
// first. Scalars resolve as YAML 1.2 core does, and stay strings where they are neither null, bool nor number.
// Errors don't quote the input.
func Decode(config []byte) ([]Document, error) {
	dec := yaml.NewDecoder(bytes.NewReader(config))
	budget := maxNodes
	var docs []Document
	for i := 0; ; i++ {
		var node yaml.Node
		if err := dec.Decode(&node); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, fmt.Errorf("decode document %d: not YAML", i)
		}
		v, err := decodeNode(&node, &budget, 0)
		if err != nil {
			return nil, fmt.Errorf("decode document %d: %w", i, err)
		}
		if v == nil {
			continue
		}
		fields, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("decode document %d: it is no mapping", i)
		}
		docs = append(docs, Document{ID: documentID(fields), Fields: fields})
	}
	sort.SliceStable(docs, func(i, j int) bool { return Less(docs[i].ID, docs[j].ID) })
	return docs, nil
}

// Less orders document IDs: v1alpha1 first, then by kind and name.
func Less(a, b string) bool {
	if (a == V1Alpha1) != (b == V1Alpha1) {
		return a == V1Alpha1
	}
	return a < b
}

// documentID is v1alpha1, Kind or Kind/name.
func documentID(fields map[string]any) string {
	kind, _ := fields["kind"].(string)
	if kind == "" {
		return V1Alpha1
	}
	if name, ok := fields["name"]; ok && name != nil && fmt.Sprint(name) != "" {
		return kind + "/" + fmt.Sprint(name)
	}
	return kind
}

// kindOf is the kind part of a document ID.
func kindOf(id string) string {
	for i := range len(id) {
		if id[i] == '/' {
			return id[:i]
		}
	}
	return id
}

var errTooBig = errors.New("it is too big or nests too deep")

func decodeNode(n *yaml.Node, budget *int, depth int) (any, error) {
	if *budget--; *budget < 0 || depth > 200 {
		return nil, errTooBig
	}
	switch n.Kind {
	case yaml.DocumentNode:
		if len(n.Content) == 0 {
			return nil, nil
		}
		return decodeNode(n.Content[0], budget, depth+1)
	case yaml.AliasNode:
		return decodeNode(n.Alias, budget, depth+1)
	case yaml.MappingNode:
		return decodeMapping(n, budget, depth)
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for _, c := range n.Content {
			v, err := decodeNode(c, budget, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	default:
		return decodeScalar(n), nil
	}
}

// decodeMapping also resolves merge keys (<<), whose values give way to the mapping's own.
func decodeMapping(n *yaml.Node, budget *int, depth int) (any, error) {
	out := make(map[string]any, len(n.Content)/2)
	var merged []map[string]any
	for i := 0; i+1 < len(n.Content); i += 2 {
		v, err := decodeNode(n.Content[i+1], budget, depth+1)
		if err != nil {
			return nil, err
		}
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, mappings(v)...)
			continue
		}
		out[key.Value] = v
	}
	for _, m := range merged {
		for k, v := range m {
			if _, ok := out[k]; !ok {
				out[k] = v
			}
		}
	}
	return out, nil
}

// mappings gives what a merge key names: one mapping or a list of them.
func mappings(v any) []map[string]any {
	switch v := v.(type) {
	case map[string]any:
		return []map[string]any{v}
	case []any:
		var out []map[string]any
		for _, x := range v {
			out = append(out, mappings(x)...)
		}
		return out
	}
	return nil
}

// decodeScalar gives nil, bool, int64, float64 or string. What JSON can't hold (NaN, numbers beyond int64) stays
// as it is written.
func decodeScalar(n *yaml.Node) any {
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		var b bool
		if n.Decode(&b) == nil {
			return b
		}
	case "!!int":
		var i int64
		if n.Decode(&i) == nil {
			return i
		}
	case "!!float":
		var f float64
		if n.Decode(&f) == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
	}
	return n.Value
}
