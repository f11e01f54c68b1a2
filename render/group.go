package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// errorCount is the heading of Talos's error lists.
var errorCount = regexp.MustCompile(`^(\S+: )?\d+ errors? occurred:$`)

// group are machines whose renders differ in hostname and endpoint alone.
type group struct {
	machines []*fleet.Machine
	entries  []*entry
	// shared is false where a patch may look at hostname or endpoint: then each is rendered by itself.
	shared bool
}

// groups sorts machines by what goes into their render.
func (j *job) groups(machines []*fleet.Machine) []*group {
	byKey := map[string]*group{}
	var out []*group
	for _, m := range machines {
		entries, ids := j.entriesOf(m)
		key := j.groupKey(m, ids)
		g := byKey[key]
		if g == nil {
			g = &group{entries: entries, shared: true}
			for _, e := range entries {
				g.shared = g.shared && !e.perMachine
			}
			byKey[key] = g
			out = append(out, g)
		}
		g.machines = append(g.machines, m)
	}
	return out
}

// entriesOf gives the entries of the patches that select the machine, and their numbers.
func (j *job) entriesOf(m *fleet.Machine) ([]*entry, []int) {
	var out []*entry
	var ids []int
	matched, last := false, (*fleet.Patch)(nil)
	for i, e := range j.entries {
		if e.patch != last {
			last, matched = e.patch, fleet.Matches(e.patch.Manifest.Spec.Selector, m)
		}
		if matched {
			out, ids = append(out, e), append(ids, i)
		}
	}
	return out, ids
}

// groupKey writes down all that goes into a render but the hostname and the address themselves.
func (j *job) groupKey(m *fleet.Machine, entries []int) string {
	id := identityOf(m)
	key, err := json.Marshal([]any{
		m.Manifest.Spec.Role, id.hostname != "", id.address == j.spec.Endpoint.Address,
		Install(j.spec, m), m.Manifest.Spec.NodeLabels, m.Manifest.Spec.NodeTaints, entries,
	})
	if err != nil {
		// A disk selector that JSON can't hold: the machine is rendered by itself.
		return m.Name
	}
	return string(key)
}

// group renders the machines of a group.
func (j *job) group(ctx context.Context, g *group) []Result {
	if g.shared && len(g.machines) > 1 {
		if out, ok := j.sharedGroup(ctx, g); ok {
			return out
		}
	}
	out := make([]Result, 0, len(g.machines))
	for _, m := range g.machines {
		if ctx.Err() != nil {
			return nil
		}
		out = append(out, j.machine(m, g.entries))
	}
	return out
}

// machine renders one machine by itself.
func (j *job) machine(m *fleet.Machine, entries []*entry) Result {
	f, fail := j.form(m, identityOf(m), entries)
	res := Result{Machine: m, Patches: f.uses, Err: fail, Warnings: f.warnings}
	if fail != nil {
		return res
	}
	res.Masked = f.masked
	res.Digest = f.masked.Digest()
	if !j.in.WithoutConfig {
		res.Config = secret.New(f.text)
	}
	return res
}

// form is a rendered configuration: of a machine, or of a group with marks in the places of its identity.
type form struct {
	docs     []config.Document
	text     []byte
	masked   mask.Render
	uses     []PatchUse
	warnings []*Error
}

// form renders a machine under an identity.
func (j *job) form(m *fleet.Machine, id identity, entries []*entry) (form, *Error) {
	if j.incomplete != "" {
		return form{}, j.bundleError(m)
	}
	v := first
	if j.in.Values != nil {
		v = opened
	}
	run := j.run(m, id, entries, v)
	f := form{uses: run.uses, docs: sortDocs(run.docs)}
	if run.err == nil {
		run.err = emptySecret(run.docs)
	}
	if run.err != nil {
		fail, unchecked := j.blame(m, id, entries, v, run)
		if !unchecked {
			return f, fail
		}
		f.warnings = append(f.warnings, fail)
		if run.docs == nil {
			// Stand-ins that don't even load: the rest is rendered without them.
			run = j.run(m, id, entries, stripped)
			if run.docs == nil {
				return f, fail
			}
			f.docs, f.uses = sortDocs(run.docs), run.uses
		}
	}
	for _, w := range run.warnings {
		f.warnings = append(f.warnings, &Error{Pos: m.Pos, Talos: w})
	}
	var err error
	if f.text, err = encodeDocs(f.docs); err != nil {
		return f, &Error{Pos: m.Pos, Talos: "encode configuration: " + err.Error()}
	}
	if f.masked, err = mask.Config(f.text, j.encryptedPaths(m, id, entries)); err != nil {
		return f, &Error{Pos: m.Pos, Talos: "mask configuration: " + err.Error()}
	}
	return f, nil
}

// outcome is what became of patching and validating one configuration.
type outcome struct {
	// docs is nil where a patch could not be applied.
	docs     []config.Document
	uses     []PatchUse
	warnings []string
	err      error
	// failed is the number of the entry that could not be applied, -1 where that is not it.
	failed int
}

