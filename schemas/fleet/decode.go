package fleet

import (
	"fmt"
	"math"
	"reflect"
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
	d.report(d.idx.pos(d.idx.find(path)), path, message, hint)
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
	p := d.who
	p.Rule, p.Severity, p.Path, p.Message, p.Hint = ruleSchema, Error, path, message, hint
	p.File, p.Line, p.Column = pos.File, pos.Line, pos.Column
	d.problems = append(d.problems, p)
	d.bad[path] = true
}

// pair is one field of a mapping; merge keys are resolved.
type pair struct {
	key   *yaml.Node
	name  string
	value *yaml.Node
}

// target follows an alias.
func target(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// isNull tells whether a node is there but says nothing.
func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == tagNull
}

// pairList collects the fields of a mapping. Long mappings get an index, so that a hostile one costs no square.
type pairList struct {
	list []pair
	seen map[string]int
}

// find gives a field's place in the list, -1 where there is none.
func (l *pairList) find(name string) int {
	if l.seen != nil {
		if i, ok := l.seen[name]; ok {
			return i
		}
		return -1
	}
	for i := range l.list {
		if l.list[i].name == name {
			return i
		}
	}
	return -1
}

func (l *pairList) add(p pair) {
	const short = 24
	l.list = append(l.list, p)
	switch {
	case l.seen != nil:
		l.seen[p.name] = len(l.list) - 1
	case len(l.list) > short:
		l.seen = make(map[string]int, 4*short)
		for i := range l.list {
			l.seen[l.list[i].name] = i
		}
	}
}

// pairs lists the fields of a mapping: its own first, then those of merge keys that it does not have itself. What is
// given twice is reported at its second place.
func (d *docDecoder) pairs(n *yaml.Node, at int32, name func(*yaml.Node) (string, bool)) []pair {
	out := pairList{list: make([]pair, 0, len(n.Content)/2)}
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := target(n.Content[i]), n.Content[i+1]
		if isMerge(k) {
			merges = append(merges, v)
			continue
		}
		text, ok := name(k)
		if !ok {
			d.report(d.posOf(k), d.idx.path(at), "a key is no plain text", "")
			continue
		}
		if first := out.find(text); first >= 0 {
			fk := out.list[first].key
			d.report(d.posOf(k), JoinPath(d.idx.path(at), text), fmt.Sprintf("field %s is given twice, first at %s:%d:%d",
				quoted(text), d.file, fk.Line+d.lineOffset, fk.Column), "keep one of the two")
			continue
		}
		out.add(pair{k, text, v})
	}
	for _, m := range merges {
		d.merge(&out, target(m), at, name)
	}
	return out.list
}

// isMerge tells whether a key is the merge key of YAML 1.1.
func isMerge(k *yaml.Node) bool { return k.Kind == yaml.ScalarNode && k.Tag == tagMerge }

