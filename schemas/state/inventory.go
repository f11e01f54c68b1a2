// Package state holds plain values that several stations share: the inventory, conditions, events.
// It has no behaviour beyond what the values need to be compared and encoded.
package state

import "time"

// InventoryVersion is the format that this Ichor writes. A newer one is refused.
const InventoryVersion = 1

// Inventory is what Ichor last did (SPEC section 3). It lies on the status branch as inventory.yaml and, as
// a copy, in the state folder. apply/journal reads, seals and writes it; apply/plan only reads it.
type Inventory struct {
	Version int `json:"version"`
	// Generation rises by one with each write.
	Generation int64 `json:"generation"`
	// RepositoryID is the forge's numeric ID of the repository, "" where the forge has none.
	RepositoryID string `json:"repositoryID,omitempty"`
	Holder       Holder `json:"holder"`
	// Claim is the question of one who would like to hold it: a living holder answers by taking it away.
	Claim *Claim `json:"claim,omitempty"`
	// Clusters by name.
	Clusters map[string]*ClusterInventory `json:"clusters,omitempty"`
	// Operations that are done or under way, by cluster/name@digest of the content.
	Operations map[string]OperationRecord `json:"operations,omitempty"`
	// UnknownAt is the head at which a lost inventory was begun anew: operations present at that head never run.
	UnknownAt string `json:"unknownAt,omitempty"`
	// MAC is the keyed digest over everything else, base64.
	MAC string `json:"mac,omitempty"`
}

// Holder is the one Ichor that may act.
type Holder struct {
	// ID is random per process.
	ID string `json:"id"`
	// Instance is the configured instance name, for people.
	Instance string `json:"instance,omitempty"`
	// Epoch rises with each new holder; a holder whose epoch is not the newest can't push, so can't act.
	Epoch int64 `json:"epoch"`
	// Since when it holds.
	Since time.Time `json:"since"`
	// Every is how often it looks at the status branch, as a Go duration: a claim is answered within that.
	Every string `json:"every,omitempty"`
}

// Claim asks the holder whether it lives.
type Claim struct {
	// ID is that of the asking process.
	ID string `json:"id"`
	// Instance is its configured name, for people.
	Instance string `json:"instance,omitempty"`
}

// ClusterInventory is what is known of one cluster.
type ClusterInventory struct {
	// Adopted: Ichor may write to the cluster: it brought it up, or found no difference, or a commit acknowledged one.
	Adopted bool `json:"adopted"`
	// BootstrapMachine and BootstrapUUID say where etcd was bootstrapped, "" before.
	BootstrapMachine string `json:"bootstrapMachine,omitempty"`
	BootstrapUUID    string `json:"bootstrapUUID,omitempty"`
	// AppliedCommit is the last commit whose configuration is in force on every machine; AttemptedCommit the last that
	// Ichor began to apply.
	AppliedCommit   string `json:"appliedCommit,omitempty"`
	AttemptedCommit string `json:"attemptedCommit,omitempty"`
	// TalosVersion, KubernetesVersion and Contract in force.
	TalosVersion      string `json:"talosVersion,omitempty"`
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
	Contract          string `json:"contract,omitempty"`
	// SecretsFingerprint is the keyed fingerprint of the bundle in force (base64); EncryptedFingerprint that of the
	// encrypted patch values.
	SecretsFingerprint   string `json:"secretsFingerprint,omitempty"`
	EncryptedFingerprint string `json:"encryptedFingerprint,omitempty"`
	// KubernetesSeen: the cluster's Kubernetes API has answered Ichor once, so that a drain may no longer be left out.
	KubernetesSeen bool `json:"kubernetesSeen,omitempty"`
	// Acks are acknowledged digests and commits, newest last.
	Acks []string `json:"acks,omitempty"`
	// Machines by name.
	Machines map[string]*MachineInventory `json:"machines,omitempty"`
	// Intents under way, oldest first. One stays until its outcome is seen.
	Intents []Intent `json:"intents,omitempty"`
}

