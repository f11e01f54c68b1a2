package fleet

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// entries gives the documents of a patch as they are written. A document that stands as text of its own is cut out
// of the file, comments and all; one in flow style, or with anchors and merge keys from elsewhere, is written anew
// from its nodes. Either way every scalar reads as it did.
func (s source) entries(d *docDecoder, n *yaml.Node, i int) []PatchEntry {
	var out []PatchEntry
	spec := d.fieldOf(n, "spec")
	lines := bytes.SplitAfter(s.data, []byte("\n"))
	if list := d.fieldOf(spec, "documents"); list != nil {
		for k, item := range list.Content {
			e := PatchEntry{Pos: d.posOf(item), SopsDoc: s.firstDoc + i, SopsPath: fmt.Sprintf("spec.documents[%d]", k)}
			out = append(out, s.fill(d, e, target(item), lines))
		}
	}
	if list := d.fieldOf(spec, "jsonPatch"); list != nil {
		const path = "spec.jsonPatch"
		e := PatchEntry{JSON: true, Pos: d.idx.pos(d.idx.find(path)), SopsDoc: s.firstDoc + i, SopsPath: path}
		out = append(out, s.fill(d, e, list, lines))
	}
	return out
}

// fieldOf finds a field, merge keys included.
func (d *docDecoder) fieldOf(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for _, p := range d.pairs(n, root, fieldName) {
		if v := target(p.value); p.name == name && !isNull(v) {
			return v
		}
	}
	return nil
}

// fill gives an entry its text, and marks the file where values in it are encrypted.
func (s source) fill(d *docDecoder, e PatchEntry, n *yaml.Node, lines [][]byte) PatchEntry {
	if raw, ok := cut(lines, n); ok {
		e.Raw = raw
	} else {
		e.Raw = emit(n)
	}
	if holdsEncrypted(n) {
		if !s.sops {
			d.failPath(e.SopsPath, "a value is SOPS-encrypted, but the file has no SOPS metadata (sops:)", "encrypt the file with SOPS; a value can't be copied out of another file")
		}
		// The loader puts the file in when it has it.
		e.Sops = &File{Path: s.file}
	}
	return e
}

// holdsEncrypted tells whether a value within n is SOPS-encrypted.
func holdsEncrypted(n *yaml.Node) bool {
	n = target(n)
	if isEncrypted(n) {
		return true
	}
	for _, c := range n.Content {
		if holdsEncrypted(c) {
			return true
		}
	}
	return false
}

// cut takes the text of a block-style node out of the file and moves it to the left edge. It answers only when what
// it took reads as the same nodes, so that its simple way of finding the end can't do harm.
func cut(lines [][]byte, n *yaml.Node) ([]byte, bool) {
	if n.Style&yaml.FlowStyle != 0 || n.Line < 1 || n.Column < 1 {
		return nil, false
	}
	if n.Line > len(lines) {
		return nil, false
	}
	indent := n.Column - 1
	first := lines[n.Line-1]
	if len(first) < indent {
		return nil, false
	}
	raw := bytes.Clone(first[indent:])
	for _, line := range lines[n.Line:] {
		own := len(line) - len(bytes.TrimLeft(line, " "))
		bare := bytes.TrimSpace(line)
		switch {
		case len(line) == 0: // after the last line break
		case own >= indent:
			raw = append(raw, line[indent:]...)
		case len(bare) == 0:
			raw = append(raw, '\n')
		case bare[0] == '#':
			raw = append(raw, '\n')
		default:
			return checkCut(raw, n)
		}
	}
	return checkCut(raw, n)
}

// checkCut keeps a cut that reads as the node it was taken for.
func checkCut(raw []byte, n *yaml.Node) ([]byte, bool) {
	nodes, err := decodeNodes(raw)
	if err != nil || len(nodes) != 1 || !same(nodes[0], n) {
		return nil, false
	}
	return raw, true
}

// same compares two nodes: kinds, tags, texts and anchors, not styles and places.
func same(a, b *yaml.Node) bool {
	if a.Kind != b.Kind || a.Tag != b.Tag || a.Value != b.Value || a.Anchor != b.Anchor || len(a.Content) != len(b.Content) {
		return false
	}
	for i := range a.Content {
		if !same(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}
