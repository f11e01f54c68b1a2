package diff

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"

	"ichor.maesh.dev/ichor/render/mask"
)

// Between gives the changed leaves of two masked renders, sorted by document (v1alpha1 first) and path. Lists are
// compared element by element: one that only grew or shrank at some place shows just what came or went. The zero
// Render is a machine that is not there. There is a change exactly where the digests differ.
func Between(before, after mask.Render) []Change {
	c := collector{}
	c.documents(before.Documents, after.Documents)
	out := c.changes
	sort.SliceStable(out, func(i, j int) bool {
		if out[i].Document != out[j].Document {
			return mask.Less(out[i].Document, out[j].Document)
		}
		return lessPath(out[i].Path, out[j].Path)
	})
	return out
}

// collector walks two trees.
type collector struct {
	document string
	changes  []Change
}

func (c *collector) documents(before, after []mask.Document) {
	later := map[string]mask.Document{}
	for _, d := range after {
		later[d.ID] = d
	}
	seen := map[string]bool{}
	for _, d := range before {
		seen[d.ID] = true
		c.document = d.ID
		if n, ok := later[d.ID]; ok {
			c.values("", d.Fields, n.Fields)
		} else {
			c.leaves("", d.Fields, false)
		}
	}
	for _, d := range after {
		if !seen[d.ID] {
			c.document = d.ID
			c.leaves("", d.Fields, true)
		}
	}
}

func (c *collector) values(path string, a, b any) {
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			c.mappings(path, x, y)
			return
		}
	case []any:
		if y, ok := b.([]any); ok {
			c.lists(path, x, y)
			return
		}
	}
	switch {
	case isLeaf(a) && isLeaf(b):
		if !reflect.DeepEqual(a, b) {
			c.changes = append(c.changes, Change{Document: c.document, Path: path, Before: show(a), After: show(b)})
		}
	default:
		c.leaves(path, a, false)
		c.leaves(path, b, true)
	}
}

func (c *collector) mappings(path string, a, b map[string]any) {
	for k, x := range a {
		p := mask.Key(path, k)
		if y, ok := b[k]; ok {
			c.values(p, x, y)
		} else {
			c.leaves(p, x, false)
		}
	}
	for k, y := range b {
		if _, ok := a[k]; !ok {
			c.leaves(mask.Key(path, k), y, true)
		}
	}
}

// lists pairs what stands at the same distance from a common beginning or end; what is between is compared by index,
// and the surplus came or went.
func (c *collector) lists(path string, a, b []any) {
	head := 0
	for head < len(a) && head < len(b) && reflect.DeepEqual(a[head], b[head]) {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && reflect.DeepEqual(a[len(a)-1-tail], b[len(b)-1-tail]) {
		tail++
	}
	for i := head; i < max(len(a), len(b))-tail; i++ {
		p := mask.Index(path, i)
		switch {
		case i >= len(a)-tail:
			c.leaves(p, b[i], true)
		case i >= len(b)-tail:
			c.leaves(p, a[i], false)
		default:
			c.values(p, a[i], b[i])
		}
	}
}

// leaves reports every scalar below v as new or gone. An empty mapping or list shows as itself.
func (c *collector) leaves(path string, v any, added bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			c.leaves(mask.Key(path, k), x, added)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		for i, x := range v {
			c.leaves(mask.Index(path, i), x, added)
		}
		if len(v) > 0 {
			return
		}
	}
	ch := Change{Document: c.document, Path: path, Added: added, Removed: !added}
	if added {
		ch.After = show(v)
	} else {
		ch.Before = show(v)
	}
	c.changes = append(c.changes, ch)
}

// show writes a value as reports show it: strings as they are, the rest as JSON.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// isLeaf tells what is compared whole: a scalar, a null, an empty mapping or list.
func isLeaf(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return true
}

// lessPath orders paths step by step, list indices as numbers.
func lessPath(a, b string) bool {
	return slices.CompareFunc(mask.Steps(a), mask.Steps(b), func(x, y mask.Step) int {
		switch {
		case x.List && y.List:
			return x.Index - y.Index
		case x.List != y.List:
			if x.List {
				return -1
			}
			return 1
		case x.Key < y.Key:
			return -1
		case x.Key > y.Key:
			return 1
		}
		return 0
	}) < 0
}

// String is for logs and test output; it is masked as the renders were.
func (c Change) String() string {
	where := c.Document + " " + c.Path
	switch {
	case c.Added:
		return where + ": added " + strconv.Quote(c.After)
	case c.Removed:
		return where + ": removed " + strconv.Quote(c.Before)
	}
	return where + ": " + strconv.Quote(c.Before) + " -> " + strconv.Quote(c.After)
}
