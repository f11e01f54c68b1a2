package kube_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/kube"
)

// useServer makes kubectl talk to one control plane.
func (r *rig) useServer(i int) {
	r.t.Helper()
	data, err := kube.AdminKubeconfig([]kube.Access{{Cluster: "lab", Server: "https://" + r.addr(i).String() + ":6443", CA: r.bundle.Certs.K8s}}, time.Hour)
	must(r.t, err)
	r.kubeconfig = filepath.Join(r.dir, "kubeconfig"+strconv.Itoa(i))
	must(r.t, os.WriteFile(r.kubeconfig, data, 0o600))
}

// TestThreeControlPlanes: each has its own API server; the controller manager's election survives the loss of one, and
// without a quorum of etcd the API does not answer.
func TestThreeControlPlanes(t *testing.T) {
	if !*long {
		t.Skip("with -long")
	}
	r := newRig(t, 82, 3)
	r.start(3, 1)
	for i := 1; i <= 3; i++ {
		r.useServer(i)
		r.eventually("True", "get", "node", "w1", "-o", readyStatus)
	}
	r.useServer(2)
	must(t, r.lab.Cut("cp1"))
	r.eventually("Unknown", "get", "node", "cp1", "-o", readyStatus)
	must(t, r.lab.Cut("w1"))
	r.eventually("Unknown", "get", "node", "w1", "-o", readyStatus)
	must(t, r.lab.Heal("w1"))
	r.eventually("True", "get", "node", "w1", "-o", readyStatus)
	must(t, r.lab.Kill("cp3"))
	must(t, r.wait(func() bool {
		_, err := r.kubectl("--request-timeout=3s", "create", "configmap", "x"+strconv.FormatInt(time.Now().UnixNano(), 36))
		return err != nil
	}))
	must(t, r.lab.Heal("cp1"))
	must(t, r.lab.Start("cp3"))
	for i := 1; i <= 3; i++ {
		r.useServer(i)
		r.eventually("True", "get", "node", "cp"+strconv.Itoa(i), "-o", readyStatus)
	}
}

// TestSharedServer: with room for one set of programs, three control planes answer on their own ports, and another takes
// over when the one that runs them is gone.
func TestSharedServer(t *testing.T) {
	if !*long {
		t.Skip("with -long")
	}
	r := newRig(t, 83, 1)
	r.start(3, 1)
	if !r.happened("shares the API server") {
		t.Error("nobody said that it shares an API server")
	}
	owner := ""
	for i := 1; i <= 3; i++ {
		r.useServer(i)
		r.eventually("True", "get", "node", "w1", "-o", readyStatus)
		if name := "cp" + strconv.Itoa(i); r.happened(name+" kubernetes", "of its own") {
			owner += name
		}
	}
	if len(owner) != 3 {
		t.Fatalf("one control plane is to have programs of its own, these have: %s", owner)
	}
	must(t, r.lab.Kill(owner))
	for i := 1; i <= 3; i++ {
		if name := "cp" + strconv.Itoa(i); name != owner {
			r.useServer(i)
			r.eventually("Unknown", "get", "node", owner, "-o", readyStatus)
			r.eventually("True", "get", "node", "w1", "-o", readyStatus)
		}
	}
}
