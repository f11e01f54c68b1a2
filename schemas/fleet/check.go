package fleet

import (
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// check looks at the values of a decoded manifest and fills in the object's name and cluster.
func (d *docDecoder) check(doc *parsedDoc) {
	switch m := doc.manifest.(type) {
	case *v1alpha1.TalosCluster:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Metadata.Name
	case *v1alpha1.TalosMachine:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
	case *v1alpha1.TalosConfigPatch:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
	case *v1alpha1.TalosEtcdBackup:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
	case *v1alpha1.TalosPolicy:
		doc.Name = m.Metadata.Name
		if m.Spec.ClusterRef != nil {
			doc.Cluster = m.Spec.ClusterRef.Name
		}
	case *v1alpha1.TalosOperation:
		doc.Name, doc.Cluster = m.Metadata.Name, m.Spec.ClusterRef.Name
	}
}
