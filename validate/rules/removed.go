package rules

import "ichor.maesh.dev/ichor/schemas/fleet"

// Predecessor finds the base machine that m of the cluster now is: the one of its name, else the one that was renamed
// to it (the same UUID, under a name that head no longer has). nil for a new machine.
func Predecessor(old, now *fleet.Cluster, m *fleet.Machine) *fleet.Machine {
	if was := old.Machine(m.Name); was != nil {
		return was
	}
	uuid := canonicalUUID(m.Manifest.Spec.UUID)
	if repeatedUUID(uuid) {
		return nil
	}
	for _, was := range old.Machines {
		if canonicalUUID(was.Manifest.Spec.UUID) == uuid && now.Machine(was.Name) == nil {
			return was
		}
	}
	return nil
}

// Removals lists the machines, as base has them, that this commit removes: approved on base, and gone or rejected here.
// Those of a deleted cluster are not among them: it is released, and no node is touched.
func Removals(c *Context) []*fleet.Machine {
	if c.Base == nil {
		return nil
	}
	var out []*fleet.Machine
	for _, old := range c.Base.Clusters {
		now := c.Head.Cluster(old.Name)
		if old.Manifest == nil || now == nil || now.Manifest == nil {
			continue
		}
		for _, r := range removals(c, old) {
			out = append(out, r.old)
		}
	}
	return out
}
