package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/lab/cli"
)

func nodeCommand() *cobra.Command {
	cmd := group("node", "Look at the nodes, and let them fail", "Lists the nodes of the lab, and does to them what happens to machines.",
		`  ichor-lab node list
  ichor-lab node cut w1
  ichor-lab node heal w1
  ichor-lab node slow cp1 2s
  ichor-lab node impersonate cp2 --uuid 11111111-2222-3333-4444-555555555555
  ichor-lab node refuse cp3 --count 1`, nodeListCommand())
	for _, a := range cli.Acts {
		cmd.AddCommand(nodeActCommand(a.Name, a.Does))
	}
	return cmd
}

func nodeListCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "list", Short: "List the nodes, what was written to them and what is wrong with them",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, err := client(cmd).Nodes(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd, format, nodes, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "NAME\tCLUSTER\tROLE\tADDRESS\tSTAGE\tCONFIGS\tBOOTSTRAPS\tREBOOTS\tFAULTS\tFINGERPRINT")
				for _, n := range nodes {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", n.Name, n.Cluster, n.Role, n.Address, n.Stage, n.Configurations, n.Bootstraps, n.Reboots, dash(n.Faults), dash(n.Fingerprint))
				}
			})
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

// nodeActCommand is one act; some take more than a name.
func nodeActCommand(name, does string) *cobra.Command {
	a := cli.NodeAct{Act: name}
	cmd := &cobra.Command{Use: name + " NAME", Short: "On NAME: " + does, Args: usage(cobra.ExactArgs(1))}
	switch name {
	case "slow":
		cmd.Use, cmd.Args = "slow NAME [DELAY]", usage(cobra.RangeArgs(1, 2))
	case "move":
		cmd.Use, cmd.Args = "move NAME ADDRESS", usage(cobra.ExactArgs(2))
	case "impersonate":
		cmd.Flags().StringVar(&a.UUID, "uuid", "", "show this system UUID instead of another cluster's certificate")
		cmd.Flags().BoolVar(&a.Maintenance, "maintenance", false, "answer in maintenance mode instead")
	case "refuse":
		cmd.Flags().IntVar(&a.Count, "count", 0, "how many configurations are refused (0: all, until heal)")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.Name = args[0]
		if a.UUID != "" && a.Maintenance {
			return usageError{errors.New("--uuid and --maintenance: one of them")}
		}
		if name == "slow" {
			a.Delay = 500 * time.Millisecond
			if len(args) == 2 {
				d, err := time.ParseDuration(args[1])
				if err != nil || d <= 0 {
					return usageError{fmt.Errorf("delay %q: want a duration such as 500ms or 2s", args[1])}
				}
				a.Delay = d
			}
		}
		if name == "move" {
			a.Address = args[1]
		}
		return client(cmd).Node(cmd.Context(), a)
	}
	return cmd
}
