package fleet

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// emit writes a node in block style, with its aliases and merge keys expanded. A plain scalar stays plain, in the
// same letters, so that it is read as it was; every quoted or block scalar becomes a double-quoted one, which is the
// same text. The library's own emitter is not used: it writes some texts (leading blanks in literals) so that they
// read differently.
func emit(n *yaml.Node) []byte {
	var b bytes.Buffer
	emitNode(&b, target(n), 0, false)
	return b.Bytes()
}

// emitNode writes n at the given indentation. inline is true after "key:" or "-" on the same line.
func emitNode(b *bytes.Buffer, n *yaml.Node, indent int, inline bool) {
	switch n.Kind {
	case yaml.MappingNode:
		emitCollection(b, n, "{}", inline)
		for i, p := range emitPairs(n) {
			emitIndent(b, indent, inline && i == 0 && n.Style&yaml.TaggedStyle == 0)
			emitKey(b, p[0], indent)
			emitChild(b, target(p[1]), indent+2)
		}
	case yaml.SequenceNode:
		emitCollection(b, n, "[]", inline)
		for _, c := range n.Content {
			emitIndent(b, indent, false)
			b.WriteByte('-')
			emitChild(b, target(c), indent+2)
		}
	default:
		emitScalar(b, n)
		b.WriteByte('\n')
	}
}

// emitCollection writes what comes before a mapping's or list's content: its tag, its emptiness, the line break.
func emitCollection(b *bytes.Buffer, n *yaml.Node, empty string, inline bool) {
	if n.Style&yaml.TaggedStyle != 0 {
		b.WriteString(longTag(n.Tag))
		b.WriteByte(' ')
	}
	switch {
	case len(n.Content) == 0:
		b.WriteString(empty + "\n")
	case inline, n.Style&yaml.TaggedStyle != 0:
		b.WriteByte('\n')
	}
}

func emitIndent(b *bytes.Buffer, indent int, skip bool) {
	if !skip {
		b.WriteString(strings.Repeat(" ", indent))
	}
}

// emitKey writes a key and its colon. A key that is no short scalar takes YAML's explicit form.
func emitKey(b *bytes.Buffer, k *yaml.Node, indent int) {
	if k.Kind == yaml.ScalarNode && len(k.Value) < 100 {
		emitScalar(b, k)
		b.WriteByte(':')
		return
	}
	b.WriteByte('?')
	emitChild(b, k, indent+2)
	b.WriteString(strings.Repeat(" ", indent) + ":")
}

// emitChild writes a value after "key:", "-" or "?".
func emitChild(b *bytes.Buffer, n *yaml.Node, indent int) {
	if n.Kind == yaml.ScalarNode || len(n.Content) == 0 || n.Style&yaml.TaggedStyle != 0 {
		b.WriteByte(' ')
	}
	if n.Kind == yaml.ScalarNode {
		emitScalar(b, n)
		b.WriteByte('\n')
		return
	}
	if n.Style&yaml.TaggedStyle != 0 {
		emitNode(b, n, indent, false)
		return
	}
	if len(n.Content) > 0 {
		b.WriteByte('\n')
	}
	emitNode(b, n, indent, false)
}

// emitPairs gives the fields of a mapping with merge keys resolved: its own win, then the first that is merged.
func emitPairs(n *yaml.Node) [][2]*yaml.Node {
	var out [][2]*yaml.Node
	seen := map[string]bool{}
	add := func(k, v *yaml.Node) {
		id := k.Tag + " " + k.Value
		if k.Kind == yaml.ScalarNode && seen[id] {
			return
		}
		seen[id] = true
		out = append(out, [2]*yaml.Node{k, v})
	}
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := target(n.Content[i])
		if isMerge(k) {
			merges = append(merges, target(n.Content[i+1]))
			continue
		}
		add(k, n.Content[i+1])
	}
	for _, m := range merges {
		sources := []*yaml.Node{m}
		if m.Kind == yaml.SequenceNode {
			sources = m.Content
		}
		for _, s := range sources {
			for _, p := range emitPairs(target(s)) {
				add(p[0], p[1])
			}
		}
	}
	return out
}

func emitScalar(b *bytes.Buffer, n *yaml.Node) {
	const quotedStyles = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Style&yaml.TaggedStyle != 0 {
		b.WriteString(longTag(n.Tag))
		b.WriteByte(' ')
		if n.Value != "" || n.Style&quotedStyles != 0 {
			emitQuoted(b, n.Value)
		}
		return
	}
	if n.Style&quotedStyles == 0 && !strings.ContainsFunc(n.Value, unicode.IsControl) {
		b.WriteString(n.Value)
		return
	}
	emitQuoted(b, n.Value)
}

// emitQuoted writes a double-quoted scalar.
func emitQuoted(b *bytes.Buffer, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == utf8.RuneError, unicode.IsPrint(r) && r < 0x10000:
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02X`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04X`, r)
		default:
			fmt.Fprintf(b, `\U%08X`, r)
		}
	}
	b.WriteByte('"')
}

// longTag writes a tag so that it reads as it did: !!int stays, !custom stays, others in verbatim form.
func longTag(tag string) string {
	if strings.HasPrefix(tag, "!") {
		return tag
	}
	return "!<" + tag + ">"
}
