package node

import (
	"context"
	"net/netip"
	"path/filepath"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// Kubernetes is what runs behind the nodes' kubelets where a lab has it: package kube, with a real API server and
// controller manager. Without it a node's Kubernetes side is plausible state only.
type Kubernetes interface {
	// ControlPlane runs the static pods of a control plane until ctx ends: etcd answers when it is called. ready is
	// told each time that a pod became ready or stopped being so. After a power loss (Host.Lost) nothing is ended
	// in an orderly way.
	ControlPlane(ctx context.Context, h *Host, ready func(pod string, ok bool))
	// Kubelet is the node's kubelet until ctx ends. show gets the Node as the API server last told it, each time that
	// it changed, and nil when it was deleted.
	Kubelet(ctx context.Context, h *Host, show func(*k8s.NodeStatusSpec))
}

// StaticPods are the names of a control plane's static pods, without the node's.
func StaticPods() []string { return append([]string(nil), staticPods...) }

// Host is a running machine as its kubelet and static pods see it. All methods may be called from any goroutine.
type Host struct{ b *boot }

// Name is the machine's name in the lab.
func (h *Host) Name() string { return h.b.node.Name() }

// Spec is the hardware.
func (h *Host) Spec() Spec { return h.b.node.Spec() }

// Hostname is what the machine calls itself now, "" while it has no name.
func (h *Host) Hostname() string { return h.b.hostname() }

// BootID is the running boot's.
func (h *Host) BootID() string { return h.b.id }

// Identity is the node identity on STATE.
func (h *Host) Identity() string { return h.b.identity() }

// Config is the active configuration; nil when there is none.
func (h *Host) Config() config.Provider { return h.b.config() }

// ConfigChanged is closed at the next change of the active configuration.
func (h *Host) ConfigChanged() <-chan struct{} { return h.b.configChanged() }

// Net is the lab's network, with its faults.
func (h *Host) Net() *wire.Net { return h.b.node.opts.Net }

// Timings is the lab's profile.
func (h *Host) Timings() Timings { return h.b.node.opts.Timings }

// RunDir is a folder for what is made anew at each boot.
func (h *Host) RunDir() string { return filepath.Join(h.b.disks.run(), "kubernetes") }

// KubeletDir is the kubelet's folder, on EPHEMERAL.
func (h *Host) KubeletDir() string { return filepath.Join(h.b.disks.ephemeral(), "lib", "kubelet") }

// Etcd is where the machine's own etcd member listens for clients on the host of the lab, "" while none runs. No fault
// of the network is in front of it: on a machine that is the loopback address.
func (h *Host) Etcd() string {
	e := h.b.getEtcd()
	if e == nil {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.local
}

// Endpoints are the control planes' addresses that the machine knows, its own first.
func (h *Host) Endpoints() []netip.Addr {
	own := h.Spec().Address
	var res []netip.Addr
	for _, a := range h.b.endpoints() {
		if a == own {
			res = append([]netip.Addr{a}, res...)
		} else {
			res = append(res, a)
		}
	}
	return res
}

// IsMachine says whether a machine of the lab has the address.
func (h *Host) IsMachine(a netip.Addr) bool { return h.b.node.opts.At(a) != nil }

// Healthy says what the kubelet thinks of the machine: SetNodeReady(false) makes it unhealthy.
func (h *Host) Healthy() bool {
	h.b.node.mu.Lock()
	defer h.b.node.mu.Unlock()
	return !h.b.node.notReady
}

// Lost says that the machine lost its power: what runs on it ends at once.
func (h *Host) Lost() bool { return h.b.ctx.Err() != nil }

// Emit tells the lab's listener of something that happened on the machine.
func (h *Host) Emit(kind, detail string) { h.b.node.emit(kind, detail) }

// runKubernetes is the machine's part in a real Kubernetes, from the first start of the kubelet to the end of the
// boot. A control plane's static pods go on while the kubelet is restarted, as containers do.
func (b *boot) runKubernetes(k Kubernetes) {
	h := &Host{b}
	if b.machineType().IsControlPlane() {
		for _, p := range staticPods {
			b.showPod(p, false)
		}
		b.goDo(func() { b.runStaticPods(k, h) })
	}
	for b.waitRunning("kubelet") && !b.stopping() {
		ctx, cancel := context.WithCancel(b.ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.Kubelet(ctx, h, b.showNodeStatus)
		}()
		b.waitStopped("kubelet")
		cancel()
		<-done
	}
}

// runStaticPods runs a control plane's pods from when its etcd is there until stopPods.
func (b *boot) runStaticPods(k Kubernetes, h *Host) {
	if !b.waitRunning("etcd") {
		return
	}
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	b.mu.Lock()
	b.cancelPods = cancel
	b.mu.Unlock()
	if b.stopping() {
		return
	}
	k.ControlPlane(ctx, h, func(pod string, ok bool) {
		if ctx.Err() == nil {
			b.setPodReady(pod, ok)
		}
	})
}

// waitStopped waits until a service runs no more.
func (b *boot) waitStopped(id string) {
	for {
		st, _, wake := b.svc.state(id)
		if st != stRunning {
			return
		}
		select {
		case <-b.ctx.Done():
			return
		case <-wake:
		}
	}
}

// showNodeStatus writes what the API server says of the machine's Node, as Talos's own watch of it does. It stays as it
// was last seen while the API server is out of reach.
func (b *boot) showNodeStatus(spec *k8s.NodeStatusSpec) {
	if b.ctx.Err() != nil {
		return
	}
	list, err := b.state.List(b.ctx, k8s.NewNodeStatus(k8s.NamespaceName, "").Metadata())
	if err != nil {
		return
	}
	for _, r := range list.Items {
		if spec == nil || r.Metadata().ID() != spec.Nodename {
			remove(b, "k8s.NodeStatusController", r.Metadata())
		}
	}
	if spec != nil {
		put(b, "k8s.NodeStatusController", k8s.NewNodeStatus(k8s.NamespaceName, spec.Nodename), func(r *k8s.NodeStatus) {
			*r.TypedSpec() = *spec
		})
	}
	b.refresh()
}

// StaticPodState is a static pod as Talos shows it.
type StaticPodState struct {
	Name, Version string // without the node's name; the version of its configuration
	Ready         bool
}

// StaticPodStatus lists the machine's static pods as its resources have them.
func (h *Host) StaticPodStatus() []StaticPodState {
	var res []StaticPodState
	host := h.Hostname()
	for _, name := range staticPods {
		r, err := safe.StateGetByID[*k8s.StaticPodStatus](h.b.ctx, h.b.state, "kube-system/"+name+"-"+host)
		if err != nil {
			continue
		}
		version, _ := r.Metadata().Annotations().Get("talos.dev/config-version")
		res = append(res, StaticPodState{Name: name, Version: version, Ready: podReady(r.TypedSpec().PodStatus)})
	}
	return res
}
