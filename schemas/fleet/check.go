package fleet

import (
	"strconv"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// check looks at the values of a decoded manifest, and fills in the object's name and cluster. Its checks need
// nothing but the manifest: what needs the fleet is a rule of package validate.
func (d *docDecoder) check(doc *parsedDoc) {
	switch m := doc.manifest.(type) {
	case *v1alpha1.TalosCluster:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Metadata.Name
		d.checkMeta(m.Metadata)
		d.checkCluster(m.Spec)
	case *v1alpha1.TalosMachine:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
		d.checkMeta(m.Metadata)
		d.checkRef(m.Spec.ClusterRef)
		d.checkMachine(m.Spec)
	case *v1alpha1.TalosConfigPatch:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
		d.checkMeta(m.Metadata)
		d.checkRef(m.Spec.ClusterRef)
		d.checkSelector(m.Spec.Selector)
		d.checkPatch(m.Spec)
	case *v1alpha1.TalosEtcdBackup:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
		d.checkMeta(m.Metadata)
		d.checkRef(m.Spec.ClusterRef)
		d.checkBackup(m.Spec)
	case *v1alpha1.TalosPolicy:
		doc.Name = m.Metadata.Name
		d.checkMeta(m.Metadata)
		if m.Spec.ClusterRef != nil {
			doc.Cluster = m.Spec.ClusterRef.Name
			d.checkRef(*m.Spec.ClusterRef)
		}
		d.checkSelector(m.Spec.Selector)
		d.checkPolicy(m.Spec)
	case *v1alpha1.TalosOperation:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
		d.checkMeta(m.Metadata)
		d.checkRef(m.Spec.ClusterRef)
		d.checkOperation(m.Spec)
	}
}

// want reports message at a field whose value is there and does not pass.
func (d *docDecoder) want(path, value string, ok func(string) bool, message, hint string) {
	if value != "" && !ok(value) {
		d.failPath(path, quoted(value)+" "+message, hint)
	}
}

func (d *docDecoder) checkMeta(m v1alpha1.ObjectMeta) {
	d.want("metadata.name", m.Name, isLabel, "is no DNS label", labelHint)
}

const labelHint = "lower-case letters, digits and hyphens, at most 63, beginning and ending with a letter or digit"

func (d *docDecoder) checkRef(r v1alpha1.ClusterRef) {
	d.want("spec.clusterRef.name", r.Name, isLabel, "is no DNS label", labelHint)
}

func (d *docDecoder) checkSelector(s v1alpha1.Selector) {
	for i, name := range s.Machines {
		d.name("spec.selector.machines["+strconv.Itoa(i)+"]", name)
	}
}

// name wants the name of an object.
func (d *docDecoder) name(path, value string) {
	if value == "" {
		d.failPath(path, "the value is empty", "")
		return
	}
	d.want(path, value, isLabel, "is no DNS label", labelHint)
}

// oneOf wants exactly one field of several, given by path and whether it is there, in the order of the kind's fields.
func (d *docDecoder) oneOf(parent, what string, fields ...choice) {
	var given []choice
	names := ""
	for i, f := range fields {
		if i > 0 {
			names += ", "
		}
		names += f.name
		if f.given || d.bad[parent+"."+f.name] {
			given = append(given, f)
		}
	}
	switch {
	case len(given) == 0:
		d.failPath(parent, what+" is missing", "give exactly one of "+names)
	case len(given) > 1:
		d.failPath(parent+"."+given[1].name, given[0].name+" and "+given[1].name+" can't both be given", "give exactly one of "+names)
	}
}

// choice is one field of oneOf.
type choice struct {
	name  string
	given bool
}

// notBoth wants at most one of two fields.
func (d *docDecoder) notBoth(parent, a string, hasA bool, b string, hasB bool) {
	if hasA && hasB {
		d.failPath(parent+"."+b, a+" and "+b+" can't both be given", "keep one of the two")
	}
}

func (d *docDecoder) checkMachine(s v1alpha1.TalosMachineSpec) {
	if _, err := v1alpha1.NormalizeEndpoint(s.Endpoint); s.Endpoint != "" && err != nil {
		d.failPath("spec.endpoint", quoted(s.Endpoint)+" is no address of a node: "+err.Error(), "write ip or ip:port, [ip]:port for IPv6; the port's default is 50000")
	}
	d.want("spec.hostname", s.Hostname, isHostname, "is no host name", "letters, digits, hyphens and dots (RFC 1123)")
	d.want("spec.uuid", s.UUID, isUUID, "is no UUID", "write it as 00000000-0000-0000-0000-000000000000")
	d.want("spec.certFingerprint", s.CertFingerprint, isFingerprint, "is no fingerprint", "base64 of the 32 bytes of a SHA-256")
	d.checkInstall("spec.install", s.Install)
}

func (d *docDecoder) checkInstall(path string, s v1alpha1.InstallSpec) {
	d.notBoth(path, "disk", s.Disk != "", "diskSelector", s.DiskSelector != nil)
	d.notBoth(path, "image", s.Image != "", "schematic", s.Schematic != "")
	if s.DiskSelector != nil && len(s.DiskSelector) == 0 {
		d.failPath(path+".diskSelector", "the selector is empty", "an empty selector would match every disk")
	}
	d.want(path+".schematic", s.Schematic, isSchematic, "is no schematic ID", "the ID that the Image Factory gave, not an image")
}

func (d *docDecoder) checkPatch(s v1alpha1.TalosConfigPatchSpec) {
	d.oneOf("spec", "what the patch changes", choice{"documents", len(s.Documents) > 0},
		choice{"jsonPatch", len(s.JSONPatch) > 0}, choice{"path", s.Path != ""})
}

func (d *docDecoder) checkPolicy(s v1alpha1.TalosPolicySpec) {
	if s.Rules != nil && len(s.Rules) == 0 {
		d.failPath("spec.rules", "there is no rule", "")
	}
	seen := map[string]int{}
	for i, r := range s.Rules {
		path := "spec.rules[" + strconv.Itoa(i) + "].name"
		if first, ok := seen[r.Name]; ok && r.Name != "" {
			pos := d.idx.pos(d.idx.find("spec.rules[" + strconv.Itoa(first) + "].name"))
			d.failPath(path, "rule "+quoted(r.Name)+" is given twice, first at "+pos.String(), "")
			continue
		}
		seen[r.Name] = i
	}
}

func (d *docDecoder) checkOperation(s v1alpha1.TalosOperationSpec) {
	d.oneOf("spec", "the act", choice{"restoreEtcd", s.RestoreEtcd != nil}, choice{"resetMachine", s.ResetMachine != nil},
		choice{"removeMachine", s.RemoveMachine != nil}, choice{"replaceMachine", s.ReplaceMachine != nil},
		choice{"rotateCA", s.RotateCA != nil}, choice{"rebootMachine", s.RebootMachine != nil}, choice{"snapshot", s.Snapshot != nil})
	if r := s.RotateCA; r != nil && !r.Talos && !r.Kubernetes {
		d.failPath("spec.rotateCA", "neither talos nor kubernetes is to be rotated", "set at least one of them to true")
	}
	for _, t := range operationTargets(s) {
		d.want(t.field, t.name, isLabel, "is no DNS label", labelHint)
	}
}

// operationTarget is an object that an operation names.
type operationTarget struct{ field, kind, name string }

// operationTargets lists what an operation acts on.
func operationTargets(s v1alpha1.TalosOperationSpec) []operationTarget {
	var out []operationTarget
	machine := func(act string, m *v1alpha1.MachineOp) {
		if m != nil {
			out = append(out, operationTarget{"spec." + act + ".machine", v1alpha1.KindTalosMachine, m.Machine})
		}
	}
	if r := s.RestoreEtcd; r != nil {
		out = append(out, operationTarget{"spec.restoreEtcd.backup", v1alpha1.KindTalosEtcdBackup, r.Backup})
	}
	if r := s.ResetMachine; r != nil {
		out = append(out, operationTarget{"spec.resetMachine.machine", v1alpha1.KindTalosMachine, r.Machine})
	}
	machine("removeMachine", s.RemoveMachine)
	machine("replaceMachine", s.ReplaceMachine)
	machine("rebootMachine", s.RebootMachine)
	if r := s.Snapshot; r != nil {
		out = append(out, operationTarget{"spec.snapshot.backup", v1alpha1.KindTalosEtcdBackup, r.Backup})
	}
	return out
}
