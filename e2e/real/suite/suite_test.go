//go:build real

package suite

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/real"
)

// guard is what every test goes through; suiteCtx ends when the suite is interrupted.
var (
	guard    *real.Guard
	suiteCtx context.Context
)

func TestMain(m *testing.M) {
	os.Exit(real.Main(os.Stderr, func(ctx context.Context, g *real.Guard) int {
		guard, suiteCtx = g, ctx
		return m.Run()
	}))
}

func limited(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(suiteCtx, d)
	t.Cleanup(cancel)
	return ctx
}

// TestTalos: every named node answers as a Talos node, and its services are well.
func TestTalos(t *testing.T) {
	for _, n := range guard.Nodes() {
		out, err := guard.Talosctl(limited(t, time.Minute), []string{n}, "version", "--short")
		if err != nil {
			t.Errorf("%s: %v", n, err)
			continue
		}
		t.Logf("%s: %s", n, strings.Join(strings.Fields(out), " "))
		out, err = guard.Talosctl(limited(t, time.Minute), []string{n}, "get", "machinestatus", "-o", "json")
		if err != nil {
			t.Errorf("%s: %v", n, err)
			continue
		}
		var status struct {
			Spec struct {
				Stage  string
				Status struct{ Ready bool }
			}
		}
		if err := json.Unmarshal([]byte(out), &status); err != nil || status.Spec.Stage != "running" || !status.Spec.Status.Ready {
			t.Errorf("%s is not running and ready: %s (%v)", n, out, err)
		}
	}
}

// TestKubernetes: the context's cluster is the one of the nodes: each is listed with its address.
func TestKubernetes(t *testing.T) {
	out, err := guard.Kubectl(limited(t, time.Minute), "get", "nodes", "-o", `jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}`)
	if err != nil {
		t.Fatal(err)
	}
	there := strings.Fields(out)
	for _, n := range guard.Nodes() {
		if !slices.Contains(there, n) {
			t.Errorf("node %s is none of the cluster's (%s): the context is another cluster's", n, strings.Join(there, ", "))
		}
	}
}

// TestNamespace: what is made is deleted again.
func TestNamespace(t *testing.T) {
	ctx := limited(t, time.Minute)
	if out, err := guard.Kubectl(ctx, "get", "namespace", real.Namespace, "--ignore-not-found", "-o", "name"); err != nil {
		t.Fatal(err)
	} else if strings.TrimSpace(out) == "" {
		t.Skipf("there is no namespace %s: kubectl create namespace %s", real.Namespace, real.Namespace)
	}
	if err := guard.Apply(ctx, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: probe\ndata: {a: b}\n")); err != nil {
		t.Fatal(err)
	}
	if err := guard.Delete(ctx, "configmap", "probe"); err != nil {
		t.Fatal(err)
	}
	out, err := guard.Kubectl(ctx, "get", "configmap", "probe", "-n", real.Namespace, "--ignore-not-found", "-o", "name")
	if err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("it is still there: %s, %v", out, err)
	}
}
