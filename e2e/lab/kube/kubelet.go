package kube

import (
	"context"
	"crypto/md5"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// kubelet is one life of a node's kubelet: from its start to its stop, or until the node has another name.
type kubelet struct {
	k    *Kubernetes
	h    *node.Host
	name string
	cfg  config.Provider
	c    *client
	show func(*k8s.NodeStatusSpec)
	pods *pods

	mu   sync.Mutex
	uid  string // of the Node
	said string // the last trouble that was told
}

// Kubelet implements node.Kubernetes.
func (k *Kubernetes) Kubelet(ctx context.Context, h *node.Host, show func(*k8s.NodeStatusSpec)) {
	for ctx.Err() == nil {
		cfg, changed := h.Config(), h.ConfigChanged()
		name := h.Hostname()
		if cfg == nil || cfg.Machine() == nil || name == "" || cfg.Machine().Kubelet().SkipNodeRegistration() {
			show(nil)
			wait(ctx, changed)
			continue
		}
		life, cancel := context.WithCancel(ctx)
		go func() {
			defer cancel()
			for life.Err() == nil && h.Hostname() == name && sameCluster(h.Config(), cfg) {
				sleep(life, k.timing.status)
			}
		}()
		l := &kubelet{k: k, h: h, name: name, cfg: cfg, show: show}
		l.run(life)
		cancel()
	}
}

// sameCluster says whether a change of configuration leaves the kubelet's identity as it is.
func sameCluster(now, then config.Provider) bool {
	if now == nil || now.Machine() == nil || now.Cluster() == nil {
		return false
	}
	return now.Machine().Kubelet().SkipNodeRegistration() == then.Machine().Kubelet().SkipNodeRegistration() &&
		string(acceptedCAs(now)) == string(acceptedCAs(then)) && now.Machine().Type() == then.Machine().Type()
}

func (l *kubelet) run(ctx context.Context) {
	cert := l.credentials(ctx)
	if cert == nil {
		return
	}
	l.c = newClient(l.h.Spec().Address, l.endpoints, acceptedCAs(l.cfg), cert, "")
	defer l.c.close()
	if !l.untilDone(ctx, "register Node "+l.name, l.register) {
		return
	}
	l.pods = newPods(l)
	var wg sync.WaitGroup
	wg.Go(func() { l.every(ctx, l.k.timing.lease, l.renew) })
	wg.Go(func() { l.every(ctx, l.k.timing.status, l.report) })
	wg.Go(func() { l.watchNode(ctx) })
	wg.Go(func() { l.talos(ctx) })
	wg.Go(func() { l.pods.run(ctx) })
	if l.cfg.Machine().Type().IsControlPlane() {
		wg.Go(func() { l.every(ctx, l.k.timing.status, l.mirror) })
	}
	wg.Wait()
}

// endpoints are the API servers that the machine knows, the nearest first.
func (l *kubelet) endpoints() []netip.AddrPort {
	var res []netip.AddrPort
	for _, a := range l.h.Endpoints() {
		switch {
		case a == l.h.Spec().Address && l.cfg.Machine().Type().IsControlPlane():
			res = append(res, l.k.near(l.h, l.cfg))
		case l.h.IsMachine(a):
			res = append(res, netip.AddrPortFrom(a, apiPort(l.cfg)))
		default: // the load balancer in front of the cluster
			res = append(res, netip.AddrPortFrom(a, endpointPort(l.cfg)))
		}
	}
	return res
}

// untilDone tries until it works, and tells the first failure of each kind.
func (l *kubelet) untilDone(ctx context.Context, what string, f func(context.Context) error) bool {
	for {
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		l.trouble(what, err)
		sleep(ctx, l.k.timing.retry)
	}
}

// trouble tells what the API server refused; that it can't be reached is nothing new on a node that starts.
func (l *kubelet) trouble(what string, err error) {
	if _, ok := errors.AsType[*apiError](err); !ok || answered(err, http.StatusConflict) {
		return
	}
	text := what + ": " + err.Error()
	l.mu.Lock()
	again := l.said == text
	l.said = text
	l.mu.Unlock()
	if !again {
		l.h.Emit("kubelet", text)
	}
}

// every calls f at once and then again and again.
func (l *kubelet) every(ctx context.Context, d time.Duration, f func(context.Context) error) {
	for ctx.Err() == nil {
		if err := f(ctx); err != nil && ctx.Err() == nil {
			l.trouble("kubelet", err)
			if _, ok := errors.AsType[*apiError](err); !ok {
				l.c.elsewhere()
			}
		}
		sleep(ctx, d)
	}
}

func (l *kubelet) path() string { return "/api/v1/nodes/" + l.name }

// register makes the Node, or takes over the one of its name.
func (l *kubelet) register(ctx context.Context) error {
	now := stamp()
	taints := []any{}
	if l.cfg.Machine().Type().IsControlPlane() && !l.cfg.Cluster().ScheduleOnControlPlanes() {
		taints = append(taints, map[string]any{"key": roleLabel, "effect": "NoSchedule"})
	}
	n := map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{
			"name":        l.name,
			"labels":      l.labels(),
			"annotations": map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		"spec":   map[string]any{"taints": taints},
		"status": l.status(nil, now),
	}
	var got object
	err := l.c.do(ctx, http.MethodPost, "/api/v1/nodes", "", n, &got)
	if answered(err, http.StatusConflict) {
		err = l.c.do(ctx, http.MethodGet, l.path(), "", nil, &got)
		if err == nil {
			err = l.c.do(ctx, http.MethodPatch, l.path(), strategicPatch, map[string]any{"metadata": map[string]any{"labels": l.labels()}}, &got)
		}
	} else if err == nil {
		l.h.Emit("kubelet", "registered Node "+l.name)
	}
	l.mu.Lock()
	l.uid = got.Metadata.UID
	l.mu.Unlock()
	return err
}

// labels that a kubelet gives its Node; Talos's own come from talos.go.
func (l *kubelet) labels() map[string]string {
	return map[string]string{
		"kubernetes.io/hostname": l.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
	}
}

// condition of a Node.
type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	LastHeartbeatTime  string `json:"lastHeartbeatTime"`
	LastTransitionTime string `json:"lastTransitionTime"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
}

// conditions are the kubelet's four; the time of a transition is kept from before.
func (l *kubelet) conditions(before []condition, now string) []condition {
	list := []condition{
		{Type: "MemoryPressure", Status: "False", Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"},
		{Type: "DiskPressure", Status: "False", Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure"},
		{Type: "PIDPressure", Status: "False", Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available"},
		{Type: "Ready", Status: "True", Reason: "KubeletReady", Message: "kubelet is posting ready status"},
	}
	if !l.h.Healthy() {
		list[3].Status, list[3].Reason = "False", "KubeletNotReady"
		list[3].Message = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"
	}
	for i := range list {
		c := &list[i]
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		for _, b := range before {
			if b.Type == c.Type && b.Status == c.Status {
				c.LastTransitionTime = b.LastTransitionTime
			}
		}
	}
	return list
}

// status is what the kubelet reports of its machine.
func (l *kubelet) status(before []condition, now string) map[string]any {
	spec := l.h.Spec()
	sum := md5.Sum([]byte(spec.UUID + l.h.Identity()))
	return map[string]any{
		"addresses": []map[string]string{
			{"type": "InternalIP", "address": spec.Address.String()},
			{"type": "Hostname", "address": l.name},
		},
		"capacity":        resources("4", "8153292Ki"),
		"allocatable":     resources("3950m", "7563468Ki"),
		"conditions":      l.conditions(before, now),
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": 10250}},
		"nodeInfo": map[string]any{
			"machineID": hex.EncodeToString(sum[:]), "systemUUID": spec.UUID, "bootID": l.h.BootID(),
			"kernelVersion": kernelVersion, "osImage": "Talos (" + spec.TalosVersion + ")", "containerRuntimeVersion": runtimeVersion,
			"kubeletVersion": versionOf(l.h.Config().Machine().Kubelet().Image()), "kubeProxyVersion": "",
			"operatingSystem": "linux", "architecture": "amd64",
		},
	}
}

// What a node of Talos 1.13 reports; nothing in the lab depends on it.
const (
	kernelVersion  = "6.18.36-talos"
	runtimeVersion = "containerd://2.2.5"
)

func resources(cpu, memory string) map[string]string {
	return map[string]string{"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "9171Mi", "hugepages-2Mi": "0", "hugepages-1Gi": "0"}
}

// report looks at the Node and writes its status where it is not what it should be. A Node that was deleted is not made
// again before the kubelet's next start, as with a real one.
func (l *kubelet) report(ctx context.Context) error {
	var got struct {
		Metadata meta
		Status   struct {
			Conditions []condition
			NodeInfo   struct{ BootID, KubeletVersion, OSImage, SystemUUID string }
			Addresses  []struct{ Type, Address string }
		}
	}
	err := l.c.do(ctx, http.MethodGet, l.path(), "", nil, &got)
	if answered(err, http.StatusNotFound) {
		return fmt.Errorf("update Node status: %w", err)
	}
	if err != nil {
		return err
	}
	want := l.status(got.Status.Conditions, stamp())
	if l.asReported(got.Status.Conditions) && got.Status.NodeInfo.BootID == l.h.BootID() &&
		got.Status.NodeInfo.OSImage == "Talos ("+l.h.Spec().TalosVersion+")" && got.Status.NodeInfo.SystemUUID == l.h.Spec().UUID &&
		got.Status.NodeInfo.KubeletVersion == versionOf(l.h.Config().Machine().Kubelet().Image()) &&
		len(got.Status.Addresses) == 2 && got.Status.Addresses[0].Address == l.h.Spec().Address.String() {
		return nil
	}
	// addresses are replaced as a whole: an old one must not stay beside the new
	want["addresses"] = append([]map[string]string{{"$patch": "replace"}}, want["addresses"].([]map[string]string)...)
	return l.c.do(ctx, http.MethodPatch, l.path()+"/status", strategicPatch, map[string]any{"status": want}, nil)
}

// asReported says whether the Node's conditions are what the kubelet would write now, but for the time, and not old: a
// kubelet writes an unchanged status every five minutes.
func (l *kubelet) asReported(got []condition) bool {
	for _, want := range l.conditions(nil, "") {
		found := false
		for _, c := range got {
			at, err := time.Parse(time.RFC3339, c.LastHeartbeatTime)
			found = found || (c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason &&
				err == nil && time.Since(at) < l.k.timing.heartbeat)
		}
		if !found {
			return false
		}
	}
	return true
}

// renew renews the Node's lease, and makes it again where it is gone.
func (l *kubelet) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(l.k.timing.lease, 2*time.Second))
	defer cancel()
	const all = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	spec := map[string]any{
		"holderIdentity": l.name, "renewTime": now, "leaseDurationSeconds": max(1, int((4 * l.k.timing.lease).Seconds())),
	}
	err := l.c.do(ctx, http.MethodPatch, all+"/"+l.name, mergePatch, map[string]any{"spec": spec}, nil)
	if !answered(err, http.StatusNotFound) {
		return err
	}
	var n object
	if err := l.c.do(ctx, http.MethodGet, l.path(), "", nil, &n); err != nil {
		if answered(err, http.StatusNotFound) {
			return nil // no lease for a Node that is not there
		}
		return err
	}
	return l.c.do(ctx, http.MethodPost, all, "", map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
		"metadata": map[string]any{"name": l.name, "namespace": "kube-node-lease", "ownerReferences": []any{n.owner()}},
	}, nil)
}

// watchNode tells Talos's side what the API server says of the Node.
func (l *kubelet) watchNode(ctx context.Context) {
	tell := func(obj json.RawMessage, gone bool) {
		var n struct {
			Metadata meta
			Spec     struct {
				Unschedulable bool
				PodCIDRs      []string
			}
			Status struct{ Conditions []condition }
		}
		if json.Unmarshal(obj, &n) != nil || ctx.Err() != nil {
			return
		}
		if gone {
			l.show(nil)
			return
		}
		st := &k8s.NodeStatusSpec{Nodename: n.Metadata.Name, Unschedulable: n.Spec.Unschedulable, Labels: n.Metadata.Labels, Annotations: n.Metadata.Annotations}
		for _, p := range n.Spec.PodCIDRs {
			if prefix, err := netip.ParsePrefix(p); err == nil {
				st.PodCIDRs = append(st.PodCIDRs, prefix)
			}
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" {
				st.NodeReady = c.Status == "True"
			}
		}
		if len(st.PodCIDRs) > 0 {
			l.pods.setCIDR(st.PodCIDRs[0])
		}
		l.show(st)
	}
	l.c.follow(ctx, "/api/v1/nodes", "metadata.name="+l.name, func(list []json.RawMessage) {
		if len(list) == 0 {
			l.show(nil)
		}
		for _, o := range list {
			tell(o, false)
		}
	}, tell)
}

var errTooEarly = errors.New("the cluster does not know the bootstrap token yet")

// credentials are the kubelet's client certificate: the one on its disk, else a new one by TLS bootstrap with the
// configuration's token; nil when ctx ended first.
func (l *kubelet) credentials(ctx context.Context) *tls.Certificate {
	if cert := l.storedCertificate(); cert != nil {
		return cert
	}
	var cert *tls.Certificate
	began := time.Now()
	l.untilDone(ctx, "ask for a client certificate for Node "+l.name, func(ctx context.Context) (err error) {
		cert, err = l.bootstrap(ctx)
		if answered(err, http.StatusUnauthorized, http.StatusForbidden) && time.Since(began) < time.Minute {
			return errTooEarly // a new cluster does not know the token yet
		}
		return err
	})
	return cert
}