// Identity is what a machine proved at its first contact. Empty fields are not known yet.
type Identity struct {
	UUID     string `json:"uuid,omitempty"`
	NodeID   string `json:"nodeID,omitempty"`
	NodeName string `json:"nodeName,omitempty"`
	// MemberID of etcd as 16 hex digits.
	MemberID string `json:"memberID,omitempty"`
}

// MachineInventory is what is known of one machine.
type MachineInventory struct {
	Role     string   `json:"role"`
	Endpoint string   `json:"endpoint"`
	Hostname string   `json:"hostname,omitempty"`
	Identity Identity `json:"identity"`
	// JoinedAt is when the machine was first seen configured and, for a control plane, as a voter. Zero before.
	JoinedAt time.Time `json:"joinedAt,omitzero"`
	// NodeReadySeen: the node was ready in Kubernetes once, so that it must be again.
	NodeReadySeen bool `json:"nodeReadySeen,omitempty"`
	// SentDigest is the masked digest last sent, with its commit; InForceDigest the one last seen in force.
	SentDigest string    `json:"sentDigest,omitempty"`
	SentCommit string    `json:"sentCommit,omitempty"`
	SentAt     time.Time `json:"sentAt,omitzero"`
	// SentMode is how it was sent: no-reboot, staged or try. A try becomes no-reboot when it is confirmed.
	SentMode      string `json:"sentMode,omitempty"`
	InForceDigest string `json:"inForceDigest,omitempty"`
	InForceCommit string `json:"inForceCommit,omitempty"`
	// Failure is why the configuration with FailedDigest could not be brought into force; it stands until another
	// digest is wanted.
	Failure      string `json:"failure,omitempty"`
	FailedDigest string `json:"failedDigest,omitempty"`
	// RebootPending lists the paths that wait for a reboot.
	RebootPending []string `json:"rebootPending,omitempty"`
	// RebootPendingBootID is the boot in which they wait: another boot has brought them into force.
	RebootPendingBootID string `json:"rebootPendingBootID,omitempty"`
	// AnsweredEffect is what the node's own dry-run said of AnsweredDigest where it disagrees with the table: reboot
	// (it refuses it without one) or immediate (it takes it without one). Only from nodes up to 1.13.
	AnsweredEffect string `json:"answeredEffect,omitempty"`
	AnsweredDigest string `json:"answeredDigest,omitempty"`
	// Drain that is under way, nil none.
	Drain *Drain `json:"drain,omitempty"`
	// Removal is the machine's way out: under way, or (DoneAt) the last one.
	Removal *Removal `json:"removal,omitempty"`
	// RemovedAt is when a removal was done; the entry stays, so that the machine is known if it comes back.
	RemovedAt time.Time `json:"removedAt,omitzero"`
}

// Drain of a machine's Kubernetes node before it is disrupted.
type Drain struct {
	// At is when it began: its timeout counts from here, over restarts of Ichor too.
	At time.Time `json:"at"`
	// Commit whose rollout wants it.
	Commit string `json:"commit,omitempty"`
}

// Kinds of a Removal.
const (
	// RemovalRemove: the machine leaves for good (its file was deleted or rejected).
	RemovalRemove = "remove"
	// RemovalReplace: operation replaceMachine. The old member leaves, then the machine is brought up anew.
	RemovalReplace = "replace"
	// RemovalReset: operation resetMachine. The machine is wiped; what its manifest says then goes on.
	RemovalReset = "reset"
)

// Steps of a Removal, in their order (SPEC section 4). Each is seen to be done before the next.
const (
	StepEvacuate     = "evacuate"
	StepDrain        = "drain"
	StepHandOn       = "hand-on-leadership"
	StepRemoveMember = "remove-member"
	StepReset        = "reset"
	StepDeleteNode   = "delete-node"
)

// Outcomes of a RemovalStep.
const (
	StepDone    = "done"
	StepSkipped = "skipped"
)

