package backupstore

import (
	"net/netip"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// Network of a cluster, with the documented defaults where a range is not declared.
type Network struct {
	Pods, Services []netip.Prefix
	// Domain in lower case, without dots at its ends.
	Domain string
}

// NetworkOf gives the ranges that a cluster declares, or the defaults.
func NetworkOf(c *fleet.Cluster) Network {
	n := Network{Domain: "cluster.local"}
	pods, services := []string{"10.244.0.0/16"}, []string{"10.96.0.0/12"}
	if c.Manifest != nil {
		s := c.Manifest.Spec.Network
		if len(s.PodSubnets) > 0 {
			pods = s.PodSubnets
		}
		if len(s.ServiceSubnets) > 0 {
			services = s.ServiceSubnets
		}
		if s.DNSDomain != "" {
			n.Domain = strings.ToLower(strings.Trim(s.DNSDomain, "."))
		}
	}
	n.Pods, n.Services = prefixes(pods), prefixes(services)
	return n
}

// prefixes parses CIDRs; what is none is left out (the schema rule speaks about it).
func prefixes(list []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
