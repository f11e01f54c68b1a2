// Package diff compares two masked renders leaf by leaf.
package diff

// Change is one changed leaf. Before and After are masked; "" where absent.
type Change struct {
	// Document: v1alpha1, Kind or Kind/name.
	Document string
	// Path is dotted, keys that hold a dot in brackets: machine.sysctls["net.core.somaxconn"].
	Path          string
	Before, After string
	// Added, Removed: the leaf is new or gone (Before or After may be "" in itself).
	Added, Removed bool
}
