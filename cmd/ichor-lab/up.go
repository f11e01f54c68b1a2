package main

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/lab/cli"
)

func upCommand() *cobra.Command {
	var o cli.UpOptions
	var verbose bool
	cmd := &cobra.Command{
		Use:   "up --repo DIR",
		Short: "Start the lab for a repository, in the foreground",
		Long: `Starts a node for every TalosMachine of the repository at its endpoint (loopback addresses only), and a
forge with the repository's files on branch main. Nodes begin in maintenance mode, as machines that were
just switched on do; with --configured they begin as running clusters.

Into the state folder go "env" (read it in with ". FILE": it has what ichor run and talosctl need),
"talosconfig" (when an age key opens the secrets), "kubeconfig" and "token". Events are printed as JSON
lines on the standard output; what a person should know goes to the standard error.

State survives: after the end, a kill or a crash, the same command goes on where it was. The repository is
read at the start, the forge takes its files only the first time; "ichor-lab push" brings later changes.

With --with-kubernetes the control planes run a real API server, controller manager and scheduler on their
etcd, and every node a simulated kubelet; the programs are built once with hack/tools.sh kubernetes. Without
it the kubeconfig names endpoints where nothing answers.

An S3 store starts when its server is built (hack/tools.sh versitygw); --s3 on builds it.`,
		Example: `  ichor-lab up --repo ./fleet
  ichor-lab up --repo ./fleet --make-secrets --state /tmp/lab
  SOPS_AGE_KEY_FILE=age.key ichor-lab up --repo ./fleet --configured
  ichor-lab up --repo ./fleet --configured --with-kubernetes`,
		Args: wants(cobra.NoArgs, "repo"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{cli.S3Auto, cli.S3On, cli.S3Off}, o.S3) {
				return usageError{fmt.Errorf("--s3 %q: want auto, on or off", o.S3)}
			}
			level := slog.LevelWarn
			if verbose {
				level = slog.LevelDebug
			}
			o.State, _ = cmd.Flags().GetString("state")
			o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			o.Events, o.Said, o.Nodes = cmd.OutOrStdout(), cmd.ErrOrStderr(), cli.NewNodes
			return cli.Up(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Repo, "repo", "", "folder with the repository (a Git repository or a plain folder)")
	f.BoolVar(&o.Configured, "configured", false, "begin with running clusters instead of machines in maintenance mode; needs the age key")
	f.BoolVar(&o.MakeSecrets, "make-secrets", false, "write the secrets bundles that are missing into the repository, encrypted to the age key (made in the state folder when none is set)")
	f.StringVar(&o.ForgeAddr, "forge-addr", "", "address of the forge (loopback; default: a free port, kept in the state folder)")
	f.StringVar(&o.ForgeRepo, "forge-repo", "lab/fleet", "owner/name of the repository on the forge")
	f.BoolVar(&o.Real, "real-time", false, "let nodes take as long as real ones do (a reboot takes minutes)")
	f.BoolVar(&o.Kubernetes, "with-kubernetes", false, "run real Kubernetes on the control planes, some 500 MB of memory each (hack/tools.sh kubernetes builds its programs once)")
	f.StringVar(&o.S3, "s3", cli.S3Auto, "S3 store: auto (when its server is built), on (build it first, some minutes once), off")
	f.BoolVarP(&verbose, "verbose", "v", false, "log every request")
	return cmd
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the lab; its state stays",
		Long:  "Ends the lab that runs in the state folder and waits for its end. Delete the folder to forget the lab.",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return client(cmd).Down(cmd.Context()) },
	}
}

// absolute path, for the lab runs in another folder; "" stays.
func absolute(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	return filepath.Abs(dir)
}
