package rules

import (
	"strconv"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// problemAt makes a problem of an object, at the place of one of its fields.
func problemAt(o fleet.Object, path, message string) fleet.Problem {
	pos := o.At(path)
	p := fleet.Problem{
		Severity: fleet.Error, Cluster: o.Cluster, Object: o.ID(), Path: path, Message: message,
		File: pos.File, Line: pos.Line, Column: pos.Column,
	}
	if o.Kind == v1alpha1.KindTalosMachine {
		p.Machine = o.Name
	}
	return p
}

// warningAt is problemAt for a warning.
func warningAt(o fleet.Object, path, message string) fleet.Problem {
	p := problemAt(o, path, message)
	p.Severity = fleet.Warning
	return p
}

// place prints a position as people click it.
func place(p fleet.Position) string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// isControlPlane and isApproved read a machine's manifest.
func isControlPlane(m *fleet.Machine) bool {
	return m.Manifest.Spec.Role == v1alpha1.RoleControlPlane
}

func isApproved(m *fleet.Machine) bool {
	return m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalApproved
}

func isRejected(m *fleet.Machine) bool {
	return m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalRejected
}

// approvedControlPlanes lists those of a cluster, in its order.
func approvedControlPlanes(c *fleet.Cluster) []*fleet.Machine {
	var out []*fleet.Machine
	for _, m := range c.Machines {
		if isControlPlane(m) && isApproved(m) {
			out = append(out, m)
		}
	}
	return out
}
