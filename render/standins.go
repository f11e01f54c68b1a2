package render

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// StandIns gives what checks put in the place of the encrypted values of a cluster's patches: for each ciphertext two
// stand-ins of the shape that Talos takes there, which differ. A rehearsal gives a cluster such values for real ones.
func StandIns(in Input) (map[string][2]string, error) {
	if in.Cluster == nil || in.Cluster.Manifest == nil {
		return nil, fmt.Errorf("find stand-ins: the cluster's manifest is not known")
	}
	in.Values = nil
	j, err := newJob(in)
	if err != nil {
		return nil, fmt.Errorf("find stand-ins of cluster %s: %w", in.Cluster.Name, err)
	}
	out := map[string][2]string{}
	for _, e := range j.entries {
		if len(e.secret) == 0 {
			continue
		}
		docs, err := yamlDocs(e.src.Raw)
		if err != nil {
			continue // it was not parsed either: the check says so
		}
		i := 0
		for _, d := range docs {
			walkEncrypted(d, func(_ string, leaf *yaml.Node) {
				out[leaf.Value] = [2]string{e.secret[i].value(first, i), e.secret[i].value(second, i)}
				i++
			})
		}
	}
	return out, nil
}
