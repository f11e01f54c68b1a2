package rules

import (
	"fmt"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func cniRule() Rule {
	return Rule{
		ID: "cni",
		Doc: "A live cluster keeps its CNI preset, flannel has its kube-proxy, and kube-proxy is switched only when a " +
			"person confirms it.",
		Check: checkCNI,
	}
}

func checkCNI(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		problems = append(problems, cniOf(cl)...)
		if old := c.live(cl); old != nil {
			problems = append(problems, cniChange(old, cl)...)
		}
	}
	return problems
}

const (
	presetPath    = "spec.network.cni.preset"
	kubeProxyPath = "spec.network.kubeProxy"
)

func cniOf(cl *fleet.Cluster) []fleet.Problem {
	n := cl.Manifest.Spec.Network.Defaulted()
	var problems []fleet.Problem
	if n.CNI.Preset == v1alpha1.CNIFlannel && !*n.KubeProxy {
		p := problemAt(cl.Object, kubeProxyPath, "flannel needs kube-proxy: services would not work without it")
		p.Hint = "set spec.network.kubeProxy to true, or spec.network.cni.preset to cilium (which replaces it) or none"
		problems = append(problems, p)
	}
	if n.CNI.Tunnel != "" && n.CNI.Preset != v1alpha1.CNICilium {
		p := warningAt(cl.Object, "spec.network.cni.tunnel", fmt.Sprintf("the tunnel %s has no effect with preset %s", n.CNI.Tunnel, n.CNI.Preset))
		p.Hint = "only cilium can choose its tunnel: remove the field"
		problems = append(problems, p)
	}
	return problems
}

func cniChange(old, now *fleet.Cluster) []fleet.Problem {
	a, b := old.Manifest.Spec.Network.Defaulted(), now.Manifest.Spec.Network.Defaulted()
	var problems []fleet.Problem
	if a.CNI.Preset != b.CNI.Preset {
		p := problemAt(now.Object, presetPath, fmt.Sprintf(
			"the CNI preset of a live cluster can't change: from %s to %s", a.CNI.Preset, b.CNI.Preset))
		p.Hint = "every pod would lose its network on the way: put it back, or make a new cluster"
		problems = append(problems, p)
	}
	confirmed := now.Manifest.Metadata.Annotations[v1alpha1.AnnotationConfirmKubeProxySwitch] == "true"
	if *a.KubeProxy != *b.KubeProxy && !confirmed {
		p := problemAt(now.Object, kubeProxyPath, fmt.Sprintf(
			"kube-proxy of a live cluster is switched %s without confirmation: services stop until something replaces it", onOff(*b.KubeProxy)))
		if *b.KubeProxy {
			p.Message = "kube-proxy of a live cluster is switched on without confirmation: it gets in the way of what replaces it now"
		}
		p.Hint = "set the annotation " + v1alpha1.AnnotationConfirmKubeProxySwitch + `: "true" on the TalosCluster if that is meant`
		problems = append(problems, p)
	}
	return problems
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
