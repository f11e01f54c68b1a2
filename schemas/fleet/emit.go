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
	if n = target(n); n.Style&yaml.TaggedStyle != 0 || n.Kind == yaml.ScalarNode || len(n.Content) == 0 {
		emitValue(&b, n, 0)
	} else {
		emitBlock(&b, n, 0)
	}
	return b.Bytes()
}

// emitBlock writes the content of a mapping or list, one line or more an entry.
func emitBlock(b *bytes.Buffer, n *yaml.Node, indent int) {
	const step = 2
	margin := strings.Repeat(" ", indent)
	if n.Kind == yaml.SequenceNode {
		for _, c := range n.Content {
			b.WriteString(margin + "-")
			emitValue(b, target(c), indent+step)
		}
		return
	}
	for _, p := range emitPairs(n) {
		// A key that is no short scalar takes YAML's explicit form.
		if k := p[0]; k.Kind == yaml.ScalarNode && len(k.Value) < 100 {
			b.WriteString(margin)
			emitScalar(b, k, true)
			b.WriteByte(':')
		} else {
			b.WriteString(margin + "?")
			emitValue(b, k, indent+step)
			b.WriteString(margin + ":")
		}
		emitValue(b, target(p[1]), indent+step)
	}
}

// emitValue writes what comes after "key:", "-" or "?", to the end of its last line.
func emitValue(b *bytes.Buffer, n *yaml.Node, indent int) {
	if n.Kind == yaml.ScalarNode {
		b.WriteByte(' ')
		emitScalar(b, n, false)
		b.WriteByte('\n')
		return
	}
	if n.Style&yaml.TaggedStyle != 0 {
		b.WriteString(" " + longTag(n.Tag))
	}
	switch {
	case len(n.Content) > 0:
		b.WriteByte('\n')
		emitBlock(b, n, indent)
	case n.Kind == yaml.SequenceNode:
		b.WriteString(" []\n")
	default:
		b.WriteString(" {}\n")
	}
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

// emitScalar writes a scalar. An empty plain one (null) gets its name where it is a key.
func emitScalar(b *bytes.Buffer, n *yaml.Node, key bool) {
	const quotedStyles = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	plain := n.Style&quotedStyles == 0
	switch {
	case n.Style&yaml.TaggedStyle != 0:
		b.WriteString(longTag(n.Tag) + " ")
		emitQuoted(b, n.Value)
	case plain && n.Value == "" && key:
		b.WriteString("null")
	case plain && strings.HasSuffix(n.Value, ":"):
		emitQuoted(b, n.Value) // a string that only a flow mapping can hold plain: {a: b:}
	case plain && !strings.ContainsFunc(n.Value, func(r rune) bool { return !unicode.IsPrint(r) }):
		b.WriteString(n.Value)
	default:
		emitQuoted(b, n.Value)
	}
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
