package cli

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"ichor.maesh.dev/ichor/e2e/lab/kube"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// findKubernetes finds the programs of Kubernetes where the lab is to run them; nil where it isn't.
func (o UpOptions) findKubernetes() (*kube.Tools, error) {
	if !o.Kubernetes {
		return nil, nil
	}
	tools, err := kube.FindTools()
	if err != nil {
		return nil, fmt.Errorf("start the lab with Kubernetes: %w", err)
	}
	return &tools, nil
}

// adminKubeconfig has an administrator's context for every cluster whose secrets were opened; nil where there is none.
func adminKubeconfig(fl *fleet.Fleet, all []Machine, bundles map[string]*bundle.Bundle) ([]byte, error) {
	var list []kube.Access
	for _, c := range fl.Clusters {
		b := bundles[c.Name]
		if b == nil || c.Manifest == nil {
			continue
		}
		list = append(list, kube.Access{Cluster: c.Name, Server: kubernetesServer(c, all), CA: b.Secrets().Certs.K8s})
	}
	if len(list) == 0 {
		return nil, nil
	}
	return kube.AdminKubeconfig(list, adminLife)
}

// kubernetesServer is where the lab answers for a cluster's API: its endpoint, if that is a loopback address, else its
// first control plane.
func kubernetesServer(c *fleet.Cluster, all []Machine) string {
	e := c.Manifest.Spec.Endpoint
	port := e.Port
	if port == 0 {
		port = 6443
	}
	host := e.Address
	if addr, err := netip.ParseAddr(host); err != nil || !addr.Is4() || !addr.IsLoopback() {
		if cps := controlPlanes(all, c.Name); len(cps) > 0 {
			host, port = cps[0], 6443
		}
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(port))
}
