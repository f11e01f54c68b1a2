package fleet

import (
	"bytes"
	"testing"

	"go.yaml.in/yaml/v3"
)

// meansTheSame compares two nodes with aliases and merge keys expanded: tags and texts, not styles and order.
func meansTheSame(a, b *yaml.Node) bool {
	a, b = target(a), target(b)
	if a.Kind != b.Kind || a.Tag != b.Tag || a.Value != b.Value && a.Tag != tagNull {
		return false
	}
	if a.Kind == yaml.MappingNode {
		pa, pb := emitPairs(a), emitPairs(b)
		if len(pa) != len(pb) {
			return false
		}
		for i := range pa {
			if !meansTheSame(pa[i][0], pb[i][0]) || !meansTheSame(pa[i][1], pb[i][1]) {
				return false
			}
		}
		return true
	}
	if len(a.Content) != len(b.Content) {
		return false
	}
	for i := range a.Content {
		if !meansTheSame(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}

// emitSeeds are documents that a careless writer would change.
var emitSeeds = []string{
	"a: off\nb: 0x10\nc: 1.10\nd: 010\ne: ~\nf:\ng: 1_000\nh: 2001-01-01\ni: 0o7\nj: .5\n",
	"a: |\n  x\n  y\nb: >\n  folded\n  text\n\n  more\nc: |+\n  keep\n\nd: |-\n  strip\n",
	"a: |2\n    two blanks\n  x\nb: \"\\n  x\"\nc: ' lead'\nd: \"trail \"\ne: \"\\t\"\n",
	"a: &x {k: on}\nb: *x\nc:\n  <<: *x\n  d: no\ne: [*x, *x]\n",
	"a: &x {k: on, l: 1}\nb: &y {k: off}\nc: {<<: [*x, *y], l: 2}\n",
	"{a: [1, {b: [2, []]}, {}], \"b\": 'it''s', 'c d': \"q\\\"q\"}\n",
	"a: !!str 1\nb: !!int \"1\"\nc: !custom x\nd: !!binary aGk=\ne: !thing {a: 1}\nf: !thing [1]\ng: !!set {a, b}\n",
	"? [x, y]\n: 1\n? {a: b}\n: {c: d}\n? |\n  long\n  key\n: 2\n",
	"1: a\ntrue: b\n~: c\n1.5: d\n\"\": e\n",
	"😀: \"\\U0001F600\"\nnel: \"\\x85\\u2028\\uFEFF\\0\"\nlatin: é\n",
	"plain: one\n  two\n\n  three\n",
	"url: http://x:80/#a\nhash: a#b\ndash: -x\ncolon: a:b\nstar: '*x'\n",
	"- a\n- - b\n  - - c\n-\n- {}\n- []\n",
	"&r\na: 1\n",
	"# head\na: 1 # line\n# foot\n",
	"a: \"b\n  c\\\n  d\"\n",
	"--- # c\na: '---'\nb: ---x\n...\n",
}

func TestEmitKeepsEveryScalar(t *testing.T) {
	for _, seed := range emitSeeds {
		checkEmit(t, seed)
	}
}

func FuzzEmit(f *testing.F) {
	for _, seed := range emitSeeds {
		f.Add(seed)
	}
	f.Fuzz(checkEmit)
}

func checkEmit(t *testing.T, text string) {
	nodes, err := decodeNodes([]byte(text))
	if err != nil || len(nodes) == 0 {
		return
	}
	for _, n := range nodes {
		if n.Kind == yaml.ScalarNode {
			continue // an entry is a mapping or a list
		}
		e, err := measure(n)
		if err != nil || e.totalNodes > 10_000 || e.depth > 100 || badMerge(n) {
			continue
		}
		raw := emit(n)
		back, err := decodeNodes(raw)
		if err != nil || len(back) != 1 {
			t.Fatalf("%q was written as %q, which reads as %d documents: %v", text, raw, len(back), err)
		}
		if !meansTheSame(n, back[0]) {
			t.Fatalf("%q was written as %q, which means something else", text, raw)
		}
	}
}

// badMerge tells whether a merge key has no mapping to merge; the decoder refuses such a document.
func badMerge(n *yaml.Node) bool {
	d := &docDecoder{idx: newFieldIndex(Position{}), bad: map[string]bool{}}
	d.generic(target(n), root, readTalos)
	return len(d.problems) > 0
}

func TestCutKeepsTheTextOfABlockEntry(t *testing.T) {
	const doc = "list:\n    - a: off # why\n      b: |+\n        x\n\n  # a comment further left\n      c: 1.10\n    - {d: 1}\n"
	nodes, err := decodeNodes([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	items := lookup(nodes[0], "list").Content
	raw, ok := cut(bytes.SplitAfter([]byte(doc), []byte("\n")), items[0])
	if ok {
		t.Logf("cut: %q", raw)
		if got, _ := decodeNodes(raw); !meansTheSame(got[0], items[0]) {
			t.Errorf("the cut reads differently: %q", raw)
		}
	}
	if raw, ok := cut(bytes.SplitAfter([]byte(doc), []byte("\n")), items[1]); ok {
		t.Errorf("a flow entry can't be cut by lines, got %q", raw)
	}
}
