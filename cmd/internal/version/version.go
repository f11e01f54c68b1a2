// Package version says which build this is.
package version

import "runtime/debug"

// Version is set by the linker (make build); "dev" otherwise.
var Version = "dev"

// String gives the version with the Talos machinery library that renders.
func String() string { return Version + " (machinery " + Machinery() + ")" }

// Machinery gives the version of Talos's machinery library that this binary was linked with, "unknown" where the
// binary has no build information.
func Machinery() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, dep := range info.Deps {
		if dep.Path == "github.com/siderolabs/talos/pkg/machinery" {
			return dep.Version
		}
	}
	return "unknown"
}
