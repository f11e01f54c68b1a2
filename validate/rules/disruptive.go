package rules

import (
	"fmt"
	"net"
	"strconv"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func disruptiveRule() Rule {
	return Rule{
		ID:          "disruptive",
		Doc:         "A live machine's hostname and a live cluster's endpoint change only knowingly: the steps are said.",
		AgainstBase: true,
		Check:       checkDisruptive,
	}
}

func checkDisruptive(c *Context) []fleet.Problem {
	if c.Base == nil {
		return nil
	}
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		old := c.live(cl)
		if old == nil || cl.Manifest == nil {
			continue
		}
		problems = append(problems, endpointMoves(old, cl)...)
		before := NewPredecessors(old, cl)
		for _, m := range cl.Machines {
			if was := before.Of(m); was != nil && isApproved(was) && isApproved(m) {
				problems = append(problems, hostnameMoves(was, m)...)
			}
		}
	}
	return problems
}

func endpointMoves(old, now *fleet.Cluster) []fleet.Problem {
	a, b := endpointText(old.Manifest.Spec.Endpoint), endpointText(now.Manifest.Spec.Endpoint)
	if a == b {
		return nil
	}
	p := warningAt(now.Object, endpointPath, fmt.Sprintf("the endpoint of a live cluster changes from %s to %s", a, b))
	p.Hint = "steps: both endpoints must reach the API until the end; every node gets the new one, which restarts each " +
		"kubelet and, one at a time, the API servers (new certificates); kubeconfigs in use must be made anew; then the " +
		"old endpoint may go"
	return []fleet.Problem{p}
}

func endpointText(e v1alpha1.ClusterEndpoint) string {
	port := e.Port
	if port == 0 {
		port = kubernetesAPIPort
	}
	return net.JoinHostPort(canonicalHost(e.Address), strconv.Itoa(port))
}

func hostnameMoves(old, now *fleet.Machine) []fleet.Problem {
	a, b := old.Manifest.Spec.Hostname, now.Manifest.Spec.Hostname
	if a == b {
		return nil
	}
	p := warningAt(now.Object, "spec.hostname", fmt.Sprintf(
		"the hostname of a live machine changes from %s to %s", hostnameText(a), hostnameText(b)))
	p.Hint = "steps: the machine joins Kubernetes as a new Node, its pods move; the Node of the old name stays until somebody " +
		"deletes it, and labels or volumes bound to that name are lost"
	if isControlPlane(now) {
		p.Hint += "; its etcd member keeps the old name until it leaves and joins again"
	}
	return []fleet.Problem{p}
}

func hostnameText(h string) string {
	if h == "" {
		return "(its own choice)"
	}
	return h
}
