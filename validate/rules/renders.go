package rules

import (
	"ichor.maesh.dev/ichor/render"
)

// Renders gives the renders of one fleet with stand-in secrets, made when they are asked for.
type Renders interface {
	// Cluster gives the results of a cluster's machines, sorted by machine; those that names lists, all when there are
	// none. An error says why the
	// cluster as a whole does not render.
	Cluster(name string, machines ...string) ([]render.Result, error)
}
