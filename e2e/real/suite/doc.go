// Package suite is the end-to-end suite for real nodes, behind the guard of package real. It is built by
// "make e2e-real" (build tag real) and refuses to start unless it was told what it may touch: see docs/e2e-real.md.
package suite
