//go:build real

package suite

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"

	"ichor.maesh.dev/ichor/e2e/conformance"
)

// TestConformance asks the named nodes what the lab's nodes are held to. It only reads, but where every named node may be
// changed. What such nodes can't show is skipped, with the reason.
func TestConformance(t *testing.T) {
	creds, err := clientconfig.Open(guard.Talosconfig())
	if err != nil {
		t.Fatal(err)
	}
	target := conformance.Target{
		Talosconfig: creds, Deny: guard.Deny(), Patience: 10 * time.Minute,
		Destructive: len(guard.Nodes()) > 0 && len(guard.Destructive()) == len(guard.Nodes()),
	}
	for _, n := range guard.Nodes() {
		address, err := guard.Node(n)
		if err != nil {
			t.Fatal(err)
		}
		out, err := guard.Talosctl(limited(t, time.Minute), []string{n}, "get", "machinetype", "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		var kind struct{ Spec string }
		if err := json.Unmarshal([]byte(out), &kind); err != nil {
			t.Fatalf("the role of %s: %v\n%s", n, err, out)
		}
		switch {
		case kind.Spec == "worker" && target.Worker == "":
			target.Worker = address
		case slices.Contains([]string{"controlplane", "init"}, kind.Spec) && target.ControlPlane == "":
			target.ControlPlane = address
		case slices.Contains([]string{"controlplane", "init"}, kind.Spec) && target.Second == "":
			target.Second = address
		}
	}
	if target.ControlPlane == "" {
		t.Skip("none of the named nodes is a control plane: the suite asks the others through one")
	}
	conformance.Run(t, target)
}
