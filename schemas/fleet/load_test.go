package fleet_test

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// repo makes a file system out of "path", "content" pairs; contents are dedented by their first line's indentation.
func repo(pairs ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		fsys[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1]), Mode: 0o644}
	}
	return fsys
}

const clusterYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: prod
spec:
  talosVersion: v1.13.5
  kubernetesVersion: 1.36.1
  endpoint:
    type: loadBalancer
    address: 127.10.0.100
  controlPlane:
    count: 3
  secretsRef:
    path: secrets.sops.yaml
`

const machineYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: cp1
spec:
  clusterRef:
    name: prod
  role: controlplane
  approvalState: approved
  endpoint: 127.10.0.11
`

func mustLoad(t *testing.T, fsys fstest.MapFS) (*fleet.Fleet, []fleet.Problem) {
	t.Helper()
	f, problems, err := fleet.Load(context.Background(), fsys, fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f, problems
}

func TestLoadPutsAFleetTogether(t *testing.T) {
	f, problems := mustLoad(t, repo(
		"cluster.yaml", clusterYAML, "m/cp1.yml", machineYAML, "secrets.sops.yaml", "sops: {}\n", "README.md", "hello\n",
		"patches.yaml", strings.Join([]string{patchYAML("b", 1), patchYAML("a", 1), patchYAML("z", 0)}, "---\n"),
	))
	if len(problems) > 0 {
		t.Fatalf("problems: %+v", problems)
	}
	c := f.Cluster("prod")
	if c == nil || c.Manifest == nil || c.Machine("cp1") == nil || c.Secrets == nil || c.Secrets.Path != "secrets.sops.yaml" {
		t.Fatalf("cluster: %+v", c)
	}
	var order []string
	for _, p := range c.Patches {
		order = append(order, p.Name)
	}
	if got := strings.Join(order, " "); got != "z a b" {
		t.Errorf("patches in order %s, want z a b", got)
	}
	if got := c.At("spec.endpoint.address"); got != (fleet.Position{File: "cluster.yaml", Line: 10, Column: 5}) {
		t.Errorf("spec.endpoint.address at %+v", got)
	}
	if len(f.Files) != 5 {
		t.Errorf("%d files, want 5", len(f.Files))
	}
}

func patchYAML(name string, order int) string {
	return `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: ` + name + `
spec:
  clusterRef: {name: prod}
  order: ` + string(rune('0'+order)) + `
  documents:
    - machine:
        sysctls:
          net.core.somaxconn: "4096"
`
}
