// Package v1alpha1 holds the kinds that a repository is written in (SPEC section 1). They are plain
// data: reading, checking and defaulting happen elsewhere. Field comments become the descriptions of
// the JSON Schemas and of docs/kinds.md.
package v1alpha1

const (
	// Group is the API group that marks a document as Ichor's own.
	Group = "ichor.maesh.dev"
	// APIVersion is the only version there is so far.
	APIVersion = Group + "/v1alpha1"
)

// Names of the kinds.
const (
	KindTalosCluster     = "TalosCluster"
	KindTalosMachine     = "TalosMachine"
	KindTalosConfigPatch = "TalosConfigPatch"
	KindTalosEtcdBackup  = "TalosEtcdBackup"
	KindTalosPolicy      = "TalosPolicy"
	KindTalosOperation   = "TalosOperation"
)

// Annotations that a commit can carry.
const (
	// AnnotationAllowDelete on a TalosMachine or TalosCluster allows its file to be deleted.
	AnnotationAllowDelete = Group + "/allow-delete"
	// AnnotationAck on a TalosCluster acknowledges a digest (adoption, a render changed by the tool).
	AnnotationAck = Group + "/ack"
	// AnnotationConfirmKubeProxySwitch on a TalosCluster allows kubeProxy to be switched.
	AnnotationConfirmKubeProxySwitch = Group + "/confirm-kube-proxy-switch"
	// AnnotationSkipKubernetesGates on a TalosCluster gives the reason for passing the Kubernetes gates.
	AnnotationSkipKubernetesGates = Group + "/skip-kubernetes-gates"
)

// ObjectMeta names an object.
type ObjectMeta struct {
	// Name is a DNS label (RFC 1123), unique in the fleet for clusters, in its cluster for the other kinds.
	Name string `json:"name"`
	// Labels can be selected by patches and policies.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations carry acknowledgements and notes; they never reach a node.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ClusterRef names the cluster that an object belongs to.
type ClusterRef struct {
	// Name of a TalosCluster of this repository.
	Name string `json:"name"`
}

// PathRef names a file of the repository: relative to its root, or, beginning with ./ or ../, to the
// manifest's folder. It may not leave the repository nor pass through a symlink.
type PathRef struct {
	// Path of the file.
	Path string `json:"path"`
}

// Duration is a Go duration string such as 30s, 2m or 1h30m.
type Duration string

// TalosCluster is one Talos cluster.
type TalosCluster struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Metadata   ObjectMeta       `json:"metadata"`
	Spec       TalosClusterSpec `json:"spec"`
}

// TalosClusterSpec says how the cluster is to be.
type TalosClusterSpec struct {
	// TalosVersion that the nodes run, as a full version: v1.13.5 or 1.13.5.
	TalosVersion string `json:"talosVersion"`
	// KubernetesVersion of the control plane and the kubelets, as a full version.
	KubernetesVersion string `json:"kubernetesVersion"`
	// Contract is the Talos minor version whose configuration shape is rendered, v1.13 for example. Default: the
	// minor of talosVersion. A cluster keeps the one that it was made with.
	Contract string `json:"contract,omitempty"`
	// Endpoint of the Kubernetes API.
	Endpoint ClusterEndpoint `json:"endpoint"`
	// ControlPlane says how many control planes there are to be.
	ControlPlane ControlPlaneSpec `json:"controlPlane"`
	// SecretsRef is the Talos secrets bundle, SOPS-encrypted.
	SecretsRef PathRef `json:"secretsRef"`
	// Network ranges and CNI.
	Network NetworkSpec `json:"network,omitzero"`
	// Discovery says where to look for machines in maintenance mode.
	Discovery DiscoverySpec `json:"discovery,omitzero"`
	// Install says how Talos is put on a disk.
	Install InstallSpec `json:"install,omitzero"`
	// Rollout says how changes reach the nodes.
	Rollout RolloutSpec `json:"rollout,omitzero"`
	// Reachability says how often nodes are read, and when silence counts.
	Reachability ReachabilitySpec `json:"reachability,omitzero"`
	// Suspend leaves the cluster alone: no node of it is even read.
	Suspend bool `json:"suspend,omitempty"`
}

