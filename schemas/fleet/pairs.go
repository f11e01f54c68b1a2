package fleet

import (
	"fmt"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"
)

// pair is one field of a mapping; merge keys are resolved.
type pair struct {
	key   *yaml.Node
	name  string
	value *yaml.Node
}

// target follows an alias.
func target(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// isNull tells whether a node is there but says nothing.
func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == tagNull
}

// pairList collects the fields of a mapping. Long mappings get an index, so that a hostile one costs no square.
type pairList struct {
	list []pair
	seen map[string]int
}

// find gives a field's place in the list, -1 where there is none.
func (l *pairList) find(name string) int {
	if l.seen != nil {
		if i, ok := l.seen[name]; ok {
			return i
		}
		return -1
	}
	for i := range l.list {
		if l.list[i].name == name {
			return i
		}
	}
	return -1
}

func (l *pairList) add(p pair) {
	const short = 24
	l.list = append(l.list, p)
	switch {
	case l.seen != nil:
		l.seen[p.name] = len(l.list) - 1
	case len(l.list) > short:
		l.seen = make(map[string]int, 4*short)
		for i := range l.list {
			l.seen[l.list[i].name] = i
		}
	}
}

// pairs lists the fields of a mapping: its own first, then those of merge keys that it does not have itself. What is
// given twice is reported at its second place.
func (d *docDecoder) pairs(n *yaml.Node, at int32, name func(*yaml.Node) (string, bool)) []pair {
	out := pairList{list: make([]pair, 0, len(n.Content)/2)}
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := target(n.Content[i]), n.Content[i+1]
		if isMerge(k) {
			merges = append(merges, v)
			continue
		}
		text, ok := name(k)
		if !ok {
			d.report(d.posOf(k), d.idx.path(at), "a key is no plain text", "")
			continue
		}
		if first := out.find(text); first >= 0 {
			fk := out.list[first].key
			d.report(d.posOf(k), JoinPath(d.idx.path(at), text), fmt.Sprintf("field %s is given twice, first at %s:%d:%d",
				quoted(text), d.file, fk.Line+d.lineOffset, fk.Column), "keep one of the two")
			continue
		}
		out.add(pair{k, text, v})
	}
	for _, m := range merges {
		d.merge(&out, target(m), at, name)
	}
	return out.list
}

// isMerge tells whether a key is the merge key of YAML 1.1.
func isMerge(k *yaml.Node) bool { return k.Kind == yaml.ScalarNode && k.Tag == tagMerge }

// merge adds the fields of a merge key's value: a mapping, or a list of mappings of which the first wins.
func (d *docDecoder) merge(out *pairList, m *yaml.Node, at int32, name func(*yaml.Node) (string, bool)) {
	sources := []*yaml.Node{m}
	if m.Kind == yaml.SequenceNode {
		sources = m.Content
	}
	for _, s := range sources {
		if s = target(s); s.Kind != yaml.MappingNode {
			d.report(d.posOf(s), d.idx.path(at), "a merge key (<<) takes a mapping or a list of mappings", "")
			continue
		}
		for _, p := range d.pairs(s, at, name) {
			if out.find(p.name) < 0 {
				out.add(p)
			}
		}
	}
}

// fieldName reads a key of one of our own types: as it is written.
func fieldName(k *yaml.Node) (string, bool) { return k.Value, k.Kind == yaml.ScalarNode }

// labelName reads a key of a free mapping as sigs.k8s.io/yaml does.
func labelName(k *yaml.Node) (string, bool) {
	if k.Kind != yaml.ScalarNode {
		return "", false
	}
	v, ok := readScalar(k)
	switch x := v.(type) {
	case uint64:
		return "", false
	case float64:
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return strings.ToLower(strings.TrimPrefix(k.Value, "+")), ok
		}
	}
	if !ok {
		return "", false
	}
	return scalarText(v)
}
