package render_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// talosFor gives a Talos and a Kubernetes version for a contract.
var talosFor = map[string][2]string{
	"v1.11": {"v1.11.3", "v1.34.1"}, "v1.12": {"v1.12.5", "v1.35.2"},
	"v1.13": {"v1.13.5", "v1.36.1"}, "v1.14": {"v1.14.0", "v1.36.1"},
}

func newCluster(contract string) *fleet.Cluster {
	v := talosFor[contract]
	return &fleet.Cluster{
		Object: fleet.NewObject(v1alpha1.KindTalosCluster, "prod", "prod", fleet.Position{File: "cluster.yaml", Line: 1}),
		Manifest: &v1alpha1.TalosCluster{Spec: v1alpha1.TalosClusterSpec{
			TalosVersion: v[0], KubernetesVersion: v[1], Contract: contract,
			Endpoint: v1alpha1.ClusterEndpoint{Type: "loadBalancer", Address: "127.10.0.100"},
			Install:  v1alpha1.InstallSpec{Disk: "/dev/sda"},
		}},
	}
}

func addMachine(c *fleet.Cluster, name, role, endpoint, hostname string) *fleet.Machine {
	m := &fleet.Machine{
		Object: fleet.NewObject(v1alpha1.KindTalosMachine, name, c.Name, fleet.Position{File: name + ".yaml", Line: 1}),
		Manifest: &v1alpha1.TalosMachine{Spec: v1alpha1.TalosMachineSpec{
			Role: role, ApprovalState: v1alpha1.ApprovalApproved, Endpoint: endpoint, Hostname: hostname,
		}},
	}
	c.Machines = append(c.Machines, m)
	return m
}

func addPatch(c *fleet.Cluster, name string, order int, sel v1alpha1.Selector, entries ...string) *fleet.Patch {
	p := &fleet.Patch{
		Object: fleet.NewObject(v1alpha1.KindTalosConfigPatch, name, c.Name, fleet.Position{File: "patches.yaml", Line: 10 * order}),
		Manifest: &v1alpha1.TalosConfigPatch{Spec: v1alpha1.TalosConfigPatchSpec{
			Selector: sel, Order: order,
		}},
	}
	for i, e := range entries {
		pos := fleet.Position{File: "patches.yaml", Line: 10*order + 5 + i, Column: 7}
		p.Entries = append(p.Entries, fleet.PatchEntry{Raw: []byte(e), Pos: pos})
	}
	c.Patches = append(c.Patches, p)
	return p
}

var controlPlanes = v1alpha1.Selector{Roles: []string{"controlplane"}}

// threeAndOne is the example repository's fleet.
func threeAndOne(contract string) *fleet.Cluster {
	c := newCluster(contract)
	for i := 1; i <= 3; i++ {
		addMachine(c, fmt.Sprint("cp", i), "controlplane", fmt.Sprint("127.10.0.1", i), fmt.Sprint("prod-cp", i))
	}
	addMachine(c, "w1", "worker", "127.10.0.21:50000", "prod-w1")
	return c
}

func standIn(t testing.TB, c *fleet.Cluster) *bundle.Bundle {
	t.Helper()
	var text []byte
	if c.Secrets != nil {
		text = c.Secrets.Data
	}
	b, err := bundle.StandIn(c.Name, text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// realBundles are made once a contract: an RSA key takes a second.
var realBundles sync.Map

func realBundle(t testing.TB, contract string) (*bundle.Bundle, []byte) {
	t.Helper()
	type made struct {
		b    *bundle.Bundle
		text []byte
	}
	if m, ok := realBundles.Load(contract); ok {
		return m.(made).b, m.(made).text
	}
	b, text := newBundle(t, contract)
	realBundles.Store(contract, made{b, text})
	return b, text
}

func newBundle(t testing.TB, contract string) (*bundle.Bundle, []byte) {
	t.Helper()
	b, text, err := bundle.Generate(contract, secrets.NewFixedClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
	if err != nil {
		t.Fatal(err)
	}
	return b, text
}

func testKeys(t testing.TB) bundle.Keys {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	k, err := bundle.ParseKeys([]byte(id.String()))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func mustRender(t testing.TB, in render.Input) []render.Result {
	t.Helper()
	res, err := render.Cluster(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func noErrors(t testing.TB, res []render.Result) {
	t.Helper()
	for _, r := range res {
		if r.Err != nil {
			t.Fatalf("%s: %v", r.Machine.Name, r.Err)
		}
	}
}

func TestRenderLoadsAndIsStable(t *testing.T) {
	for _, contract := range []string{"v1.11", "v1.12", "v1.13", "v1.14"} {
		t.Run(contract, func(t *testing.T) {
			c := threeAndOne(contract)
			addPatch(c, "sysctls", 10, v1alpha1.Selector{}, "machine:\n  sysctls:\n    net.core.somaxconn: \"4096\"\n")
			in := render.Input{Cluster: c, Bundle: standIn(t, c)}
			res := mustRender(t, in)
			noErrors(t, res)
			again := mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)})
			for i, r := range res {
				if !bytes.Equal(r.Config.Reveal(), again[i].Config.Reveal()) || r.Digest != again[i].Digest {
					t.Errorf("%s: two renders differ", r.Machine.Name)
				}
				cfg, err := configloader.NewFromBytes(r.Config.Reveal())
				if err != nil {
					t.Fatal(err)
				}
				if got := cfg.NetworkHostnameConfig().Hostname(); got != r.Machine.Manifest.Spec.Hostname {
					t.Errorf("hostname %q", got)
				}
				if !strings.Contains(string(r.Config.Reveal()), "- "+render.HostOf(r.Machine.Manifest.Spec.Endpoint)+"\n") {
					t.Errorf("%s: endpoint is no SAN", r.Machine.Name)
				}
				if !r.Patches[0].Changed {
					t.Error("the patch changed something")
				}
				if r.Masked.Digest() != r.Digest {
					t.Error("the digest is not that of the masked form")
				}
			}
		})
	}
}

// TestExamplePatch is SPEC section 2's example.
func TestExamplePatch(t *testing.T) {
	const patch = "cluster:\n  apiServer:\n    extraArgs:\n      v: \"2\"\n"
	for contract, fails := range map[string]bool{"v1.13": false, "v1.14": true} {
		c := threeAndOne(contract)
		addPatch(c, "sysctls", 10, v1alpha1.Selector{}, "machine:\n  sysctls:\n    net.core.somaxconn: \"4096\"\n")
		p := addPatch(c, "apiserver-verbosity", 20, controlPlanes, patch)
		for _, r := range mustRender(t, render.Input{Cluster: c, Bundle: standIn(t, c)}) {
			if r.Machine.Manifest.Spec.Role == "worker" || !fails {
				if r.Err != nil {
					t.Errorf("%s %s: %v", contract, r.Machine.Name, r.Err)
				}
				continue
			}
			if r.Err == nil || !strings.Contains(r.Err.Talos, "kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)") {
				t.Fatalf("%s %s: %v", contract, r.Machine.Name, r.Err)
			}
			if r.Err.Patch != p || r.Err.Entry != 0 || r.Err.Pos != p.Entries[0].Pos || !strings.Contains(r.Err.Hint, "KubeAPIServerConfig") {
				t.Errorf("blame: %+v", r.Err)
			}
			if !r.Config.Empty() || r.Digest != "" {
				t.Error("a failed render gives nothing")
			}
		}
	}
}
