package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

const roleLabel = "node-role.kubernetes.io/control-plane"

// Annotations in which Talos notes what of a Node is its own.
const (
	ownedLabels      = "talos.dev/owned-labels"
	ownedAnnotations = "talos.dev/owned-annotations"
	ownedTaints      = "talos.dev/owned-taints"
)

// taint of a Node.
type taint struct {
	Key       string `json:"key"`
	Value     string `json:"value,omitempty"`
	Effect    string `json:"effect"`
	TimeAdded string `json:"timeAdded,omitempty"`
}

// talos does what Talos does beside the kubelet (NodeApplyController): it gives the Node the labels, annotations and
// taints of the configuration and takes away those of its own that are no longer there. A control plane does it as an
// administrator, a worker with the kubelet's certificate, so that Kubernetes refuses what it refuses a real one.
func (l *kubelet) talos(ctx context.Context) {
	c := l.c
	if l.cfg.Machine().Type().IsControlPlane() {
		var err error
		if c, err = l.k.admin(l.h, l.cfg); err != nil {
			l.h.Emit("error", err.Error())
			return
		}
		defer c.close()
	}
	for ctx.Err() == nil {
		changed := l.h.ConfigChanged()
		if l.untilDone(ctx, "apply labels, annotations and taints of the configuration to Node "+l.name, func(ctx context.Context) error {
			return l.applyNode(ctx, c)
		}) {
			wait(ctx, changed)
		}
	}
}

// applyNode brings the Node in line, in one update that fails when somebody else changed it meanwhile.
func (l *kubelet) applyNode(ctx context.Context, c *client) error {
	cfg := l.h.Config()
	if cfg == nil || cfg.Machine() == nil {
		return nil
	}
	var node struct {
		Metadata meta
		Spec     struct{ Taints []taint }
	}
	if err := c.do(ctx, http.MethodGet, l.path(), "", nil, &node); err != nil {
		return err
	}
	labels, annotations := map[string]string{}, map[string]string{}
	for k, v := range cfg.Machine().NodeLabels() {
		labels[k] = v
	}
	for k, v := range cfg.Machine().NodeAnnotations() {
		annotations[k] = v
	}
	var taints []taint
	if cfg.Machine().Type().IsControlPlane() {
		labels[roleLabel] = ""
		if !cfg.Cluster().ScheduleOnControlPlanes() {
			taints = append(taints, taint{Key: roleLabel, Effect: "NoSchedule"})
		}
	}
	for k, v := range cfg.Machine().NodeTaints() {
		value, effect, found := strings.Cut(v, ":")
		if !found {
			value, effect = "", value
		}
		taints = append(taints, taint{Key: k, Value: value, Effect: effect})
	}
	was := node.Metadata.Annotations
	labelPatch, annotationPatch := map[string]any{}, map[string]any{}
	for _, part := range []struct {
		note string
		own  []string
	}{
		{ownedLabels, takeOver(node.Metadata.Labels, labels, owned(was[ownedLabels]), labelPatch)},
		{ownedAnnotations, takeOver(was, annotations, owned(was[ownedAnnotations]), annotationPatch)},
	} {
		note(annotationPatch, part.note, was[part.note], part.own)
	}
	result, own := mergeTaints(node.Spec.Taints, taints, owned(was[ownedTaints]))
	note(annotationPatch, ownedTaints, was[ownedTaints], own)
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": node.Metadata.ResourceVersion, "labels": labelPatch, "annotations": annotationPatch,
	}}
	if !slices.Equal(result, node.Spec.Taints) {
		patch["spec"] = map[string]any{"taints": result}
	} else if len(labelPatch) == 0 && len(annotationPatch) == 0 {
		return nil
	}
	return c.do(ctx, http.MethodPatch, l.path(), mergePatch, patch, nil)
}

// owned reads a note of what is Talos's.
func owned(note string) map[string]bool {
	var list []string
	_ = json.Unmarshal([]byte(note), &list) // an unreadable note owns nothing
	res := map[string]bool{}
	for _, k := range list {
		res[k] = true
	}
	return res
}

// note writes what is Talos's into a patch, if it changed.
func note(patch map[string]any, key, was string, own []string) {
	slices.Sort(own)
	text := ""
	if len(own) > 0 {
		data, _ := json.Marshal(own) //nolint:errcheck // strings
		text = string(data)
	}
	switch {
	case text == was:
	case text == "":
		patch[key] = nil
	default:
		patch[key] = text
	}
}

// takeOver puts into the patch what makes the values as wanted, as far as they are missing, or Talos's own; and takes
// away Talos's own that are not wanted any more. It gives the keys that are Talos's afterwards.
func takeOver(have, want map[string]string, own map[string]bool, patch map[string]any) []string {
	for k, v := range want {
		now, there := have[k]
		switch {
		case !there:
			patch[k], own[k] = v, true
		case now == v:
			own[k] = true
		case own[k]:
			patch[k] = v
		}
	}
	var keys []string
	for k := range own {
		if _, wanted := want[k]; wanted {
			keys = append(keys, k)
		} else if _, there := have[k]; there {
			patch[k] = nil
		}
	}
	return keys
}

