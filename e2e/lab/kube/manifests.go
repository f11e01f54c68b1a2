package kube

import (
	"context"
	"fmt"
	"net/http"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// bootstrapManifests are Talos's as far as they show in the lab: the token and who may use it, without which no kubelet
// joins, and the workloads that the configuration wants on every cluster, without what only matters to containers.
func bootstrapManifests(cfg config.Provider) map[string]map[string]any {
	binding := func(name, role string, groups ...string) map[string]any {
		var subjects []any
		for _, g := range groups {
			subjects = append(subjects, map[string]any{"kind": "Group", "name": g, "apiGroup": "rbac.authorization.k8s.io"})
		}
		return map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": name},
			"subjects": subjects,
			"roleRef":  map[string]any{"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
		}
	}
	const (
		bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/"
		joining  = "system:bootstrappers:nodes"
		csrs     = "system:certificates.k8s.io:certificatesigningrequests:"
	)
	t := cfg.Cluster().Token()
	res := map[string]map[string]any{
		bindings + "system-bootstrap-node-bootstrapper":       binding("system-bootstrap-node-bootstrapper", "system:node-bootstrapper", joining, "system:nodes"),
		bindings + "system-bootstrap-approve-node-client-csr": binding("system-bootstrap-approve-node-client-csr", csrs+"nodeclient", joining),
		bindings + "system-bootstrap-node-renewal":            binding("system-bootstrap-node-renewal", csrs+"selfnodeclient", "system:nodes"),
		"/api/v1/namespaces/kube-system/secrets/bootstrap-token-" + t.ID(): {
			"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
			"metadata": map[string]any{"name": "bootstrap-token-" + t.ID(), "namespace": "kube-system"},
			"stringData": map[string]string{
				"token-id": t.ID(), "token-secret": t.Secret(), "usage-bootstrap-authentication": "true",
				"auth-extra-groups": joining,
			},
		},
	}
	const daemonSets, deployments = "/apis/apps/v1/namespaces/kube-system/daemonsets/", "/apis/apps/v1/namespaces/kube-system/deployments/"
	if cfg.K8sFlannelCNIConfig() != nil {
		res[daemonSets+"kube-flannel"] = workload("DaemonSet", "kube-flannel", "flannel", "flannel:"+constants.FlannelVersion)
	}
	if p := cfg.K8sProxyConfig(); p != nil && p.Enabled() {
		res[daemonSets+"kube-proxy"] = workload("DaemonSet", "kube-proxy", "kube-proxy", p.Image())
	}
	if d := cfg.Cluster().CoreDNS(); d.Enabled() {
		res[deployments+"coredns"] = workload("Deployment", "coredns", "kube-dns", d.Image())
	}
	return res
}

// workload of kube-system: a DaemonSet on every node, or a Deployment of two pods that control planes take too.
func workload(kind, name, app, image string) map[string]any {
	labels := map[string]any{"k8s-app": app}
	tolerations := []any{map[string]any{"effect": "NoSchedule", "operator": "Exists"}, map[string]any{"effect": "NoExecute", "operator": "Exists"}}
	pod := map[string]any{
		"hostNetwork": true, "priorityClassName": "system-node-critical",
		"containers": []any{map[string]any{"name": name, "image": image}},
	}
	spec := map[string]any{}
	switch kind {
	case "DaemonSet":
		labels["tier"] = "node"
	default:
		spec["replicas"] = 2
		pod["hostNetwork"], pod["priorityClassName"] = false, "system-cluster-critical"
		tolerations = []any{map[string]any{"effect": "NoSchedule", "key": roleLabel, "operator": "Exists"}}
	}
	pod["tolerations"] = tolerations
	spec["selector"] = map[string]any{"matchLabels": labels}
	spec["template"] = map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": map[string]any{AnnotationStopAfter: "2s"}}, "spec": pod,
	}
	return map[string]any{
		"apiVersion": "apps/v1", "kind": kind, "spec": spec,
		"metadata": map[string]any{"name": name, "namespace": "kube-system", "labels": labels},
	}
}

// applyManifests applies them on the server's side, as Talos does since 1.13.
func applyManifests(ctx context.Context, c *client, cfg config.Provider) error {
	for path, m := range bootstrapManifests(cfg) {
		if err := c.do(ctx, http.MethodPatch, path+"?fieldManager=talos&force=true", "application/apply-patch+yaml", m, nil); err != nil {
			return fmt.Errorf("apply bootstrap manifest %s: %w", path, err)
		}
	}
	return nil
}
