package check

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/effect"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/rules"
)

// secretChanges says which secrets of a cluster changed: masked renders don't show it. The bundle counts by its
// ciphertext, encrypted values of patches one by one.
type secretChanges struct {
	bundle *PathChange
	// minor of the cluster's Talos.
	minor int
	// patches has the changed encrypted values by patch name.
	patches map[string][]PathChange
}

// Changed bundle: what it does to a node is not in any table, and unknown counts as reboot.
const bundleDocument = "secrets"

func newSecretChanges(was, now *fleet.Cluster) *secretChanges {
	s := &secretChanges{patches: map[string][]PathChange{}, minor: minorOf(now)}
	if was == nil {
		return s
	}
	if was.Secrets != nil && now.Secrets != nil && !rules.SameCiphertext(was.Secrets.Data, now.Secrets.Data) {
		s.bundle = &PathChange{
			Document: bundleDocument, Path: now.Secrets.Path, Effect: string(effect.Reboot),
			Before: mask.Marker, After: secretMark,
		}
	}
	before := map[string]map[sealedLeaf]string{}
	for _, p := range was.Patches {
		before[p.Name] = sealedValues(p)
	}
	for _, p := range now.Patches {
		s.patches[p.Name] = sealedChanges(before[p.Name], sealedValues(p))
	}
	return s
}

// of lists the changed secrets that reach a machine.
func (s *secretChanges) of(r render.Result) []PathChange {
	var out []PathChange
	if s.bundle != nil {
		out = append(out, *s.bundle)
	}
	for _, u := range r.Patches {
		for _, p := range s.patches[u.Patch.Name] {
			e, service := effect.OfRole(s.minor, r.Machine.Manifest.Spec.Role, p.Document, p.Path)
			p.Effect, p.Service = string(e), service
			out = append(out, p)
		}
	}
	return out
}

// sealedLeaf is the place of one encrypted value of a patch, in the document that it patches.
type sealedLeaf struct{ document, path string }

// sealedChanges lists the encrypted values that both sides have and that differ; what is new or gone shows in the
// masked render itself.
func sealedChanges(before, after map[sealedLeaf]string) []PathChange {
	var out []PathChange
	for leaf, v := range after {
		old, had := before[leaf]
		if !had || old == v {
			continue
		}
		out = append(out, PathChange{
			Document: leaf.document, Path: leaf.path,
			Before: mask.Marker, After: secretMark,
		})
	}
	slices.SortFunc(out, func(a, b PathChange) int {
		return strings.Compare(a.Document+"\x00"+a.Path, b.Document+"\x00"+b.Path)
	})
	return out
}

// sealedValues lists the encrypted values of a patch. The same place in two entries counts by the last, which wins.
func sealedValues(p *fleet.Patch) map[sealedLeaf]string {
	out := map[sealedLeaf]string{}
	for _, e := range p.Entries {
		if !bytes.Contains(e.Raw, []byte("ENC[")) {
			continue
		}
		dec := yaml.NewDecoder(bytes.NewReader(e.Raw))
		for {
			var doc yaml.Node
			if err := dec.Decode(&doc); err != nil {
				if !errors.Is(err, io.EOF) {
					// The render rule says that it does not parse.
					return out
				}
				break
			}
			id := documentID(&doc)
			rules.WalkLeaves(&doc, func(path string, n *yaml.Node) {
				if strings.HasPrefix(n.Value, "ENC[") {
					out[sealedLeaf{id, path}] = n.Value
				}
			})
		}
	}
	return out
}

// documentID names a patch document as reports do: v1alpha1, Kind or Kind/name.
func documentID(doc *yaml.Node) string {
	var head struct {
		Kind string `yaml:"kind"`
		Name string `yaml:"name"`
	}
	if err := doc.Decode(&head); err != nil || head.Kind == "" {
		return "v1alpha1"
	}
	if head.Name == "" {
		return head.Kind
	}
	return head.Kind + "/" + head.Name
}
