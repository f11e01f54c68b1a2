// Package fleet turns a tree of files into a Fleet: every object of Ichor's own kinds with the place it
// was read from, and the problems met on the way. It reads an fs.FS, so that a Git tree, a folder and a
// test look the same.
package fleet

import (
	"fmt"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Severity of a Problem.
type Severity string

// Severities, by their names in reports.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Problem is one thing that is wrong, as reports show it (SPEC section 2, stable JSON). Line and Column
// begin at 1; 0 is unknown.
type Problem struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Cluster  string   `json:"cluster"`
	Machine  string   `json:"machine"`
	// Object is Kind/name, "" where the problem belongs to a file alone.
	Object string `json:"object"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	// Path of the field, dotted, keys that hold a dot in brackets: machine.sysctls["net.core.somaxconn"].
	Path    string `json:"path"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
	// OnBase: base has the same problem, so it does not fail a pull request.
	OnBase bool `json:"onBase"`
	// Fingerprint tells two problems apart that look alike (the keyed digest of a secret's value). Never printed.
	Fingerprint string `json:"-"`
}

// Position is a place in a file. Line and Column begin at 1; 0 is unknown.
type Position struct {
	File         string
	Line, Column int
}

// Object is what all kinds share: what it is and where it stands.
type Object struct {
	Kind string
	Name string
	// Cluster the object belongs to (its own name for a TalosCluster; "" for a fleet-wide policy).
	Cluster string
	// Pos is the place of the manifest (its first line).
	Pos Position
	// fields knows the place of each field ("spec.endpoint.address", "spec.documents[0]"); nil knows none.
	fields *fieldIndex
}

// NewObject makes an object that was not read from a file (in tests, or for a cluster that is only referred to).
// At answers pos for every field.
func NewObject(kind, name, cluster string, pos Position) Object {
	return Object{Kind: kind, Name: name, Cluster: cluster, Pos: pos}
}

// ID is Kind/name.
func (o Object) ID() string { return o.Kind + "/" + o.Name }

// At gives the place of a field (its key, or the list item), or of the nearest parent that is known, or of the
// manifest.
func (o Object) At(path string) Position {
	if o.fields == nil {
		return o.Pos
	}
	if i := o.fields.find(path); i != root {
		return o.fields.pos(i)
	}
	return o.Pos
}

// Fleet is everything that Ichor reads from one commit. All slices are sorted by name (patches by order,
// then name), so that the same files give the same fleet whatever order they came in.
type Fleet struct {
	Clusters []*Cluster
	// Policies of the whole fleet (without clusterRef).
	Policies []*Policy
	// Unknown is what could not be read: broken manifests. They define nothing, and nothing may be concluded
	// from their absence.
	Unknown []Unknown
	// Files holds every text file that was read (not only manifests), sorted by path, for the secret scan.
	Files []File

	// bytes and values: see Extent.
	bytes  int64
	values int
}

// Extent is how much was read: bytes of text, and values of manifests with YAML aliases expanded, as Options bounds them.
func (f *Fleet) Extent() (bytes int64, values int) { return f.bytes, f.values }

// File is one text file under the path.
type File struct {
	Path string
	Data []byte
	// Manifest is true where the file is YAML that holds documents of our API group.
	Manifest bool
	// SkipScan is true where Options.SecretScanExclude leaves the file out of the secret scan.
	SkipScan bool
}

// Unknown is an object or a whole file that does not parse. Empty fields are not known.
type Unknown struct {
	Kind, Name, Cluster, File string
}

// IsUnknown tells whether such an object may stand in a manifest that could not be read, so that nothing follows
// from its absence. Empty arguments stand for any.
func (f *Fleet) IsUnknown(kind, cluster, name string) bool {
	for _, u := range f.Unknown {
		if couldBe(u.Kind, kind) && couldBe(u.Cluster, cluster) && couldBe(u.Name, name) {
			return true
		}
	}
	return false
}

// couldBe tells whether two values may be the same; "" is not known.
func couldBe(a, b string) bool { return a == "" || b == "" || a == b }

// Cluster is a TalosCluster with all that refers to it. Where objects refer to a cluster that is not there
// or whose manifest is broken, Spec is nil, and Object holds just the name.
type Cluster struct {
	Object
	// Manifest is nil where the cluster is only referred to.
	Manifest *v1alpha1.TalosCluster
	// Secrets is the file of secretsRef as it lies in the repository (ciphertext), nil where it is not there.
	Secrets  *File
	Machines []*Machine
	Patches  []*Patch
	Backups  []*Backup
	Policies []*Policy
	// Operations that name the cluster.
	Operations []*Operation
}

// Machine is a TalosMachine.
type Machine struct {
	Object
	Manifest *v1alpha1.TalosMachine
}

// Patch is a TalosConfigPatch with its entries as they are written.
type Patch struct {
	Object
	Manifest *v1alpha1.TalosConfigPatch
	// Entries in order: the documents as written (scalars untouched: off, 0x10 and 1.10 stay), or the one JSON
	// patch, or the content of the file that path names.
	Entries []PatchEntry
}

// PatchEntry is one sparse document, one JSON patch, or one patch file.
type PatchEntry struct {
	// Raw is YAML that Talos's own patch loader takes (for JSONPatch a YAML list of operations).
	Raw []byte
	// JSON is true for RFC 6902.
	JSON bool
	// Pos is the place of the entry in its manifest or, for a patch file, of its first line there.
	Pos Position
	// Sops is the whole file that the entry came from where values in it are SOPS-encrypted, else nil.
	Sops *File
	// SopsDoc is the index of the YAML document in Sops, and SopsPath the path of the entry in it
	// ("spec.documents[1]", "" for a patch file).
	SopsDoc  int
	SopsPath string
}

// Backup is a TalosEtcdBackup.
type Backup struct {
	Object
	Manifest *v1alpha1.TalosEtcdBackup
	// Credentials is the file of credentialsRef, nil where it is not there.
	Credentials *File
}

// Policy is a TalosPolicy.
type Policy struct {
	Object
	Manifest *v1alpha1.TalosPolicy
}

// Operation is a TalosOperation.
type Operation struct {
	Object
	Manifest *v1alpha1.TalosOperation
}

// Cluster gives a cluster by name, nil where there is none.
func (f *Fleet) Cluster(name string) *Cluster {
	for _, c := range f.Clusters {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Machine gives a machine by name, nil where there is none.
func (c *Cluster) Machine(name string) *Machine {
	for _, m := range c.Machines {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Matches tells whether a selector selects the machine. An empty selector selects every machine.
func Matches(s v1alpha1.Selector, m *Machine) bool {
	if len(s.Roles) > 0 && !contains(s.Roles, m.Manifest.Spec.Role) {
		return false
	}
	if len(s.Machines) > 0 && !contains(s.Machines, m.Name) {
		return false
	}
	for k, v := range s.MatchLabels {
		if got, ok := m.Manifest.Metadata.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// String gives file:line:column, without what is not known.
func (p Position) String() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}
