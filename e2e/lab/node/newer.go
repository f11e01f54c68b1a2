package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/config"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
	yaml "go.yaml.in/yaml/v3"
)

// Documents of the final 1.14 that the lab's machinery library (v1.14.0-alpha.2) can't parse. A 1.14
// node takes, keeps and serves them, byte for byte; what they say of the cluster, the kubelet and the
// installation works as on a node. It is put where the library has it, in a copy of the v1alpha1
// document: so one code path serves both shapes. Their fields are not checked.

// document is one document of a configuration's text, as it stands there.
type document struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Name       string `yaml:"name"`

	line int    // of its first key, counted from 1
	text string // without the separator
}

func (d document) String() string {
	return fmt.Sprintf("%s/%s/%s", d.APIVersion, d.Kind, d.Name)
}

var separator = regexp.MustCompile(`(?m)^---(?:[ \t].*)?$`)

// split cuts a configuration at its document separators. A "---" at the start of a line is one
// wherever it stands.
func split(data []byte) []document {
	text := string(data)
	var out []document
	add := func(from, to int) {
		body := text[from:to]
		d := document{text: body}
		var node yaml.Node
		if yaml.Unmarshal([]byte(body), &node) == nil && len(node.Content) > 0 {
			_ = node.Decode(&d) // what is no mapping has no kind
			d.line = strings.Count(text[:from], "\n") + node.Content[0].Line
		}
		out = append(out, d)
	}
	from := 0
	for _, m := range separator.FindAllStringIndex(text, -1) {
		add(from, m[0])
		from = m[1]
	}
	add(from, len(text))
	return out
}

// parse decodes a configuration strictly, as the release does: a kind that came later is "not registered".
func (r release) parse(data []byte) (config.Provider, error) {
	var newer []document
	known := map[string]bool{}
	rest := data
	if mentions(data, r.laterKinds) || mentions(data, r.newerKinds) {
		docs := split(data)
		for _, d := range docs {
			switch {
			case r.laterKinds[d.Kind]:
				return nil, fmt.Errorf("error decoding document %s (line %d): %q %q: not registered", d, d.line, d.Kind, d.APIVersion)
			case !r.newerKinds[d.Kind]:
			case d.APIVersion != "v1alpha1":
				return nil, fmt.Errorf("error decoding document %s (line %d): %q %q: not registered", d, d.line, d.Kind, d.APIVersion)
			case known[d.String()]:
				return nil, fmt.Errorf("duplicate document %s is not allowed (line %d)", d, d.line)
			default:
				known[d.String()] = true
				newer = append(newer, d)
			}
		}
		rest = blank(docs, r.newerKinds)
	}
	cfg, err := configloader.NewFromBytes(rest)
	if errors.Is(err, configloader.ErrNoConfig) && len(newer) > 0 {
		cfg, err = container.New()
	}
	if err != nil {
		return nil, r.yamlError(err)
	}
	if !r.multiDoc || (len(newer) == 0 && !lacksCluster(cfg)) {
		return cfg, nil
	}
	return newMultiDoc(data, cfg, newer)
}

func mentions(data []byte, kinds map[string]bool) bool {
	for k := range kinds {
		if bytes.Contains(data, []byte(k)) {
			return true
		}
	}
	return false
}

// blank puts the documents together again with the lines of the given kinds empty, so that the
// others keep their line numbers.
func blank(docs []document, kinds map[string]bool) []byte {
	var out strings.Builder
	for i, d := range docs {
		if i > 0 {
			out.WriteString("---")
		}
		if kinds[d.Kind] {
			out.WriteString(strings.Repeat("\n", strings.Count(d.text, "\n")))
			continue
		}
		out.WriteString(d.text)
	}
	return []byte(out.String())
}

// lacksCluster tells whether a complete configuration says nothing of a Kubernetes cluster: a 1.14
// node runs without one.
func lacksCluster(cfg config.Provider) bool {
	c, ok := cfg.Cluster().(*v1alpha1.ClusterConfig) // no copy, as RawV1Alpha1 makes
	return ok && c != nil && (c.ControlPlane == nil || c.ControlPlane.Endpoint == nil)
}

// multiDoc is a configuration with documents that the library doesn't know. Everything is read
// from the embedded one, in which they are translated; the text is what was applied.
type multiDoc struct {
	config.Provider
	text   []byte
	plain  config.Provider // without the newer documents, untranslated
	newer  []document
	valid  config.Provider // for the library's validation, which insists on a cluster
	errors []error
}

