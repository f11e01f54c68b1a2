package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/rehearse"
)

func rehearseCommand() *cobra.Command {
	var o rehearse.Options
	cmd := &cobra.Command{
		Use:   "rehearse [DIR]",
		Short: "Try a change of your own repository on simulated nodes",
		Long: `Rolls a change of your repository out on simulated nodes, with the real Ichor, and says what happens: which
machine is touched when, what reboots, whether etcd could be written to all the time, what is refused.

DIR (default: the working folder) is your repository as it is, with the real addresses of your machines. It is
only read: a private copy gets loopback addresses, made-up secrets (no age key is needed) and quick timings. What
runs first is base, what is rolled out the change:

  ichor-lab rehearse                      the folder's files, on HEAD
  ichor-lab rehearse --rev feature        a revision, on its first parent
  ichor-lab rehearse --rev X --base Y     X, on Y

A folder that is in no Git repository, or has no machines on base, is brought up from blank machines.

Not rehearsed: Kubernetes (drains, pods), backups, and what only real hardware does. Exit codes: 0 the change goes
through, 1 it is refused, stuck or hurts etcd, 2 used wrongly.`,
		Example: `  ichor-lab rehearse ~/fleet
  ichor-lab rehearse ~/fleet --rev feature --base main
  ichor-lab rehearse ~/fleet --apply        # a fleet that is in mode observe so far`,
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Dir = "."
			if len(args) > 0 {
				o.Dir = args[0]
			}
			for name, value := range map[string]string{"rev": o.Rev, "base": o.Base} {
				if value == "" && cmd.Flags().Changed(name) {
					return usageError{errors.New("--" + name + " is empty: name a revision, or leave the flag out")}
				}
			}
			if o.Patience <= 0 {
				return usageError{errors.New("--patience: want a duration such as 90s or 5m")}
			}
			if cmd.Flags().Changed("state") { // the lab's own default is not meant
				o.State, _ = cmd.Flags().GetString("state")
			}
			o.Out = cmd.OutOrStdout()
			err := rehearse.Run(cmd.Context(), o)
			if e, ok := errors.AsType[rehearse.UsageError](err); ok {
				return usageError{e}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Base, "base", "", "`revision` that runs first (default: HEAD; with --rev its first parent)")
	f.StringVar(&o.Rev, "rev", "", "`revision` that is rolled out (default: the folder's files)")
	f.BoolVar(&o.Apply, "apply", false, "rehearse clusters in mode observe as if they were in mode apply")
	f.BoolVar(&o.RealTime, "real-time", false, "keep settle, interval and grace of the manifests, and let machines take as long as real ones")
	f.DurationVar(&o.Patience, "patience", 90*time.Second, "a rollout in which nothing happens for this `time` is stuck")
	f.StringVar(&o.Ichor, "ichor", "", "the ichor `program` (default: beside ichor-lab, else on the PATH)")
	f.BoolVar(&o.Keep, "keep", false, "keep the folder with the copies, the lab's state and Ichor's")
	return cmd
}
