package rules

import (
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// live gives the cluster as base has it, nil where base does not have it or its manifest could not be read there.
func (c *Context) live(cl *fleet.Cluster) *fleet.Cluster {
	if c.Base == nil {
		return nil
	}
	if old := c.Base.Cluster(cl.Name); old != nil && old.Manifest != nil {
		return old
	}
	return nil
}

// seenVersion is the Talos version that a node was last seen running.
type seenVersion struct {
	version string
	minor   [2]uint64
	// age says when that was.
	age string
}

// seen gives the version that a machine was last seen running; false where none is known.
func (c *Context) seen(m *fleet.Machine) (seenVersion, bool) {
	cl, ok := c.Observed.Cluster(m.Cluster)
	if !ok {
		return seenVersion{}, false
	}
	s := seenVersion{version: cl.Machines[m.Name].TalosVersion, age: c.Observed.Age(cl.At)}
	s.minor, ok = minorOf(s.version)
	return s, ok
}
