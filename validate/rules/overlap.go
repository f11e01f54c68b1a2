package rules

import (
	"fmt"
	"net/netip"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/validate/backupstore"
)

func networkOverlapRule() Rule {
	return Rule{
		ID: "network-overlap",
		Doc: "Pod, service and node addresses of a cluster don't overlap, and no cluster's pod or service range holds a " +
			"node of another.",
		Check: checkNetworkOverlap,
	}
}

// clusterRange is one pod or service range, with its place.
type clusterRange struct {
	cluster *fleet.Cluster
	prefix  netip.Prefix
	// path of the field, what it is: "pod range", "service range".
	path, what string
	// isDefault: the manifest does not declare it.
	isDefault bool
}

func (r clusterRange) String() string {
	text := r.what + " " + r.prefix.String()
	if r.isDefault {
		text += " (the default)"
	}
	return text
}

func checkNetworkOverlap(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	index := rangeIndex{}
	for _, cl := range c.Head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		ranges := rangesOf(cl)
		problems = append(problems, ownOverlaps(ranges)...)
		for _, r := range ranges {
			index.add(r)
		}
	}
	for _, cl := range c.Head.Clusters {
		for _, m := range cl.Machines {
			problems = append(problems, nodeOverlaps(m, index)...)
		}
	}
	return problems
}

// rangesOf lists a cluster's ranges, declared or default; what is no range is left out (rule schema speaks about it).
func rangesOf(cl *fleet.Cluster) []clusterRange {
	var out []clusterRange
	add := func(field, what string, declared []string, effective []netip.Prefix) {
		for i, p := range effective {
			path := "spec.network." + field
			if len(declared) == len(effective) {
				path = fmt.Sprintf("%s[%d]", path, i)
			}
			out = append(out, clusterRange{cluster: cl, prefix: p, path: path, what: what, isDefault: len(declared) == 0})
		}
	}
	spec, n := cl.Manifest.Spec.Network, backupstore.NetworkOf(cl)
	add("podSubnets", "pod range", spec.PodSubnets, n.Pods)
	add("serviceSubnets", "service range", spec.ServiceSubnets, n.Services)
	return out
}

// ownOverlaps compares the few ranges of one cluster pair by pair. A range that is declared is where the problem is.
func ownOverlaps(ranges []clusterRange) []fleet.Problem {
	const most = 64 // a hostile list is not worth its square
	if len(ranges) > most {
		p := problemAt(ranges[0].cluster.Object, "spec.network", fmt.Sprintf("%d ranges are more than a cluster can have", len(ranges)))
		p.Hint = "a cluster has one or two pod ranges and one or two service ranges"
		return []fleet.Problem{p}
	}
	var problems []fleet.Problem
	for i, b := range ranges {
		for _, a := range ranges[:i] {
			if !a.prefix.Overlaps(b.prefix) {
				continue
			}
			at := b
			if b.isDefault {
				at = a
			}
			p := problemAt(at.cluster.Object, at.path, fmt.Sprintf("the %s overlaps the %s", b, a))
			p.Hint = "choose ranges that have no address in common"
			problems = append(problems, p)
		}
	}
	return problems
}

// rangeIndex finds the ranges that hold an address: by the length of the prefix, then by the prefix. There are few
// lengths, so that a look-up costs the same for one cluster and for a hundred.
type rangeIndex map[int]map[netip.Prefix]*rangeOwners

// rangeOwners are the clusters that have one range, and the first of them.
type rangeOwners struct {
	first clusterRange
	all   map[string]clusterRange
}

func (x rangeIndex) add(r clusterRange) {
	byPrefix := x[r.prefix.Bits()]
	if byPrefix == nil {
		byPrefix = map[netip.Prefix]*rangeOwners{}
		x[r.prefix.Bits()] = byPrefix
	}
	o := byPrefix[r.prefix]
	if o == nil {
		byPrefix[r.prefix] = &rangeOwners{first: r, all: map[string]clusterRange{r.cluster.Name: r}}
		return
	}
	if _, known := o.all[r.cluster.Name]; !known {
		o.all[r.cluster.Name] = r
	}
}

// nodeOverlaps finds the ranges that hold a machine's address: its own cluster's, else the first of another's.
func nodeOverlaps(m *fleet.Machine, index rangeIndex) []fleet.Problem {
	if isRejected(m) {
		return nil
	}
	ap, err := v1alpha1.NormalizeEndpoint(m.Manifest.Spec.Endpoint)
	if err != nil {
		return nil
	}
	var own, other *clusterRange
	for bits, byPrefix := range index {
		p, err := ap.Addr().Prefix(bits)
		if err != nil {
			continue // a length of IPv6
		}
		o := byPrefix[p]
		if o == nil {
			continue
		}
		if r, ok := o.all[m.Cluster]; ok {
			own = better(own, r)
			continue
		}
		other = better(other, o.first)
	}
	found := own
	if found == nil {
		found = other
	}
	if found == nil {
		return nil
	}
	whose := "its cluster's"
	if found.cluster.Name != m.Cluster {
		whose = "cluster " + found.cluster.Name + "'s"
	}
	p := problemAt(m.Object, "spec.endpoint", fmt.Sprintf("the machine's address %s is inside %s %s", ap.Addr(), whose, found))
	p.Hint = "pods and services would hide the machine: choose another range for the cluster (" + found.path + ")"
	return []fleet.Problem{p}
}

// better keeps the range that is named: the longest prefix, then by cluster and what it is, so that the answer does
// not hang on the order of a map.
func better(a *clusterRange, b clusterRange) *clusterRange {
	if a == nil {
		return &b
	}
	if b.prefix.Bits() != a.prefix.Bits() {
		if b.prefix.Bits() > a.prefix.Bits() {
			return &b
		}
		return a
	}
	if b.cluster.Name+b.what < a.cluster.Name+a.what {
		return &b
	}
	return a
}
