// Package harness runs the real ichor binary against a lab: what the demo and the end-to-end tests share.
package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/template"
)

// Fleet writes a small repository: one cluster with control planes cp1… and workers w1… on loopback addresses.
type Fleet struct {
	Dir string
	// Name of the cluster, default prod.
	Name string
	// Net is the first three numbers of the addresses: 127.10.0. Control planes are .11…, workers .21…
	Net                    string
	ControlPlanes, Workers int
	// TalosVersion and Contract, default v1.13.5 and v1.13.
	TalosVersion, Contract string
	// Settle, Interval and Grace, default 1s, 2s and 3s.
	Settle, Interval, Grace string
	// Annotations of the cluster.
	Annotations map[string]string
	// Somaxconn is the value that the patch sysctls sets, "" no such patch.
	Somaxconn string
	// APIServerVerbosity sets cluster.apiServer.extraArgs.v on control planes, "" not: changing it restarts the API servers.
	APIServerVerbosity string
	// Mode of the rollout, default apply.
	Mode string
	// KubernetesVersion, default v1.36.1.
	KubernetesVersion string
	// OnDrift of the rollout, default correct.
	OnDrift string
	// Suspend the cluster.
	Suspend bool
	// MachineSpec are further lines of a machine's spec, MachineAnnotations its annotations, by machine.
	MachineSpec        map[string]string
	MachineAnnotations map[string]map[string]string
	// Without are machines that are left out; their files are deleted.
	Without []string
	// Extra files by name; "" deletes one.
	Extra map[string]string
}

var clusterTemplate = template.Must(template.New("cluster").Parse(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: {{.Name}}
{{- if .Annotations}}
  annotations:
{{- range $k, $v := .Annotations}}
    {{$k}}: {{printf "%q" $v}}
{{- end}}
{{- end}}
spec:
  talosVersion: {{.TalosVersion}}
  contract: {{.Contract}}
  kubernetesVersion: {{.KubernetesVersion}}
{{- if .Suspend}}
  suspend: true
{{- end}}
  endpoint:
    type: loadBalancer
    address: {{.Net}}.100
  controlPlane:
    count: {{.ControlPlanes}}
  secretsRef:
    path: ./secrets.sops.yaml
  install:
    disk: /dev/vda
  rollout:
    settle: {{.Settle}}
    mode: {{.Mode}}
    onDrift: {{.OnDrift}}
  reachability:
    interval: {{.Interval}}
    grace: {{.Grace}}
`))

var machineTemplate = template.Must(template.New("machine").Parse(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: {{.Name}}
{{- if .Annotations}}
  annotations:
{{- range $k, $v := .Annotations}}
    {{$k}}: {{printf "%q" $v}}
{{- end}}
{{- end}}
spec:
  clusterRef:
    name: {{.Cluster}}
  role: {{.Role}}
  approvalState: approved
  endpoint: {{.Endpoint}}
  hostname: {{.Cluster}}-{{.Name}}
{{- if .Spec}}
  {{.Spec}}
{{- end}}
`))

var patchTemplate = template.Must(template.New("patch").Parse(`
{{- if .Somaxconn}}apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: sysctls
spec:
  clusterRef:
    name: {{.Name}}
  order: 10
  documents:
    - machine:
        sysctls:
          net.core.somaxconn: "{{.Somaxconn}}"
{{end}}
{{- if .APIServerVerbosity}}---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: apiserver-verbosity
spec:
  clusterRef:
    name: {{.Name}}
  selector:
    roles: [controlplane]
  order: 20
  documents:
    - cluster:
        apiServer:
          extraArgs:
            v: "{{.APIServerVerbosity}}"
{{end}}`))

func orDefault(s *string, def string) {
	if *s == "" {
		*s = def
	}
}

// Write writes the files; the secrets bundle stays as it is.
func (f Fleet) Write() error {
	f.defaults()
	files := map[string][]byte{}
	if err := fill(files, f.Name+"/cluster.yaml", clusterTemplate, f); err != nil {
		return err
	}
	for _, m := range f.machines() {
		if err := f.machine(files, m); err != nil {
			return err
		}
	}
	patches := f.Name + "/patches.yaml"
	files[patches] = nil
	if f.Somaxconn != "" || f.APIServerVerbosity != "" {
		if err := fill(files, patches, patchTemplate, f); err != nil {
			return err
		}
	}
	for name, text := range f.Extra {
		files[name] = []byte(text)
	}
	return f.store(files)
}

func (f *Fleet) defaults() {
	orDefault(&f.Name, "prod")
	orDefault(&f.TalosVersion, "v1.13.5")
	orDefault(&f.Contract, "v1.13")
	orDefault(&f.KubernetesVersion, "v1.36.1")
	orDefault(&f.Settle, "1s")
	orDefault(&f.Interval, "2s")
	orDefault(&f.Grace, "3s")
	orDefault(&f.Mode, "apply")
	orDefault(&f.OnDrift, "correct")
}

// place of a machine: its name, role and the last number of its address.
type place struct {
	name, role string
	last       int
}

func (f Fleet) machines() []place {
	var out []place
	for i := range f.ControlPlanes {
		out = append(out, place{fmt.Sprintf("cp%d", i+1), "controlplane", 11 + i})
	}
	for i := range f.Workers {
		out = append(out, place{fmt.Sprintf("w%d", i+1), "worker", 21 + i})
	}
	return out
}

func (f Fleet) machine(files map[string][]byte, m place) error {
	path := f.Name + "/" + m.name + ".yaml"
	if slices.Contains(f.Without, m.name) {
		files[path] = nil
		return nil
	}
	return fill(files, path, machineTemplate, map[string]any{
		"Name": m.name, "Cluster": f.Name, "Role": m.role, "Endpoint": fmt.Sprintf("%s.%d", f.Net, m.last),
		"Annotations": f.MachineAnnotations[m.name], "Spec": f.MachineSpec[m.name],
	})
}

// store writes the files; those without content are deleted.
func (f Fleet) store(files map[string][]byte) error {
	for name, data := range files {
		path := filepath.Join(f.Dir, name)
		if len(data) == 0 {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func fill(files map[string][]byte, name string, t *template.Template, data any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	files[name] = b.Bytes()
	return nil
}
