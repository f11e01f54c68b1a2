// Package bundle has the Talos secrets bundles that renders use: stand-ins for checks, real ones for applying. It
// is the only importer of SOPS.
package bundle

import (
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// Bundle is a Talos secrets bundle that never prints.
type Bundle struct {
	// secrets is the library's value; Secrets gives it.
	secrets *secrets.Bundle
	// StandIn is true for a made-up one, which must never reach a node.
	StandIn bool
}

// Secrets gives the library's value, for rendering and for minting certificates. It must not be printed.
func (b *Bundle) Secrets() *secrets.Bundle { return b.secrets }

// String gives the marker.
func (b *Bundle) String() string { return secret.Redacted }

// Values opens the SOPS-encrypted values of one file: decrypted leaves by document index and field path
// ("spec.documents[0].machine.token"). Implemented by Keys for applying; checks use none.
type Values interface {
	// Open checks the file's MAC and gives its decrypted leaves. Errors name the file, never a value.
	Open(f *fleet.File) ([]map[string]secret.Bytes, error)
}
