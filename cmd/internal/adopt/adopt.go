// Package adopt turns the files of other tools into a repository of Ichor's kinds, and proves that the configurations
// rendered from it are the originals: document by document, field by field, secrets included.
package adopt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing/fstest"

	"filippo.io/age"
	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v3"
	yaml4 "go.yaml.in/yaml/v4"

	"ichor.maesh.dev/ichor/cmd/internal/scaffold"
	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/diff"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// Original is the configuration that a machine has, whole, as the other tool made it.
type Original struct {
	Name, Role, Address string
	// Pending: nobody knows the address, so the machine is written down as not approved.
	Pending bool
	// File is where the configuration comes from, for messages.
	File   string
	Config []byte
}

// Carried is a patch of the other tool that is taken over as it is written, comments included.
type Carried struct {
	Name string
	// File is where it comes from, for messages.
	File  string
	Roles []string
	// Machines selects by name, where Roles is empty; both empty select all.
	Machines  []string
	Documents []*yaml.Node
	// Secret keys have values that are encrypted, beside what the scan for secrets finds.
	Secret []string
}

// Source is what was read of the other tool's files.
type Source struct {
	Cluster, TalosVersion, KubernetesVersion string
	Bundle                                   *secrets.Bundle
	Originals                                []Original
	Patches                                  []Carried
	// SecretValues are values that came out of encrypted files; where one stands in a patch it is encrypted there.
	SecretValues []string
	// Notes say what was found and what was made of it.
	Notes []string
	// Lost is what could not be carried over, each with its file and field. One is enough to refuse.
	Lost []string
}

// Difference is one leaf in which a rendered configuration is not the original.
type Difference struct {
	Machine, File string
	diff.Change
}

// Result of an adoption.
type Result struct {
	Files       []scaffold.File
	Notes       []string
	Lost        []string
	Differences []Difference
	Machines    int
	Contract    string
}

// Adopted tells whether nothing was lost and nothing differs.
func (r *Result) Adopted() bool { return len(r.Lost) == 0 && len(r.Differences) == 0 }

// Run makes a repository out of a source, its secrets encrypted to recipients, and proves it: a twin of the files that
// is encrypted to a key made for the purpose is loaded, decrypted and rendered, and compared with the originals.
//
// recipients is asked once the cluster's name is known.
func Run(ctx context.Context, src *Source, recipients func(cluster string) ([]string, error)) (*Result, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make a key for the proof: %w", err)
	}
	keys, err := bundle.ParseKeys([]byte(id.String()))
	if err != nil {
		return nil, err
	}
	b, err := newBuilder(src)
	if err == nil {
		b.proof, b.proofTo = keys, []string{id.Recipient().String()}
		err = b.settle(ctx)
	}
	if b != nil {
		src.Lost = append(src.Lost, b.lost...)
	}
	if err != nil && len(src.Lost) > 0 {
		// What was lost is most likely why.
		return &Result{Notes: src.Notes, Lost: append(src.Lost, err.Error())}, nil
	}
	if err != nil {
		return nil, err
	}
	res := &Result{Notes: src.Notes, Lost: src.Lost, Machines: len(src.Originals), Contract: b.spec.Contract}
	if res.Differences, err = b.prove(ctx); err != nil {
		return nil, err
	}
	if !res.Adopted() {
		return res, nil
	}
	to, err := recipients(src.Cluster)
	if err != nil {
		return nil, err
	}
	res.Files, err = b.files(to)
	return res, err
}

// prove renders the twin and compares.
func (b *builder) prove(ctx context.Context) ([]Difference, error) {
	rendered, err := b.render(ctx)
	if err != nil {
		return nil, err
	}
	var out []Difference
	for _, o := range b.src.Originals {
		changes, equal, err := diff.Configs(o.Config, rendered[o.Name])
		if err != nil {
			return nil, fmt.Errorf("compare %s with its render: %w", o.File, err)
		}
		if !equal && len(changes) == 0 {
			changes = []diff.Change{{Document: "v1alpha1", Path: ".", Before: "differs", After: "differs"}}
		}
		for _, c := range changes {
			out = append(out, Difference{Machine: o.Name, File: o.File, Change: c})
		}
	}
	return out, nil
}

// render gives every machine's configuration, rendered from the twin.
func (b *builder) render(ctx context.Context) (map[string][]byte, error) {
	files, err := b.files(b.proofTo)
	if err != nil {
		return nil, err
	}
	fsys := fstest.MapFS{}
	for _, f := range files {
		fsys[f.Path] = &fstest.MapFile{Data: f.Data}
	}
	return renderAll(ctx, fsys, b.src.Cluster, b.proof)
}

// renderAll loads a repository and renders a cluster with its real secrets.
func renderAll(ctx context.Context, fsys fs.FS, cluster string, keys bundle.Keys) (map[string][]byte, error) {
	f, problems, err := fleet.Load(ctx, fsys, fleet.Options{})
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		if p.Severity == fleet.Error {
			return nil, fmt.Errorf("%s:%d: %s", p.File, p.Line, p.Message)
		}
	}
	c := f.Cluster(cluster)
	if c == nil || c.Secrets == nil {
		return nil, errors.New("the cluster or its secrets are not there")
	}
	sb, err := bundle.Open(c.Secrets.Data, c.Secrets.Path, keys)
	if err != nil {
		return nil, err
	}
	results, err := render.Cluster(ctx, render.Input{Cluster: c, Bundle: sb, Values: keys})
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, r := range results {
		if r.Err != nil {
			return nil, &renderError{machine: r.Machine.Name, err: r.Err}
		}
		out[r.Machine.Name] = r.Config.Reveal()
	}
	return out, nil
}

// renderError says which machine does not render.
type renderError struct {
	machine string
	err     *render.Error
}

func (e *renderError) Error() string { return "machine " + e.machine + ": " + e.err.Error() }

// plainBundle writes a bundle as the sops command would be given it.
func plainBundle(sb *secrets.Bundle) ([]byte, error) {
	var buf bytes.Buffer
	enc := yaml4.NewEncoder(&buf)
	if err := enc.Encode(sb); err != nil {
		return nil, errors.New("write the secrets bundle: it can't be encoded")
	}
	return buf.Bytes(), enc.Close()
}

// contracts lists the contracts that a configuration may have been made for, the likeliest first.
func contracts(talosVersion string) ([]string, error) {
	top, err := talosconfig.ParseContractFromVersion(talosVersion)
	if err != nil {
		return nil, fmt.Errorf("%q is no version of Talos", talosVersion)
	}
	out := []string{top.String()}
	for minor := 14; minor >= 6; minor-- {
		c, err := talosconfig.ParseContractFromVersion(fmt.Sprintf("v1.%d", minor))
		if err == nil && top.Greater(c) {
			out = append(out, c.String())
		}
	}
	return out, nil
}

// keysOnly leaves the keys of Talos's text about unknown fields: it quotes their values.
func keysOnly(err error) string {
	var out []string
	for line := range strings.Lines(err.Error()) {
		key, _, found := strings.Cut(line, ": ")
		if found && len(out) > 0 {
			key += ": …"
		} else {
			key = strings.TrimRight(line, "\n")
		}
		if out = append(out, key); len(out) == 8 {
			break
		}
	}
	return strings.Join(out, "\n  ")
}