// Removal is a machine's way out, or (replace, reset) out and in again. It is what a restarted Ichor resumes from.
type Removal struct {
	Kind string `json:"kind"`
	// Commit that asked for it: its status ichor/removal/<cluster>/<machine> gets the steps' results.
	Commit string `json:"commit"`
	// Operation is the key of the operation that asked for it, "" where the machine's file was deleted or rejected.
	Operation string    `json:"operation,omitempty"`
	BeganAt   time.Time `json:"beganAt"`
	// Dead is the marker DeadMemberRemoval: it was proved dead when its removal began. It goes on after a restart.
	Dead bool `json:"dead,omitempty"`
	// MemberID of etcd that leaves (16 hex digits), "" for a worker and for one that never joined.
	MemberID string `json:"memberID,omitempty"`
	// NodeName of its Kubernetes node, "" not known.
	NodeName string `json:"nodeName,omitempty"`
	// Wipe (system or all) and After (reboot or shutdown) of its reset.
	Wipe  string `json:"wipe,omitempty"`
	After string `json:"after,omitempty"`
	// Steps that are over, in their order.
	Steps []RemovalStep `json:"steps,omitempty"`
	// Failure is why it stopped; it is tried again with another head than FailedCommit.
	Failure      string `json:"failure,omitempty"`
	FailedCommit string `json:"failedCommit,omitempty"`
	// DoneAt is when its last step was over. Zero: it is under way.
	DoneAt time.Time `json:"doneAt,omitzero"`
}

// RemovalStep is a step that is over.
type RemovalStep struct {
	Step string `json:"step"`
	// Outcome is done or skipped; Message says more (why it was skipped, what it waited for).
	Outcome string    `json:"outcome"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
}

// Over tells whether a step of a removal is done or skipped.
func (r *Removal) Over(step string) bool {
	for _, s := range r.Steps {
		if s.Step == step {
			return true
		}
	}
	return false
}

// Act is something done to a node or cluster.
type Act string

// Acts. Those of IsDestructive are pushed as an Intent before the call.
const (
	ActInstall      Act = "install"
	ActBootstrap    Act = "bootstrap"
	ActJoin         Act = "join"
	ActConfigure    Act = "configure"
	ActReboot       Act = "reboot"
	ActEvacuate     Act = "evacuate"
	ActDrain        Act = "drain"
	ActUncordon     Act = "uncordon"
	ActSnapshot     Act = "snapshot"
	ActRemoveMember Act = "remove-member"
	ActReset        Act = "reset"
	ActDeleteNode   Act = "delete-node"
	ActUpgrade      Act = "upgrade"
	ActRestore      Act = "restore"
	ActRotate       Act = "rotate"
)

// Destructive tells whether an act needs its intent on the status branch before the call. Install is one: it wipes
// a disk. A configure that only writes the same wish again is idempotent and is not.
func (a Act) Destructive() bool {
	switch a {
	case ActInstall, ActBootstrap, ActReboot, ActRemoveMember, ActReset, ActUpgrade, ActRestore, ActRotate:
		return true
	case ActJoin, ActConfigure, ActEvacuate, ActDrain, ActUncordon, ActSnapshot, ActDeleteNode:
		return false
	}
	return true
}

// Intent is a destructive act that was announced and whose outcome is not yet seen.
type Intent struct {
	// ID is unique: epoch-generation-act-machine.
	ID      string    `json:"id"`
	Act     Act       `json:"act"`
	Machine string    `json:"machine"`
	UUID    string    `json:"uuid,omitempty"`
	Commit  string    `json:"commit,omitempty"`
	Holder  string    `json:"holder"`
	Epoch   int64     `json:"epoch"`
	At      time.Time `json:"at"`
	// BootID of the machine before the act, so that a reboot can be seen to have happened. "" is unknown.
	BootID string `json:"bootID,omitempty"`
	// Digest that the act brings into force, where it is about a configuration.
	Digest string `json:"digest,omitempty"`
	// Sent: the call was answered (true), or it is not known whether it arrived (false).
	Sent bool `json:"sent"`
	// Detail for later kinds of act, free of secrets.
	Detail map[string]string `json:"detail,omitempty"`
}

// States of an OperationRecord. An operation that only waits or is refused for now has no record: it is looked at again.
const (
	OperationRunning = "running"
	OperationDone    = "done"
	OperationFailed  = "failed"
)

// OperationRecord is what became of a TalosOperation. It runs once per name and content.
type OperationRecord struct {
	State   string    `json:"state"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
}
