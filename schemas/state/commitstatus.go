package state

// CommitState is the state of a commit status, in the words of GitHub's API.
type CommitState string

// States: failure means that the commit is at fault, error that Ichor or its surroundings are.
const (
	StatePending CommitState = "pending"
	StateSuccess CommitState = "success"
	StateFailure CommitState = "failure"
	StateError   CommitState = "error"
)

// CommitStatus is one commit status as it is posted to a forge.
type CommitStatus struct {
	Context     string      `json:"context"`
	State       CommitState `json:"state"`
	Description string      `json:"description"`
	TargetURL   string      `json:"targetURL"`
}