// ClusterEndpoint is where the Kubernetes API is reached.
type ClusterEndpoint struct {
	// Type: node (a machine's own address), dns, loadBalancer or vip.
	Type string `json:"type" jsonschema:"enum=node,enum=dns,enum=loadBalancer,enum=vip"`
	// Address: an IP address or a host name.
	Address string `json:"address"`
	// Port of the API. Default 6443.
	Port int `json:"port,omitempty" jsonschema:"minimum=1,maximum=65535"`
}

// ControlPlaneSpec is the declared size of the control plane.
type ControlPlaneSpec struct {
	// Count of control planes: 1, 3 or 5.
	Count int `json:"count" jsonschema:"enum=1,enum=3,enum=5"`
}

// NetworkSpec holds the cluster's ranges.
type NetworkSpec struct {
	// PodSubnets in CIDR form. Default [10.244.0.0/16].
	PodSubnets []string `json:"podSubnets,omitempty"`
	// ServiceSubnets in CIDR form. Default [10.96.0.0/12].
	ServiceSubnets []string `json:"serviceSubnets,omitempty"`
	// DNSDomain of the cluster. Default cluster.local.
	DNSDomain string `json:"dnsDomain,omitempty"`
	// CNI preset.
	CNI CNISpec `json:"cni,omitzero"`
	// KubeProxy runs kube-proxy. Default true.
	KubeProxy *bool `json:"kubeProxy,omitempty"`
}

// CNISpec chooses the container network.
type CNISpec struct {
	// Preset: flannel (default), cilium or none.
	Preset string `json:"preset,omitempty" jsonschema:"enum=flannel,enum=cilium,enum=none"`
	// Tunnel: vxlan or geneve.
	Tunnel string `json:"tunnel,omitempty" jsonschema:"enum=vxlan,enum=geneve"`
}

// DiscoverySpec bounds the search for machines in maintenance mode.
type DiscoverySpec struct {
	// Addresses (IPv4) that are probed.
	Addresses []string `json:"addresses,omitempty"`
	// CIDRs (IPv4, each /24 or smaller, at most 4) that are probed.
	CIDRs []string `json:"cidrs,omitempty"`
}

// InstallSpec says how Talos is put on a disk. A machine's own values override its cluster's one by one;
// disk and diskSelector override each other.
type InstallSpec struct {
	// Disk to install on, /dev/sda for example.
	Disk string `json:"disk,omitempty"`
	// DiskSelector picks the disk by its properties instead: size, model, serial, wwid, type, busPath and so on,
	// as in Talos's machine.install.diskSelector.
	DiskSelector map[string]any `json:"diskSelector,omitempty"`
	// Image of the installer. Default: Talos's own of talosVersion.
	Image string `json:"image,omitempty"`
	// Schematic is an Image Factory schematic ID; the image follows from it and talosVersion.
	Schematic string `json:"schematic,omitempty"`
	// Wipe the disk before installing.
	Wipe *bool `json:"wipe,omitempty"`
}

