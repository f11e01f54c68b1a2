// Package render makes Talos machine configurations out of a Fleet and a secrets bundle. The same input gives
// the same bytes.
//
// Contract between the packages under render (signatures are fixed, see each package):
//
//	bundle.StandIn(cluster, ciphertext)  deterministic made-up bundle with just the keys the real one shows
//	bundle.Open(ciphertext, identities)  the real bundle (SOPS, age); the only place that decrypts
//	render.Cluster(ctx, Input)           one Result a machine that is not rejected
//	diff.Between(a, b)                   changed leaves of two masked renders
//	effect.Of(contract, document, path)  live, restart, reboot, install
package render

import (
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// Input of one render of a cluster.
type Input struct {
	Cluster *fleet.Cluster
	// Bundle is the stand-in for a check and the real one for applying.
	Bundle *bundle.Bundle
	// Values opens SOPS-encrypted patch values. nil renders with stand-ins in their place.
	Values bundle.Values
	// Machines limits the render to these names; nil renders all that are not rejected.
	Machines []string
	// WithoutConfig leaves Result.Config empty: a check of thousands of machines needs the masked form alone.
	WithoutConfig bool
}

// Result of one machine.
type Result struct {
	Machine *fleet.Machine
	// Config is the whole configuration as it is sent: documents sorted by kind and name (v1alpha1 first), no
	// comments. Secret material, in a check too.
	Config secret.Bytes
	// Masked is the render with every value from the bundle or an encrypted patch value replaced by mask.Marker.
	Masked mask.Render
	// Digest of Masked: "sha256:<hex>".
	Digest string
	// Patches are the patches that selected this machine, in order, with those that changed nothing marked.
	Patches []PatchUse
	// Err is set where the machine does not render or does not pass Talos's validation; then Config is empty.
	Err *Error
	// Warnings of Talos's validation, and "not checked: encrypted".
	Warnings []*Error
}

// PatchUse says what a patch did to a machine.
type PatchUse struct {
	Patch   *fleet.Patch
	Changed bool
}

// Error is a render failure with its guilty patch: the last of the shortest run of patches, in order, with which
// the render fails. Patch is nil where no patch is guilty.
type Error struct {
	Patch *fleet.Patch
	Entry int
	// Pos is the place of the guilty entry (in a patch file: of its line there), else of the machine's manifest.
	Pos fleet.Position
	// Talos is Talos's own text, whole. It names fields, and values of the render, which in a check are stand-ins. With
	// real secrets it is given only where a check meets the same text, else it is withheld; so it may be printed.
	Talos string
	// Hint says what to do, where Ichor knows.
	Hint string
}

// Error gives Talos's text with the patch that is guilty.
func (e *Error) Error() string {
	if e.Patch != nil {
		return "patch " + e.Patch.Name + ": " + e.Talos
	}
	return e.Talos
}
