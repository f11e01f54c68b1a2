package adopt

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// change is one thing that a patch has to do to make a render the original. Lists are changed as a whole: a patch
// appends to most of them.
type change struct {
	// head names the document: its apiVersion, kind and name.
	id   string
	head [][2]string
	path []string
	// remove takes away what the render has; set puts value there.
	remove, set bool
	value       any
}

// key tells equal changes of two machines.
func (c change) key() string {
	v, err := json.Marshal(c.value)
	if err != nil {
		panic("marshal a decoded value: " + err.Error())
	}
	return fmt.Sprint(c.id, "\x00", strings.Join(c.path, "\x00"), "\x00", c.remove, c.set, string(v))
}

// changes lists what makes a render the original.
func (b *builder) changes(o Original, rendered []byte) ([]change, error) {
	text, err := normal(rendered)
	if err != nil {
		return nil, err
	}
	have, err := mask.Decode(text)
	if err != nil {
		return nil, err
	}
	masked := mask.Documents(have)
	theirs := map[string]map[string]any{}
	for _, d := range have {
		theirs[d.ID] = d.Fields
	}
	var out []change
	for _, d := range b.facts[o.Name].docs {
		base := change{id: d.ID, head: headOf(d.Fields)}
		render, ok := theirs[d.ID]
		delete(theirs, d.ID)
		if !ok {
			base.set, base.value = true, d.Fields
			out = append(out, base)
			continue
		}
		differ(render, d.Fields, base, &out)
	}
	for _, id := range sortedKeys(theirs) {
		out = append(out, change{id: id, head: headOf(theirs[id]), remove: true})
	}
	return b.withoutSecrets(o, out, masked), nil
}

// withoutSecrets takes out changes of what comes from the secrets bundle: they can't be patched, and mean that the
// bundle is another cluster's.
func (b *builder) withoutSecrets(o Original, cs []change, masked mask.Render) []change {
	var out []change
	for _, c := range cs {
		if c.set && c.path != nil && holdsMarker(valueAt(masked, c.id, c.path)) {
			line := fmt.Sprintf("%s: %s %s is not the one of the secrets bundle", o.File, c.id, strings.Join(c.path, "."))
			if !slices.Contains(b.lost, line) {
				b.lost = append(b.lost, line)
			}
			continue
		}
		out = append(out, c)
	}
	return out
}

func valueAt(r mask.Render, id string, path []string) any {
	for _, d := range r.Documents {
		if d.ID != id {
			continue
		}
		var v any = d.Fields
		for _, key := range path {
			m, _ := v.(map[string]any)
			v = m[key]
		}
		return v
	}
	return nil
}

func holdsMarker(v any) bool {
	switch x := v.(type) {
	case string:
		return strings.Contains(x, mask.Marker)
	case []any:
		return slices.ContainsFunc(x, holdsMarker)
	case map[string]any:
		for _, child := range x {
			if holdsMarker(child) {
				return true
			}
		}
	}
	return false
}

// headOf gives what names a document; the v1alpha1 document needs nothing.
func headOf(fields map[string]any) [][2]string {
	if _, ok := fields["kind"]; !ok {
		return nil
	}
	var out [][2]string
	for _, k := range []string{"apiVersion", "kind", "name"} {
		if s, ok := fields[k].(string); ok {
			out = append(out, [2]string{k, s})
		}
	}
	return out
}