// merge adds the fields of a merge key's value: a mapping, or a list of mappings of which the first wins.
func (d *docDecoder) merge(out *pairList, m *yaml.Node, at int32, name func(*yaml.Node) (string, bool)) {
	sources := []*yaml.Node{m}
	if m.Kind == yaml.SequenceNode {
		sources = m.Content
	}
	for _, s := range sources {
		if s = target(s); s.Kind != yaml.MappingNode {
			d.report(d.posOf(s), d.idx.path(at), "a merge key (<<) takes a mapping or a list of mappings", "")
			continue
		}
		for _, p := range d.pairs(s, at, name) {
			if out.find(p.name) < 0 {
				out.add(p)
			}
		}
	}
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

// fieldName reads a key of one of our own types: as it is written.
func fieldName(k *yaml.Node) (string, bool) { return k.Value, k.Kind == yaml.ScalarNode }

// labelName reads a key of a free mapping as sigs.k8s.io/yaml does.
func labelName(k *yaml.Node) (string, bool) {
	if k.Kind != yaml.ScalarNode {
		return "", false
	}
	v, ok := readScalar(k)
	switch x := v.(type) {
	case uint64:
		return "", false
	case float64:
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return strings.ToLower(strings.TrimPrefix(k.Value, "+")), ok
		}
	}
	if !ok {
		return "", false
	}
	return scalarText(v)
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
			continue
		}
		seen |= 1 << i
		f := &info.fields[i]
		d.value(p.value, v.Field(f.index), d.addKey(at, p), f)
	}
	for i, f := range info.fields {
		if f.required && seen&(1<<i) == 0 {
			path := JoinPath(d.idx.path(at), f.name)
			d.report(d.idx.pos(at), path, "required field is missing", "")
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

// document decodes one entry of a patch: free content, but a mapping that says something.
func (d *docDecoder) document(n *yaml.Node, v reflect.Value, at int32) {
	switch {
	case isEncrypted(n) && strings.HasSuffix(n.Value, ",type:comment]"):
		// SOPS writes an encrypted comment of a list as an item of its own. It keeps its place, because values are
		// found by their index.
	case isNull(n), n.Kind == yaml.MappingNode && len(n.Content) == 0:
		d.fail(at, "the document is empty", "remove the entry, or say what it changes")
	case n.Kind != yaml.MappingNode:
		d.wrongType(n, at, "a mapping")
	default:
		v.Set(reflect.ValueOf(d.generic(n, at, readTalos)))
	}
}

// readOurs reads a scalar of a free field of ours, readTalos one of a Talos document (which may be encrypted).
func readOurs(d *docDecoder, n *yaml.Node, at int32) any {
	if isEncrypted(n) {
		d.encrypted(at)
		return nil
	}
	v, ok := readScalar(n)
	if f, is := v.(float64); is && (math.IsInf(f, 0) || math.IsNaN(f)) {
		d.fail(at, "infinity and NaN can't be used here", "")
	} else if !ok {
		d.fail(at, "the tag "+quoted(n.Tag)+" can't be used here", "")
	}
	return v
}

func readTalos(_ *docDecoder, n *yaml.Node, _ int32) any {
	var v any
	if n.Decode(&v) != nil {
		return n.Value
	}
	return v
}

// generic decodes free content.
func (d *docDecoder) generic(n *yaml.Node, at int32, scalar func(*docDecoder, *yaml.Node, int32) any) any {
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		for _, p := range d.pairs(n, at, fieldName) {
			out[p.name] = d.generic(target(p.value), d.addKey(at, p), scalar)
		}
		return out
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, c := range n.Content {
			out[i] = d.generic(target(c), d.addItem(at, i, c), scalar)
		}
		return out
	default:
		return scalar(d, n, at)
	}
}

func (d *docDecoder) encrypted(at int32) {
	d.fail(at, "the value is SOPS-encrypted, and Ichor reads this field in plain text",
		"encrypt only values within spec.documents or spec.jsonPatch")
}

// scalar decodes a string, a boolean or a number, and checks it against the bounds in f.
func (d *docDecoder) scalar(n *yaml.Node, v reflect.Value, at int32, f *fieldInfo) {
	want := "a string"
	switch v.Kind() {
	case reflect.Bool:
		want = "a boolean"
	case reflect.Int:
		want = "a whole number"
	}
	if n.Kind != yaml.ScalarNode {
		d.wrongType(n, at, want)
		return
	}
	if isEncrypted(n) {
		d.encrypted(at)
		return
	}
	x, ok := readScalar(n)
	if !ok {
		d.fail(at, fmt.Sprintf("wrong type: %s is wanted, this has the tag %s", want, n.Tag), "")
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		b, ok := x.(bool)
		if !ok {
			d.wrongType(n, at, want)
			return
		}
		v.SetBool(b)
	case reflect.Int:
		i, ok := wholeNumber(x)
		if !ok {
			d.wrongType(n, at, want)
			return
		}
		v.SetInt(int64(i))
		d.checkInt(i, at, f)
	default:
		s, ok := scalarText(x)
		if !ok {
			d.wrongType(n, at, want)
			return
		}
		v.SetString(s)
		if f != nil && f.required && s == "" {
			d.fail(at, "the value is empty", "")
			return
		}
		d.checkEnum(s, at, f)
	}
}

func (d *docDecoder) checkEnum(s string, at int32, f *fieldInfo) {
	if f == nil || len(f.enum) == 0 {
		return
	}
	for _, e := range f.enum {
		if e == s {
			return
		}
	}
	d.fail(at, "unknown value "+quoted(s), suggest(s, f.enum))
}

func (d *docDecoder) checkInt(i int, at int32, f *fieldInfo) {
	if f == nil {
		return
	}
	if f.hasBounds && (i < f.min || i > f.max) {
		d.fail(at, fmt.Sprintf("%d is not within %d to %d", i, f.min, f.max), "")
	}
	d.checkEnum(strconv.Itoa(i), at, f)
}

// quoted quotes a text of the repository for a message, cut to a readable length.
func quoted(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(s)
}
