package state

import "time"

// ConditionStatus is True, False or Unknown, as in Kubernetes.
type ConditionStatus string

// The statuses.
const (
	True    ConditionStatus = "True"
	False   ConditionStatus = "False"
	Unknown ConditionStatus = "Unknown"
)

// Condition has Kubernetes' form.
type Condition struct {
	Type               string          `json:"type"`
	Status             ConditionStatus `json:"status"`
	Reason             string          `json:"reason"`
	Message            string          `json:"message,omitempty"`
	LastTransitionTime time.Time       `json:"lastTransitionTime,omitzero"`
	ObservedCommit     string          `json:"observedCommit,omitempty"`
}

// Condition types.
const (
	CondReady         = "Ready"
	CondNodeReachable = "NodeReachable"
	CondRebootPending = "RebootPending"
	CondConverged     = "Converged"
	CondHeld          = "Held"
	CondTransitioning = "Transitioning"
	CondInventory     = "InventoryKnown"
	// CondRemoving of a machine: True while it leaves, with the step as reason's message.
	CondRemoving = "Removing"
	// CondRemovedMachineIsBack: a machine that was removed answers again with the cluster's identity.
	CondRemovedMachineIsBack = "RemovedMachineIsBack"
)

// Reasons, in one place so that messages, docs and alerts agree.
const (
	ReasonReady                      = "Ready"
	ReasonNodeReachable              = "NodeReachable"
	ReasonCurrentConfigUnavailable   = "CurrentConfigUnavailable"
	ReasonNodeUnreachable            = "NodeUnreachable"
	ReasonEndpointIdentityMismatch   = "EndpointIdentityMismatch"
	ReasonAdoptionPending            = "AdoptionPending"
	ReasonInventoryUnknown           = "InventoryUnknown"
	ReasonSecretsChanged             = "SecretsChanged"
	ReasonSecretsBundleUnavailable   = "SecretsBundleUnavailable"
	ReasonRenderChangedByTool        = "RenderChangedByTool"
	ReasonForcePush                  = "ForcePushHeld"
	ReasonMassDeletion               = "MassDeletionHeld"
	ReasonVersionChange              = "VersionChangeNotSupported"
	ReasonNotSupported               = "NotSupportedYet"
	ReasonCheckFailed                = "CheckFailed"
	ReasonSuspended                  = "Suspended"
	ReasonObserveMode                = "ObserveMode"
	ReasonPendingApproval            = "PendingApproval"
	ReasonRejected                   = "Rejected"
	ReasonConverged                  = "Converged"
	ReasonWaiting                    = "Waiting"
	ReasonProgressing                = "Progressing"
	ReasonFailed                     = "Failed"
	ReasonDrift                      = "Drift"
	ReasonRebootPending              = "RebootPending"
	ReasonEvenControlPlaneCount      = "EvenControlPlaneCount"
	ReasonDeleteRefused              = "DeleteRefused"
	ReasonStatusBranchLost           = "StatusBranchLost"
	ReasonStatusBranchTampered       = "StatusBranchTampered"
	ReasonFenced                     = "Fenced"
	ReasonRepositoryIdentityMismatch = "RepositoryIdentityMismatch"
	ReasonRemoving                   = "Removing"
	ReasonRemoved                    = "Removed"
	ReasonRemovalFailed              = "RemovalFailed"
	ReasonDeadMemberRemoved          = "DeadMemberRemoved"
	ReasonRemovedMachineIsBack       = "RemovedMachineIsBack"
	ReasonDraining                   = "Draining"
	ReasonDrainTimeout               = "DrainTimeout"
	ReasonRenamed                    = "Renamed"
	ReasonReleased                   = "Released"
	ReasonOperation                  = "Operation"
)

// Event is something that happened, for people.
type Event struct {
	At      time.Time `json:"at"`
	Cluster string    `json:"cluster"`
	Machine string    `json:"machine,omitempty"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Commit  string    `json:"commit,omitempty"`
}