// differ compares two mappings field by field.
func differ(render, want map[string]any, base change, out *[]change) {
	keys := sortedKeys(want)
	for _, k := range sortedKeys(render) {
		if _, ok := want[k]; !ok {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		r, inRender := render[k]
		w, inWant := want[k]
		c := base
		c.path = append(slices.Clone(base.path), k)
		rm, rIsMap := r.(map[string]any)
		wm, wIsMap := w.(map[string]any)
		switch {
		case inRender && inWant && reflect.DeepEqual(r, w):
		case rIsMap && wIsMap:
			differ(rm, wm, c, out)
		case !inWant:
			c.remove = true
			*out = append(*out, c)
		default:
			_, list := r.([]any)
			c.set, c.value, c.remove = true, w, inRender && (list || rIsMap || wIsMap)
			*out = append(*out, c)
		}
	}
}

// group makes as few patches as it can: one for what all machines need, one a role, one a machine.
func (b *builder) group(per map[string][]change, round int) []patch {
	sets := map[string][]string{}
	byKey := map[string]change{}
	for _, name := range sortedKeys(per) {
		for _, c := range per[name] {
			k := c.key()
			sets[k], byKey[k] = append(sets[k], name), c
		}
	}
	everyone := map[string][]string{}
	for _, o := range b.src.Originals {
		everyone[""] = append(everyone[""], o.Name)
		everyone[o.Role] = append(everyone[o.Role], o.Name)
	}
	for _, names := range everyone {
		slices.Sort(names)
	}
	groups := map[string][]change{}
	for k, names := range sets {
		target := ""
		switch {
		case slices.Equal(names, everyone[""]):
			target = "all"
		case slices.Equal(names, everyone[v1alpha1.RoleControlPlane]):
			target = v1alpha1.RoleControlPlane
		case slices.Equal(names, everyone[v1alpha1.RoleWorker]):
			target = v1alpha1.RoleWorker
		}
		if target != "" {
			groups[target] = append(groups[target], byKey[k])
			continue
		}
		for _, n := range names {
			groups["machine "+n] = append(groups["machine "+n], byKey[k])
		}
	}
	var out []patch
	for i, target := range sortedKeys(groups) {
		out = append(out, groupPatch(target, groups[target], 100+100*round+i, round))
	}
	return out
}

func groupPatch(target string, cs []change, order, round int) patch {
	p := patch{about: "What the adopted configurations have, and our kinds have no field for.", order: order, nodes: documents(cs)}
	switch name, single := strings.CutPrefix(target, "machine "); {
	case single:
		p.name, p.machines = "adopted-machine-"+name, []string{name}
	case target == "all":
		p.name = "adopted-all"
	default:
		p.name, p.roles = "adopted-"+target, []string{target}
	}
	if round > 0 {
		p.name += fmt.Sprintf("-%d", round+1)
	}
	return p
}

// documents writes changes as sparse documents: first what is taken away, then what is put in its place.
func documents(cs []change) []*yaml.Node {
	slices.SortFunc(cs, func(x, y change) int { return strings.Compare(x.key(), y.key()) })
	var out []*yaml.Node
	for _, phase := range []func(change) (any, bool){
		func(c change) (any, bool) { return map[string]any{"$patch": "delete"}, c.remove },
		func(c change) (any, bool) { return c.value, c.set },
	} {
		trees := map[string]map[string]any{}
		for _, c := range cs {
			v, ok := phase(c)
			if !ok {
				continue
			}
			tree := trees[c.id]
			if tree == nil {
				tree = map[string]any{}
				for _, h := range c.head {
					tree[h[0]] = h[1]
				}
				trees[c.id] = tree
			}
			put(tree, c.path, v)
		}
		ids := sortedKeys(trees)
		slices.SortFunc(ids, func(x, y string) int {
			if mask.Less(x, y) {
				return -1
			}
			return 1
		})
		for _, id := range ids {
			out = append(out, node(trees[id]))
		}
	}
	return out
}

// put sets a value at a path of a tree; an empty path puts a mapping's fields into its root.
func put(tree map[string]any, path []string, v any) {
	if len(path) == 0 {
		for k, x := range v.(map[string]any) {
			tree[k] = x
		}
		return
	}
	for _, k := range path[:len(path)-1] {
		next, ok := tree[k].(map[string]any)
		if !ok {
			next = map[string]any{}
			tree[k] = next
		}
		tree = next
	}
	tree[path[len(path)-1]] = v
}