// RolloutSpec says how changes reach the nodes.
type RolloutSpec struct {
	// Mode: apply (default), or observe, which reads and reports everything and writes to no node.
	Mode string `json:"mode,omitempty" jsonschema:"enum=apply,enum=observe"`
	// WorkerMaxUnavailable is a number or a percentage such as 25%. Default 1.
	WorkerMaxUnavailable IntOrPercent `json:"workerMaxUnavailable,omitempty"`
	// Settle is how long a machine must have been well before the next is touched. Default 30s.
	Settle Duration `json:"settle,omitempty"`
	// Drain of workers before a disruption.
	Drain DrainSpec `json:"drain,omitzero"`
	// Reboot says when a pending reboot is done: auto (default), window or manual.
	Reboot string `json:"reboot,omitempty" jsonschema:"enum=auto,enum=window,enum=manual"`
	// Windows in which disruptive acts may begin. None: always.
	Windows []WindowSpec `json:"windows,omitempty"`
	// Try sends live changes so that the node takes them back by itself when they cut Ichor off. Default true.
	Try *bool `json:"try,omitempty"`
	// SnapshotFirst touches a control plane only after a verified snapshot of that day.
	SnapshotFirst bool `json:"snapshotFirst,omitempty"`
	// OnDrift: correct (default) sets right what somebody changed by hand; report only says it.
	OnDrift string `json:"onDrift,omitempty" jsonschema:"enum=correct,enum=report"`
	// Evacuate runs a Kubernetes Job before a machine is drained for removal.
	Evacuate EvacuateSpec `json:"evacuate,omitzero"`
}

// IntOrPercent is a whole number or a percentage, kept as written: "1" or "25%".
type IntOrPercent string

// DrainSpec says how workers are drained.
type DrainSpec struct {
	// Enabled drains before a disruption. Default true.
	Enabled *bool `json:"enabled,omitempty"`
	// Timeout of one drain. Default 5m.
	Timeout Duration `json:"timeout,omitempty"`
}

// WindowSpec is a maintenance window.
type WindowSpec struct {
	// Start as a cron expression, 0 2 * * 6 for example.
	Start string `json:"start"`
	// Duration of the window.
	Duration Duration `json:"duration"`
	// TimeZone, an IANA name. Default UTC.
	TimeZone string `json:"timeZone,omitempty"`
}

// EvacuateSpec names a Job manifest of the repository.
type EvacuateSpec struct {
	// JobPath is the path of a Kubernetes Job manifest.
	JobPath string `json:"jobPath,omitempty"`
}

// ReachabilitySpec says how often nodes are read.
type ReachabilitySpec struct {
	// Interval between two reads of a machine. Default 2m.
	Interval Duration `json:"interval,omitempty"`
	// Grace after which a silent machine is unreachable. Default 60s.
	Grace Duration `json:"grace,omitempty"`
}

// TalosMachine is one machine of a cluster.
type TalosMachine struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Metadata   ObjectMeta       `json:"metadata"`
	Spec       TalosMachineSpec `json:"spec"`
}

// Roles of machines.
const (
	RoleControlPlane = "controlplane"
	RoleWorker       = "worker"
)

// Approval states of machines.
const (
	ApprovalPending  = "pending"
	ApprovalApproved = "approved"
	ApprovalRejected = "rejected"
)

// TalosMachineSpec says what the machine is to be.
type TalosMachineSpec struct {
	// ClusterRef is the cluster that the machine belongs to.
	ClusterRef ClusterRef `json:"clusterRef"`
	// Role: controlplane or worker.
	Role string `json:"role" jsonschema:"enum=controlplane,enum=worker"`
	// ApprovalState: pending, approved or rejected. Only approved machines are ever written.
	ApprovalState string `json:"approvalState" jsonschema:"enum=pending,enum=approved,enum=rejected"`
	// Endpoint of the Talos API: ip or ip:port. Default port 50000.
	Endpoint string `json:"endpoint"`
	// Hostname. Without it the node names itself.
	Hostname string `json:"hostname,omitempty"`
	// UUID of the system (SMBIOS); a node with another one is never written.
	UUID string `json:"uuid,omitempty"`
	// CertFingerprint of the maintenance-mode certificate: base64 of the SHA-256 of its public key.
	CertFingerprint string `json:"certFingerprint,omitempty"`
	// Install overrides the cluster's.
	Install InstallSpec `json:"install,omitzero"`
	// NodeLabels of the Kubernetes Node.
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// NodeTaints of the Kubernetes Node: key to value:effect.
	NodeTaints map[string]string `json:"nodeTaints,omitempty"`
}

