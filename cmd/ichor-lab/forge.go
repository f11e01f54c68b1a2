package main

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

func forgeCommand() *cobra.Command {
	return group("forge", "Let the forge fail, count its requests, set its webhook", "Puts faults in front of the forge, counts what was asked of it, and sets its webhook.",
		`  ichor-lab forge fault statuses.create lost-reply --count 1
  ichor-lab forge fault '*' status --status 500 --count 5
  ichor-lab forge heal
  ichor-lab forge requests
  ichor-lab forge webhook http://127.0.0.1:9465/webhook --secret-file webhook.secret`, faultCommand(), healCommand(), requestsCommand(), webhookCommand())
}

func faultCommand() *cobra.Command {
	var x forge.Fault
	cmd := &cobra.Command{
		Use: "fault ENDPOINT KIND", Short: "Let requests of an endpoint fail",
		Long: `ENDPOINT is one that "ichor-lab forge requests" lists, or a pattern: statuses.create, pulls.*, git.*, *.
KIND is one of
  status           answer with --status and do nothing
  primary-limit    403, no requests remain until --retry-after from now
  secondary-limit  403 of the secondary limit, with Retry-After
  too-many         429, with Retry-After
  lost-reply       do what was asked, then never answer (with --delay: cut the connection after it)
  slow             answer after --delay
  cut              close the connection before anything is done
  hang             do nothing, never answer`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			x.Endpoint, x.Kind = args[0], forge.FaultKind(args[1])
			return client(cmd).Fault(cmd.Context(), x)
		},
	}
	f := cmd.Flags()
	f.IntVar(&x.Count, "count", 0, "how many requests are hit (0: all, until heal)")
	f.IntVar(&x.Skip, "skip", 0, "how many requests go through first")
	f.IntVar(&x.Status, "status", 500, "status code of kind status")
	f.DurationVar(&x.RetryAfter, "retry-after", 0, "what the limits ask for (default 1m)")
	f.DurationVar(&x.Delay, "delay", 0, "delay of kinds slow and lost-reply")
	return cmd
}

func healCommand() *cobra.Command {
	return &cobra.Command{
		Use: "heal", Short: "Take all faults of the forge away", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return client(cmd).HealForge(cmd.Context()) },
	}
}

func requestsCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "requests", Short: "Count the forge's requests by endpoint", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			counts, err := client(cmd).Requests(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd, format, counts, func(w *tabwriter.Writer) {
				for _, name := range slices.Sorted(maps.Keys(counts)) {
					fmt.Fprintf(w, "%s\t%d\n", name, counts[name])
				}
			})
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

func webhookCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "webhook [URL]", Short: "Send push and pull request events to a URL; without one, stop it",
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var w cli.Webhook
			if len(args) == 1 {
				if u, err := url.Parse(args[0]); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
					return usageError{fmt.Errorf("webhook %q: want a URL such as http://127.0.0.1:9465/webhook", args[0])}
				}
				w.URL = args[0]
			}
			if file != "" {
				data, err := os.ReadFile(file)
				if err != nil {
					return fmt.Errorf("read secret of the webhook: %w", err)
				}
				w.Secret = strings.TrimSpace(string(data))
			}
			return client(cmd).Webhook(cmd.Context(), w)
		},
	}
	cmd.Flags().StringVar(&file, "secret-file", "", "file with the secret that signs the events")
	return cmd
}
