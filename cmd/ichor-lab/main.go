// Command ichor-lab runs simulated Talos nodes and a forge on loopback addresses, to try Ichor on and to rehearse
// changes. Everything is in e2e/lab; here flags are parsed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/lab/cli"
)

// Exit codes: 1 the command failed, 2 it was used wrongly.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a command that can't be understood.
type usageError struct{ error }

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// execute runs one command and gives its exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := newRootCommand()
	root.SetArgs(negativeLast(args))
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errOut, "ichor-lab: "+err.Error())
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(errOut, "See %q.\n", cmd.CommandPath()+" --help")
		return exitUsage
	}
	return exitFailed
}

// negativeLast lets an argument be a negative time without "--" before it: "node clock cp1 -48h" would be read as flags. It goes
// to the end, behind "--"; what comes after a flag is left to the flag.
func negativeLast(args []string) []string {
	for i, a := range args {
		if a == "--" {
			break
		}
		if i == 0 || strings.HasPrefix(args[i-1], "-") || len(a) < 2 || a[0] != '-' || a[1] < '0' || a[1] > '9' {
			continue
		}
		return slices.Concat(args[:i], args[i+1:], []string{"--", a})
	}
	return args
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "ichor-lab",
		Short: "Simulated Talos nodes and a forge, to try Ichor on and to rehearse changes",
		Long: `ichor-lab runs a lab on loopback addresses: a simulated Talos node for every TalosMachine of a
repository, each control plane with a real etcd member, and a forge: a Git server over HTTP with pull
requests and the part of GitHub's API that Ichor uses.

"ichor-lab up" runs in the foreground. The other commands drive the lab from another terminal or a script;
they find it by its state folder.`,
		Example: `  ichor-lab up --repo ./fleet --make-secrets
  . .ichor-lab/env && ichor run --interval 2s
  ichor-lab pr open --branch more-files --dir ./fleet-changed
  ichor-lab status more-files
  ichor-lab node cut w1`,
		SilenceErrors: true, SilenceUsage: true,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	state := os.Getenv("ICHOR_LAB_STATE")
	if state == "" {
		state = ".ichor-lab"
	}
	root.PersistentFlags().String("state", state, "folder with the lab's state ($ICHOR_LAB_STATE)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(upCommand(), downCommand(), rehearseCommand(), nodeCommand(), prCommand(), pushCommand(), statusCommand(), forgeCommand(), s3Command())
	return root
}

// usage marks what an argument check says as a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w; it is used as: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// wants is usage for a command that can't do without some flags.
func wants(check cobra.PositionalArgs, flags ...string) cobra.PositionalArgs {
	return usage(func(cmd *cobra.Command, args []string) error {
		for _, f := range flags {
			if !cmd.Flags().Changed(f) {
				return fmt.Errorf("--%s is wanted", f)
			}
		}
		return check(cmd, args)
	})
}

// group is a command that only has commands below it.
func group(use, short, long, example string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(children...)
	return cmd
}

// client for the lab that --state names.
func client(cmd *cobra.Command) *cli.Client {
	state, err := cmd.Flags().GetString("state")
	if err != nil {
		panic(err) // the flag is declared above
	}
	return cli.NewClient(state)
}
