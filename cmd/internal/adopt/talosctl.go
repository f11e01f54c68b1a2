package adopt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v3"
	yaml4 "go.yaml.in/yaml/v4"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Hints are what a person has to say beside the files.
type Hints struct {
	Cluster, TalosVersion, KubernetesVersion string
	// ControlPlanes and Workers: ADDRESS or NAME=ADDRESS.
	ControlPlanes, Workers []string
	// Patches say who has a patch file: TARGET=FILE, the target being all, controlplane, worker, none or a machine.
	Patches []string
	// Keys open what is encrypted among the files; may be empty.
	Keys bundle.Keys
}

// ErrHint says that a person has to say more; the text is what.
var ErrHint = errors.New("more has to be said")

// template is a whole machine configuration, for one machine or for all of a role.
type template struct {
	file, role string
	text       []byte
}

// folder is what a folder of talosctl's files holds.
type folder struct {
	templates []template
	bundles   []string
	bundle    *secrets.Bundle
	patches   map[string][]byte
	// endpoints are of the talosconfig.
	endpoints []string
	lost      []string
	notes     []string
}

// Talosctl reads a folder that talosctl gen config wrote: controlplane.yaml, worker.yaml or a file a machine,
// talosconfig, secrets.yaml, patch files.
func Talosctl(fsys fs.FS, h Hints) (*Source, error) {
	d := &folder{patches: map[string][]byte{}}
	err := fs.WalkDir(fsys, ".", func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if p != "." && strings.HasPrefix(e.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		return d.file(fsys, p, h)
	})
	if err != nil {
		return nil, fmt.Errorf("read folder: %w", err)
	}
	if len(d.templates) == 0 {
		return nil, fmt.Errorf("%w: no machine configuration (controlplane.yaml, worker.yaml) is in the folder", ErrHint)
	}
	src := &Source{Cluster: h.Cluster, TalosVersion: h.TalosVersion, KubernetesVersion: h.KubernetesVersion, Bundle: d.bundle}
	if src.Bundle == nil {
		if src.Bundle, err = d.bundleOfConfig(); err != nil {
			return nil, err
		}
	}
	if err := d.machines(src, h); err != nil {
		return nil, err
	}
	if err := d.usePatches(src, h); err != nil {
		return nil, err
	}
	src.Lost, src.Notes = append(src.Lost, d.lost...), append(d.notes, src.Notes...)
	return src, nil
}

// file sorts one file in.
func (d *folder) file(fsys fs.FS, p string, h Hints) error {
	if path.Base(p) == "talosconfig" || strings.HasSuffix(p, ".talosconfig") {
		d.talosconfig(fsys, p)
		return nil
	}
	if ext := path.Ext(p); ext != ".yaml" && ext != ".yml" && ext != ".json" {
		return nil
	}
	data, err := fs.ReadFile(fsys, p)
	if err != nil {
		return err
	}
	if sealed(data) {
		return d.sealed(p, data, h.Keys)
	}
	var head struct {
		Machine struct {
			Type string `yaml:"type"`
		} `yaml:"machine"`
		Cluster map[string]any `yaml:"cluster"`
		Secrets map[string]any `yaml:"secrets"`
		Certs   map[string]any `yaml:"certs"`
		Sops    map[string]any `yaml:"sops"`
		Context string         `yaml:"context"`
		Kind    string         `yaml:"kind"`
	}
	headErr := yaml.NewDecoder(bytes.NewReader(data)).Decode(&head)
	switch {
	case headErr == nil && head.Certs != nil && head.Secrets != nil:
		sb := &secrets.Bundle{Clock: secrets.NewClock()}
		if err := yaml4.NewDecoder(bytes.NewReader(data)).Decode(sb); err != nil || bundle.Validate(sb) != nil {
			d.lost = append(d.lost, p+": it looks like a secrets bundle and is none that Talos takes")
			return nil
		}
		d.bundle, d.bundles = sb, append(d.bundles, p)
		d.notes = append(d.notes, p+": the secrets bundle, in plain text; delete it once its encrypted copy is safe")
	case headErr == nil && head.Machine.Type != "" && head.Cluster != nil && head.Cluster["controlPlane"] != nil:
		role := v1alpha1.RoleControlPlane
		if head.Machine.Type == "worker" || head.Machine.Type == "join" {
			role = v1alpha1.RoleWorker
		}
		d.templates = append(d.templates, template{p, role, data})
	case headErr == nil && head.Context != "":
		d.talosconfig(fsys, p)
	default:
		d.patches[p] = data
	}
	return nil
}

// sealed opens an encrypted bundle.
func (d *folder) sealed(p string, data []byte, keys bundle.Keys) error {
	sb, err := bundle.Open(data, p, keys)
	if err != nil {
		d.lost = append(d.lost, err.Error())
		return nil
	}
	d.bundle, d.bundles = sb.Secrets(), append(d.bundles, p)
	return nil
}

