package fleet

import (
	"math"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document decodes one entry of a patch: free content, but a mapping that says something.
func (d *docDecoder) document(n *yaml.Node, v reflect.Value, at int32) {
	switch {
	case isEncrypted(n) && strings.HasSuffix(n.Value, ",type:comment]"):
		// SOPS writes an encrypted comment of a list as an item of its own. It keeps its place, because values are
		// found by their index.
		v.Set(reflect.ValueOf(n.Value))
	case isNull(n), n.Kind == yaml.MappingNode && len(n.Content) == 0:
		d.fail(at, "the document is empty", "remove the entry, or say what it changes")
	case n.Kind != yaml.MappingNode:
		d.wrongType(n, at, "a mapping")
	default:
		v.Set(reflect.ValueOf(d.generic(n, at, readTalos)))
	}
}

// readOurs reads a scalar of a free field of ours, readTalos one of a Talos document (which may be encrypted).
func readOurs(d *docDecoder, n *yaml.Node, at int32) any {
	if isEncrypted(n) {
		d.encrypted(at)
		return nil
	}
	v, ok := readScalar(n)
	if f, is := v.(float64); is && (math.IsInf(f, 0) || math.IsNaN(f)) {
		d.fail(at, "infinity and NaN can't be used here", "")
	} else if !ok {
		d.fail(at, "the tag "+quoted(n.Tag)+" can't be used here", "")
	}
	return v
}

func readTalos(_ *docDecoder, n *yaml.Node, _ int32) any {
	var v any
	if n.Decode(&v) != nil {
		return n.Value
	}
	return v
}

// generic decodes free content.
func (d *docDecoder) generic(n *yaml.Node, at int32, scalar func(*docDecoder, *yaml.Node, int32) any) any {
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		for _, p := range d.pairs(n, at, fieldName) {
			out[p.name] = d.generic(target(p.value), d.addKey(at, p), scalar)
		}
		return out
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, c := range n.Content {
			out[i] = d.generic(target(c), d.addItem(at, i, c), scalar)
		}
		return out
	default:
		return scalar(d, n, at)
	}
}
