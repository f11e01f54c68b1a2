package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
)

func nodeCommand() *cobra.Command {
	cmd := group("node", "Look at the nodes, and let them fail", "Lists the nodes of the lab, and does to them what happens to machines.",
		`  ichor-lab node list
  ichor-lab node cut w1
  ichor-lab node heal w1
  ichor-lab node slow cp1 2s
  ichor-lab node impersonate cp2 --uuid 11111111-2222-3333-4444-555555555555
  ichor-lab node refuse cp3 --count 1
  ichor-lab node cut cp1 --from cp2
  ichor-lab node at cp1 ApplyConfiguration.after lose-reply
  ichor-lab node clock cp1 48h
  ichor-lab node full cp1 EPHEMERAL`, nodeListCommand())
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
	var arg func(args []string) error // takes what comes after the name
	takes := func(use string, from, to int, f func(args []string) error) {
		check := cobra.RangeArgs(1+from, 1+to)
		if from == to {
			check = cobra.ExactArgs(1 + from)
		}
		cmd.Use, cmd.Args, arg = name+" NAME "+use, usage(check), f
	}
	switch name {
	case "cut", "hang", "slow":
		cmd.Flags().StringVar(&a.From, "from", "", "only what this node begins with NAME (\"outside\": everybody who is no node)")
		cmd.Flags().StringVar(&a.To, "to", "", "only what NAME begins with this node")
	case "impersonate":
		cmd.Flags().StringVar(&a.UUID, "uuid", "", "show this system UUID instead of another cluster's certificate")
		cmd.Flags().BoolVar(&a.Maintenance, "maintenance", false, "answer in maintenance mode instead")
		cmd.Flags().StringVar(&a.Other, "as", "", "let this other node of the lab answer, as itself")
		cmd.MarkFlagsMutuallyExclusive("uuid", "maintenance", "as")
	case "refuse":
		cmd.Flags().IntVar(&a.Count, "count", 0, "how many configurations are refused (0: all, until heal)")
		cmd.Flags().StringVar(&a.Text, "text", "", "what the node says instead of the lab's own words")
	case "clock":
		cmd.Flags().BoolVar(&a.Synced, "synced", false, "the node believes its clock (a wrong time server); without, it knows that it has no time")
	}
	switch name {
	case "slow":
		takes("[DELAY]", 0, 1, func(args []string) (err error) {
			a.Delay = 500 * time.Millisecond
			if len(args) == 1 {
				a.Delay, err = duration("delay", args[0], false)
			}
			return err
		})
	case "clock":
		takes("OFFSET", 1, 1, func(args []string) (err error) {
			a.Delay, err = duration("offset", args[0], true)
			return err
		})
		cmd.Example = "  ichor-lab node clock cp1 48h            # its certificates are not yet valid\n  ichor-lab node clock cp1 -48h --synced   # they have expired"
	case "move", "twin":
		takes("ADDRESS", 1, 1, func(args []string) error { a.Address = args[0]; return nil })
	case "swap":
		takes("OTHER", 1, 1, func(args []string) error { a.Other = args[0]; return nil })
	case "full":
		takes("STATE|EPHEMERAL", 1, 1, func(args []string) error { a.Partition = args[0]; return nil })
	case "at":
		atCommand(cmd, &a)
		takes("POINT WHAT [ARG]", 2, 3, func(args []string) error {
			a.Step.Point, a.Step.Do = args[0], args[1]
			if len(args) == 3 {
				a.Step.Arg = args[2]
			}
			return nil
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.Name = args[0]
		if arg != nil {
			if err := arg(args[1:]); err != nil {
				return err
			}
		}
		return client(cmd).Node(cmd.Context(), a)
	}
	return cmd
}

// duration reads one; a negative one where it may be.
func duration(what, text string, negative bool) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d == 0 || (d < 0 && !negative) {
		return 0, usageError{fmt.Errorf("%s %q: want a duration such as 500ms or 2s", what, text)}
	}
	return d, nil
}

// atCommand says what can happen where.
func atCommand(cmd *cobra.Command, a *cli.NodeAct) {
	cmd.Flags().IntVar(&a.Step.Count, "count", 1, "how often it happens; -1: each time, until heal")
	cmd.Flags().IntVar(&a.Step.Message, "message", 2, "number of the streamed message that METHOD.during is about, from 1")
	var b strings.Builder
	b.WriteString(`Lets something happen to NAME when a point is reached. POINT is one of

  METHOD.before   a call of the Talos API came (such as ApplyConfiguration.before), nothing was done yet
  METHOD.after    it took effect, the reply is not sent yet
  METHOD.during   a message of a streamed reply is about to be sent (such as EtcdSnapshot.during)
  KIND[=DETAIL]   an event of the node, as "ichor-lab up" prints them without "node." (such as stage=installing,
                  or "etcd=added as learner")

Dry runs don't count. WHAT is one of

`)
	for _, d := range lab.Does {
		needs := ""
		if d.Call {
			needs = " (of a METHOD only)"
		}
		fmt.Fprintf(&b, "  %-12s%s%s\n", d.Name, d.Text, needs)
	}
	cmd.Long = b.String()
	cmd.Example = `  ichor-lab node at cp1 ApplyConfiguration.after lose-reply
  ichor-lab node at cp2 Bootstrap.before wait 10s
  ichor-lab node at cp3 EtcdSnapshot.during kill
  ichor-lab node at w1 stage=installing wipe
  ichor-lab node at cp1 ApplyConfiguration.before fail "Unavailable: try later" --count -1`
}
