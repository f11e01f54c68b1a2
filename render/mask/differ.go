package mask

import (
	"reflect"
	"sort"
)

// Differing gives the leaves in which two decoded configurations differ, those that one of them lacks too, sorted.
func Differing(a, b []Document) []Path {
	var out []Path
	add := func(doc, path string) { out = append(out, Path{Document: doc, Path: path}) }
	other := map[string]map[string]any{}
	for _, d := range b {
		other[d.ID] = d.Fields
	}
	for _, d := range a {
		fields, ok := other[d.ID]
		delete(other, d.ID)
		if !ok {
			leaves(d.Fields, "", func(p string) { add(d.ID, p) })
			continue
		}
		differ(d.Fields, fields, "", func(p string) { add(d.ID, p) })
	}
	for id, fields := range other {
		leaves(fields, "", func(p string) { add(id, p) })
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].Document != out[j].Document {
			return Less(out[i].Document, out[j].Document)
		}
		return out[i].Path < out[j].Path
	})
	return out
}

func differ(a, b any, path string, add func(string)) {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			break
		}
		for k, v := range x {
			if w, ok := y[k]; ok {
				differ(v, w, Key(path, k), add)
			} else {
				leaves(v, Key(path, k), add)
			}
		}
		for k, w := range y {
			if _, ok := x[k]; !ok {
				leaves(w, Key(path, k), add)
			}
		}
		return
	case []any:
		y, ok := b.([]any)
		if !ok {
			break
		}
		for i := range max(len(x), len(y)) {
			switch p := Index(path, i); {
			case i >= len(x):
				leaves(y[i], p, add)
			case i >= len(y):
				leaves(x[i], p, add)
			default:
				differ(x[i], y[i], p, add)
			}
		}
		return
	}
	if !reflect.DeepEqual(a, b) {
		add(path)
	}
}

// leaves calls add for each scalar below v.
func leaves(v any, path string, add func(string)) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			leaves(x, Key(path, k), add)
		}
	case []any:
		for i, x := range v {
			leaves(x, Index(path, i), add)
		}
	default:
		add(path)
	}
}
