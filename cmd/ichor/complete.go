package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/sync/git"
)

// completionTime bounds what a person waits for after a tab.
const completionTime = time.Second

// fleetOf reads the repository that the working folder lies in, as far as it can be read in time.
func fleetOf(cmd *cobra.Command) *fleet.Fleet {
	dir := "."
	if repo, err := git.OpenLocal(dir); err == nil && repo.Root() != "" {
		dir = repo.Root()
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return &fleet.Fleet{}
	}
	defer root.Close()
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	f, _, err := fleet.Load(ctx, root.FS(), fleet.Options{})
	if err != nil {
		return &fleet.Fleet{}
	}
	return f
}

// completeMachine completes a machine's name as the first argument, CLUSTER/NAME where several clusters have it; then
// folders.
func completeMachine(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	f := fleetOf(cmd)
	seen := map[string]int{}
	for _, c := range f.Clusters {
		for _, m := range c.Machines {
			seen[m.Name]++
		}
	}
	var out []string
	for _, c := range f.Clusters {
		for _, m := range c.Machines {
			if seen[m.Name] > 1 {
				out = append(out, c.Name+"/"+m.Name)
			} else {
				out = append(out, m.Name)
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeCluster completes a cluster's name as the first argument; then folders.
func completeCluster(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	var out []string
	for _, c := range fleetOf(cmd).Clusters {
		out = append(out, c.Name)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeFolder completes one folder.
func completeFolder(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}