func newMultiDoc(text []byte, plain config.Provider, newer []document) (*multiDoc, error) {
	m := &multiDoc{text: bytes.Clone(text), plain: plain, newer: newer}
	var docs []coreconfig.Document
	for _, d := range plain.Documents() {
		if d.Kind() != v1alpha1.Version {
			docs = append(docs, d)
		}
	}
	build := func(raw *v1alpha1.Config) (config.Provider, error) {
		all := docs
		if raw != nil {
			all = append([]coreconfig.Document{raw}, docs...)
		}
		return container.New(all...)
	}
	var raw, valid *v1alpha1.Config
	if plain.RawV1Alpha1() != nil {
		raw = plain.RawV1Alpha1().DeepCopy()
		m.errors = conflicts(raw, newer)
		for _, d := range newer {
			if err := translate(raw, d); err != nil {
				return nil, fmt.Errorf("error decoding document %s (line %d): %w", d, d.line, err)
			}
		}
		valid = raw.DeepCopy()
		complete(valid)
	}
	var err error
	if m.Provider, err = build(raw); err != nil {
		return nil, err
	}
	m.valid, err = build(valid)
	return m, err
}

// Bytes implements config.Provider: what was applied, byte for byte.
func (m *multiDoc) Bytes() ([]byte, error) { return m.text, nil }

// Readonly implements config.Provider.
func (m *multiDoc) Readonly() bool { return true }

// Clone implements config.Provider.
func (m *multiDoc) Clone() config.Provider { c := *m; return &c }

// EncodeString implements config.Provider.
func (m *multiDoc) EncodeString(opts ...encoder.Option) (string, error) {
	b, err := m.EncodeBytes(opts...)
	return string(b), err
}

// EncodeBytes implements config.Provider: as the library encodes what it knows, the other
// documents with the same indentation, in the order in which they were applied.
func (m *multiDoc) EncodeBytes(opts ...encoder.Option) ([]byte, error) {
	var parts []string
	known := m.plain.Documents()
	if len(known) > 0 && known[0].Kind() == v1alpha1.Version { // always first
		b, err := encoder.NewEncoder(known[0], opts...).Encode()
		if err != nil {
			return nil, err
		}
		parts, known = append(parts, string(b)), known[1:]
	}
	next := 0
	for _, d := range split(m.text) {
		switch {
		case d.Kind == "":
		case slices.ContainsFunc(m.newer, func(n document) bool { return n.String() == d.String() }):
			b, err := reencode(d.text)
			if err != nil {
				return nil, err
			}
			parts = append(parts, b)
		case next < len(known):
			b, err := encoder.NewEncoder(known[next], opts...).Encode()
			if err != nil {
				return nil, err
			}
			parts = append(parts, string(b))
			next++
		}
	}
	return []byte(strings.Join(parts, "---\n")), nil
}

func reencode(text string) (string, error) {
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(text), &node); err != nil {
		return "", err
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(4)
	if err := enc.Encode(&node); err != nil {
		return "", err
	}
	return out.String(), enc.Close()
}

// ValidateAtRuntime implements config.Provider.
func (m *multiDoc) ValidateAtRuntime(ctx context.Context, st state.State, mode validation.RuntimeMode, opts ...validation.Option) ([]string, error) {
	warnings, err := m.valid.ValidateAtRuntime(ctx, st, mode, opts...)
	return warnings, joinErrors(err, m.errors...)
}

// ValidateAsClient implements config.Provider.
func (m *multiDoc) ValidateAsClient(mode validation.RuntimeMode, opts ...validation.Option) ([]string, error) {
	warnings, err := m.valid.ValidateAsClient(mode, opts...)
	return warnings, joinErrors(err, m.errors...)
}

// newerDocument finds a document that the library doesn't know, and decodes it; false when there is none.
func newerDocument(cfg config.Provider, kind string, into any) bool {
	m, ok := cfg.(*multiDoc)
	if !ok {
		return false
	}
	for _, d := range m.newer {
		if d.Kind == kind {
			return yaml.Unmarshal([]byte(d.text), into) == nil
		}
	}
	return false
}

// kubernetes says whether a configuration makes the machine a node of a Kubernetes cluster.
func kubernetes(cfg config.Provider) bool {
	return cfg != nil && cfg.CompleteForBoot() && !lacksCluster(cfg)
}
