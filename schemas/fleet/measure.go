package fleet

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Bounds of one file's YAML with its aliases expanded. Expansion alone is counted: a file without aliases is
// bounded by its size.
const (
	maxExpandedNodes = 100_000
	maxExpandedBytes = 4 << 20
)

// extent is how large a node is with its aliases expanded. Nodes and Bytes count what aliases add.
type extent struct {
	nodes, bytes int
	// total counts all nodes and bytes, for the next alias to it.
	totalNodes, totalBytes int
	depth                  int
}

var errSelfAlias = errors.New("an anchor holds an alias to itself")

// measurer measures nodes; each anchor is measured once, so the cost is linear in the file.
type measurer struct {
	anchors map[*yaml.Node]*extent // nil while it is being measured
}

// measure gives a document's extent. Errors say why it can't be expanded at all.
func measure(n *yaml.Node) (extent, error) {
	var m measurer
	return m.of(n)
}

func (m *measurer) of(n *yaml.Node) (extent, error) {
	if n.Kind == yaml.AliasNode {
		e, err := m.of(n.Alias)
		if err != nil {
			return e, err
		}
		e.nodes, e.bytes = e.totalNodes, e.totalBytes
		return e, nil
	}
	if n.Anchor != "" {
		if e, ok := m.anchors[n]; ok {
			if e == nil {
				return extent{}, fmt.Errorf("%w: &%s", errSelfAlias, n.Anchor)
			}
			return *e, nil
		}
		if m.anchors == nil {
			m.anchors = map[*yaml.Node]*extent{}
		}
		m.anchors[n] = nil
	}
	e := extent{totalNodes: 1, totalBytes: len(n.Value) + 1}
	for _, c := range n.Content {
		ce, err := m.of(c)
		if err != nil {
			return e, err
		}
		e.nodes = capped(e.nodes + ce.nodes)
		e.bytes = capped(e.bytes + ce.bytes)
		e.totalNodes = capped(e.totalNodes + ce.totalNodes)
		e.totalBytes = capped(e.totalBytes + ce.totalBytes)
		e.depth = max(e.depth, ce.depth)
	}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		e.depth++
	}
	if n.Anchor != "" {
		m.anchors[n] = &e
	}
	return e, nil
}

// capped keeps sums of sums from overflowing.
func capped(n int) int { return min(n, 1<<40) }
