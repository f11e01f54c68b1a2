package journal

import (
	"errors"

	"ichor.maesh.dev/ichor/schemas/state"
)

// State of the inventory.
type State string

// States.
const (
	// NotLoaded: nothing was read yet, or the branch could not be read since the process began.
	NotLoaded State = "not-loaded"
	// Fresh: a first run; Take begins an inventory.
	Fresh State = "fresh"
	// Known: the inventory is what was left.
	Known State = "known"
	// Unknown: it is lost or not to be trusted. Destructive acts hold until a person acknowledges.
	Unknown State = "unknown"
	// Refused: it is of a newer format, or the branch is someone else's. Nothing may be written.
	Refused State = "refused"
)

// view is one of the two places as it was read: inv, or the reason why there is none (nil for the copy: no file).
type view struct {
	inv *state.Inventory
	err error
}

// verdict says what the two places come to.
type verdict struct {
	state State
	inv   *state.Inventory
	// restore: inv is newer than the branch, which is to be overwritten.
	restore bool
	// finding is state.ReasonStatusBranchLost or …Tampered, "" where the branch is as it was left.
	finding string
	message string
}

// base is what the branch held when notes were last kept in the state folder alone.
type base struct {
	MAC        string `json:"mac"`
	Epoch      int64  `json:"epoch"`
	Generation int64  `json:"generation"`
}

// judge is the table of the package's comment. unpushed is nil where the copy holds nothing that was not pushed.
func judge(branch, local view, unpushed *base) verdict {
	switch {
	case errors.Is(branch.err, errVersion) || errors.Is(local.err, errVersion):
		return verdict{state: Refused, message: "the inventory was written by a newer Ichor; run that version or newer"}
	case errors.Is(branch.err, ErrForeign):
		return verdict{state: Refused, finding: state.ReasonStatusBranchTampered, message: "the status branch has a root that is not Ichor's"}
	case branch.err == nil && local.inv == nil:
		// A copy that is gone or broken costs nothing: the branch is the truth.
		return verdict{state: Known, inv: branch.inv}
	case branch.err == nil:
		return judgeBoth(branch.inv, local.inv, unpushed)
	case local.inv != nil:
		return verdict{state: Known, inv: local.inv, restore: true, finding: finding(branch.err), message: "the inventory on the status branch " + why(branch.err) + "; the copy in the state folder is put back"}
	case errors.Is(branch.err, ErrAbsent) && local.err == nil:
		return verdict{state: Fresh, message: "no inventory yet: a first run"}
	}
	return verdict{state: Unknown, finding: finding(branch.err), message: "the inventory on the status branch " + why(branch.err) + " and there is no good copy in the state folder"}
}

// judgeBoth compares two that are valid. The one that is not behind in epoch and generation holds the other; where
// each is ahead in one of them, two histories went on from a common past, and neither can be trusted alone. Notes that
// were never pushed don't count for the comparison: they go on where the branch is what they were made on, and are
// dropped where another holder went on from there.
func judgeBoth(branch, local *state.Inventory, unpushed *base) verdict {
	at := base{MAC: local.MAC, Epoch: local.Holder.Epoch, Generation: local.Generation}
	if unpushed != nil {
		at = *unpushed
	}
	sameHolder := branch.Holder.ID == local.Holder.ID && branch.Holder.Epoch == local.Holder.Epoch
	switch {
	case branch.MAC == local.MAC:
		return verdict{state: Known, inv: branch}
	case unpushed != nil && (branch.MAC == at.MAC || sameHolder && branch.Generation > at.Generation && branch.Generation <= local.Generation):
		return verdict{state: Known, inv: local, restore: true}
	case branch.Holder.Epoch >= at.Epoch && branch.Generation > at.Generation:
		return verdict{state: Known, inv: branch}
	case at.Epoch >= branch.Holder.Epoch && at.Generation > branch.Generation:
		return verdict{state: Known, inv: local, restore: true, finding: state.ReasonStatusBranchTampered, message: "the inventory on the status branch is older than the copy in the state folder, which is put back"}
	}
	return verdict{state: Unknown, finding: state.ReasonStatusBranchTampered, message: "the inventory on the status branch and the copy in the state folder are of two different histories"}
}

func finding(err error) string {
	if errors.Is(err, ErrAbsent) || errors.Is(err, ErrNoFile) {
		return state.ReasonStatusBranchLost
	}
	return state.ReasonStatusBranchTampered
}

func why(err error) string {
	if errors.Is(err, ErrAbsent) || errors.Is(err, ErrNoFile) {
		return "is gone"
	}
	return err.Error()
}
