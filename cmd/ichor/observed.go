package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/branch"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/sync/git"
)

// observation reads what the status branch says of the nodes, at a revision of the local repository. It was seen when
// that commit was made.
func observation(repo *git.Local, rev string, now time.Time) (*state.Observation, error) {
	sha, err := repo.Resolve(rev)
	if err != nil {
		return nil, usagef("unknown revision %q: --observed takes the status branch, origin/ichor/status for example; fetch it first", rev)
	}
	info, err := repo.CommitInfo(sha)
	if err != nil {
		return nil, fmt.Errorf("read commit %s: %w", rev, err)
	}
	tree, err := repo.FS(sha)
	if err != nil {
		return nil, fmt.Errorf("open the tree of %s: %w", rev, err)
	}
	out := &state.Observation{Now: now, Clusters: map[string]state.ObservedCluster{}}
	folders, err := fs.ReadDir(tree, path.Dir(branch.ClusterDir("x")))
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", rev, err)
	}
	for _, f := range folders {
		data, err := fs.ReadFile(tree, branch.ClusterStatus(f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", rev, err)
		}
		var c fold.Cluster
		if err := yaml.Unmarshal(data, &c); err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", branch.ClusterStatus(f.Name()), rev, err)
		}
		out.Clusters[f.Name()] = fold.Observed(c, info.When)
	}
	return out, nil
}
