package rules

import (
	"fmt"
	"net/netip"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func endpointRule() Rule {
	return Rule{
		ID: "endpoint",
		Doc: "The API endpoint is an address that can be reached, outside of the pod and service ranges, and not one " +
			"member's own where there are several.",
		Check: checkEndpoint,
	}
}

func checkEndpoint(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if cl.Manifest != nil {
			problems = append(problems, endpointProblems(cl)...)
		}
	}
	return problems
}

const endpointPath = "spec.endpoint.address"

func endpointProblems(cl *fleet.Cluster) []fleet.Problem {
	e := cl.Manifest.Spec.Endpoint
	addr, err := netip.ParseAddr(e.Address)
	if err != nil {
		return nil // a name; one that is missing is the schema rule's
	}
	addr = addr.Unmap()
	if what := unusable(addr); what != "" {
		p := problemAt(cl.Object, endpointPath, fmt.Sprintf("the endpoint %s is %s, which no node can reach", e.Address, what))
		p.Hint = "give the address of a load balancer, a VIP, or of the one control plane"
		return []fleet.Problem{p}
	}
	for _, r := range rangesOf(cl) {
		if r.prefix.Contains(addr) {
			p := problemAt(cl.Object, endpointPath, fmt.Sprintf("the endpoint %s is inside the %s", e.Address, r))
			p.Hint = "the API must be reached before there are pods and services: choose an address outside, or another range"
			return []fleet.Problem{p}
		}
	}
	return memberEndpoint(cl, addr)
}

// unusable says why an address can't be an endpoint, "" where it can.
func unusable(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "unspecified"
	case a.IsMulticast():
		return "a multicast address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}

// memberEndpoint warns where the cluster would hang on one of several control planes.
func memberEndpoint(cl *fleet.Cluster, addr netip.Addr) []fleet.Problem {
	count := max(cl.Manifest.Spec.ControlPlane.Count, len(approvedControlPlanes(cl)))
	if count < 2 {
		return nil
	}
	for _, m := range cl.Machines {
		if !isControlPlane(m) || isRejected(m) {
			continue
		}
		ap, err := v1alpha1.NormalizeEndpoint(m.Manifest.Spec.Endpoint)
		if err != nil || ap.Addr() != addr {
			continue
		}
		p := warningAt(cl.Object, endpointPath, fmt.Sprintf(
			"the endpoint %s is the own address of %s, one of %d control planes: without it nobody reaches the API",
			cl.Manifest.Spec.Endpoint.Address, m.Name, count))
		p.Hint = "use a VIP, a load balancer or a DNS name in front of all control planes"
		return []fleet.Problem{p}
	}
	return nil
}
