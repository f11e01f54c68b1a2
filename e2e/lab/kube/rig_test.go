package kube_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/kube"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// long runs the longest variants: make test-all.
var long = flag.Bool("long", false, "run the longest variants")

// patience is how long anything may take on a slow machine. What succeeds doesn't wait for it.
const patience = 3 * time.Minute

// rig is a lab with Kubernetes and one cluster.
type rig struct {
	t                       *testing.T
	ctx                     context.Context
	lab                     *lab.Lab
	dir                     string
	bundle                  *secrets.Bundle
	net                     byte
	kubectlPath, kubeconfig string

	mu  sync.Mutex
	log []string
}

// needTools skips a test where Kubernetes' programs were not built, and says how they are.
func needTools(t *testing.T) kube.Tools {
	t.Helper()
	tools, err := kube.FindTools()
	if err == nil && tools.Kubectl == "" {
		err = fmt.Errorf("kubectl is missing; hack/tools.sh kubernetes builds it")
	}
	if err != nil {
		t.Skipf("skipped: %v", err)
	}
	return tools
}

func newRig(t *testing.T, net byte, servers int) *rig {
	t.Helper()
	tools := needTools(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(cancel)
	b, err := secrets.NewBundle(secrets.NewFixedClock(time.Now().Add(-time.Minute)), config.TalosVersion1_13)
	must(t, err)
	r := &rig{t: t, ctx: ctx, dir: t.TempDir(), bundle: b, net: net, kubectlPath: tools.Kubectl}
	k := kube.New(kube.Options{Tools: tools, Servers: servers})
	r.lab, err = lab.New(ctx, lab.Options{StateDir: r.dir, Kubernetes: k, OnEvent: r.event})
	must(t, err)
	t.Cleanup(func() {
		must(t, r.lab.Close())
		k.Close()
		if t.Failed() {
			r.dump()
		}
	})
	admin, err := kube.AdminKubeconfig([]kube.Access{{Cluster: "lab", Server: "https://" + r.addr(1).String() + ":6443", CA: b.Certs.K8s}}, time.Hour)
	must(t, err)
	r.kubeconfig = filepath.Join(r.dir, "kubeconfig")
	must(t, os.WriteFile(r.kubeconfig, admin, 0o600))
	return r
}

func (r *rig) event(e node.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf("%s %s %s %s", e.Time.Format("15:04:05.000"), e.Node, e.Kind, e.Detail))
}

// happened says whether an event has all the texts.
func (r *rig) happened(texts ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.log, func(line string) bool {
		for _, t := range texts {
			if !strings.Contains(line, t) {
				return false
			}
		}
		return true
	})
}

// secure is an administrator's client of a machine.
func (r *rig) secure(name string) *client.Client {
	r.t.Helper()
	cert, err := r.bundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(role.Admin), time.Hour)
	must(r.t, err)
	addr := r.lab.Node(name).Spec().Address.String()
	c, err := client.New(r.ctx, client.WithConfig(clientconfig.NewConfig("lab", []string{addr}, r.bundle.Certs.OS.Crt, cert)))
	must(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	return c
}

// talosctl runs the real one against a machine.
func (r *rig) talosctl(name string, args ...string) (string, error) {
	r.t.Helper()
	path := os.Getenv("ICHOR_TALOSCTL")
	if path == "" {
		out, err := exec.CommandContext(r.ctx, filepath.Join("..", "..", "..", "hack", "tools.sh"), "talosctl").Output()
		must(r.t, err)
		path = strings.TrimSpace(string(out))
	}
	cert, err := r.bundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(role.Admin), time.Hour)
	must(r.t, err)
	addr := r.lab.Node(name).Spec().Address.String()
	data, err := clientconfig.NewConfig("lab", []string{r.addr(1).String()}, r.bundle.Certs.OS.Crt, cert).Bytes()
	must(r.t, err)
	file := filepath.Join(r.dir, "talosconfig")
	must(r.t, os.WriteFile(file, data, 0o600))
	cmd := exec.CommandContext(r.ctx, path, append([]string{"--talosconfig", file, "-n", addr}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+r.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// applyConfig changes a machine's configuration through its API.
func (r *rig) applyConfig(name string, kind mtype.Type, patch ...string) {
	r.t.Helper()
	_, err := r.secure(name).ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{
		Data: r.config(kind, name, patch...), Mode: machine.ApplyConfigurationRequest_NO_REBOOT,
	})
	must(r.t, err)
}

// dump shows what happened, for a test that failed.
func (r *rig) dump() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.t.Log("events:\n" + strings.Join(r.log, "\n"))
}

func (r *rig) addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 74, r.net, byte(i)}) }

// config of a machine; patch replaces text of it.
func (r *rig) config(kind mtype.Type, hostname string, patch ...string) []byte {
	r.t.Helper()
	in, err := generate.NewInput("lab", "https://"+r.addr(1).String()+":6443", "1.36.0", generate.WithSecretsBundle(r.bundle),
		generate.WithVersionContract(config.TalosVersion1_13), generate.WithInstallDisk("/dev/vda"))
	must(r.t, err)
	p, err := in.Config(kind)
	must(r.t, err)
	b, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	must(r.t, err)
	return []byte(strings.NewReplacer(append([]string{"auto: stable", "hostname: " + hostname}, patch...)...).Replace(string(b)))
}

// start brings up control planes and workers that ran before.
func (r *rig) start(controlPlanes, workers int) {
	r.t.Helper()
	var list []lab.Configured
	add := func(name string, i int, kind mtype.Type) {
		list = append(list, lab.Configured{Spec: node.Spec{Name: name, Address: r.addr(i)}, Config: r.config(kind, name)})
	}
	for i := 1; i <= controlPlanes; i++ {
		add(fmt.Sprintf("cp%d", i), i, mtype.TypeControlPlane)
	}
	for i := 1; i <= workers; i++ {
		add(fmt.Sprintf("w%d", i), 10+i, mtype.TypeWorker)
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	must(r.t, r.lab.FromConfigured(ctx, list, "cp1"))
}

// kubectl runs the real one.
func (r *rig) kubectl(args ...string) (string, error) {
	return r.kubectlIn("", args...)
}

func (r *rig) kubectlIn(stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(r.ctx, r.kubectlPath, append([]string{"--kubeconfig", r.kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+r.dir)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r *rig) must(args ...string) string {
	r.t.Helper()
	out, err := r.kubectl(args...)
	if err != nil {
		r.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (r *rig) apply(manifest string) {
	r.t.Helper()
	if out, err := r.kubectlIn(manifest, "apply", "-f", "-"); err != nil {
		r.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// get reads an object.
func (r *rig) get(into any, args ...string) {
	r.t.Helper()
	must(r.t, json.Unmarshal([]byte(r.must(append(append([]string{"get"}, args...), "-o", "json")...)), into))
}

// eventually waits until kubectl prints what is wanted.
func (r *rig) eventually(want string, args ...string) {
	r.t.Helper()
	out := ""
	err := r.wait(func() bool {
		out, _ = r.kubectl(args...)
		return strings.TrimSpace(out) == want
	})
	if err != nil {
		r.t.Fatalf("kubectl %s: got %q, want %q", strings.Join(args, " "), out, want)
	}
}

func (r *rig) wait(cond func() bool) error {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
