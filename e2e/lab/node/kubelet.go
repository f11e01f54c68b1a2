package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/config"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// staticPods of a control plane, as the kubelet reports them.
var staticPods = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// endpoints are the control plane addresses that the node knows, without doubles, in order.
func (b *boot) endpoints() []netip.Addr {
	list, err := safe.StateListAll[*k8s.Endpoint](b.ctx, b.state)
	if err != nil {
		return nil
	}
	var merged k8s.EndpointList
	for r := range list.All() {
		merged = merged.Merge(r)
	}
	return merged.Addresses
}

// kubelet plays the kubelet's part: after a moment it runs, the node registers and becomes ready,
// and on a control plane whose etcd is up the static pods come up. No container ever runs.
func (b *boot) kubelet() {
	t := b.node.opts.Timings
	if !sleep(b.ctx, t.Kubelet) || b.stopping() {
		return
	}
	b.svc.set("kubelet", stRunning, "Started task kubelet")
	if !sleep(b.ctx, t.Kubelet/4) {
		return
	}
	b.svc.health("kubelet", true, "")
	if k := b.node.opts.Kubernetes; k != nil {
		b.runKubernetes(k)
		return
	}
	if b.machineType().IsControlPlane() {
		for _, p := range staticPods {
			b.showPod(p, false)
		}
		if !b.waitRunning("etcd") {
			return
		}
		if !sleep(b.ctx, t.Kubelet) || b.stopping() {
			return
		}
		b.mu.Lock()
		b.podsUp = true
		b.mu.Unlock()
		for _, p := range staticPods {
			b.showPod(p, true)
		}
	}
	// The Node registers once the kubelet reaches an API server.
	for !b.kubeReachable() {
		if !sleep(b.ctx, t.Trustd) || b.stopping() {
			return
		}
	}
	b.showKubeNode()
}

// kubeReachable says whether an API server that the node knows would answer it.
func (b *boot) kubeReachable() bool {
	for _, n := range b.controlPlanes() {
		pb := n.current()
		if pb == nil || b.node.opts.Net.Verdict(b.node.Name(), n.Name()) != wire.Open {
			continue
		}
		pb.mu.Lock()
		up := pb.podsUp && !pb.apiDown
		pb.mu.Unlock()
		if up {
			return true
		}
	}
	return false
}

// followEtcd makes the API server ready or not as its etcd answers or not.
func (b *boot) followEtcd(healthy bool) {
	b.mu.Lock()
	changed := b.podsUp && b.apiDown == healthy
	b.apiDown = !healthy
	b.mu.Unlock()
	if changed && !b.stopping() {
		b.setPodReady(staticPods[0], healthy)
	}
}

// waitRunning waits until a service really runs and is healthy.
func (b *boot) waitRunning(id string) bool {
	for {
		st, healthy, wake := b.svc.state(id)
		if st == stRunning && healthy {
			return true
		}
		select {
		case <-b.ctx.Done():
			return false
		case <-wake:
		}
	}
}

func (b *boot) stopping() bool {
	switch b.seq.running() {
	case seqReboot, seqReset, seqShutdown, seqUpgrade, seqStageUpgrade:
		return true
	}
	return b.ctx.Err() != nil
}

// showPod writes a pod as pending, or as running and ready.
func (b *boot) showPod(name string, ready bool) {
	if ready {
		b.putPod(name, "Running", "True")
	} else {
		b.putPod(name, "Pending", "False")
	}
}

// setPodReady changes the readiness of a pod that runs.
func (b *boot) setPodReady(name string, ready bool) {
	b.putPod(name, "Running", map[bool]string{true: "True", false: "False"}[ready])
}

func (b *boot) putPod(name, phase, cond string) {
	host := b.hostname()
	b.mu.Lock()
	version := fmt.Sprint(b.podVersion + 1)
	b.mu.Unlock()
	put(b, "k8s.KubeletStaticPodController", k8s.NewStaticPodStatus(k8s.NamespaceName, "kube-system/"+name+"-"+host), func(r *k8s.StaticPodStatus) {
		r.Metadata().Annotations().Set("talos.dev/config-version", version)
		r.TypedSpec().PodStatus = map[string]any{
			"phase":  phase,
			"hostIP": b.node.Spec().Address.String(),
			"podIP":  b.node.Spec().Address.String(),
			"conditions": []any{
				map[string]any{"type": "Ready", "status": cond},
			},
		}
	})
	b.refresh()
}

func (b *boot) stopPods() {
	b.mu.Lock()
	b.podsUp = false
	if b.cancelPods != nil {
		b.cancelPods()
	}
	b.mu.Unlock()
	list, err := safe.StateListAll[*k8s.StaticPodStatus](b.ctx, b.state)
	if err != nil {
		return
	}
	for p := range list.All() {
		remove(b, "k8s.KubeletStaticPodController", p.Metadata())
	}
	b.refresh()
}

