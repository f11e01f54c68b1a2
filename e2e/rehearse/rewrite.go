package rehearse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// editor changes single values of a YAML file and leaves the rest as its author wrote it: comments, order and, but for
// a few inserted lines, line numbers.
type editor struct {
	data  []byte
	lines []int // where each line begins
	edits []edit
	err   error
}

type edit struct {
	from, to int
	text     string
}

func newEditor(data []byte) *editor {
	e := &editor{data: data, lines: []int{0}}
	for i, b := range data {
		if b == '\n' {
			e.lines = append(e.lines, i+1)
		}
	}
	return e
}

// offset of a node's first byte. The parser counts columns in characters.
func (e *editor) offset(n *yaml.Node) int {
	if n.Line < 1 || n.Line > len(e.lines) {
		return -1
	}
	at := e.lines[n.Line-1]
	for range n.Column - 1 {
		if at >= len(e.data) {
			return -1
		}
		_, size := utf8.DecodeRune(e.data[at:])
		at += size
	}
	return at
}

// replace puts a plain value in the place of a scalar.
func (e *editor) replace(n *yaml.Node, text string) {
	from := e.offset(n)
	if n.Anchor != "" && from >= 0 { // &name in front
		if i := bytes.IndexAny(e.data[from:], " \t"); i > 0 {
			from += i + 1
		}
	}
	to := e.end(n, from)
	if to < 0 {
		e.err = errors.Join(e.err, fmt.Errorf("line %d: the value %q can't be replaced where it stands: write it on one line, without tag or block", n.Line, n.Value))
		return
	}
	e.edits = append(e.edits, edit{from, to, text})
}

// end of a scalar that begins at from, -1 where it is none on one line.
func (e *editor) end(n *yaml.Node, from int) int {
	if n.Kind != yaml.ScalarNode || from < 0 {
		return -1
	}
	rest := e.data[from:]
	switch {
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 && len(rest) > 0:
		quote := rest[0]
		for i := 1; i < len(rest) && rest[i] != '\n'; i++ {
			switch {
			case quote == '"' && rest[i] == '\\':
				i++
			case rest[i] == quote && quote == '\'' && i+1 < len(rest) && rest[i+1] == quote:
				i++
			case rest[i] == quote:
				return from + i + 1
			}
		}
	case bytes.HasPrefix(rest, []byte(n.Value)) && n.Value != "":
		return from + len(n.Value)
	}
	return -1
}

// set gives a key of a mapping a value, in the place of the old one or as a new first key.
func (e *editor) set(m *yaml.Node, key, text string) {
	if v := field(m, key); v != nil {
		if v.Kind == yaml.AliasNode {
			return // the value stands elsewhere, and may be meant for others too
		}
		e.replace(v, text)
		return
	}
	from := e.offset(m)
	switch {
	case from < 0 || m.Kind != yaml.MappingNode:
	case m.Style&yaml.FlowStyle != 0:
		i := bytes.IndexByte(e.data[from:], '{')
		if i < 0 {
			return
		}
		at, text := from+i+1, key+": "+text
		if len(m.Content) > 0 {
			text += ", "
		} else if slices.ContainsFunc(e.edits, func(x edit) bool { return x.from == at }) {
			text = ", " + text
		}
		e.edits = append(e.edits, edit{at, at, text})
	case len(m.Content) > 0:
		at := e.offset(m.Content[0])
		e.edits = append(e.edits, edit{at, at, key + ": " + text + "\n" + strings.Repeat(" ", m.Content[0].Column-1)})
	}
}

// bytes is the file with all edits.
func (e *editor) bytes() []byte {
	slices.SortStableFunc(e.edits, func(a, b edit) int { return a.from - b.from })
	var out []byte
	at := 0
	for _, x := range e.edits {
		out = append(append(out, e.data[at:x.from]...), x.text...)
		at = x.to
	}
	return append(out, e.data[at:]...)
}

