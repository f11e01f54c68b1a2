package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/cmd/internal/adopt"
	"ichor.maesh.dev/ichor/cmd/internal/scaffold"
	"ichor.maesh.dev/ichor/render/bundle"
)

// adoption is what both ways to adopt share.
type adoption struct {
	sealing
	hints adopt.Hints
	into  string
	dry   bool
}

func adoptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Turn the files of another tool into a repository, and prove that no configuration changes",
		Long: "adopt reads files that made a running cluster's configurations, writes manifests that render to the same, and proves it: every " +
			"document and field of every rendered configuration is compared with the original, secrets included. Where one differs, or something " +
			"could not be carried over, it says what and where, and writes nothing. No node is touched, and the cluster begins in mode observe.\n\n" +
			"Secrets are encrypted to the age recipient, never written in plain text, and never printed.",
		Example: "  ichor adopt talosctl ./gen-config --into fleet --control-plane cp1=10.0.0.11 --worker w1=10.0.0.21 --age-recipient age1…\n" +
			"  ichor adopt talhelper . --into ../fleet --age-recipient age1…",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(adoptTalosctlCommand(), adoptTalhelperCommand())
	return cmd
}

func (a *adoption) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.into, "into", ".", "write the repository into this `folder`")
	f.BoolVar(&a.dry, "dry-run", false, "prove it and say what would be written, and write nothing")
	f.StringVar(&a.hints.Cluster, "cluster", "", "`name` of the cluster (default: the one in the files)")
	f.StringVar(&a.hints.TalosVersion, "talos-version", "", "`version` that the nodes run (default: that of the installer image)")
	f.StringVar(&a.hints.KubernetesVersion, "kubernetes-version", "", "`version` of Kubernetes (default: that of the kubelet image)")
	a.sealing.flags(cmd, true)
}

func adoptTalosctlCommand() *cobra.Command {
	var a adoption
	cmd := &cobra.Command{
		Use:   "talosctl DIR",
		Short: "Adopt a folder that talosctl gen config wrote",
		Long: "Reads controlplane.yaml and worker.yaml, or a whole configuration a machine (cp1.yaml); secrets.yaml where it is there, else the secrets of " +
			"a control plane's configuration; and patch files: one that the configurations have in them already is done with, one that is called as a " +
			"machine is its own, and of any other --patch has to say who has it.",
		Example: "  ichor adopt talosctl ./gen-config --into fleet --control-plane cp1=10.0.0.11 --worker w1=10.0.0.21,w2=10.0.0.22 --age-recipient age1…\n" +
			"  ichor adopt talosctl ./gen-config --dry-run --patch controlplane=vip.yaml --patch none=old.yaml",
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, args[0], adopt.Talosctl) },
	}
	a.flags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&a.hints.ControlPlanes, "control-plane", nil, "`ADDRESS` or NAME=ADDRESS of a control plane; may be repeated (default: talosconfig's endpoints)")
	f.StringSliceVar(&a.hints.Workers, "worker", nil, "`ADDRESS` or NAME=ADDRESS of a worker; may be repeated")
	f.StringSliceVar(&a.hints.Patches, "patch", nil, "who has a patch file: `TARGET=FILE`, the target being all, controlplane, worker, none or a machine")
	return cmd
}