// showKubeNode writes the Node's status as the API server would have it.
func (b *boot) showKubeNode() {
	b.mu.Lock()
	b.registered = true
	b.mu.Unlock()
	cfg, host := b.config(), b.hostname()
	if cfg == nil || cfg.Machine() == nil || host == "" || cfg.Machine().Kubelet().SkipNodeRegistration() {
		b.refresh()
		return
	}
	b.node.mu.Lock()
	ready := !b.node.notReady
	b.node.mu.Unlock()
	labels := map[string]string{"kubernetes.io/hostname": host, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
	if b.machineType().IsControlPlane() {
		labels["node-role.kubernetes.io/control-plane"] = ""
	}
	for k, v := range cfg.Machine().NodeLabels() {
		labels[k] = v
	}
	put(b, "k8s.NodeStatusController", k8s.NewNodeStatus(k8s.NamespaceName, host), func(r *k8s.NodeStatus) {
		*r.TypedSpec() = k8s.NodeStatusSpec{Nodename: host, NodeReady: ready, Labels: labels, Annotations: map[string]string{}}
	})
	b.refresh()
}

// SetNodeReady makes the node's Kubernetes Node ready or not; ready is the default.
func (n *Node) SetNodeReady(ready bool) {
	n.mu.Lock()
	n.notReady = !ready
	b := n.boot
	n.mu.Unlock()
	if b != nil {
		if b.isRegistered() {
			b.showKubeNode()
		}
	}
}

// restartChanged restarts what a live change of the configuration restarts on a node: the kubelet
// for its own section, node labels of the Node, and a static pod for its section.
func (b *boot) restartChanged() {
	cfg := b.config()
	raw := cfg.RawV1Alpha1()
	if raw == nil || raw.MachineConfig == nil || raw.ClusterConfig == nil {
		return
	}
	now := map[string]string{
		"kubelet":                 section(raw.MachineConfig.MachineKubelet) + fmt.Sprint(cfg.Machine().NodeTaints(), cfg.Machine().Type()),
		"kube-apiserver":          section(raw.ClusterConfig.APIServerConfig) + documents(cfg, "KubeAPIServerConfig", "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeAuditPolicyConfig", "KubeAdmissionControlConfig"),
		"kube-controller-manager": section(raw.ClusterConfig.ControllerManagerConfig) + documents(cfg, "KubeControllerManagerConfig"),
		"kube-scheduler":          section(raw.ClusterConfig.SchedulerConfig) + documents(cfg, "KubeSchedulerConfig"),
	}
	b.mu.Lock()
	before := b.sections
	b.sections = now
	b.mu.Unlock()
	if before == nil {
		return
	}
	if up, _ := b.svc.is("kubelet"); !up {
		return
	}
	if before["kubelet"] != now["kubelet"] {
		b.goDo(b.restartKubelet)
	} else if b.isRegistered() {
		b.showKubeNode()
	}
	for _, p := range staticPods {
		if before[p] != now[p] && b.machineType().IsControlPlane() {
			b.goDo(func() { b.restartPod(p) })
		}
	}
}

// section is a part of the configuration as text, for comparing.
func section(v any) string {
	out, err := encoder.NewEncoder(v, encoder.WithComments(encoder.CommentsDisabled)).Encode()
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// documents are the configuration's documents of the given kinds, as text.
func documents(cfg config.Provider, kinds ...string) string {
	var out strings.Builder
	for _, d := range documentsOf(cfg, kinds...) {
		out.WriteString(section(d))
	}
	return out.String()
}

// documentsOf are the configuration's documents of the given kinds.
func documentsOf(cfg config.Provider, kinds ...string) []coreconfig.Document {
	if cfg == nil {
		return nil
	}
	var out []coreconfig.Document
	for _, d := range cfg.Documents() {
		if slices.Contains(kinds, d.Kind()) {
			out = append(out, d)
		}
	}
	return out
}

func (b *boot) restartKubelet() {
	b.node.emit("restart", "kubelet")
	b.stopService("kubelet")
	b.svc.set("kubelet", stStarting, "Starting service")
	if !sleep(b.ctx, b.node.opts.Timings.Kubelet) || b.stopping() {
		return
	}
	b.svc.set("kubelet", stRunning, "Started task kubelet")
	if sleep(b.ctx, b.node.opts.Timings.Kubelet/4) && !b.stopping() {
		b.svc.health("kubelet", true, "")
		if b.isRegistered() {
			b.showKubeNode()
		}
	}
}

func (b *boot) isRegistered() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.registered
}

func (b *boot) restartPod(name string) {
	b.node.emit("restart", name)
	b.mu.Lock()
	b.podVersion++
	b.mu.Unlock()
	if b.node.opts.Kubernetes != nil {
		return // it looks at the configuration itself
	}
	b.showPod(name, false)
	if sleep(b.ctx, b.node.opts.Timings.Kubelet+50*time.Millisecond) && !b.stopping() {
		b.showPod(name, true)
	}
}
