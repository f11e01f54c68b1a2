package check

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"slices"
	"sync"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/validate/rules"
)

// Cache keeps what checks load and render from one to the next, so that the check of a commit costs what it changes.
// Commits are known by their names (Input.Tree, Input.BaseTree), which must be hashes of their content; one Cache is for
// one repository and the same Input.Load, which should have a fleet.Cache: machines whose files did not change are told
// by their manifests being the same objects. It is safe for concurrent use; the zero value is ready.
type Cache struct {
	mu sync.Mutex
	// sides are the commits, the one last asked for at the end.
	sides []*side
	scans rules.ScanCache
}

// keepSides is how many commits are kept: a branch's head and base, and those of some pull requests on it. What they
// share is in memory once.
const keepSides = 8

// side is one commit as it was loaded, with its renders.
type side struct {
	commit   string
	fleet    *fleet.Fleet
	problems []fleet.Problem
	renders  *rendered
}

// rendered are the renders of one fleet, as far as they were asked for.
type rendered struct {
	mu    sync.Mutex
	known map[string]*clusterRenders
}

// load gives a commit. Without a cache, or for a tree without a name, it is loaded anew. It stays in memory where keep (nil
// keeps all) says so.
func (c *Cache) load(ctx context.Context, commit string, load func() (*fleet.Fleet, []fleet.Problem, error), keep func(*side) bool) (*side, error) {
	if c != nil && commit != "" {
		if s := c.get(commit); s != nil {
			return s, ctx.Err()
		}
	}
	f, problems, err := load()
	if err != nil {
		return nil, err
	}
	s := &side{commit: commit, fleet: f, problems: problems, renders: &rendered{known: map[string]*clusterRenders{}}}
	if c != nil && commit != "" && (keep == nil || keep(s)) {
		c.put(s)
	}
	return s, nil
}

// scanned is the scans' cache, nil for none.
func (c *Cache) scanned() *rules.ScanCache {
	if c == nil {
		return nil
	}
	return &c.scans
}

func (c *Cache) get(commit string) *side {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.sides, func(s *side) bool { return s.commit == commit })
	if i < 0 {
		return nil
	}
	s := c.sides[i]
	c.sides = append(slices.Delete(c.sides, i, i+1), s)
	return s
}

func (c *Cache) put(s *side) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sides = slices.DeleteFunc(c.sides, func(old *side) bool { return old.commit == s.commit }) // loaded twice at the same time
	c.sides = append(c.sides, s)
	if len(c.sides) > keepSides {
		c.sides = slices.Clone(c.sides[1:]) // the old array would keep what is let go
	}
}

// others are the renders of the other commits, the newest first.
func (c *Cache) others(than *rendered) []*rendered {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*rendered
	for _, s := range slices.Backward(c.sides) {
		if s.renders != than {
			out = append(out, s.renders)
		}
	}
	return out
}

// inputsKey is a digest of all that goes into the renders of a cluster beside its machines: manifest, secrets file,
// patches. "" where it can't be told.
func inputsKey(cl *fleet.Cluster) string {
	h := sha256.New()
	write := func(values ...any) bool {
		for _, v := range values {
			data, err := json.Marshal(v)
			if err != nil {
				return false
			}
			part(h, data)
		}
		return true
	}
	if !write(cl.Name, cl.Manifest) {
		return ""
	}
	if cl.Secrets != nil {
		part(h, cl.Secrets.Data)
	}
	for _, p := range cl.Patches {
		// Places are in what renders say: of the patch, and of each entry.
		if !write(p.Manifest, p.Pos) {
			return ""
		}
		for _, e := range p.Entries {
			if !write(e.JSON, e.Pos, e.SopsDoc, e.SopsPath) {
				return ""
			}
			part(h, e.Raw)
			if e.Sops != nil {
				part(h, e.Sops.Data)
			}
		}
	}
	return string(h.Sum(nil))
}

// part writes one part with its length before it, so that no two lists of parts look the same.
func part(h hash.Hash, data []byte) {
	fmt.Fprintf(h, "%d:", len(data))
	h.Write(data)
}

// reuse takes over, from the renders of other commits, those of machines whose manifests are the very objects that were
// rendered there, in a cluster that is otherwise the same. The machines that are left are to be rendered.
func reuse(cl *fleet.Cluster, k *clusterRenders, others []*rendered) (known []render.Result, left []string) {
	machines, ok := rendering(cl)
	if !ok {
		return nil, nil // a name twice: results can't be told apart by it
	}
	if k.key == "" {
		k.cluster, k.key = cl, knownKey(cl, others)
	}
	for _, o := range others {
		if k.key == "" || len(machines) == 0 {
			break
		}
		known = append(known, o.take(cl, k.key, machines)...)
	}
	for _, m := range machines {
		left = append(left, m.Name)
	}
	return known, left
}

