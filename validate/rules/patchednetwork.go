package rules

import (
	"bytes"
	"fmt"
	"slices"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// networkFields are what a live cluster keeps, by their names in Talos's configuration.
var networkFields = []struct{ name, what, manifest string }{
	{"podSubnets", "the pod subnets", "spec.network.podSubnets"},
	{"serviceSubnets", "the service subnets", "spec.network.serviceSubnets"},
	{"dnsDomain", "the DNS domain", "spec.network.dnsDomain"},
}

// patchedNetwork finds changes of what a live cluster keeps that come from patches: a patch can say another range than
// the TalosCluster, so the renders are compared. They are asked for only where a patch of either side names such a
// field. Fields in told are reported already.
func patchedNetwork(c *Context, old, now *fleet.Cluster, told []string) []fleet.Problem {
	if c.BaseRenders == nil || !patchesNetwork(old) && !patchesNetwork(now) {
		return nil
	}
	before, after := renderedNetworks(c.BaseRenders, old.Name), renderedNetworks(c.HeadRenders, now.Name)
	var problems []fleet.Problem
	for _, f := range networkFields {
		if slices.Contains(told, f.manifest) {
			continue
		}
		for _, m := range old.Machines { // in order: the first that changes is named
			a, b := before[m.Name][f.name], after[m.Name][f.name]
			if !isApproved(m) || a == "" || b == "" || a == b {
				continue
			}
			object, path := now.Object, f.manifest
			if u := patchNaming(now, f.name); u != nil {
				object, path = u.patch.Object, entryPath(u.patch, u.entry)
			}
			p := problemAt(object, path, fmt.Sprintf(
				"%s of a live cluster can't change: by patch on machine %s from %s to %s", f.what, m.Name, a, b))
			p.Hint = hintImmutable
			problems = append(problems, p)
			break
		}
	}
	return problems
}

// patchesNetwork tells whether a patch of the cluster names one of networkFields.
func patchesNetwork(cl *fleet.Cluster) bool {
	for _, f := range networkFields {
		if patchNaming(cl, f.name) != nil {
			return true
		}
	}
	return false
}

// asPatched gives the cluster with the network that its first machine that renders has, nil where no patch changes it.
func asPatched(c *Context, cl *fleet.Cluster) *fleet.Cluster {
	if cl.Manifest == nil || !patchesNetwork(cl) {
		return nil
	}
	results, err := c.HeadRenders.Cluster(cl.Name)
	if err != nil {
		return nil // rule render speaks about it
	}
	for _, r := range results {
		if r.Err != nil {
			continue
		}
		fields := renderedNetwork(r.Masked)
		manifest, patched := *cl.Manifest, *cl
		n := &manifest.Spec.Network
		n.PodSubnets, n.ServiceSubnets = texts(fields["podSubnets"]), texts(fields["serviceSubnets"])
		n.DNSDomain, _ = fields["dnsDomain"].(string)
		patched.Manifest = &manifest
		return &patched
	}
	return nil
}

// texts gives the strings of a rendered list.
func texts(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, item := range list {
		if s, ok := item.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// namedIn is an entry of a patch.
type namedIn struct {
	patch *fleet.Patch
	entry int
}

// patchNaming gives the last entry, in the order in which patches apply, whose text names a field; nil where none does.
func patchNaming(cl *fleet.Cluster, field string) *namedIn {
	for _, p := range slices.Backward(cl.Patches) {
		for i, e := range slices.Backward(p.Entries) {
			if bytes.Contains(e.Raw, []byte(field)) {
				return &namedIn{p, i}
			}
		}
	}
	return nil
}

// renderedNetworks gives what each machine of a cluster that renders says of networkFields, as text.
func renderedNetworks(r Renders, cluster string) map[string]map[string]string {
	results, err := r.Cluster(cluster)
	if err != nil {
		return nil // rule render speaks about it
	}
	out := map[string]map[string]string{}
	for _, res := range results {
		if res.Err == nil {
			said := map[string]string{}
			for name, v := range renderedNetwork(res.Masked) {
				said[name] = fmt.Sprint(v)
			}
			out[res.Machine.Name] = said
		}
	}
	return out
}

// renderedNetwork looks where Talos has the fields: below cluster.network, and from contract 1.14 in a document of
// their own.
func renderedNetwork(r mask.Render) map[string]any {
	out := map[string]any{}
	for _, d := range r.Documents {
		fields := map[string]any{}
		switch d.ID {
		case "v1alpha1":
			cluster, _ := d.Fields["cluster"].(map[string]any)
			fields, _ = cluster["network"].(map[string]any)
		case "KubeNetworkConfig":
			fields = d.Fields
		}
		for _, f := range networkFields {
			if v, ok := fields[f.name]; ok {
				out[f.name] = v
			}
		}
	}
	return out
}
