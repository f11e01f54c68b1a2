package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/cmd/internal/editor"
	"ichor.maesh.dev/ichor/schemas"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// defaultContract is the one that schemas follow where neither a cluster nor a flag says another.
const defaultContract = "v1.13"

func schemaCommand() *cobra.Command {
	var contract, write string
	cmd := &cobra.Command{
		Use:   "schema [KIND]",
		Short: "Print the JSON Schema of a kind, or the names of all kinds; or write them for editors",
		Long: "schema prints the JSON Schema of a kind. In a TalosConfigPatch's, documents follow Talos's own schema of the contract, so that editors " +
			"complete Talos's fields and mark those that it does not know (a field that Talos has deprecated too, though it still takes it).\n\nWith --write every schema goes into " + editor.Folder + " of the repository, " +
			"for the contracts of its clusters; what is there is renewed. The first line of a manifest points an editor there, as ichor init writes it:\n\n" +
			"  " + strings.TrimSpace(editor.Header(v1alpha1.KindTalosConfigPatch, defaultContract, "clusters/prod/patches/base.yaml")),
		Example:           "  ichor schema\n  ichor schema TalosCluster > taloscluster.schema.json\n  ichor schema TalosConfigPatch --contract v1.14\n  ichor schema --write .",
		Args:              arguments(cobra.MaximumNArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(schemas.Kinds(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if write != "" {
				if len(args) > 0 {
					return usagef("--write takes no KIND: it writes them all")
				}
				return writeSchemas(cmd, write, contract)
			}
			if len(args) == 0 {
				return text(cmd.OutOrStdout(), strings.Join(schemas.Kinds(), "\n")+"\n")
			}
			return printSchema(cmd, args[0], contract)
		},
	}
	cmd.Flags().StringVar(&contract, "contract", "", "`version` of Talos whose configuration a patch changes (default "+defaultContract+"; with --write those of the clusters)")
	cmd.Flags().StringVar(&write, "write", "", "write the schemas of all kinds into this `repository`")
	_ = cmd.RegisterFlagCompletionFunc("contract", cobra.FixedCompletions(editor.Contracts(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func printSchema(cmd *cobra.Command, name, contract string) error {
	if contract == "" {
		contract = defaultContract
	}
	for _, kind := range schemas.Kinds() {
		if strings.EqualFold(kind, name) {
			data, err := editor.Schema(kind, contract)
			if err != nil {
				return usagef("%w", err)
			}
			return text(cmd.OutOrStdout(), strings.TrimRight(string(data), "\n")+"\n")
		}
	}
	return usagef("unknown kind %q; there are %s", name, strings.Join(schemas.Kinds(), ", "))
}

// writeSchemas writes the schemas into a repository.
func writeSchemas(cmd *cobra.Command, dir, contract string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return usagef("%s is no folder", dir)
	}
	defer root.Close()
	contracts := []string{contract}
	if contract == "" {
		f, _, err := fleet.Load(cmd.Context(), root.FS(), fleet.Options{})
		if err != nil {
			return err
		}
		contracts = clusterContracts(f)
	}
	files, err := editor.Files(contracts)
	if err != nil {
		return usagef("%w", err)
	}
	if err := root.MkdirAll(filepath.FromSlash(editor.Folder), 0o755); err != nil {
		return fmt.Errorf("make folder of the schemas: %w", err)
	}
	for name, data := range files {
		if err := root.WriteFile(filepath.FromSlash(editor.Folder+"/"+name), data, 0o644); err != nil {
			return fmt.Errorf("write schema: %w", err)
		}
	}
	return text(cmd.OutOrStdout(), fmt.Sprintf("Wrote %d schemas into %s (contracts %s).\n",
		len(files), filepath.Join(dir, filepath.FromSlash(editor.Folder)), strings.Join(contracts, ", ")))
}

// clusterContracts lists the contracts of a fleet's clusters.
func clusterContracts(f *fleet.Fleet) []string {
	var out []string
	for _, c := range f.Clusters {
		if c.Manifest == nil {
			continue
		}
		if v := c.Manifest.Spec.EffectiveContract(); v != "" && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		return []string{defaultContract}
	}
	slices.Sort(out)
	return out
}