// TalosConfigPatch changes the configuration of the machines that it selects.
type TalosConfigPatch struct {
	APIVersion string               `json:"apiVersion"`
	Kind       string               `json:"kind"`
	Metadata   ObjectMeta           `json:"metadata"`
	Spec       TalosConfigPatchSpec `json:"spec"`
}

// TalosConfigPatchSpec holds exactly one of documents, jsonPatch and path.
type TalosConfigPatchSpec struct {
	// ClusterRef is the cluster whose machines are patched.
	ClusterRef ClusterRef `json:"clusterRef"`
	// Selector of machines. Empty selects all.
	Selector Selector `json:"selector,omitzero"`
	// Order among the cluster's patches; ties go by name.
	Order int `json:"order,omitempty"`
	// Documents are sparse Talos configuration documents, each applied on its own, in order, as strategic merge.
	Documents []any `json:"documents,omitempty"`
	// JSONPatch is RFC 6902; Talos allows it up to contract v1.11.
	JSONPatch []any `json:"jsonPatch,omitempty"`
	// Path of a raw Talos patch file in the repository.
	Path string `json:"path,omitempty"`
}

// Selector chooses machines; all that is given must hold.
type Selector struct {
	// Roles to select.
	Roles []string `json:"roles,omitempty" jsonschema:"enum=controlplane,enum=worker"`
	// Machines to select, by name.
	Machines []string `json:"machines,omitempty"`
	// MatchLabels must all be on the machine.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// TalosEtcdBackup says how etcd is backed up.
type TalosEtcdBackup struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Metadata   ObjectMeta          `json:"metadata"`
	Spec       TalosEtcdBackupSpec `json:"spec"`
}

// TalosEtcdBackupSpec is a schedule and a store outside the cluster.
type TalosEtcdBackupSpec struct {
	// ClusterRef is the cluster that is backed up.
	ClusterRef ClusterRef `json:"clusterRef"`
	// Schedule as a cron expression; a zone may be put in front: CRON_TZ=Europe/Paris 15 3 * * *.
	Schedule string `json:"schedule"`
	// TimeZone of the schedule, an IANA name. Default UTC.
	TimeZone string `json:"timeZone,omitempty"`
	// S3 store, outside the cluster.
	S3 S3Spec `json:"s3"`
	// Encryption of the snapshots.
	Encryption EncryptionSpec `json:"encryption,omitzero"`
	// Retention of snapshots.
	Retention RetentionSpec `json:"retention,omitzero"`
	// Drill restores the newest snapshot into a throw-away etcd.
	Drill DrillSpec `json:"drill,omitzero"`
	// Suspend stops the schedule.
	Suspend bool `json:"suspend,omitempty"`
}

// S3Spec is an S3 store.
type S3Spec struct {
	// Endpoint: a URL, or host[:port].
	Endpoint string `json:"endpoint"`
	// Bucket name.
	Bucket string `json:"bucket"`
	// Prefix of the object keys.
	Prefix string `json:"prefix,omitempty"`
	// Region of the store.
	Region string `json:"region,omitempty"`
	// PathStyle puts the bucket into the path.
	PathStyle bool `json:"pathStyle,omitempty"`
	// Insecure speaks plain HTTP.
	Insecure bool `json:"insecure,omitempty"`
	// CAPath is a PEM file of the repository.
	CAPath string `json:"caPath,omitempty"`
	// CredentialsRef is a SOPS-encrypted file with accessKeyID and secretAccessKey.
	CredentialsRef PathRef `json:"credentialsRef"`
}

// EncryptionSpec names the age recipients.
type EncryptionSpec struct {
	// AgeRecipients are age public keys.
	AgeRecipients []string `json:"ageRecipients,omitempty"`
}

// RetentionSpec says how many snapshots stay.
type RetentionSpec struct {
	// Last snapshots.
	Last int `json:"last,omitempty"`
	// Hourly snapshots.
	Hourly int `json:"hourly,omitempty"`
	// Daily snapshots.
	Daily int `json:"daily,omitempty"`
	// Weekly snapshots.
	Weekly int `json:"weekly,omitempty"`
	// Monthly snapshots.
	Monthly int `json:"monthly,omitempty"`
}

