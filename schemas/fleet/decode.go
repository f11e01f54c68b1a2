package fleet

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	ruleSchema    = "schema"
	ruleReference = "reference"
	ruleLimits    = "limits"
	sopsKey       = "sops"
)

// docDecoder decodes one document into its kind, strictly: every field known, none twice, every type right. It goes
// on after a problem, so that one run shows them all.
type docDecoder struct {
	file string
	// lineOffset is added to the parser's lines (a document cut out of a file that does not parse as a whole).
	lineOffset int
	// who is copied into every problem.
	who      Problem
	idx      *fieldIndex
	problems []Problem
	// coerced are the fields that want a string and were given a decimal number (1.10 is read as 1.1).
	coerced []int32
	// bad holds the paths that have a problem, so that the value checks do not say a second one.
	bad map[string]bool
}

// fail reports a problem at an entry of the index.
func (d *docDecoder) fail(at int32, message, hint string) {
	d.report(d.idx.pos(at), d.idx.path(at), message, hint)
}

// failPath reports a problem of a field by path, unless that field or one above it has one already.
func (d *docDecoder) failPath(path, message, hint string) {
	for bad := range d.bad {
		if len(path) >= len(bad) && path[:len(bad)] == bad && (len(path) == len(bad) || path[len(bad)] == '.' || path[len(bad)] == '[') {
			return
		}
	}
	at := d.idx.find(path)
	if slices.Contains(d.coerced, at) {
		hint = strings.TrimPrefix(hint+"; it was read as a decimal number, quotes keep a text as it is written", "; ")
	}
	d.report(d.idx.pos(at), path, message, hint)
}

// maxProblems bounds what one document can say, so that a hostile one can't fill a report.
const maxProblems = 50

func (d *docDecoder) report(pos Position, path, message, hint string) {
	if len(d.problems) == maxProblems {
		path, hint = "", ""
		message = fmt.Sprintf("more than %d problems in this document; the rest is left out", maxProblems)
	}
	if len(d.problems) > maxProblems {
		return
	}
	if hint == "" {
		hint = shapeHint(d.who.Object)
	}
	p := d.who
	p.Rule, p.Severity, p.Path, p.Message, p.Hint = ruleSchema, Error, path, message, hint
	p.File, p.Line, p.Column = pos.File, pos.Line, pos.Column
	d.problems = append(d.problems, p)
	d.bad[path] = true
}

// shapeHint says where the form of a kind is written down.
func shapeHint(object string) string {
	if kind, _, ok := strings.Cut(object, "/"); ok {
		return "ichor schema " + kind + " and docs/kinds.md show what the field takes"
	}
	return "docs/kinds.md shows the fields of every kind"
}

func (d *docDecoder) posOf(n *yaml.Node) Position {
	return Position{File: d.file, Line: n.Line + d.lineOffset, Column: n.Column}
}

// addKey and addItem index a field or an item.
func (d *docDecoder) addKey(at int32, p pair) int32 {
	return d.idx.key(at, p.name, p.key.Line+d.lineOffset, p.key.Column)
}

func (d *docDecoder) addItem(at int32, i int, n *yaml.Node) int32 {
	return d.idx.item(at, i, n.Line+d.lineOffset, n.Column)
}

// value decodes n into v, which is what f describes (nil: an item or a map's value).
func (d *docDecoder) value(n *yaml.Node, v reflect.Value, at int32, f *fieldInfo) {
	n = target(n)
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), at, f)
	case reflect.Struct:
		d.structure(n, v, at)
	case reflect.Map:
		d.mapping(n, v, at)
	case reflect.Slice:
		d.list(n, v, at, f)
	default:
		d.scalar(n, v, at, f)
	}
}

// wrongType reports what was found and what is wanted.
func (d *docDecoder) wrongType(n *yaml.Node, at int32, want string) {
	got := "a mapping"
	switch n.Kind {
	case yaml.SequenceNode:
		got = "a list"
	case yaml.ScalarNode:
		v, _ := readScalar(n)
		got = scalarName(v)
	}
	d.fail(at, fmt.Sprintf("wrong type: %s is wanted, this is %s", want, got), "")
}

func (d *docDecoder) structure(n *yaml.Node, v reflect.Value, at int32) {
	if n.Kind != yaml.MappingNode {
		d.wrongType(n, at, "a mapping")
		return
	}
	info := infoOf(v.Type())
	var seen uint64 // no kind has more than 64 fields in one mapping
	for _, p := range d.pairs(n, at, fieldName) {
		i, ok := info.byName[p.name]
		if !ok {
			d.unknownField(p, at, info)
			continue
		}
		if isNull(target(p.value)) {
			if info.fields[i].required {
				d.report(d.posOf(p.key), JoinPath(d.idx.path(at), p.name), fmt.Sprintf("required field %q is empty", p.name), "")
				seen |= 1 << i // and said, so it is not missing
			}
			continue
		}
		seen |= 1 << i
		f := &info.fields[i]
		d.value(p.value, v.Field(f.index), d.addKey(at, p), f)
	}
	for i, f := range info.fields {
		if f.required && seen&(1<<i) == 0 {
			path := JoinPath(d.idx.path(at), f.name)
			d.report(d.idx.pos(at), path, fmt.Sprintf("required field %q is missing", f.name), "")
		}
	}
}

func (d *docDecoder) unknownField(p pair, at int32, info *structInfo) {
	if at == root {
		switch p.name {
		case sopsKey:
			return
		case "status":
			d.fail(d.addKey(at, p), `unknown field "status"`, "there is no status in the repository; Ichor writes it to the status branch")
			return
		}
	}
	d.fail(d.addKey(at, p), "unknown field "+quoted(p.name), suggest(p.name, info.names))
}

// mapping decodes map[string]string and map[string]any.
func (d *docDecoder) mapping(n *yaml.Node, v reflect.Value, at int32) {
	if n.Kind != yaml.MappingNode {
		d.wrongType(n, at, "a mapping")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, p := range d.pairs(n, at, labelName) {
		id := d.addKey(at, p)
		elem := reflect.New(v.Type().Elem()).Elem()
		if elem.Kind() == reflect.Interface {
			if x := d.generic(target(p.value), id, readOurs); x != nil {
				elem.Set(reflect.ValueOf(x))
			}
		} else {
			if isNull(target(p.value)) {
				d.fail(id, "the value is empty", `write "" for an empty text`)
				continue
			}
			d.value(p.value, elem, id, nil)
		}
		v.SetMapIndex(reflect.ValueOf(p.name), elem)
	}
}

func (d *docDecoder) list(n *yaml.Node, v reflect.Value, at int32, f *fieldInfo) {
	if n.Kind != yaml.SequenceNode {
		d.wrongType(n, at, "a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, c := range n.Content {
		id := d.addItem(at, i, c)
		c = target(c)
		if v.Type().Elem().Kind() == reflect.Interface {
			d.document(c, v.Index(i), id)
			continue
		}
		if isNull(c) {
			d.fail(id, "the item is empty", "")
			continue
		}
		d.value(c, v.Index(i), id, f)
	}
}

func (d *docDecoder) encrypted(at int32) {
	d.fail(at, "the value is SOPS-encrypted, and Ichor reads this field in plain text",
		"encrypt only values within spec.documents or spec.jsonPatch")
}

// quoted quotes a text of the repository for a message, cut to a readable length.
func quoted(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(s)
}
