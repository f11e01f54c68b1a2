package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// isNotThere tells "no such file" (a file where a folder is wanted included) from a fault.
func isNotThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrInvalid)
}

// assemble puts the documents together: clusters with what refers to them, and the files that they name.
func (l *loader) assemble() error {
	l.sortDocs()
	clusters := map[string]*Cluster{}
	for i := range l.docs {
		d := &l.docs[i]
		m, ok := d.manifest.(*v1alpha1.TalosCluster)
		if !ok {
			continue
		}
		c := &Cluster{Object: d.Object, Manifest: m}
		l.fleet.Clusters = append(l.fleet.Clusters, c)
		if clusters[c.Name] == nil {
			clusters[c.Name] = c
		}
		var err error
		if c.Secrets, err = l.ref(d, "spec.secretsRef.path", m.Spec.SecretsRef.Path); err != nil {
			return err
		}
		if job := m.Spec.Rollout.Evacuate.JobPath; job != "" {
			if _, err := l.ref(d, "spec.rollout.evacuate.jobPath", job); err != nil {
				return err
			}
		}
	}
	for i := range l.docs {
		if err := l.attach(clusters, &l.docs[i]); err != nil {
			return err
		}
	}
	l.targets()
	l.finish()
	return nil
}

// sortDocs sorts the documents by name, then place. It sorts their numbers: the documents are large, and a fleet has tens
// of thousands.
func (l *loader) sortDocs() {
	order := make([]int, len(l.docs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := &l.docs[i], &l.docs[j]
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Pos.File, b.Pos.File), cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(i, j))
	})
	sorted := make([]parsedDoc, len(order))
	for at, i := range order {
		sorted[at] = l.docs[i]
	}
	l.docs = sorted
}

// targets reports operations whose target is not there: a warning, because one that has run may stay.
func (l *loader) targets() {
	for _, c := range l.fleet.Clusters {
		if c.Manifest == nil {
			continue
		}
		for _, o := range c.Operations {
			for _, t := range operationTargets(o.Manifest.Spec) {
				l.operationTarget(c, o, t)
			}
		}
	}
}

func (l *loader) operationTarget(c *Cluster, o *Operation, t operationTarget) {
	var names []string
	if t.kind == v1alpha1.KindTalosMachine {
		for _, m := range c.Machines {
			names = append(names, m.Name)
		}
	} else {
		for _, b := range c.Backups {
			names = append(names, b.Name)
		}
	}
	if slices.Contains(names, t.name) || l.fleet.IsUnknown(t.kind, c.Name, t.name) {
		return
	}
	hint := "it may have run; then the file can be deleted"
	if near := nearest(t.name, names); near != "" {
		// Both can be: a machine that an operation removes is gone from the commit that asks for it.
		hint += "; or did you mean " + quoted(near) + "?"
	}
	p := referenceProblem(&o.Object, t.field, fmt.Sprintf("cluster %s has no %s %s", quoted(c.Name), t.kind, quoted(t.name)), hint)
	p.Severity = Warning
	if t.kind == v1alpha1.KindTalosMachine {
		p.Machine = t.name
	}
	l.add(p)
}

// attach adds one object to its cluster.
func (l *loader) attach(clusters map[string]*Cluster, d *parsedDoc) error {
	if _, ok := d.manifest.(*v1alpha1.TalosCluster); ok {
		return nil
	}
	if p, ok := d.manifest.(*v1alpha1.TalosPolicy); ok && p.Spec.ClusterRef == nil {
		l.fleet.Policies = append(l.fleet.Policies, &Policy{d.Object, p})
		return nil
	}
	c := l.clusterOf(clusters, d)
	switch m := d.manifest.(type) {
	case *v1alpha1.TalosMachine:
		c.Machines = append(c.Machines, &Machine{d.Object, m})
	case *v1alpha1.TalosConfigPatch:
		p := &Patch{Object: d.Object, Manifest: m, Entries: slices.Clone(d.entries)} // d may be shared, see Cache
		if m.Spec.Path != "" {
			e, err := l.patchFile(d, m.Spec.Path)
			if err != nil {
				return err
			}
			p.Entries = e
		}
		c.Patches = append(c.Patches, p)
	case *v1alpha1.TalosEtcdBackup:
		b := &Backup{Object: d.Object, Manifest: m}
		var err error
		if b.Credentials, err = l.ref(d, "spec.s3.credentialsRef.path", m.Spec.S3.CredentialsRef.Path); err != nil {
			return err
		}
		if ca := m.Spec.S3.CAPath; ca != "" {
			if _, err := l.ref(d, "spec.s3.caPath", ca); err != nil {
				return err
			}
		}
		c.Backups = append(c.Backups, b)
	case *v1alpha1.TalosPolicy:
		c.Policies = append(c.Policies, &Policy{d.Object, m})
	case *v1alpha1.TalosOperation:
		c.Operations = append(c.Operations, &Operation{d.Object, m})
	}
	return nil
}

