package kube_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
)

const readyStatus = `jsonpath={.status.conditions[?(@.type=="Ready")].status}`

// apps is a deployment of two pods that stop after a second, with a budget that wants both.
const apps = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {lab.ichor.maesh.dev/stop-after: 1s}}
    spec: {containers: [{name: web, image: example.com/web:1}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: default}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
`

// TestCluster is one cluster's story: what is shown here needs a running one, and starting one costs the most.
func TestCluster(t *testing.T) {
	r := newRig(t, 81, 1)
	r.start(1, 2)
	for _, s := range []struct {
		name string
		f    func(*rig)
	}{
		{"nodes", nodes},
		{"kubeconfig of Talos", talosKubeconfig},
		{"health", health},
		{"access", access},
		{"encryption", encryption},
		{"config changes", configChanges},
		{"grace", grace},
		{"drain", drain},
		{"reboot with a drain", rebootWithDrain},
		{"stale lease", staleLease},
		{"reboot", reboot},
		{"not ready", notReady},
		{"deleted node", deletedNode},
	} {
		t.Run(s.name, func(t *testing.T) {
			outer := r.t
			r.t = t
			defer func() { r.t = outer }()
			began := time.Now()
			s.f(r)
			t.Logf("took %s", time.Since(began).Round(100*time.Millisecond))
		})
	}
}

// nodes: real kubectl sees the machines, and Talos sees what Kubernetes says of them.
func nodes(r *rig) {
	r.eventually(`["node-role.kubernetes.io/control-plane","node.kubernetes.io/exclude-from-external-load-balancers"]`,
		"get", "node", "cp1", "-o", `jsonpath={.metadata.annotations.talos\.dev/owned-labels}`)
	out := r.must("get", "nodes", "-o", "wide")
	r.t.Log("\n" + out)
	for _, line := range []string{"cp1", "w1", "w2"} {
		if !strings.Contains(out, line) {
			r.t.Errorf("kubectl get nodes does not show %s", line)
		}
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name                string
				Labels, Annotations map[string]string
			}
			Spec struct {
				ProviderID string
				PodCIDR    string
				Taints     []struct{ Key, Effect string }
			}
			Status struct {
				NodeInfo  struct{ SystemUUID, BootID, KubeletVersion, OSImage string }
				Addresses []struct{ Type, Address string }
			}
		}
	}
	r.get(&list, "nodes")
	for _, n := range list.Items {
		machine := r.lab.Node(n.Metadata.Name)
		if machine == nil {
			r.t.Fatalf("Node %s is no machine", n.Metadata.Name)
		}
		spec := machine.Spec()
		if n.Status.NodeInfo.SystemUUID != spec.UUID || n.Status.NodeInfo.BootID != machine.BootID() ||
			n.Status.NodeInfo.KubeletVersion != "v1.36.0" || n.Status.NodeInfo.OSImage != "Talos (v1.13.5)" {
			r.t.Errorf("Node %s: %+v of machine %s", n.Metadata.Name, n.Status.NodeInfo, spec.UUID)
		}
		if n.Spec.ProviderID != "" || n.Spec.PodCIDR == "" || n.Status.Addresses[0].Type != "InternalIP" || n.Status.Addresses[0].Address != spec.Address.String() {
			r.t.Errorf("Node %s: provider ID %q, pod range %q, addresses %v", n.Metadata.Name, n.Spec.ProviderID, n.Spec.PodCIDR, n.Status.Addresses)
		}
		_, role := n.Metadata.Labels["node-role.kubernetes.io/control-plane"]
		cp := n.Metadata.Name == "cp1"
		if role != cp || (len(n.Spec.Taints) > 0) != cp {
			r.t.Errorf("Node %s: labels %v, taints %v", n.Metadata.Name, n.Metadata.Labels, n.Spec.Taints)
		}
		if cp && n.Metadata.Annotations["talos.dev/owned-taints"] != `["node-role.kubernetes.io/control-plane"]` {
			r.t.Errorf("Node %s: annotations %v", n.Metadata.Name, n.Metadata.Annotations)
		}
	}
	r.eventually("1.36.0 True", "-n", "kube-system", "get", "pod", "kube-apiserver-cp1", "-o",
		`jsonpath={.metadata.labels.app\.kubernetes\.io/version} {.status.conditions[?(@.type=="Ready")].status}`)
}

// talosKubeconfig: what talosctl kubeconfig gets from a control plane is an administrator's.
func talosKubeconfig(r *rig) {
	c := r.secure("cp1")
	data, err := c.Kubeconfig(r.ctx)
	must(r.t, err)
	path := filepath.Join(r.dir, "from-talos")
	must(r.t, os.WriteFile(path, data, 0o600))
	out, err := exec.CommandContext(r.ctx, r.kubectlPath, "--kubeconfig", path, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `admin ["system:masters"`) {
		r.t.Errorf("with Talos's kubeconfig: %v %s", err, out)
	}
}

// health: real talosctl finds the whole cluster healthy, its Kubernetes part too, which it looks at itself.
func health(r *rig) {
	out, err := r.talosctl("cp1", "health", "--server=false", "--control-plane-nodes", r.addr(1).String(),
		"--worker-nodes", r.addr(11).String()+","+r.addr(12).String(), "--wait-timeout", "90s")
	if err != nil || !strings.Contains(out, "waiting for coredns to report ready: OK") || !strings.Contains(out, "waiting for all k8s nodes to report schedulable: OK") {
		r.t.Errorf("talosctl health: %v\n%s", err, out)
	}
}

// rebootWithDrain: talosctl cordons and drains the Node, reboots the machine and uncordons it.
func rebootWithDrain(r *rig) {
	boot := r.lab.Node("w2").BootID()
	out, err := r.talosctl("w2", "reboot", "--drain", "--wait", "--timeout", "150s")
	if err != nil || !strings.Contains(out, "node uncordoned") || r.lab.Node("w2").BootID() == boot {
		r.t.Errorf("talosctl reboot --drain: %v\n%s", err, out)
	}
	if left := r.must("get", "pods", "-l", "app=web", "--field-selector=spec.nodeName=w2", "-o", "name"); left != "" {
		r.t.Errorf("pods left on w2: %s", left)
	}
	r.must("rollout", "status", "deployment/web", "--timeout=120s")
}

// access: nobody gets in without a certificate of this cluster's authority.
func access(r *rig) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Get("https://" + r.addr(1).String() + ":6443/version")
	must(r.t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		r.t.Errorf("without credentials: %s", resp.Status)
	}
	out, err := r.kubectl("--as=system:node:w1", "--as-group=system:nodes", "label", "node", "w2", "a=b")
	if err == nil || !strings.Contains(out, "forbidden") {
		r.t.Errorf("a worker may label another: %s", out)
	}
}

// encryption: Secrets are encrypted in etcd with the key of the secrets bundle.
func encryption(r *rig) {
	r.must("create", "secret", "generic", "hidden", "--from-literal=word=plaintextword")
	cl, err := r.lab.EtcdClient(r.ctx)
	must(r.t, err)
	defer cl.Close()
	got, err := cl.Get(r.ctx, "/registry/secrets/default/hidden")
	must(r.t, err)
	if len(got.Kvs) != 1 || !bytes.HasPrefix(got.Kvs[0].Value, []byte("k8s:enc:secretbox:v1:key2:")) || bytes.Contains(got.Kvs[0].Value, []byte("plaintextword")) {
		r.t.Errorf("the Secret in the cluster's etcd is not encrypted: %d keys", len(got.Kvs))
	}
}

// configChanges: labels of a machine configuration reach the Node and leave it again; what a worker may not give itself
// is refused by the real API server.
func configChanges(r *rig) {
	with := func(extra string) { r.applyConfig("w1", mtype.TypeWorker, "    install:\n", extra+"    install:\n") }
	with("    nodeLabels:\n        zone: a\n    nodeAnnotations:\n        note: hello\n")
	r.eventually(`a hello ["zone"]`, "get", "node", "w1", "-o", `jsonpath={.metadata.labels.zone} {.metadata.annotations.note} {.metadata.annotations.talos\.dev/owned-labels}`)
	must(r.t, r.lab.WaitReady(r.ctx, "w1"))
	with("    nodeTaints:\n        dedicated: db:NoSchedule\n")
	must(r.t, r.wait(func() bool { return r.happened("w1 kubelet", "is not allowed to modify taints") }))
	with("")
	r.eventually("", "get", "node", "w1", "-o", `jsonpath={.metadata.labels.zone}{.metadata.annotations.note}{.metadata.annotations.talos\.dev/owned-labels}`)
	// A change of the API server's section restarts it with the new flags.
	r.applyConfig("cp1", mtype.TypeControlPlane, "    apiServer:\n", "    apiServer:\n        extraArgs:\n            max-requests-inflight: \"401\"\n")
	must(r.t, r.wait(func() bool {
		out, _ := exec.Command("pgrep", "-f", "kube-apiserver.*--advertise-address="+r.addr(1).String()+" .*--max-requests-inflight=401").Output()
		return len(out) > 0
	}))
	must(r.t, r.lab.WaitReady(r.ctx, "cp1"))
	r.eventually("True", "get", "node", "cp1", "-o", readyStatus)
}

// grace: a deleted pod is there, terminating, for as long as its grace period is.
func grace(r *rig) {
	r.apply(`
apiVersion: v1
kind: Pod
metadata: {name: slow, namespace: default}
spec: {terminationGracePeriodSeconds: 4, containers: [{name: c, image: example.com/c:1}]}`)
	r.eventually("Running", "get", "pod", "slow", "-o", "jsonpath={.status.phase}")
	began := time.Now()
	r.must("delete", "pod", "slow", "--wait=false")
	if out := r.must("get", "pod", "slow"); !strings.Contains(out, "Terminating") {
		r.t.Errorf("after the delete: %s", out)
	}
	r.must("wait", "--for=delete", "pod/slow", "--timeout=60s")
	if d := time.Since(began); d < 3500*time.Millisecond {
		r.t.Errorf("gone after %s, the grace period is 4 s", d)
	}
	began = time.Now()
	r.apply(`
apiVersion: v1
kind: Pod
metadata: {name: quick, namespace: default}
spec: {terminationGracePeriodSeconds: 600, containers: [{name: c, image: example.com/c:1}]}`)
	r.eventually("Running", "get", "pod", "quick", "-o", "jsonpath={.status.phase}")
	r.must("delete", "pod", "quick", "--wait=false")
	r.must("delete", "pod", "quick", "--grace-period=1", "--timeout=60s")
	if d := time.Since(began); d > 60*time.Second {
		r.t.Errorf("a shorter grace period on a second delete is not heard: gone after %s", d)
	}
}

// drain waits while the budget allows nothing, and goes through when it does.
func drain(r *rig) {
	r.apply(apps)
	r.must("rollout", "status", "deployment/web", "--timeout=120s")
	r.eventually("0 2", "get", "pdb", "web", "-o", "jsonpath={.status.disruptionsAllowed} {.status.currentHealthy}")
	on := strings.Fields(r.must("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"))[0]
	out, err := r.kubectl("drain", on, "--ignore-daemonsets", "--timeout=8s")
	if err == nil || !strings.Contains(out, "Cannot evict pod as it would violate the pod's disruption budget") {
		r.t.Fatalf("drain against the budget: %v\n%s", err, out)
	}
	if n := len(strings.Fields(r.must("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))); n != 2 {
		r.t.Errorf("%d pods after a drain that was refused", n)
	}
	// The answer itself, as a program sees it.
	pod := strings.Fields(r.must("get", "pods", "-l", "app=web", "--field-selector=spec.nodeName="+on, "-o", "jsonpath={.items[*].metadata.name}"))[0]
	out, err = r.kubectlIn(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+pod+`","namespace":"default"}}`,
		"create", "-v=6", "--raw", "/api/v1/namespaces/default/pods/"+pod+"/eviction", "-f", "-")
	if err == nil || !strings.Contains(out, "429") && !strings.Contains(out, "TooManyRequests") {
		r.t.Errorf("eviction against the budget: %v\n%s", err, out)
	}
	must(r.t, r.wait(func() bool { return strings.Contains(r.must("get", "node", on), "SchedulingDisabled") }))
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.kubectlPath, "--kubeconfig", r.kubeconfig, "drain", on, "--ignore-daemonsets", "--timeout=120s")
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	must(r.t, cmd.Start())
	time.Sleep(3 * time.Second)
	r.must("patch", "pdb", "web", "-p", `{"spec":{"minAvailable":1}}`)
	if err := cmd.Wait(); err != nil {
		r.t.Fatalf("drain once the budget allows it: %v\n%s", err, text.String())
	}
	r.t.Log("\n" + text.String())
	if left := r.must("get", "pods", "-l", "app=web", "--field-selector=spec.nodeName="+on, "-o", "name"); left != "" {
		r.t.Errorf("pods left on %s: %s", on, left)
	}
	r.must("rollout", "status", "deployment/web", "--timeout=120s")
	r.must("uncordon", on)
}

