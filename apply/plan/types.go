// Package plan is the decision core: Next takes everything that is known of one cluster and says what may be done
// now, and why not more. It is pure: no I/O, clock, goroutine, logger, randomness, environment or context. The same
// input gives the same decision, byte for byte.
package plan

import (
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Input is everything that Next looks at, for one cluster.
type Input struct {
	Now     time.Time
	Desired Desired
	// Observed facts by machine name. A machine that is not in it has not been looked at.
	Observed map[string]MachineFacts
	// Inventory of the cluster; nil when the inventory is not known (InventoryUnknown): then destructive acts hold.
	Inventory *state.ClusterInventory
	Policy    Policy
}

// Policy is the numbers of SPEC section 3. DefaultPolicy gives the documented defaults.
type Policy struct {
	// FactMaxAge of a fact that a gate uses.
	FactMaxAge time.Duration
	// MaxIndexLag of a healthy member's applied index behind the leader's.
	MaxIndexLag uint64
	// RetryInterval after which a failed, idempotent act is tried again.
	RetryInterval time.Duration
	// UnreachableRetry is how often a machine within its grace is read.
	UnreachableRetry time.Duration
	// RebootTimeout after which a reboot that was not seen to end is a failure.
	RebootTimeout time.Duration
	// JoinTimeout after which an installed machine that did not join is a failure.
	JoinTimeout time.Duration
	// ConfigTimeout after which a machine that took a configuration and is not well with it is a failure.
	ConfigTimeout time.Duration
	// TryMargin is how much longer than settle a try lasts, so that there is time to confirm it.
	TryMargin time.Duration
	// Poll is how soon to look again while something is under way.
	Poll time.Duration
}

// DefaultPolicy gives the documented defaults.
func DefaultPolicy() Policy {
	return Policy{
		FactMaxAge:       10 * time.Second,
		MaxIndexLag:      100,
		RetryInterval:    30 * time.Second,
		UnreachableRetry: 10 * time.Second,
		RebootTimeout:    15 * time.Minute,
		JoinTimeout:      30 * time.Minute,
		ConfigTimeout:    5 * time.Minute,
		TryMargin:        time.Minute,
		Poll:             time.Second,
	}
}

// Desired is the wish of the head for one cluster.
type Desired struct {
	Name   string
	Commit string
	// Observe: read and report, write nothing.
	Observe bool
	Suspend bool
	// CheckPassed: this cluster's part of the head's check passed.
	CheckPassed bool
	// Holds are reasons found outside (force push, mass deletion, secrets that can't be opened …) for which nothing of
	// this cluster is written.
	Holds []Hold

	TalosVersion, KubernetesVersion, Contract string
	ControlPlaneCount                         int
	// SecretsFingerprint and EncryptedFingerprint of the bundle and the encrypted patch values, keyed.
	SecretsFingerprint, EncryptedFingerprint string
	// RenewedSecrets and RenewedEncrypted are the same two under the newest of Ichor's identities ("": as above). The two
	// above stay with the older identity that the inventory was made with; RecordApplied writes these, so that the older
	// identity can go.
	RenewedSecrets, RenewedEncrypted string
	// Acks that the head's manifest carries (digests), and acknowledged commits.
	Acks []string
	// SkipKubernetesGates is the reason given by the annotation at this head, "" none.
	SkipKubernetesGates string

	// WorkerMaxUnavailable, already a number, at least 1.
	WorkerMaxUnavailable int
	Settle               time.Duration
	Grace                time.Duration
	Interval             time.Duration
	// Reboot: auto, window or manual. InWindow: a window is open now (true where there are none).
	Reboot   string
	InWindow bool
	Try      bool
	// ReportDrift only, do not correct.
	ReportDrift bool

	// Drain before an act that disrupts a machine; DrainTimeout after which it is given up. Evacuate: the cluster names a Job
	// that runs before a machine is drained for its removal.
	Drain        bool
	DrainTimeout time.Duration
	Evacuate     bool

	// Departures are the machines of the inventory that leave with the head: their file is gone, or approved became
	// rejected. Sorted by machine. A machine that is gone from the head and is not listed here stays and is not touched.
	Departures []Departure
	// Operations of the head that are not over, sorted by key.
	Operations []Operation

	// Machines of the head, sorted by name, of every approval state.
	Machines []DesiredMachine
	// UnknownMachines are those whose manifests at the head do not parse: unknown, not gone.
	UnknownMachines []string
}

// Hold is a reason for which nothing of a cluster (or of one machine) is written, with a true sentence.
type Hold struct {
	Reason  string
	Message string
	// Destructive: only acts that are destructive hold (InventoryUnknown).
	Destructive bool
}

// Departure is the wish that a machine leaves.
type Departure struct {
	Machine string
	// Marked: its last version on the watched branch carries the annotation ichor.maesh.dev/allow-delete, or the commit that
	// took it away brings a removeMachine operation that names it (Operation: its key).
	Marked    bool
	Operation string
	// Commit that took it away: its status gets the result.
	Commit string
}

// Kinds of an Operation, as TalosOperation spells them.
const (
	OpRemoveMachine  = "removeMachine"
	OpReplaceMachine = "replaceMachine"
	OpResetMachine   = "resetMachine"
	OpRebootMachine  = "rebootMachine"
)

// Operation is a TalosOperation of the head that is not over.
type Operation struct {
	// Key is its entry in the inventory: cluster/name@digest of the content.
	Key, Name, Kind, Machine string
	// Wipe and After of resetMachine.
	Wipe, After string
	// Commit that brought it.
	Commit string
	// Running: its record says that it has begun.
	Running bool
}

// DesiredMachine is one machine as the head wants it.
type DesiredMachine struct {
	Name, Role, Approval, Endpoint, Hostname, UUID, CertFingerprint string
	// Digest of the masked render at the head; CheckedDigest the one that the check reported. They must be equal.
	Digest, CheckedDigest string
	// BaselineDigest is what today's tool renders for the commit in force (Inventory InForceCommit), "" where that is
	// not known. Where it differs from InForceDigest, the tool changed the render. Where it is "" though the inventory
	// has an InForceDigest that is not Digest, a change of the tool can't be excluded and the machine is held as if it
	// were one, until the digest is acknowledged.
	BaselineDigest string
	// Problem is why the machine can't be written though its cluster can (render failed, refused removal …).
	Problem string
}

// Reach says whether a machine answers.
type Reach string

// Reach values. The zero value is: not looked at.
const (
	ReachUnknown     Reach = ""
	ReachOK          Reach = "reachable"
	ReachUnreachable Reach = "unreachable"
)

// Mode of a node's API.
type Mode string

// Modes. ModeForeign presents a certificate of another authority; ModeUnknown could not be told.
const (
	ModeUnknown     Mode = ""
	ModeMaintenance Mode = "maintenance"
	ModeConfigured  Mode = "configured"
	ModeForeign     Mode = "foreign"
)

// MachineFacts is what was seen of one machine. Pointers are nil where it could not be read: unknown is not false.
type MachineFacts struct {
	// At is when the facts were read, or when the last read failed.
	At    time.Time
	Reach Reach
	// Since when the present Reach holds (when the failures began; when it first answered again).
	Since time.Time
	// Error of the last failed read, free of secrets.
	Error string
	// Endpoint that was dialled.
	Endpoint string
	Mode     Mode
	// Fingerprint of the certificate that was presented (SPKI, base64).
	Fingerprint string
	// Identity as the node gave it. In maintenance mode only UUID.
	Identity state.Identity
	Hostname string

	TalosVersion string
	// Stage and Ready of MachineStatus; Unmet are its unmet conditions by name.
	Stage string
	Ready *bool
	Unmet []string
	// Services by id.
	Services map[string]ServiceFact
	BootID   string
	// NodeReady is false only where MachineStatus names nodeReady as unmet.
	NodeReady *bool
	// APIServerReady: the machine's own Kubernetes API server is up (its static pod is ready); nil where not known.
	APIServerReady *bool
	// SystemDisk tells whether Talos is installed; nil where not known.
	SystemDisk *bool

	Config *ConfigFact
	Etcd   *EtcdFact
	// WellSince is since when the machine was seen reachable, ready and (control plane) a healthy member without a
	// break, as far back as this process looked: SeenWell held at each read since. Zero: it is not well now.
	WellSince time.Time
	// KubeAddress is the InternalIP of the machine's Kubernetes Node, "" where it was not read.
	KubeAddress string
	// Kube is what the cluster's Kubernetes says of the machine; nil where it was never asked.
	Kube *KubeFact
	// Proxy is what a sibling's proxy says of a control plane that does not answer Ichor; nil where none was asked.
	Proxy *ProxyFact
	// EtcdFailingSince is since when, without a break, the machine answers but its etcd status fails or it sees no leader.
	// Zero: not so at the last read.
	EtcdFailingSince time.Time
}

// KubeFact is what the cluster's Kubernetes API says of one machine.
type KubeFact struct {
	// At is when it was asked; Answers tells whether any API server answered then (Error: why not).
	At      time.Time
	Answers bool
	Error   string
	// Node is the name of the machine's Node object (by hostname or node name, else by system UUID), "" none; UID its own.
	Node, UID string
	// Addresses: its InternalIPs.
	Addresses []string
	Ready     bool
	// Unschedulable, and whether it was Ichor who cordoned it (its annotation).
	Unschedulable, CordonedByIchor bool
	// LeaseRenewed is the last sign of life of its kubelet, zero unknown.
	LeaseRenewed time.Time
	// Pods that a drain has still to move (namespace/name), read for nodes that Ichor has cordoned; nil not read.
	Pods []string
	// Blocked says why pods were not evicted at the last try, by pod: a PodDisruptionBudget's own words.
	Blocked []string
	// Evacuation of the machine: "" none, running, done, failed.
	Evacuation string
}

// ProxyFact is what a look through a sibling found: apid of Via forwards the call to the machine's address.
type ProxyFact struct {
	At  time.Time
	Via string
	// Reach of the machine from there.
	Reach Reach
	Error string
}

// ServiceFact is the state of one Talos service.
type ServiceFact struct {
	State   string
	Running bool
	// Healthy is nil where the service has no health check or it has not answered yet.
	Healthy *bool
}

// ConfigFact compares the node's configuration with the wish, by meaning.
type ConfigFact struct {
	At time.Time
	// ForDigest is the digest of the wish that it was compared with.
	ForDigest string
	// Equal: the running configuration (v1alpha1) is the wish. PersistentEqual: so is the stored one (true where the
	// node shows none).
	Equal, PersistentEqual bool
	// Staged: the stored configuration is shown by the node and is the wish, and the running one is not. (PersistentEqual
	// alone does not say so: it is true where the node shows no stored one, as after a reboot.)
	Staged bool
	// Running is a keyed fingerprint of the running configuration, to tell drift from a change of the wish.
	Running string
	// Effect of what differs, the most disruptive now: live, restart, reboot, install. Paths differ, masked, sorted.
	Effect string
	Paths  []PathFact
	// TryPending: the running and stored configuration differ in a way that a try explains (running is the wish, stored
	// is not).
	TryPending bool
}

// PathFact is one differing leaf: where, and what changing it does.
type PathFact struct {
	Document, Path, Effect string
	// Service names what restarts, for effect restart. "" there counts as one whose restart disrupts.
	Service string
}

// EtcdFact is what one control plane says of etcd.
type EtcdFact struct {
	At time.Time
	// State of the etcd service: Preparing means that it waits for bootstrap or to join, without data.
	State string
	// MemberID of this node's own member (16 hex digits), "" where it has none.
	MemberID string
	// Leader as this member sees it, "" none.
	Leader  string
	Learner bool
	// LinearizableRead: a read through this member with a quorum answered within 2 s; nil not tried.
	LinearizableRead *bool
	Alarms           []string
	AppliedIndex     uint64
	// LeaderIndex is the leader's applied index at the same look, 0 unknown.
	LeaderIndex uint64
	// CaughtUp in two reads a second apart (within Policy.MaxIndexLag); nil unknown.
	CaughtUp *bool
	// Members as this node lists them, sorted by ID; nil where the list could not be read.
	Members []Member
	// Disagrees: etcd itself (port 2379) says otherwise than the Talos API; the worse counts.
	Disagrees string
	Errors    []string
}

// Member of etcd. Name is empty for one that was added but has not started.
type Member struct {
	ID, Name string
	Learner  bool
	PeerURLs []string
}

// Decision is what may be done now.
type Decision struct {
	// Actions that are compatible with one another; at most one disrupts a control plane.
	Actions []Action
	// LookAgain is when to observe and decide again at the latest.
	LookAgain time.Duration
	// Machines has one entry per machine known from the head, the inventory or both, sorted by name.
	Machines []MachineDecision
	// Conditions of the cluster.
	Conditions []state.Condition
	// Events to be logged and kept.
	Events []state.Event
	// Removals that are wished, under way or over for this head, sorted by machine: what ichor/removal says.
	Removals []RemovalDecision
	// Progress sums up for the status ichor/apply/<cluster>.
	Progress Progress
}

// States of a RemovalDecision.
const (
	RemovalRefused     = "refused"
	RemovalWaiting     = "waiting"
	RemovalProgressing = "progressing"
	RemovalFailed      = "failed"
	RemovalDone        = "done"
)

// RemovalDecision is where a machine's removal is.
type RemovalDecision struct {
	Machine, Kind string
	// Commit that asked for it.
	Commit string
	State  string
	// Message leads with what matters: the refusal, what is waited for, the step under way.
	Message string
	Steps   []state.RemovalStep
	Dead    bool
}

// Progress of a rollout.
type Progress struct {
	// State: done, progressing, waiting, held, failed.
	State string
	// Converged of Total approved machines.
	Converged, Total int
	// Message leads with what matters, at most 140 runes, without time or duration.
	Message string
}

// States of a Progress.
const (
	ProgressDone        = "done"
	ProgressProgressing = "progressing"
	ProgressWaiting     = "waiting"
	ProgressHeld        = "held"
	ProgressFailed      = "failed"
)

// MachineDecision is the reason for a machine: never a bool.
type MachineDecision struct {
	Name string
	// Reason is an enumeration (state.Reason…), "nothing to do" included; Message a sentence for people.
	Reason     string
	Message    string
	Converged  bool
	Conditions []state.Condition
}

// ActionKind is what act performs.
type ActionKind string

// Kinds of this stage. Record kinds edit the inventory alone.
const (
	// DoObserve reads the machine now, with what Detail asks for.
	DoObserve ActionKind = "observe"
	// DoInstall sends the configuration over the maintenance API.
	DoInstall ActionKind = "install"
	// DoBootstrap bootstraps etcd on the machine.
	DoBootstrap ActionKind = "bootstrap"
	// DoConfigure sends the configuration (Send says how).
	DoConfigure ActionKind = "configure"
	// DoConfirm makes a tried configuration permanent.
	DoConfirm ActionKind = "confirm"
	// DoForfeit hands etcd leadership on.
	DoForfeit ActionKind = "forfeit-leadership"
	// DoReboot reboots the machine.
	DoReboot ActionKind = "reboot"
	// DoEvacuate creates the evacuation Job for the machine's Kubernetes node.
	DoEvacuate ActionKind = "evacuate"
	// DoCordon marks the machine's Kubernetes node as unschedulable, with Ichor's annotation.
	DoCordon ActionKind = "cordon"
	// DoEvict asks once for the eviction of each pod that is left on it, and does not wait.
	DoEvict ActionKind = "evict"
	// DoUncordon takes Ichor's own cordon away.
	DoUncordon ActionKind = "uncordon"
	// DoRemoveMember removes the etcd member MemberID of Machine through the control plane Via.
	DoRemoveMember ActionKind = "remove-member"
	// DoReset wipes the machine (Wipe, After) without grace.
	DoReset ActionKind = "reset"
	// DoDeleteNode deletes the machine's Kubernetes Node object (Node, NodeUID).
	DoDeleteNode ActionKind = "delete-node"

	// RecordAdopt marks the cluster as adopted.
	RecordAdopt ActionKind = "record-adopt"
	// RecordIdentity pins the machine's identity (Identity) and that it joined (Joined).
	RecordIdentity ActionKind = "record-identity"
	// RecordInForce notes the digest seen in force.
	RecordInForce ActionKind = "record-in-force"
	// RecordApplied notes that the commit is in force on every machine.
	RecordApplied ActionKind = "record-applied"
	// RecordFailure notes why a digest could not be brought into force.
	RecordFailure ActionKind = "record-failure"
	// CloseIntent notes the outcome of an intent (IntentID, Outcome).
	CloseIntent ActionKind = "close-intent"
	// RecordRebootPending notes the paths that wait for a reboot (Paths; none clears them) and the boot in which they
	// wait (Expect.BootID).
	RecordRebootPending ActionKind = "record-reboot-pending"
	// RecordNodeReady notes that the Kubernetes node was ready once, so that it must be again.
	RecordNodeReady ActionKind = "record-node-ready"
	// RecordKubernetesSeen notes that the cluster's Kubernetes answered.
	RecordKubernetesSeen ActionKind = "record-kubernetes-seen"
	// RecordDrain sets the machine's Drain (nil: it is over).
	RecordDrain ActionKind = "record-drain"
	// RecordRemoval sets the machine's Removal: it begins, a step is over, it failed.
	RecordRemoval ActionKind = "record-removal"
	// RecordRemoved ends a removal (Removal has its last value).
	RecordRemoved ActionKind = "record-removed"
	// RecordRenamed moves the inventory's entry of the machine From to Machine.
	RecordRenamed ActionKind = "record-renamed"
	// RecordOperation sets the state of the operation OperationKey.
	RecordOperation ActionKind = "record-operation"
)

// OnNode tells whether an action of this kind sends anything that changes a node.
func (k ActionKind) OnNode() bool {
	switch k {
	case DoInstall, DoBootstrap, DoConfigure, DoConfirm, DoForfeit, DoReboot, DoEvacuate, DoCordon, DoEvict, DoUncordon,
		DoRemoveMember, DoReset, DoDeleteNode:
		return true
	}
	return false
}

// OnKubernetes tells the kinds that go to the cluster's Kubernetes API and send nothing to the machine itself.
func (k ActionKind) OnKubernetes() bool {
	switch k {
	case DoEvacuate, DoCordon, DoEvict, DoUncordon, DoDeleteNode:
		return true
	}
	return false
}

// Send says how a configuration is sent.
type Send string

// Ways to send.
const (
	SendNoReboot Send = "no-reboot"
	SendStaged   Send = "staged"
	SendTry      Send = "try"
)

// Action is one thing to do. Act checks Expect once more before it calls, and decides nothing.
type Action struct {
	Kind    ActionKind
	Machine string
	Reason  string
	Send    Send
	// Digest of the configuration that is sent or was seen.
	Digest string
	Commit string
	// Disrupts says what is disrupted, "" nothing.
	Disrupts string
	// TryTimeout is the time after which the node takes a tried configuration back (Send is SendTry).
	TryTimeout time.Duration
	// Expect is the precondition that act reads again before it calls.
	Expect Expect
	// Identity, Joined, Paths, IntentID, Outcome, Message carry what Record kinds and CloseIntent write.
	Identity state.Identity
	Joined   bool
	Paths    []string
	IntentID string
	Outcome  string
	Message  string
	// Via is the control plane through which a member is removed, MemberID the member.
	Via, MemberID string
	// Wipe (system, all) and After (reboot, shutdown) of a reset.
	Wipe, After string
	// Node and NodeUID of the Kubernetes acts.
	Node, NodeUID string
	// Drain, Removal, From, OperationKey and OperationState carry what Record kinds write.
	Drain                        *state.Drain
	Removal                      *state.Removal
	From                         string
	OperationKey, OperationState string
}

// Expect is what must still be so when act looks again just before the call. Empty fields are not checked.
type Expect struct {
	Mode        Mode
	UUID        string
	NodeID      string
	NodeName    string
	MemberID    string
	Fingerprint string
	BootID      string
	// OthersHealthy: these control planes must be healthy members just before the call.
	OthersHealthy []string
	// EtcdDown: the machine itself must be seen to run no etcd member still. For that it is touched whatever the others
	// are, so one that has come back in between must not be.
	EtcdDown bool
	// SkipKubernetes: of OthersHealthy only HealthyMember is asked, not readiness (the head's annotation says so).
	SkipKubernetes bool
	// EtcdEmptyOn: these control planes must be seen waiting without etcd data.
	EtcdEmptyOn []string
	// Dead: the machine must still be as dead as it was proved: it does not answer Ichor nor through a sibling's proxy and its
	// kubelet's lease is not fresh, or its etcd fails, or a box that waits in maintenance mode stands in its place.
	// The other fields about the machine itself are not checked then.
	Dead bool
	// MemberListed: each of OthersHealthy lists this member, as a voter or learner, and all of them give the same list.
	MemberListed string
	// MemberGone: none of OthersHealthy lists this member any more, and there is at least one of them.
	MemberGone string
}

// Outcomes of an intent.
const (
	OutcomeDone    = "done"
	OutcomeNotDone = "not-done"
	OutcomeFailed  = "failed"
)
