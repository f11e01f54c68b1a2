package rules

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// sopsKey holds a SOPS file's metadata.
const sopsKey = "sops"

// sealedLeaves lists every leaf of a SOPS-encrypted YAML file but its metadata, as "document path=value", sorted.
func sealedLeaves(data []byte) ([]string, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var out []string
	for i := 0; ; i++ {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("parse encrypted file: %w", err)
		}
		WalkLeaves(&doc, func(path string, n *yaml.Node) {
			out = append(out, fmt.Sprintf("%d %s=%s", i, path, n.Value))
		})
	}
	slices.Sort(out)
	return out, nil
}

// maxLeafPath is how long a path may grow, in bytes, before its digest stands for it.
const maxLeafPath = 1024

// maxWalk bounds the depth of a walk; an alias that refers to itself would never end.
const maxWalk = 100

// WalkLeaves calls f for every scalar of a document, with its dotted path. The SOPS metadata at the root is left out; aliases are
// not followed (what they stand for is walked where it is written).
func WalkLeaves(doc *yaml.Node, f func(path string, n *yaml.Node)) { walkLeaves(doc, "", 0, f) }

func walkLeaves(n *yaml.Node, path string, depth int, f func(path string, n *yaml.Node)) {
	if depth > maxWalk {
		return
	}
	if len(path) > maxLeafPath {
		// Still one of its kind, and cheap to copy to everything below.
		path = fmt.Sprintf("%x", sha256.Sum256([]byte(path)))
	}
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			walkLeaves(c, path, depth+1, f)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if path == "" && key == sopsKey {
				continue
			}
			walkLeaves(n.Content[i+1], fleet.JoinPath(path, key), depth+1, f)
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			walkLeaves(c, fmt.Sprintf("%s[%d]", path, i), depth+1, f)
		}
	case yaml.ScalarNode:
		f(path, n)
	}
}