// DrillSpec schedules restore drills.
type DrillSpec struct {
	// Schedule as a cron expression.
	Schedule string `json:"schedule,omitempty"`
}

// TalosPolicy is a set of CEL rules over rendered configurations.
type TalosPolicy struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   ObjectMeta      `json:"metadata"`
	Spec       TalosPolicySpec `json:"spec"`
}

// TalosPolicySpec holds the rules.
type TalosPolicySpec struct {
	// ClusterRef limits the policy to one cluster. Default: every cluster.
	ClusterRef *ClusterRef `json:"clusterRef,omitempty"`
	// Selector of machines. Empty selects all.
	Selector Selector `json:"selector,omitzero"`
	// Severity: error or warning.
	Severity string `json:"severity" jsonschema:"enum=error,enum=warning"`
	// Rules that must hold.
	Rules []PolicyRule `json:"rules"`
}

// PolicyRule is one CEL expression.
type PolicyRule struct {
	// Name of the rule.
	Name string `json:"name"`
	// Expression in CEL that must be true.
	Expression string `json:"expression"`
	// Message when it is not.
	Message string `json:"message,omitempty"`
}

// TalosOperation is a one-shot act.
type TalosOperation struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Metadata   ObjectMeta         `json:"metadata"`
	Spec       TalosOperationSpec `json:"spec"`
}

// TalosOperationSpec holds exactly one act.
type TalosOperationSpec struct {
	// ClusterRef is the cluster that is acted on.
	ClusterRef ClusterRef `json:"clusterRef"`
	// RestoreEtcd from a snapshot.
	RestoreEtcd *RestoreEtcdOp `json:"restoreEtcd,omitempty"`
	// ResetMachine wipes a machine.
	ResetMachine *ResetMachineOp `json:"resetMachine,omitempty"`
	// RemoveMachine lets a machine leave.
	RemoveMachine *MachineOp `json:"removeMachine,omitempty"`
	// ReplaceMachine brings the same box or address up anew.
	ReplaceMachine *MachineOp `json:"replaceMachine,omitempty"`
	// RotateCA rotates certificate authorities.
	RotateCA *RotateCAOp `json:"rotateCA,omitempty"`
	// RebootMachine reboots a machine.
	RebootMachine *MachineOp `json:"rebootMachine,omitempty"`
	// Snapshot takes a backup now.
	Snapshot *SnapshotOp `json:"snapshot,omitempty"`
}

// MachineOp names a machine.
type MachineOp struct {
	// Machine name.
	Machine string `json:"machine"`
}

// RestoreEtcdOp names a backup and a snapshot of it.
type RestoreEtcdOp struct {
	// Backup is a TalosEtcdBackup.
	Backup string `json:"backup"`
	// Snapshot name. Default: the newest.
	Snapshot string `json:"snapshot,omitempty"`
	// QuorumLives allows a restore while etcd has a quorum.
	QuorumLives bool `json:"quorumLives,omitempty"`
}

// ResetMachineOp wipes a machine.
type ResetMachineOp struct {
	// Machine name.
	Machine string `json:"machine"`
	// Wipe: system or all.
	Wipe string `json:"wipe,omitempty" jsonschema:"enum=system,enum=all"`
	// After: reboot or shutdown.
	After string `json:"after,omitempty" jsonschema:"enum=reboot,enum=shutdown"`
}

// RotateCAOp says which authorities are rotated.
type RotateCAOp struct {
	// Talos API authority.
	Talos bool `json:"talos,omitempty"`
	// Kubernetes authority.
	Kubernetes bool `json:"kubernetes,omitempty"`
}

// SnapshotOp names a backup.
type SnapshotOp struct {
	// Backup is a TalosEtcdBackup.
	Backup string `json:"backup"`
}
