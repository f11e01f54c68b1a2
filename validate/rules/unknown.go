package rules

import (
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// mayBe tells whether an object that base has and head seems to lack may stand in a manifest of head that could not
// be read: then it is unknown, not gone.
func mayBe(head *fleet.Fleet, o fleet.Object) bool {
	for _, u := range head.Unknown {
		if u.Kind != "" && u.Kind != o.Kind {
			continue
		}
		if u.Name != "" {
			if u.Name == o.Name && (u.Cluster == "" || u.Cluster == o.Cluster || o.Kind == v1alpha1.KindTalosCluster) {
				return true
			}
			continue
		}
		// Nothing names it: the file where base has the object is the best that is known.
		if u.File == "" || u.File == o.Pos.File {
			return true
		}
	}
	return false
}

// unknownMachines tells whether a cluster may have machines that could not be read.
func unknownMachines(f *fleet.Fleet, cluster string) bool {
	for _, u := range f.Unknown {
		if (u.Kind == "" || u.Kind == v1alpha1.KindTalosMachine) && (u.Cluster == "" || u.Cluster == cluster) {
			return true
		}
	}
	return false
}
