package rules

import "ichor.maesh.dev/ichor/schemas/fleet"

// Predecessors finds base machines for the machines of a cluster, without a search each time.
type Predecessors struct {
	old, head *fleet.Cluster
	// next is the place in old of the machine that is expected to be asked for.
	next   int
	places map[string]int
	now    map[string]*fleet.Machine
	uuids  map[string]*fleet.Machine
}

// NewPredecessors is for a cluster on base and at head. It is quickest when asked in the order of head.
func NewPredecessors(old, now *fleet.Cluster) *Predecessors {
	return &Predecessors{old: old, head: now}
}

// index is made when a machine is not where it is looked for first.
func (p *Predecessors) index() {
	if p.places != nil {
		return
	}
	p.places, p.now, p.uuids = make(map[string]int, len(p.old.Machines)), byName(p.head), map[string]*fleet.Machine{}
	for i, m := range p.old.Machines {
		if _, twice := p.places[m.Name]; !twice {
			p.places[m.Name] = i
		}
		if u := canonicalUUID(m.Manifest.Spec.UUID); !repeatedUUID(u) && p.uuids[u] == nil {
			p.uuids[u] = m
		}
	}
}

// Of gives the base machine that m now is: the one of its name, else the one that was renamed to it (the same UUID,
// under a name that head no longer has). nil for a new machine.
func (p *Predecessors) Of(m *fleet.Machine) *fleet.Machine {
	// Both sides are sorted: who asks for one after the other finds them so. Of two with one name the first counts.
	if at := p.next; at < len(p.old.Machines) && p.old.Machines[at].Name == m.Name && (at == 0 || p.old.Machines[at-1].Name != m.Name) {
		p.next++
		return p.old.Machines[at]
	}
	p.index()
	if at, known := p.places[m.Name]; known {
		p.next = at + 1
		return p.old.Machines[at]
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
