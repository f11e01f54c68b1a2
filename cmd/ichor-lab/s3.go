package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/s3"
)

func s3Command() *cobra.Command {
	cmd := group("s3", "Look at the S3 store, and let it fail",
		`The lab's store is the real server versitygw, with faults in front of it. Where it is and its keys are in the state
folder's "env", also as the variables that S3 clients read. It keeps what it has over restarts of the lab.`,
		`  ichor-lab s3 show
  ichor-lab s3 cut
  ichor-lab s3 slow --rate 1048576
  ichor-lab s3 half --on UploadPart --count 1
  ichor-lab s3 lost-reply --on CompleteMultipartUpload --count 1
  ichor-lab s3 corrupt
  ichor-lab s3 corrupt --object cluster/2026-11-30.snapshot
  ichor-lab s3 clock --offset 20m
  ichor-lab s3 heal`, s3ShowCommand(), s3HealCommand())
	for _, k := range s3.Kinds {
		cmd.AddCommand(s3FaultCommand(k.Name, k.Does))
	}
	return cmd
}

func s3ShowCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "show", Short: "Show where it is, which faults are in force, and what was asked of it",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, err := client(cmd).Store(cmd.Context(), cli.StoreAct{Act: "show"})
			if err != nil {
				return err
			}
			return show(cmd, format, info, func(w *tabwriter.Writer) {
				fmt.Fprintf(w, "endpoint\t%s\nbucket\t%s\nregion\t%s\n", info.Endpoint, info.Bucket, info.Region)
				for _, f := range info.Faults {
					fmt.Fprintf(w, "fault\t%s %s\n", f.Kind, f.On)
				}
				for _, op := range slices.Sorted(maps.Keys(info.Requests)) {
					fmt.Fprintf(w, "%s\t%d\n", op, info.Requests[op])
				}
			})
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

func s3HealCommand() *cobra.Command {
	return &cobra.Command{
		Use: "heal", Short: "End every fault; what was corrupted in the store stays so",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := client(cmd).Store(cmd.Context(), cli.StoreAct{Act: "heal"})
			return err
		},
	}
}

func s3FaultCommand(kind, does string) *cobra.Command {
	a := cli.StoreAct{Act: "fault", Fault: s3.Fault{Kind: kind}}
	cmd := &cobra.Command{Use: kind, Short: does, Args: usage(cobra.NoArgs)}
	f := cmd.Flags()
	switch kind {
	case "cut", "refuse":
	case "clock":
		f.DurationVar(&a.Fault.Offset, "offset", 0, "how far it is ahead; -1h: behind")
	default:
		f.StringVar(&a.Fault.On, "on", "", "operation that it hits, as S3 names it, such as PutObject (default: all)")
		f.IntVar(&a.Fault.Count, "count", 0, "how many requests it hits (0: all, until heal)")
	}
	switch kind {
	case "slow":
		f.DurationVar(&a.Fault.Delay, "delay", 0, "time before each request (default 500ms when no rate is given)")
		f.Int64Var(&a.Fault.Rate, "rate", 0, "bytes a second of each transfer")
	case "fail":
		f.IntVar(&a.Fault.Status, "status", 503, "HTTP status")
	case "corrupt":
		f.StringVar(&a.Key, "object", "", "corrupt this stored object instead, on the store's disk")
		f.StringVar(&a.Bucket, "bucket", "", "bucket of --object (default: the lab's)")
		cmd.MarkFlagsMutuallyExclusive("object", "on")
		cmd.MarkFlagsMutuallyExclusive("object", "count")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if kind == "clock" && a.Fault.Offset == 0 {
			return usageError{fmt.Errorf("--offset is wanted, such as %s", cmp.Or(a.Fault.Offset, 20*time.Minute))}
		}
		if a.Key != "" {
			a.Act = "rot"
		}
		_, err := client(cmd).Store(cmd.Context(), a)
		return err
	}
	return cmd
}