func (d *folder) talosconfig(fsys fs.FS, p string) {
	data, err := fs.ReadFile(fsys, p)
	if err != nil {
		return
	}
	var c struct {
		Context  string
		Contexts map[string]struct{ Endpoints, Nodes []string }
	}
	if yaml.Unmarshal(data, &c) == nil {
		d.endpoints = c.Contexts[c.Context].Endpoints
	}
	d.notes = append(d.notes, p+": not carried over; a talosconfig is a key, and Ichor makes its own, short-lived")
}

// bundleOfConfig takes the secrets out of a control plane's configuration, which has them all.
func (d *folder) bundleOfConfig() (*secrets.Bundle, error) {
	for _, t := range d.templates {
		if t.role != v1alpha1.RoleControlPlane {
			continue
		}
		p, err := configloader.NewFromBytes(t.text)
		if err != nil {
			return nil, fmt.Errorf("%s: Talos does not read it: %s", t.file, keysOnly(err))
		}
		sb, err := secrets.NewBundleFromConfig(secrets.NewClock(), p)
		if err != nil {
			return nil, fmt.Errorf("%s: its secrets can't be read", t.file)
		}
		if err := bundle.Validate(sb); err != nil {
			return nil, fmt.Errorf("%s: its secrets don't make a bundle: %w", t.file, err)
		}
		d.notes = append(d.notes, t.file+": the secrets bundle was taken from it")
		return sb, nil
	}
	return nil, fmt.Errorf("%w: neither a secrets bundle nor a control plane's configuration is there", ErrHint)
}

// machines gives every machine its configuration.
func (d *folder) machines(src *Source, h Hints) error {
	for _, role := range []string{v1alpha1.RoleControlPlane, v1alpha1.RoleWorker} {
		given := h.ControlPlanes
		prefix, flag := "cp", "--control-plane"
		if role == v1alpha1.RoleWorker {
			given, prefix, flag = h.Workers, "w", "--worker"
		}
		if err := d.roleMachines(src, role, prefix, flag, given); err != nil {
			return err
		}
	}
	return nil
}

func (d *folder) roleMachines(src *Source, role, prefix, flag string, given []string) error {
	var shared *template
	own := map[string]template{}
	for i, t := range d.templates {
		if t.role != role {
			continue
		}
		name := strings.TrimSuffix(path.Base(t.file), path.Ext(t.file))
		if name == role || name == "init" {
			shared = &d.templates[i]
			continue
		}
		own[dnsLabel(name)] = t
	}
	if role == v1alpha1.RoleControlPlane && len(given) == 0 && len(own) == 0 {
		given = d.endpoints
	}
	used := map[string]bool{}
	for i, g := range given {
		name, address, named := strings.Cut(g, "=")
		if !named {
			name, address = fmt.Sprintf("%s%d", prefix, i+1), g
		}
		if _, err := v1alpha1.NormalizeEndpoint(address); err != nil {
			return fmt.Errorf("%w: %q is no machine: want %s ADDRESS or NAME=ADDRESS", ErrHint, g, flag)
		}
		t, ok := own[name]
		switch {
		case ok:
			used[name] = true
		case shared != nil:
			t = *shared
		default:
			return fmt.Errorf("%w: %s %s has no configuration: neither %s.yaml nor %s.yaml is a whole configuration of a %s; is one missing, empty or cut off?",
				ErrHint, flag, g, name, role, role)
		}
		src.Originals = append(src.Originals, Original{Name: name, Role: role, Address: address, File: t.file, Config: t.text})
	}
	d.unknownMachines(src, role, prefix, flag, shared, own, used, len(given))
	return nil
}

// unknownMachines writes down configurations that nobody gave an address for, as machines that are not approved.
func (d *folder) unknownMachines(src *Source, role, prefix, flag string, shared *template, own map[string]template, used map[string]bool, given int) {
	add := func(name string, t template) {
		// Reserved for documentation (RFC 5737), a range a role.
		address := fmt.Sprintf("192.0.2.%d", 11+len(src.Originals))
		src.Originals = append(src.Originals, Original{Name: name, Role: role, Address: address, Pending: true, File: t.file, Config: t.text})
		src.Notes = append(src.Notes, fmt.Sprintf("%s: nobody says at which address; machine %s is pending at %s until you put it in (or say %s NAME=ADDRESS)",
			t.file, name, address, flag))
	}
	for _, name := range sortedKeys(own) {
		if !used[name] {
			add(name, own[name])
		}
	}
	if shared != nil && given == 0 && len(own) == 0 {
		add(prefix+"1", *shared)
	}
}

// dnsLabel makes a machine's name out of a file's.
func dnsLabel(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, s)
	s = strings.Trim(s, "-")
	return strings.Trim(s[:min(len(s), 63)], "-")
}