// field of a mapping, nil where it has none.
func field(m *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		if m == nil || m.Kind != yaml.MappingNode {
			return nil
		}
		var next *yaml.Node
		for i := 0; i+1 < len(m.Content); i += 2 {
			if m.Content[i].Value == key {
				next = m.Content[i+1]
			}
		}
		m = next
	}
	return m
}

// documents of a YAML file, nil where it does not parse: then it is nothing that the lab could map either.
func documents(data []byte) []*yaml.Node {
	var out []*yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var d yaml.Node
		if err := dec.Decode(&d); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			return nil
		}
		if len(d.Content) == 1 && d.Content[0].Kind == yaml.MappingNode {
			out = append(out, d.Content[0])
		}
	}
}

// lab values: what makes a rollout quick to watch. Machines of the lab are well or not within a second.
const (
	labSettle   = "1s"
	labInterval = "2s"
	labGrace    = "5s"
)

// always is a window's start that is always open.
const always = `"* * * * *"`

// manifest rewrites one file with manifests for the lab.
func (c *copier) manifest(data []byte) ([]byte, error) {
	e := newEditor(data)
	for _, d := range documents(data) {
		api, kind, spec := field(d, "apiVersion"), field(d, "kind"), field(d, "spec")
		if api == nil || kind == nil || spec == nil || !strings.HasPrefix(api.Value, v1alpha1.Group+"/") {
			continue
		}
		switch kind.Value {
		case v1alpha1.KindTalosMachine:
			c.machine(e, spec)
		case v1alpha1.KindTalosCluster:
			c.cluster(e, spec)
		case v1alpha1.KindTalosEtcdBackup:
			e.set(spec, "suspend", "true") // nothing is sent to a store of the user's
		}
	}
	return e.bytes(), e.err
}

func (c *copier) machine(e *editor, spec *yaml.Node) {
	if v := field(spec, "endpoint"); v != nil {
		if m, ok := c.addrs.of(v.Value); ok {
			e.replace(v, m.String())
		}
	}
	if v := field(spec, "certFingerprint"); v != nil && v.Value != "" {
		e.replace(v, `""`) // the lab's machine has a certificate of its own
		c.note("certFingerprint is left out: a machine of the lab has a certificate of its own")
	}
}

func (c *copier) cluster(e *editor, spec *yaml.Node) {
	if v := field(spec, "endpoint", "address"); v != nil {
		if m, ok := c.addrs.of(v.Value); ok {
			e.replace(v, m.String())
		}
	}
	for _, list := range []string{"addresses", "cidrs"} {
		v := field(spec, "discovery", list)
		if v == nil || v.Kind != yaml.SequenceNode {
			continue
		}
		for _, x := range v.Content {
			if m, ok := c.addrs.of(x.Value); ok {
				e.replace(x, m.String())
			} else if m, ok := c.addrs.network(x.Value); ok {
				e.replace(x, m)
			}
		}
	}
	if r := field(spec, "rollout"); r != nil && r.Kind == yaml.MappingNode {
		c.rollout(e, r)
	} else if r == nil && !c.opt.RealTime {
		e.set(spec, "rollout", "{settle: "+labSettle+"}")
	}
	if c.opt.RealTime {
		return
	}
	if r := field(spec, "reachability"); r != nil && r.Kind == yaml.MappingNode {
		e.set(r, "interval", labInterval)
		e.set(r, "grace", labGrace)
	} else if r == nil {
		e.set(spec, "reachability", "{interval: "+labInterval+", grace: "+labGrace+"}")
	}
}

func (c *copier) rollout(e *editor, r *yaml.Node) {
	if !c.opt.RealTime {
		e.set(r, "settle", labSettle)
	}
	if v := field(r, "mode"); v != nil && v.Value == "observe" && c.opt.Apply {
		e.replace(v, "apply")
	}
	windows := field(r, "windows")
	if windows == nil || windows.Kind != yaml.SequenceNode || len(windows.Content) == 0 {
		return
	}
	c.note("maintenance windows are taken as open now")
	for _, w := range windows.Content {
		if v := field(w, "start"); v != nil {
			e.replace(v, always)
		}
	}
}