// run reads, proves, and writes.
func (a *adoption) run(cmd *cobra.Command, dir string, read adopt.Reader) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return usagef("%s is no folder", dir)
	}
	keys, err := bundle.LoadKeys(os.Getenv)
	if err != nil && !errors.Is(err, bundle.ErrNoKeys) {
		return usagef("%w", err)
	}
	a.hints.Keys = keys
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	src, err := read(root.FS(), a.hints)
	if errors.Is(err, adopt.ErrHint) {
		return usagef("%w", err)
	}
	if err != nil {
		return &exitError{exitFailed, err}
	}
	var fresh *scaffold.NewIdentity
	res, err := adopt.Run(cmd.Context(), src, func(cluster string) (recipients []string, err error) {
		recipients, fresh, err = a.keys(cluster, a.into)
		return recipients, err
	})
	if coded := (*exitError)(nil); errors.As(err, &coded) {
		return err
	}
	if err != nil {
		return &exitError{exitFailed, fmt.Errorf("not adopted, and nothing was written: %w", err)}
	}
	if !res.Adopted() {
		if err := text(cmd.OutOrStdout(), refusal(res)); err != nil {
			return err
		}
		return errFailed
	}
	if err := passes(cmd.Context(), res.Files); err != nil {
		return err
	}
	if err := scaffold.Conflicts(a.into, res.Files); err != nil {
		return usagef("%w\nName another folder with --into", err)
	}
	if !a.dry {
		if fresh != nil {
			if err := fresh.Store(); err != nil {
				return err
			}
		}
		if err := scaffold.Write(a.into, res.Files); err != nil {
			return err
		}
	}
	return text(cmd.OutOrStdout(), adopted(a.into, src.Cluster, res, fresh, a.dry))
}

// refusal says what differs and what could not be carried over.
func refusal(r *adopt.Result) string {
	var b strings.Builder
	notes(&b, r.Notes)
	if len(r.Lost) > 0 {
		fmt.Fprintf(&b, "Not carried over:\n")
		for _, l := range r.Lost {
			fmt.Fprintf(&b, "  %s\n", l)
		}
	}
	if len(r.Differences) > 0 {
		fmt.Fprintf(&b, "Differs from the original:\n")
		for _, d := range r.Differences {
			fmt.Fprintf(&b, "  %s (machine %s): %s\n", d.File, d.Machine, d.Change)
		}
	}
	fmt.Fprintf(&b, "\nNot adopted, and nothing was written: %d not carried over, %d differences.\n", len(r.Lost), len(r.Differences))
	return b.String()
}

func notes(b *strings.Builder, list []string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "Found:\n")
	for _, n := range list {
		fmt.Fprintf(b, "  %s\n", n)
	}
	fmt.Fprintln(b)
}

// adopted says what was proved and written, and what to do next.
func adopted(dir, cluster string, r *adopt.Result, fresh *scaffold.NewIdentity, dry bool) string {
	var b strings.Builder
	notes(&b, r.Notes)
	fmt.Fprintf(&b, "Proved: the configurations of %d machines render to the originals (contract %s): no document or field differs, secrets included.\n\n",
		r.Machines, r.Contract)
	if !written(&b, dir, r.Files, fresh, dry) {
		return b.String()
	}
	fmt.Fprintf(&b, "\nNext:\n\n 1. ichor check %s, commit and push it.\n"+
		" 2. Run Ichor beside it. The cluster is in mode observe: everything is read and reported, nothing is written.\n"+
		" 3. When ichor/apply/%s says that no machine differs, take spec.rollout.mode: observe out of clusters/%s/cluster.yaml by a pull request.\n",
		dir, cluster, cluster)
	return b.String()
}

func adoptTalhelperCommand() *cobra.Command {
	var a adoption
	cmd := &cobra.Command{
		Use:   "talhelper DIR",
		Short: "Adopt a talhelper folder",
		Long: "Reads talconfig.yaml, talsecret(.sops).yaml, talenv(.sops).yaml and the patches that they name. What genconfig wrote into clusterconfig/ " +
			"is the original where it is there; else the configurations are made as talhelper makes them. Patches are taken over as they are written. " +
			"SOPS_AGE_KEY_FILE names the key that opens encrypted files.",
		Example: "  SOPS_AGE_KEY_FILE=age.key ichor adopt talhelper . --into ../fleet\n  ichor adopt talhelper . --dry-run --age-recipient age1…",
		Args:    arguments(cobra.ExactArgs(1)),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.run(cmd, args[0], adopt.Talhelper) },
	}
	a.flags(cmd)
	return cmd
}