// usePatches settles what every patch file is: in the configurations already, or put on top of some of them.
func (d *folder) usePatches(src *Source, h Hints) error {
	targets := map[string]string{}
	for _, p := range h.Patches {
		target, file, ok := strings.Cut(p, "=")
		if _, there := d.patches[file]; !ok || !there {
			files := "and the file one of " + strings.Join(sortedKeys(d.patches), ", ")
			if len(d.patches) == 0 {
				files = "but the folder has no patch file"
			}
			return fmt.Errorf("%w: --patch %s: want TARGET=FILE, the target being all, controlplane, worker, none or a machine, %s", ErrHint, p, files)
		}
		targets[file] = target
	}
	for _, file := range sortedKeys(d.patches) {
		target, said := targets[file]
		if !said {
			if target = d.guess(src, file); target == "" {
				continue
			}
		}
		if target == "none" {
			src.Notes = append(src.Notes, file+": left aside, as you said")
			continue
		}
		if err := d.patch(src, file, target); err != nil {
			return err
		}
	}
	return nil
}

// guess finds who has a patch: nobody needs it where it changes nothing, and one that is called as a machine is its own.
func (d *folder) guess(src *Source, file string) string {
	patch, err := configpatcher.LoadPatch(d.patches[file])
	if err != nil {
		src.Lost = append(src.Lost, file+": it is neither a machine configuration nor a patch that Talos reads; say --patch none="+file+" to leave it aside")
		return ""
	}
	in, out := []string{}, []string{}
	for _, o := range src.Originals {
		if text, err := patched(o.Config, patch); err == nil {
			if sameSets(o.Config, text) {
				in = append(in, o.Name)
				continue
			}
		}
		out = append(out, o.Name)
	}
	if len(in) > 0 {
		src.Notes = append(src.Notes, fmt.Sprintf("%s: already in the configuration of %s", file, strings.Join(in, ", ")))
		return ""
	}
	base := strings.TrimSuffix(path.Base(file), path.Ext(file))
	for _, o := range src.Originals {
		if base == o.Name || strings.TrimSuffix(strings.TrimSuffix(base, ".patch"), "-patch") == o.Name {
			return o.Name
		}
	}
	src.Lost = append(src.Lost, fmt.Sprintf("%s: it would change the configuration of %s, and nobody says whether they have it; say --patch TARGET=%s, "+
		"the target being all, controlplane, worker, none or a machine", file, strings.Join(out, ", "), file))
	return ""
}

// patch puts a patch file onto the originals.
func (d *folder) patch(src *Source, file, target string) error {
	patch, err := configpatcher.LoadPatch(d.patches[file])
	if err != nil {
		return fmt.Errorf("%s: Talos does not read it as a patch: %s", file, keysOnly(err))
	}
	var names []string
	for i := range src.Originals {
		o := &src.Originals[i]
		if target != "all" && target != o.Role && target != o.Name {
			continue
		}
		text, err := patched(o.Config, patch)
		if err != nil {
			return fmt.Errorf("%s can't be put onto %s: %s", file, o.File, keysOnly(err))
		}
		o.Config, o.File = text, o.File+" with "+file
		names = append(names, o.Name)
	}
	if len(names) == 0 {
		return fmt.Errorf("%w: --patch %s=%s: there is no such machine", ErrHint, target, file)
	}
	slices.Sort(names)
	src.Notes = append(src.Notes, fmt.Sprintf("%s: put onto the configuration of %s", file, strings.Join(names, ", ")))
	return nil
}

// patched applies a patch.
func patched(config []byte, p configpatcher.Patch) ([]byte, error) {
	out, err := configpatcher.Apply(configpatcher.WithBytes(config), []configpatcher.Patch{p})
	if err != nil {
		return nil, err
	}
	return out.Bytes()
}

// sameSets tells whether two configurations are the same but for list items that are there twice: a patch that is in one
// already appends to its lists once more.
func sameSets(a, b []byte) bool {
	var docs [2][]mask.Document
	for i, config := range [][]byte{a, b} {
		text, err := normal(config)
		if err != nil {
			return false
		}
		if docs[i], err = mask.Decode(text); err != nil {
			return false
		}
		for j := range docs[i] {
			docs[i][j].Fields, _ = once(docs[i][j].Fields).(map[string]any)
		}
	}
	return reflect.DeepEqual(docs[0], docs[1])
}

// once takes repeated items out of lists.
func once(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for k, child := range x {
			x[k] = once(child)
		}
	case []any:
		var out []any
		for _, item := range x {
			item = once(item)
			if !slices.ContainsFunc(out, func(have any) bool { return reflect.DeepEqual(have, item) }) {
				out = append(out, item)
			}
		}
		return out
	}
	return v
}
