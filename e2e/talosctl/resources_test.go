package talosctl

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	talos "github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// withContents is the least number of types that a configured control plane of the lab has something of.
const withContents = 105

func (s *story) client(who string) *talos.Client {
	s.t.Helper()
	c, err := talos.New(s.ctx, talos.WithConfigFromFile(filepath.Join(s.dir, who)), talos.WithEndpoints(cp1))
	s.must(err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// TestResources goes through all resource types of a configured control plane, as an admin and as
// a reader, and follows one that changes with the configuration.
func TestResources(t *testing.T) {
	s := newStory(t)
	n, err := s.lab.AddNode(node.Spec{Name: "cp1", Address: lab.Addr(cp1)})
	s.must(err)
	s.must(s.lab.WaitMaintenance(s.ctx, "cp1"))
	s.expect(0, ``, "apply-config", "-i", "-n", cp1, "-f", s.config(machine.TypeControlPlane, "cp1"))
	s.must(s.lab.Wait(s.ctx, "bootstrap to be taken", func() bool { return n.Bootstrap(s.ctx) == nil }))
	s.must(s.lab.WaitReady(s.ctx, "cp1"))

	admin, reader := s.client("admin"), s.client("reader")
	defs, err := safe.StateListAll[*meta.ResourceDefinition](s.ctx, admin.COSI)
	s.must(err)
	full := 0
	for d := range defs.All() {
		spec := d.TypedSpec()
		md := resource.NewMetadata(spec.DefaultNamespace, spec.Type, "", resource.VersionUndefined)
		items, err := admin.COSI.List(s.ctx, md)
		if err != nil {
			t.Errorf("list %s: %v", spec.Type, err)
			continue
		}
		if len(items.Items) > 0 {
			full++
		}
		for _, it := range items.Items {
			if it.Metadata().Owner() == "" && spec.Type != config.MachineConfigType {
				t.Errorf("%s has no owner", it.Metadata())
			}
		}
		_, err = reader.COSI.List(s.ctx, md)
		if denied := talos.StatusCode(err) == codes.PermissionDenied; denied != (spec.Sensitivity == meta.Sensitive) {
			t.Errorf("a reader lists %s, which is %q: %v", spec.Type, spec.Sensitivity, err)
		}
	}
	t.Logf("%d of %d resource types have contents", full, defs.Len())
	if full < withContents {
		t.Errorf("%d resource types have contents, want %d", full, withContents)
	}
	s.followLabels(admin)
}

// followLabels watches node labels, which are worked out on demand, through two changes of the configuration.
func (s *story) followLabels(c *talos.Client) {
	s.t.Helper()
	events := make(chan state.Event)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.must(c.COSI.WatchKind(ctx, k8s.NewNodeLabelSpec("").Metadata(), events))
	with := s.config(machine.TypeControlPlane, "cp1", "nodeLabels:\n", "nodeLabels:\n        a: b\n")
	without := s.config(machine.TypeControlPlane, "cp1")
	for _, step := range []struct {
		file string
		want state.EventType
	}{{with, state.Created}, {without, state.Destroyed}} {
		s.expect(0, ``, at(cp1, "apply-config", "-f", step.file)...)
		for {
			select {
			case e := <-events:
				if e.Resource != nil && e.Resource.Metadata().ID() == "a" && e.Type == step.want {
					break
				}
				continue
			case <-s.ctx.Done():
				s.t.Fatalf("the label was not %v", step.want)
			}
			break
		}
	}
	b, err := os.ReadFile(without)
	s.must(err)
	if !slices.Equal(b, s.lab.Node("cp1").ConfigBytes()) {
		s.t.Error("the configuration is not what was applied last")
	}
}
