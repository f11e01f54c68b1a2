package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/validate/check"
)

func renderCommand() *cobra.Command {
	var s source
	cmd := &cobra.Command{
		Use:   "render MACHINE [DIR]",
		Short: "Show the Talos configuration of a machine, with its secrets masked",
		Long: "render shows the configuration that a machine gets, as YAML documents. Every secret value is shown as " +
			mask.Marker + ": no secret is opened. MACHINE is a machine's name, or CLUSTER/NAME where several clusters have one.",
		Example:           "  ichor render cp1\n  ichor render prod/cp1 --rev main",
		Args:              arguments(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: completeMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, d, err := s.run(cmd, args[1:], true)
			if err != nil {
				return err
			}
			cluster, name, err := findMachine(r, args[0])
			if err != nil {
				return err
			}
			masked, ok := d.Renders[cluster][name]
			if !ok {
				return &exitError{exitFailed, fmt.Errorf("machine %s/%s does not render: %s", cluster, name, renderProblems(r, cluster))}
			}
			return text(cmd.OutOrStdout(), d.Scrub(string(masked.YAML())))
		},
	}
	s.flags(cmd)
	return cmd
}

// findMachine finds a machine of the commit by NAME or CLUSTER/NAME.
func findMachine(r *check.Report, arg string) (cluster, name string, err error) {
	var found, all []string
	for _, m := range r.Machines {
		if m.Change == check.ChangeRemove {
			continue
		}
		id := m.Cluster + "/" + m.Name
		all = append(all, id)
		if (arg == m.Name || arg == id) && !slices.Contains(found, id) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 1:
		cluster, name, _ = strings.Cut(found[0], "/")
		return cluster, name, nil
	case 0:
		const shown = 10
		if len(all) == 0 {
			return "", "", usagef("no machine %q: none renders here", arg)
		}
		if len(all) > shown {
			all = append(all[:shown], "…")
		}
		return "", "", usagef("no machine %q; there are %s", arg, strings.Join(all, ", "))
	}
	return "", "", usagef("several machines are called %q: say which of %s", arg, strings.Join(found, ", "))
}

// renderProblems gives the text of the render problems of a cluster.
func renderProblems(r *check.Report, cluster string) string {
	only := &check.Report{Verdict: check.Failed}
	for _, p := range r.Problems {
		if p.Rule == "render" && p.Cluster == cluster {
			only.Problems = append(only.Problems, p)
		}
	}
	return "\n" + strings.TrimSpace(report.Text(only))
}