// rendering are the machines of a cluster that are rendered; false where two have the same name.
func rendering(cl *fleet.Cluster) (map[*v1alpha1.TalosMachine]*fleet.Machine, bool) {
	out := make(map[*v1alpha1.TalosMachine]*fleet.Machine, len(cl.Machines))
	names := make(map[string]bool, len(cl.Machines))
	for _, m := range cl.Machines {
		if m.Manifest == nil || m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalRejected {
			continue
		}
		if names[m.Name] {
			return nil, false
		}
		names[m.Name], out[m.Manifest] = true, m
	}
	return out, true
}

// take gives the results that r has for the machines, as results of cl, and takes their machines off the list.
func (r *rendered) take(cl *fleet.Cluster, key string, machines map[*v1alpha1.TalosMachine]*fleet.Machine) []render.Result {
	// Never waits: the caller holds its own lock, and another check may ask the other way round.
	if !r.mu.TryLock() {
		return nil
	}
	defer r.mu.Unlock()
	k := r.known[cl.Name]
	if k == nil || k.err != nil || k.key != key {
		return nil
	}
	patches := make(map[string]*fleet.Patch, len(cl.Patches))
	for _, p := range cl.Patches {
		patches[p.Name] = p
	}
	if len(patches) != len(cl.Patches) {
		return nil
	}
	var out []render.Result
	take := func(results []render.Result) {
		for _, res := range results {
			m := machines[res.Machine.Manifest]
			if m == nil || m.Pos != res.Machine.Pos {
				continue
			}
			delete(machines, res.Machine.Manifest)
			out = append(out, moved(res, m, patches))
		}
	}
	switch {
	case k.whole && len(machines) > len(k.all)/8:
		out = make([]render.Result, 0, min(len(machines), len(k.all)))
		take(k.all)
	default:
		// Few are left, or few are known.
		for _, m := range machines {
			take(k.named(m.Name))
		}
	}
	return out
}

// knownKey is inputsKey, without the work where another commit has it of the same objects.
func knownKey(cl *fleet.Cluster, others []*rendered) string {
	for _, o := range others {
		if key := o.keyOf(cl); key != "" {
			return key
		}
	}
	return inputsKey(cl)
}

// keyOf gives the key of a cluster where r knows it of the very objects of cl; "" where it does not, or is in use.
func (r *rendered) keyOf(cl *fleet.Cluster) string {
	if !r.mu.TryLock() {
		return ""
	}
	defer r.mu.Unlock()
	if k := r.known[cl.Name]; k != nil && k.cluster != nil && sameObjects(k.cluster, cl) {
		return k.key
	}
	return ""
}

// sameObjects tells whether all that inputsKey looks at is the same, manifests by being the same objects.
func sameObjects(a, b *fleet.Cluster) bool {
	if a.Name != b.Name || a.Manifest != b.Manifest || !sameFile(a.Secrets, b.Secrets) || len(a.Patches) != len(b.Patches) {
		return false
	}
	for i, p := range a.Patches {
		q := b.Patches[i]
		if p.Manifest != q.Manifest || p.Pos != q.Pos || !slices.EqualFunc(p.Entries, q.Entries, sameEntry) {
			return false
		}
	}
	return true
}

func sameEntry(a, b fleet.PatchEntry) bool {
	return a.JSON == b.JSON && a.Pos == b.Pos && a.SopsDoc == b.SopsDoc && a.SopsPath == b.SopsPath &&
		bytes.Equal(a.Raw, b.Raw) && sameFile(a.Sops, b.Sops)
}

// moved is a result with the objects of another fleet in the places of its own.
func moved(res render.Result, m *fleet.Machine, patches map[string]*fleet.Patch) render.Result {
	res.Machine = m
	uses := make([]render.PatchUse, len(res.Patches))
	for i, u := range res.Patches {
		uses[i] = render.PatchUse{Patch: patches[u.Patch.Name], Changed: u.Changed}
	}
	res.Patches = uses
	res.Err = movedError(res.Err, patches)
	warnings := res.Warnings
	res.Warnings = nil
	for _, w := range warnings {
		res.Warnings = append(res.Warnings, movedError(w, patches))
	}
	return res
}

func movedError(e *render.Error, patches map[string]*fleet.Patch) *render.Error {
	if e == nil || e.Patch == nil {
		return e
	}
	out := *e
	out.Patch = patches[e.Patch.Name]
	return &out
}