// staleLease: nobody says that a machine was cut off but its lease, which gets old.
func staleLease(r *rig) {
	lease := func() string {
		return r.must("-n", "kube-node-lease", "get", "lease", "w1", "-o", "jsonpath={.spec.renewTime}")
	}
	before := lease()
	must(r.t, r.wait(func() bool { return lease() != before }))
	must(r.t, r.lab.Cut("w1"))
	r.eventually("Unknown", "get", "node", "w1", "-o", readyStatus)
	cut := lease()
	time.Sleep(3 * time.Second)
	if lease() != cut {
		r.t.Error("the lease of a node that is cut off is renewed")
	}
	if out := r.must("get", "node", "w1"); !strings.Contains(out, "NotReady") {
		r.t.Errorf("kubectl get node: %s", out)
	}
	if out := r.must("get", "node", "w1", "-o", "jsonpath={.spec.taints[*].key}"); !strings.Contains(out, "node.kubernetes.io/unreachable") {
		r.t.Errorf("taints: %s", out)
	}
	if out := r.must("get", "node", "w2", "-o", readyStatus); out != "True" {
		r.t.Errorf("w2, which is not cut, is %s", out)
	}
	if !r.lab.Node("w1").Ready() {
		r.t.Errorf("the machine itself does not know that it was cut off, but is not ready: %s", r.lab.Node("w1").Unmet())
	}
	must(r.t, r.lab.Heal("w1"))
	r.eventually("True", "get", "node", "w1", "-o", readyStatus)
	must(r.t, r.wait(func() bool { return lease() != cut }))
}

