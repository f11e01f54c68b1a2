package adopt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/cmd/internal/editor"
	"ichor.maesh.dev/ichor/cmd/internal/scaffold"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/validate/secretscan"
)

func clusterManifest(path, name string, spec v1alpha1.TalosClusterSpec) (scaffold.File, error) {
	return manifest(path, "the cluster, in mode observe: nothing is written to its nodes", v1alpha1.KindTalosCluster, v1alpha1.TalosCluster{
		APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindTalosCluster, Metadata: v1alpha1.ObjectMeta{Name: name}, Spec: spec,
	})
}

func manifest(path, about, kind string, v any) (scaffold.File, error) {
	text, err := k8syaml.Marshal(v)
	if err != nil {
		return scaffold.File{}, fmt.Errorf("write %s: %w", path, err)
	}
	return scaffold.File{Path: path, Data: append([]byte(editor.Header(kind, "", path)), text...), About: about}, nil
}

// machineManifest writes a machine with what it has otherwise than its cluster.
func (b *builder) machineManifest(dir string, o Original) (scaffold.File, error) {
	f := b.facts[o.Name]
	spec := v1alpha1.TalosMachineSpec{
		ClusterRef: v1alpha1.ClusterRef{Name: b.src.Cluster}, Role: f.role, ApprovalState: v1alpha1.ApprovalApproved,
		Endpoint: o.Address, Hostname: f.hostname,
	}
	if o.Pending {
		spec.ApprovalState = v1alpha1.ApprovalPending
	}
	if f.disk != b.spec.Install.Disk || !sameJSON(f.selector, b.spec.Install.DiskSelector) {
		spec.Install.Disk, spec.Install.DiskSelector = f.disk, f.selector
	}
	if image, schematic := imageOf(&b.spec, f.image); image != b.spec.Install.Image || schematic != b.spec.Install.Schematic {
		spec.Install.Image, spec.Install.Schematic = image, schematic
		if image == "" && schematic == "" {
			// The cluster's own differs, so Talos's has to be said.
			spec.Install.Image = f.image
		}
	}
	return manifest(dir+"/machines/"+o.Name+".yaml", f.role+" at "+o.Address, v1alpha1.KindTalosMachine, v1alpha1.TalosMachine{
		APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindTalosMachine, Metadata: v1alpha1.ObjectMeta{Name: o.Name}, Spec: spec,
	})
}

func sameJSON(a, b any) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// patch is a TalosConfigPatch to be written.
type patch struct {
	name, about     string
	order           int
	roles, machines []string
	nodes           []*yaml.Node
	secret          []string
}

// patchManifest writes a patch; what is secret in it is encrypted, and where that can't be done it is no file at all.
func (b *builder) patchManifest(dir string, p patch, recipients []string) (scaffold.File, error) {
	spec := []any{"clusterRef", obj("name", b.src.Cluster), "order", p.order}
	switch {
	case len(p.machines) > 0:
		spec = append(spec, "selector", obj("machines", p.machines))
	case len(p.roles) > 0:
		spec = append(spec, "selector", obj("roles", p.roles))
	}
	spec = append(spec, "documents", p.nodes)
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(obj("apiVersion", v1alpha1.APIVersion, "kind", v1alpha1.KindTalosConfigPatch,
		"metadata", obj("name", p.name), "spec", obj(spec...))); err != nil {
		return scaffold.File{}, fmt.Errorf("write patch %s: it can't be encoded", p.name)
	}
	path, about := dir+"/patches/"+p.name+".yaml", strings.TrimSuffix(strings.ToLower(p.about[:1])+p.about[1:], ".")
	text, err := b.seal(&path, buf.Bytes(), p.secret, recipients)
	if err != nil {
		return scaffold.File{}, err
	}
	near, err := editor.Nearest(b.spec.Contract)
	if err != nil {
		return scaffold.File{}, err
	}
	head := editor.Header(v1alpha1.KindTalosConfigPatch, near, path) + "# " + p.about + "\n"
	return scaffold.File{Path: path, Data: append([]byte(head), text...), About: about}, nil
}

// seal encrypts the values under the keys that hold secrets: those that the scan finds, those that were encrypted where
// they come from, and those that the tool read from encrypted files.
func (b *builder) seal(path *string, text []byte, keys []string, recipients []string) ([]byte, error) {
	keys = slices.Clone(keys)
	for _, f := range secretscan.File(text, true) {
		steps := mask.Steps(f.Path)
		if len(steps) == 0 {
			return nil, fmt.Errorf("patch %s would hold a secret in plain text (%s) at a place that can't be encrypted", *path, f.What)
		}
		for i := len(steps) - 1; i >= 0; i-- {
			if !steps[i].List {
				keys = append(keys, steps[i].Key)
				break
			}
		}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("patch %s can't be read back", *path)
	}
	bundle.WalkLeaves(&doc, "", func(p string, leaf *yaml.Node) {
		for _, s := range b.src.SecretValues {
			if steps := mask.Steps(p); strings.Contains(leaf.Value, s) && len(steps) > 0 {
				for i := len(steps) - 1; i >= 0; i-- {
					if !steps[i].List {
						keys = append(keys, steps[i].Key)
						break
					}
				}
			}
		}
	})
	if len(keys) == 0 {
		return text, nil
	}
	slices.Sort(keys)
	for i, k := range keys {
		keys[i] = regexp.QuoteMeta(k)
	}
	*path = strings.TrimSuffix(*path, ".yaml") + ".sops.yaml"
	sealed, err := bundle.Encrypt(text, *path, recipients, "^("+strings.Join(slices.Compact(keys), "|")+")$")
	if err != nil {
		return nil, err
	}
	if left := secretscan.File(sealed, true); len(left) > 0 {
		return nil, fmt.Errorf("patch %s would still hold a secret in plain text (%s, %s)", *path, left[0].What, left[0].Path)
	}
	return sealed, nil
}

// obj makes a mapping that keeps its order: obj(key, value, key, value, …).
func obj(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for i := 0; i < len(pairs); i += 2 {
		n.Content = append(n.Content, node(pairs[i]), node(pairs[i+1]))
	}
	return n
}

// node makes a YAML node of a plain value.
func node(v any) *yaml.Node {
	switch x := v.(type) {
	case *yaml.Node:
		return x
	case []*yaml.Node:
		return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: x}
	}
	n := &yaml.Node{}
	if err := n.Encode(v); err != nil {
		// Decoded YAML and strings always encode.
		panic("encode: " + err.Error())
	}
	return n
}