// clusterOf gives the object's cluster; one that is not there is made up, and reported unless it may stand in a
// manifest that could not be read.
func (l *loader) clusterOf(clusters map[string]*Cluster, d *parsedDoc) *Cluster {
	c := clusters[d.Cluster]
	if c == nil {
		c = &Cluster{Object: NewObject(v1alpha1.KindTalosCluster, d.Cluster, d.Cluster, Position{})}
		clusters[d.Cluster] = c
		l.fleet.Clusters = append(l.fleet.Clusters, c)
	}
	if c.Manifest == nil && !l.fleet.IsUnknown(v1alpha1.KindTalosCluster, d.Cluster, d.Cluster) {
		var names []string
		for name, other := range clusters {
			if other.Manifest != nil {
				names = append(names, name)
			}
		}
		hint := ""
		if near := nearest(d.Cluster, names); near != "" {
			hint = "did you mean " + quoted(near) + "?"
		}
		l.reference(&d.Object, "spec.clusterRef.name", fmt.Sprintf("there is no TalosCluster %s", quoted(d.Cluster)), hint)
	}
	return c
}

// reference reports a problem of rule reference at a field.
func (l *loader) reference(d *Object, field, message, hint string) {
	l.add(referenceProblem(d, field, message, hint))
}

func referenceProblem(d *Object, field, message, hint string) Problem {
	pos := d.At(field)
	p := identity{Unknown: Unknown{Kind: d.Kind, Name: d.Name, Cluster: d.Cluster}}.who()
	p.Rule, p.Severity, p.Path, p.Message, p.Hint = ruleReference, Error, field, message, hint
	p.File, p.Line, p.Column = pos.File, pos.Line, pos.Column
	return p
}

// ref gives the file that a field names; nil, with a problem, where there is none.
func (l *loader) ref(d *parsedDoc, field, ref string) (*File, error) {
	name, err := ResolvePath(d.Pos.File, ref)
	if err != nil {
		l.reference(&d.Object, field, err.Error(), "name a file of this repository, with slashes: secrets.sops.yaml, or ./secrets.sops.yaml beside the manifest")
		return nil, nil
	}
	if f := l.files[name]; f != nil {
		return f, nil
	}
	reason := l.skipped[name]
	if reason == "" {
		if reason, err = l.regular(name); err != nil {
			return nil, err
		}
	}
	if reason == "" {
		data, whole, err := l.open(name)
		switch {
		case errors.Is(err, errHuge):
			reason = "is too large"
		case err != nil:
			return nil, err
		case !whole:
			reason = "is too large"
		case !isText(data):
			reason = "is no text file"
		default:
			return l.keep(name, data), nil
		}
		l.skipped[name] = reason
	}
	hint := "name a text file of this repository, at its own place"
	if reason == notThere {
		hint = "a path is relative to the repository's root, or to the manifest's folder when it begins with ./ or ../"
		if beside := path.Join(path.Dir(d.Pos.File), name); beside != name {
			if why, err := l.regular(beside); err == nil && why == "" {
				hint += ": write ./" + name + " or " + beside
			}
		}
	}
	l.reference(&d.Object, field, "file "+quoted(name)+" "+reason, hint)
	return nil, nil
}

// patchFile gives the one entry of a patch that names a file.
func (l *loader) patchFile(d *parsedDoc, ref string) ([]PatchEntry, error) {
	const field = "spec.path"
	f, err := l.ref(d, field, ref)
	if f == nil || err != nil {
		return nil, err
	}
	e := PatchEntry{Raw: f.Data, Pos: Position{File: f.Path, Line: 1, Column: 1}}
	// A file that does not parse is Talos's to complain about.
	if nodes, err := decodeNodes(f.Data); err == nil {
		empty := true
		for i, n := range nodes {
			if isNull(n) {
				continue
			}
			if empty {
				e.Pos.Line, e.Pos.Column = n.Line, n.Column
				e.JSON = n.Kind == yaml.SequenceNode
				e.SopsDoc = i
			}
			empty = false
		}
		if empty {
			p := referenceProblem(&d.Object, field, "file "+quoted(f.Path)+" is empty", "")
			p.Rule = ruleSchema
			l.add(p)
			return nil, nil
		}
		if anySops(nodes) {
			e.Sops = f
		}
	}
	return []PatchEntry{e}, nil
}

// finish sorts what the fleet holds and gives the encrypted entries their files.
func (l *loader) finish() {
	f := l.fleet
	slices.SortStableFunc(f.Clusters, func(a, b *Cluster) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range f.Clusters {
		slices.SortStableFunc(c.Patches, func(a, b *Patch) int {
			return cmp.Or(cmp.Compare(a.Manifest.Spec.Order, b.Manifest.Spec.Order), cmp.Compare(a.Name, b.Name))
		})
		for _, p := range c.Patches {
			for i := range p.Entries {
				if e := &p.Entries[i]; e.Sops != nil {
					e.Sops = l.files[e.Sops.Path]
				}
			}
		}
	}
	slices.SortFunc(f.Unknown, func(a, b Unknown) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name))
	})
	f.Unknown = slices.Compact(f.Unknown)
	f.Files = make([]File, 0, len(l.files))
	for _, name := range l.names() {
		f.Files = append(f.Files, *l.files[name])
	}
}

// names of the files that were read, sorted. The walk has sorted nearly all of them already.
func (l *loader) names() []string {
	names := make([]string, 0, len(l.files))
	for _, name := range l.paths {
		if l.files[name] != nil {
			names = append(names, name)
		}
	}
	if len(names) == len(l.files) {
		return names
	}
	return slices.SortedFunc(maps.Keys(l.files), strings.Compare)
}
