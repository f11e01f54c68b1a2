package rules

import (
	"fmt"
	"net/netip"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

func discoveryRule() Rule {
	return Rule{
		ID:    "discovery",
		Doc:   "Discovery probes IPv4 only, in at most 4 ranges, each /24 or smaller.",
		Check: checkDiscovery,
	}
}

// Limits of discovery: probing is slow and looks like an attack.
const (
	maxDiscoveryCIDRs  = 4
	minDiscoveryPrefix = 24
)

func checkDiscovery(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if cl.Manifest != nil {
			problems = append(problems, discoveryProblems(cl)...)
		}
	}
	return problems
}

func discoveryProblems(cl *fleet.Cluster) []fleet.Problem {
	d := cl.Manifest.Spec.Discovery
	var problems []fleet.Problem
	add := func(path, message, hint string) {
		p := problemAt(cl.Object, path, message)
		p.Hint = hint
		problems = append(problems, p)
	}
	for i, text := range d.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && !a.Is4() {
			add(fmt.Sprintf("spec.discovery.addresses[%d]", i), text+" is no IPv4 address", "discovery probes IPv4 only; write IPv6 endpoints into the machines' manifests")
		}
	}
	if n := len(d.CIDRs); n > maxDiscoveryCIDRs {
		add(fmt.Sprintf("spec.discovery.cidrs[%d]", maxDiscoveryCIDRs), fmt.Sprintf("%d ranges are too many: discovery probes at most %d", n, maxDiscoveryCIDRs),
			"list single machines under spec.discovery.addresses")
	}
	for i, text := range d.CIDRs {
		p, err := netip.ParsePrefix(text)
		path := fmt.Sprintf("spec.discovery.cidrs[%d]", i)
		switch {
		case err != nil: // rule schema speaks about it
		case !p.Addr().Is4():
			add(path, text+" is no IPv4 range", "discovery probes IPv4 only")
		case p.Bits() < minDiscoveryPrefix:
			add(path, fmt.Sprintf("%s is larger than a /%d", text, minDiscoveryPrefix), "give the /24 that the machines are in")
		}
	}
	return problems
}