// reboot: a machine that is off renews nothing; after its return the Node has its new boot ID.
func reboot(r *rig) {
	must(r.t, r.lab.Kill("w2"))
	r.eventually("Unknown", "get", "node", "w2", "-o", readyStatus)
	must(r.t, r.lab.Start("w2"))
	r.eventually("True", "get", "node", "w2", "-o", readyStatus)
	must(r.t, r.lab.WaitReady(r.ctx, "w2"))
	r.eventually(r.lab.Node("w2").BootID(), "get", "node", "w2", "-o", "jsonpath={.status.nodeInfo.bootID}")
	// The control plane too: its API is refused meanwhile, and everything is there afterwards.
	must(r.t, r.lab.Reboot("cp1"))
	must(r.t, r.lab.WaitReady(r.ctx, "cp1"))
	r.eventually("True", "get", "node", "cp1", "-o", readyStatus)
	r.must("get", "deployment", "web")
}

// notReady: what the kubelet says goes through the API server to Talos's own condition.
func notReady(r *rig) {
	n := r.lab.Node("w1")
	n.SetNodeReady(false)
	r.eventually("False", "get", "node", "w1", "-o", readyStatus)
	must(r.t, r.wait(func() bool { return !n.Ready() }))
	if !strings.Contains(n.Unmet(), `node "w1" is not ready`) {
		r.t.Errorf("unmet: %s", n.Unmet())
	}
	n.SetNodeReady(true)
	r.eventually("True", "get", "node", "w1", "-o", readyStatus)
	must(r.t, r.lab.WaitReady(r.ctx, "w1"))
}

// deletedNode: a Node that is deleted stays away until its kubelet starts again, and Talos sees that it is gone.
func deletedNode(r *rig) {
	r.must("delete", "node", "w2")
	n := r.lab.Node("w2")
	must(r.t, r.wait(func() bool { return strings.Contains(n.Unmet(), `node "w2" status is not available yet`) }))
	time.Sleep(4 * time.Second)
	if out, err := r.kubectl("get", "node", "w2"); err == nil {
		r.t.Errorf("a deleted Node came back by itself: %s", out)
	}
	must(r.t, r.lab.Reboot("w2"))
	r.eventually("True", "get", "node", "w2", "-o", readyStatus)
	must(r.t, r.lab.WaitReady(r.ctx, "w2"))
}
