package scaffold

// Ignore is what a repository's .gitignore holds: secrets in plain text, as talosctl, sops, age and people name them.
const Ignore = `# Secrets in plain text stay out of commits. "ichor check" refuses them too, whatever they are called.
*.key
*.agekey
*.dec.yaml
keys.txt
secrets.yaml
talsecret.yaml
talosconfig
talosconfig.yaml
kubeconfig
kubeconfig.yaml
/controlplane.yaml
/worker.yaml
/clusterconfig/
`

const sopsRules = `# For the sops command: which files it encrypts, which values of them, and to whom.
creation_rules:
  # In a patch, encrypt what is secret only: the rest can be reviewed.
  - path_regex: patches/.*\.sops\.yaml$
    encrypted_regex: ^(password|auth|key|secret|token|privateKey|passphrase)$
    age: %[1]s
  - path_regex: \.sops\.yaml$
    age: %[1]s
`

const clusterText = `{{.Header}}apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: {{.O.Cluster}}
spec:
  talosVersion: {{.O.TalosVersion}}
  # The shape of the configurations. Written down, so that a later talosVersion does not change every machine by itself.
  contract: {{.Contract}}
  kubernetesVersion: {{.O.KubernetesVersion}}
  # Where the Kubernetes API is reached.{{if ne .O.EndpointType "node"}} It must outlive each single control plane.{{end}}
  endpoint:
    type: {{.O.EndpointType}}
    address: {{printf "%q" .O.EndpointAddress}}{{if and .O.EndpointPort (ne .O.EndpointPort 6443)}}
    port: {{.O.EndpointPort}}{{end}}
  controlPlane:
    count: {{.Count}}
  secretsRef:
    # Relative to this file, because it begins with ./
    path: ./secrets.sops.yaml
{{- if or (ne .O.CNI "flannel") (not .O.KubeProxy)}}
  network:
    # It can't change once the cluster lives.
    cni:
      preset: {{.O.CNI}}{{if .O.Tunnel}}
      tunnel: {{.O.Tunnel}}{{end}}{{if not .O.KubeProxy}}
    kubeProxy: false{{end}}
{{- end}}
  install:
    # Every machine may have its own; diskSelector picks a disk by size, model or type instead.
    disk: {{printf "%q" .O.Disk}}
  rollout:
    # "observe" reads and reports everything and writes to no node: the way to begin with a running cluster.
    mode: apply
`

const machineText = `{{.Header}}apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: {{.M.Name}}
spec:
  clusterRef:
    name: {{.O.Cluster}}
  role: {{.M.Role}}
  # Only approved machines are ever written; a pending one is read and reported.
  approvalState: approved
  # Of the Talos API.{{if .M.Placeholder}} 192.0.2.0/24 is reserved for documentation: put the machine's own here.{{end}}
  endpoint: {{printf "%q" .M.Address}}
  hostname: {{.M.Name}}
`

const scheduleText = `{{.Header}}# Workloads run on control planes too: there is no worker, or not only workers are to have them.
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: scheduling
spec:
  clusterRef:
    name: {{.O.Cluster}}
  selector:
    roles: [controlplane]
  documents:
    - cluster:
        allowSchedulingOnControlPlanes: true
`

const vipText = `{{.Header}}# The control planes share this address; etcd elects the one that answers.
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: vip
spec:
  clusterRef:
    name: {{.O.Cluster}}
  selector:
    roles: [controlplane]
  documents:
    - apiVersion: v1alpha1
      kind: Layer2VIPConfig
      name: {{printf "%q" .O.EndpointAddress}}
      link: {{printf "%q" .O.Link}}
`