// run generates, patches in order, and validates.
func (j *job) run(m *fleet.Machine, id identity, entries []*entry, v variant) outcome {
	out := outcome{failed: -1, uses: usesOf(entries)}
	docs, err := j.base(m, id)
	if err != nil {
		out.err = err
		return out
	}
	use := -1
	for i, e := range entries {
		if i == 0 || e.patch != entries[i-1].patch {
			use++
		}
		l := e.loaded[v]
		err := l.err
		changed := false
		if err == nil {
			docs, changed, err = apply(docs, l.patch)
		}
		if err != nil {
			out.err, out.failed = err, i
			return out
		}
		out.uses[use].Changed = out.uses[use].Changed || changed
	}
	out.docs = docs
	out.warnings, out.err = validate(docs)
	return out
}

// usesOf lists the patches of entries, none changed yet.
func usesOf(entries []*entry) []PatchUse {
	var out []PatchUse
	for i, e := range entries {
		if i == 0 || e.patch != entries[i-1].patch {
			out = append(out, PatchUse{Patch: e.patch})
		}
	}
	return out
}

// bundleError says that the secrets bundle lacks something.
func (j *job) bundleError(m *fleet.Machine) *Error {
	hint := "add what is missing to the secrets bundle"
	if j.in.Cluster.Secrets != nil {
		hint += " " + j.in.Cluster.Secrets.Path
	}
	return &Error{Pos: m.Pos, Talos: "the secrets bundle of cluster " + j.in.Cluster.Name + " is not whole: " + j.incomplete, Hint: hint}
}

// encryptedPaths finds where encrypted patch values come out in the configuration: it renders with two sets of
// stand-ins and takes the leaves that differ. The same places hold the real values, because nothing but these
// values differs. With it the masked form of a check and of a rollout are the same.
func (j *job) encryptedPaths(m *fleet.Machine, id identity, entries []*entry) []mask.Path {
	if !slices.ContainsFunc(entries, func(e *entry) bool { return len(e.secret) > 0 }) {
		return nil
	}
	trees := make([][]mask.Document, 2)
	for i, v := range []variant{first, second} {
		run := j.run(m, id, entries, v)
		if run.docs == nil {
			return inputPaths(entries)
		}
		text, err := encodeDocs(sortDocs(run.docs))
		if err != nil {
			return inputPaths(entries)
		}
		if trees[i], err = mask.Decode(text); err != nil {
			return inputPaths(entries)
		}
	}
	return mask.Differing(trees[0], trees[1])
}

// inputPaths gives the places of encrypted values as the patches name them, for want of better.
func inputPaths(entries []*entry) []mask.Path {
	var out []mask.Path
	for _, e := range entries {
		docs, err := mask.Decode(e.src.Raw)
		if err != nil {
			continue
		}
		for _, leaf := range e.secret {
			if len(docs) == 1 {
				out = append(out, mask.Path{Document: docs[0].ID, Path: leaf.path})
			}
		}
	}
	return out
}

// encodeDocs writes documents without comments (which would cost 16 ms a machine).
func encodeDocs(docs []config.Document) (text []byte, err error) {
	defer recovered(&err)
	c, err := container.New(docs...)
	if err != nil {
		return nil, err
	}
	return c.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
}

// emptySecret refuses a configuration in which the library left a secret of the bundle empty: from contract 1.14 it
// writes an encryption document around an empty key, which Talos's validation lets pass.
func emptySecret(docs []config.Document) error {
	for _, d := range docs {
		if d.Kind() != "KubeEtcdEncryptionConfig" {
			continue
		}
		enc, ok := d.(interface{ EtcdEncryptionConfig() map[string]any })
		if ok && hasEmptySecret(enc.EtcdEncryptionConfig()) {
			return errors.New("KubeEtcdEncryptionConfig: the secret of an encryption key is empty")
		}
	}
	return nil
}

func hasEmptySecret(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if k == "secret" && (x == nil || x == "") || hasEmptySecret(x) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasEmptySecret)
	}
	return false
}

// EncryptedValues opens the encrypted patch values of a cluster: by patch, entry and path, for a keyed fingerprint
// (bundle.FingerprintValues) that tells when one changed.
func EncryptedValues(c *fleet.Cluster, values bundle.Values) (map[string]secret.Bytes, error) {
	open := opener{values: values, files: map[*fleet.File][]map[string]secret.Bytes{}}
	out := map[string]secret.Bytes{}
	for _, p := range c.Patches {
		for i := range p.Entries {
			if p.Entries[i].Sops == nil {
				continue
			}
			e := &entry{patch: p, index: i, src: &p.Entries[i]}
			if err := e.load(open); err != nil {
				return nil, fmt.Errorf("open encrypted values of cluster %s: %w", c.Name, err)
			}
			for _, leaf := range e.secret {
				out[fmt.Sprintf("%s/%d/%d/%s", p.Name, i, leaf.doc, leaf.path)] = leaf.plain
			}
		}
	}
	return out, nil
}

// sortedNames is for messages.
func sortedNames(leaves []*cipherLeaf) string {
	names := make([]string, 0, len(leaves))
	for _, l := range leaves {
		names = append(names, l.path)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}
