package main

import (
	"fmt"
	"os"
	"path/filepath"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/render/bundle"
)

// sealedBundle is one bundle for all clusters: stand-ins are made per cluster, whatever the file holds.
func sealedBundle() ([]byte, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make an age identity: %w", err)
	}
	_, plain, err := bundle.Generate("v1.13", secrets.NewClock())
	if err != nil {
		return nil, err
	}
	return bundle.Encrypt(plain, "secrets.sops.yaml", []string{id.Recipient().String()}, "")
}

// write makes the repository: a folder per cluster, a file per machine and per patch.
func (s size) write(dir string, sealed []byte) error {
	per := s.machines / s.clusters
	for c := range s.clusters {
		files := map[string]string{
			"cluster.yaml":      fmt.Sprintf(clusterText, c, c/250, c%250),
			"secrets.sops.yaml": string(sealed),
		}
		for i := range per {
			n := c*per + i
			role := "worker"
			if i < 3 {
				role = "controlplane"
			}
			labels := ""
			if s.labelled {
				labels = fmt.Sprintf("  nodeLabels:\n    example.com/serial: \"%d\"\n", n)
			}
			files[fmt.Sprintf("machines/m%05d.yaml", i)] = fmt.Sprintf(machineText, i, i%40, c, role, n/65536, n/256%256, n%256, c, i) + labels
		}
		for i := range s.patches {
			selector := fmt.Sprintf("{matchLabels: {rack: r%d}}", i)
			if i < 2 {
				selector = "{}" // for all
			}
			files[fmt.Sprintf("patches/p%02d.yaml", i)] = fmt.Sprintf(patchText, i, c, i, selector, i)
		}
		for name, text := range files {
			path := filepath.Join(dir, fmt.Sprintf("c%03d", c), name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	clusterText = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: c%03d
spec:
  talosVersion: v1.13.5
  contract: v1.13
  kubernetesVersion: v1.36.1
  endpoint:
    type: loadBalancer
    address: 172.31.%d.%d
  controlPlane:
    count: 3
  secretsRef:
    path: ./secrets.sops.yaml
  install:
    disk: /dev/sda
`
	machineText = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: m%05d
  labels:
    rack: r%d
spec:
  clusterRef:
    name: c%03d
  role: %s
  approvalState: approved
  endpoint: 192.%d.%d.%d
  hostname: c%03d-m%05d
`
	patchText = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: p%02d
spec:
  clusterRef:
    name: c%03d
  order: %d
  selector: %s
  documents:
    - machine:
        sysctls:
          net.example.p%d: "1"
`
)
