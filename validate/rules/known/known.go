// Package known says with which Talos version a kind or field of the configuration came: data made by hack/gen-known
// from the JSON Schemas of the machinery library's versions.
package known

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
)

//go:embed known.txt
var text string

// Field is one kind, or one field of a kind with all below it.
type Field struct {
	// Kind is v1alpha1 or a document's kind.
	Kind string
	// Path is dotted, without list indices; * stands for any key, "" for the whole document.
	Path string
	// Minor is the first Talos minor that knows it: 13 for 1.13.
	Minor uint64
}

// String names it for people: "document KubeSpanConfig", "machine.install.x", "field trim of document VolumeConfig".
func (f Field) String() string {
	switch {
	case f.Path == "":
		return "document " + f.Kind
	case f.Kind == "v1alpha1":
		return f.Path
	}
	return "field " + f.Path + " of document " + f.Kind
}

// Last is the last step of the path, "" for a whole document.
func (f Field) Last() string { return f.Path[strings.LastIndexByte(f.Path, '.')+1:] }

var byKind = sync.OnceValue(func() map[string][]Field {
	out := map[string][]Field{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] == "#" {
			continue
		}
		f := Field{Kind: words[0]}
		if len(words) == 3 {
			f.Path = words[1]
		}
		_, minor, _ := strings.Cut(words[len(words)-1], ".")
		f.Minor, _ = strconv.ParseUint(minor, 10, 32)
		out[f.Kind] = append(out[f.Kind], f)
	}
	return out
})

// NewerThan lists what a document holds that a Talos minor does not know yet. A document that is not known as a whole
// is named alone.
func NewerThan(minor uint64, kind string, fields map[string]any) []Field {
	var out []Field
	for _, f := range byKind()[kind] {
		if f.Minor <= minor {
			continue
		}
		if f.Path == "" {
			return []Field{f}
		}
		if holds(fields, strings.Split(f.Path, ".")) {
			out = append(out, f)
		}
	}
	return out
}

// holds tells whether a path leads to a value; in a list one item is enough.
func holds(v any, steps []string) bool {
	if list, ok := v.([]any); ok {
		for _, item := range list {
			if holds(item, steps) {
				return true
			}
		}
		return false
	}
	if len(steps) == 0 {
		return v != nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return false
	}
	if steps[0] != "*" {
		x, there := m[steps[0]]
		return there && holds(x, steps[1:])
	}
	for _, x := range m {
		if holds(x, steps[1:]) {
			return true
		}
	}
	return false
}
