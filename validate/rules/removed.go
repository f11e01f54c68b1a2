package rules

import "ichor.maesh.dev/ichor/schemas/fleet"

// Predecessors finds base machines for the machines of a cluster, without a search each time.
type Predecessors struct {
	names, now map[string]*fleet.Machine
	uuids      map[string]*fleet.Machine
}

// NewPredecessors indexes a cluster on base and at head.
func NewPredecessors(old, now *fleet.Cluster) *Predecessors {
	p := &Predecessors{names: byName(old), now: byName(now), uuids: map[string]*fleet.Machine{}}
	for _, m := range old.Machines {
		if u := canonicalUUID(m.Manifest.Spec.UUID); !repeatedUUID(u) && p.uuids[u] == nil {
			p.uuids[u] = m
		}
	}
	return p
}

// Of gives the base machine that m now is: the one of its name, else the one that was renamed to it (the same UUID,
// under a name that head no longer has). nil for a new machine.
func (p *Predecessors) Of(m *fleet.Machine) *fleet.Machine {
	if was := p.names[m.Name]; was != nil {
		return was
	}
	was := p.uuids[canonicalUUID(m.Manifest.Spec.UUID)]
	if was == nil || p.now[was.Name] != nil {
		return nil
	}
	return was
}

// byName indexes a cluster's machines. Of two with one name, which rule unique reports, the first counts.
func byName(cl *fleet.Cluster) map[string]*fleet.Machine {
	out := make(map[string]*fleet.Machine, len(cl.Machines))
	for _, m := range cl.Machines {
		if out[m.Name] == nil {
			out[m.Name] = m
		}
	}
	return out
}

// machine finds a machine by name. The index of each cluster is made once.
func (c *Context) machine(cl *fleet.Cluster, name string) *fleet.Machine {
	if c.index == nil {
		c.index = map[*fleet.Cluster]map[string]*fleet.Machine{}
	}
	names := c.index[cl]
	if names == nil {
		names = byName(cl)
		c.index[cl] = names
	}
	return names[name]
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