// mergeTaints is the same for taints, by their keys.
func mergeTaints(have, want []taint, own map[string]bool) (result []taint, keys []string) {
	result = slices.Clone(have)
	for _, w := range want {
		i := slices.IndexFunc(result, func(t taint) bool { return t.Key == w.Key })
		switch {
		case i < 0:
			result = append(result, w)
			own[w.Key] = true
		case own[w.Key]:
			result[i].Value, result[i].Effect = w.Value, w.Effect
		case result[i].Value == w.Value && result[i].Effect == w.Effect:
			own[w.Key] = true
		}
	}
	wanted := func(key string) bool {
		return slices.ContainsFunc(want, func(w taint) bool { return w.Key == key })
	}
	result = slices.DeleteFunc(result, func(t taint) bool { return own[t.Key] && !wanted(t.Key) })
	for k := range own {
		if wanted(k) {
			keys = append(keys, k)
		}
	}
	return result, keys
}

// Annotations of a mirror pod.
const (
	mirrorAnnotation = "kubernetes.io/config.mirror"
	sourceAnnotation = "kubernetes.io/config.source"
	hashAnnotation   = "kubernetes.io/config.hash"
)

// mirror shows the machine's static pods in the API, as the kubelet does: mirror pods that nobody can edit, with the
// labels and the image of Talos's manifests, made anew when those change.
func (l *kubelet) mirror(ctx context.Context) error {
	cfg := l.h.Config()
	l.mu.Lock()
	uid := l.uid
	l.mu.Unlock()
	if cfg == nil || uid == "" {
		return nil
	}
	for _, s := range l.h.StaticPodStatus() {
		image := ""
		switch s.Name {
		case "kube-apiserver":
			image = cfg.K8sAPIServerConfig().Image()
		case "kube-controller-manager":
			image = cfg.K8sControllerManagerConfig().Image()
		case "kube-scheduler":
			image = cfg.K8sSchedulerConfig().Image()
		}
		if err := l.mirrorPod(ctx, s.Name, image, s.Version, s.Ready, uid); err != nil {
			return fmt.Errorf("mirror pod %s: %w", s.Name, err)
		}
	}
	return nil
}

func (l *kubelet) mirrorPod(ctx context.Context, name, image, version string, ready bool, uid string) error {
	hash := image + "@" + version + "@" + l.h.BootID()
	var p pod
	p.Metadata.Name, p.Metadata.Namespace = name+"-"+l.name, "kube-system"
	err := l.c.do(ctx, http.MethodGet, p.path(), "", nil, &p)
	if err == nil && p.Metadata.Annotations[hashAnnotation] != hash {
		err = l.c.do(ctx, http.MethodDelete, p.path(), "", map[string]any{"gracePeriodSeconds": 0}, nil)
		if err != nil && !answered(err, http.StatusNotFound) {
			return err
		}
		err = &apiError{Code: http.StatusNotFound}
	}
	// A kubelet may not look at a pod that is not bound to its node: one that is not there is forbidden.
	if answered(err, http.StatusNotFound, http.StatusForbidden) {
		err = l.c.do(ctx, http.MethodPost, "/api/v1/namespaces/kube-system/pods", "", l.mirrorManifest(name, image, version, hash, uid), &p)
	}
	if err != nil || (p.Status.Phase == "Running" && p.ready() == ready) {
		return err
	}
	return l.c.do(ctx, http.MethodPatch, p.path()+"/status", strategicPatch, map[string]any{"status": l.pods.running(p, 0, ready)}, nil)
}

func (l *kubelet) mirrorManifest(name, image, version, hash, uid string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"name": name + "-" + l.name, "namespace": "kube-system",
			"labels": map[string]string{
				"tier": "control-plane", "k8s-app": name, "component": name, "app.kubernetes.io/name": name,
				"app.kubernetes.io/version":   strings.TrimPrefix(versionOf(image), "v"),
				"app.kubernetes.io/component": "control-plane", "app.kubernetes.io/managed-by": "Talos",
			},
			"annotations": map[string]string{
				mirrorAnnotation: hash, hashAnnotation: hash, sourceAnnotation: "file", "kubernetes.io/config.seen": stamp(),
				"talos.dev/config-version": version,
			},
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": l.name, "uid": uid, "controller": true}},
		},
		"spec": map[string]any{
			"nodeName": l.name, "hostNetwork": true, "priorityClassName": "system-cluster-critical", "enableServiceLinks": true,
			"tolerations": []any{map[string]any{"operator": "Exists", "effect": "NoExecute"}},
			"containers":  []any{map[string]any{"name": name, "image": image}},
		},
	}
}
