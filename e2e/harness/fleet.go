// Package harness runs the real ichor binary against a lab: what the demo and the end-to-end tests share.
package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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
	// Extra files by name.
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
  kubernetesVersion: v1.36.1
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
  reachability:
    interval: {{.Interval}}
    grace: {{.Grace}}
`))

var machineTemplate = template.Must(template.New("machine").Parse(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: {{.Name}}
spec:
  clusterRef:
    name: {{.Cluster}}
  role: {{.Role}}
  approvalState: approved
  endpoint: {{.Endpoint}}
  hostname: {{.Cluster}}-{{.Name}}
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
	orDefault(&f.Name, "prod")
	orDefault(&f.TalosVersion, "v1.13.5")
	orDefault(&f.Contract, "v1.13")
	orDefault(&f.Settle, "1s")
	orDefault(&f.Interval, "2s")
	orDefault(&f.Grace, "3s")
	orDefault(&f.Mode, "apply")
	files := map[string][]byte{}
	if err := fill(files, f.Name+"/cluster.yaml", clusterTemplate, f); err != nil {
		return err
	}
	machine := func(name, role, last string) error {
		return fill(files, f.Name+"/"+name+".yaml", machineTemplate, map[string]string{
			"Name": name, "Cluster": f.Name, "Role": role, "Endpoint": f.Net + "." + last,
		})
	}
	for i := range f.ControlPlanes {
		if err := machine(fmt.Sprintf("cp%d", i+1), "controlplane", fmt.Sprint(11+i)); err != nil {
			return err
		}
	}
	for i := range f.Workers {
		if err := machine(fmt.Sprintf("w%d", i+1), "worker", fmt.Sprint(21+i)); err != nil {
			return err
		}
	}
	if f.Somaxconn != "" || f.APIServerVerbosity != "" {
		if err := fill(files, f.Name+"/patches.yaml", patchTemplate, f); err != nil {
			return err
		}
	}
	for name, text := range f.Extra {
		files[name] = []byte(text)
	}
	for name, data := range files {
		path := filepath.Join(f.Dir, name)
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
