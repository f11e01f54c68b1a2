package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/cmd/internal/scaffold"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/validate/check"
)

// sealing says to whom a command encrypts.
type sealing struct {
	recipients []string
	keyFile    string
}

func (s *sealing) flags(cmd *cobra.Command, fresh bool) {
	f := cmd.Flags()
	f.StringSliceVar(&s.recipients, "age-recipient", nil, "encrypt secrets to this `age1…` public key (default: those of the identities in $SOPS_AGE_KEY or $SOPS_AGE_KEY_FILE)")
	if fresh {
		f.StringVar(&s.keyFile, "age-key-file", "", "where there is no key yet, make one and keep it in this `file`, outside of the repository "+
			"(default: ichor/CLUSTER.age.key in your configuration folder)")
	}
}

// keys gives the recipients; fresh is the identity that has to be stored first, nil where there was a key.
func (s *sealing) keys(cluster, dir string) (recipients []string, fresh *scaffold.NewIdentity, err error) {
	if len(s.recipients) > 0 {
		for _, r := range s.recipients {
			if _, err := age.ParseRecipients(strings.NewReader(r)); err != nil || !strings.HasPrefix(r, "age1") {
				// Not quoted: it may be the private key, by mistake.
				return nil, nil, usagef("--age-recipient takes an age public key, which begins with age1")
			}
		}
		return s.recipients, nil, nil
	}
	if s.keyFile == "" {
		keys, err := bundle.LoadKeys(os.Getenv)
		if err == nil {
			return keys.Recipients(), nil, nil
		}
		if !errors.Is(err, bundle.ErrNoKeys) {
			return nil, nil, usagef("%w", err)
		}
		config, err := os.UserConfigDir()
		if err != nil {
			return nil, nil, usagef("no age key: give --age-recipient age1…, or name a file for a new key with --age-key-file")
		}
		s.keyFile = filepath.Join(config, "ichor", cluster+".age.key")
	}
	if fresh, err = scaffold.MakeIdentity(s.keyFile, repositoryRoot(dir)); err != nil {
		return nil, nil, usagef("%w", err)
	}
	return []string{fresh.Recipient}, fresh, nil
}

// repositoryRoot is the root of the Git repository that dir lies in, or dir.
func repositoryRoot(dir string) string {
	if repo, err := git.OpenLocal(dir); err == nil && repo.Root() != "" {
		return repo.Root()
	}
	return dir
}

func initCommand() *cobra.Command {
	var o scaffold.Options
	var s sealing
	var dry bool
	var presets []string
	for _, p := range scaffold.Presets() {
		presets = append(presets, fmt.Sprintf("  %-16s %s", p[0], p[1]))
	}
	cmd := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Make a repository for a new cluster, which passes its own check",
		Long: "init writes the files of a first cluster into DIR: manifests with the header that editors complete by, .sops.yaml, a " +
			".gitignore that keeps secrets out, and a new secrets bundle, encrypted. It never overwrites a file, and prints no secret. " +
			"An address that is not given becomes one of 192.0.2.0/24, to be replaced.\n\nPresets:\n" + strings.Join(presets, "\n"),
		Example: "  ichor init fleet --preset single --control-plane 10.0.0.11\n" +
			"  ichor init fleet --preset compact-ha --cni cilium --cni-tunnel geneve --endpoint-type loadBalancer --endpoint-address 10.0.0.10\n" +
			"  ichor init fleet --preset ha-with-workers --cluster prod --endpoint-type dns --endpoint-address api.prod.example.com \\\n" +
			"    --control-plane 10.0.0.11,10.0.0.12,10.0.0.13 --worker w1=10.0.0.21,w2=10.0.0.22 --age-recipient age1…",
		Args:              arguments(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeFolder,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			return initialize(cmd, dir, o, &s, dry)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Preset, "preset", "single", "`preset` of the machines: single, compact-ha or ha-with-workers")
	f.StringVar(&o.Cluster, "cluster", "home", "`name` of the cluster")
	f.StringVar(&o.TalosVersion, "talos-version", scaffold.DefaultTalosVersion, "`version` of Talos")
	f.StringVar(&o.KubernetesVersion, "kubernetes-version", scaffold.DefaultKubernetesVersion, "`version` of Kubernetes")
	f.StringVar(&o.CNI, "cni", "flannel", "container network: flannel, cilium or `none`")
	f.StringVar(&o.Tunnel, "cni-tunnel", "", "cilium's `tunnel`: vxlan or geneve")
	f.BoolVar(&o.KubeProxy, "kube-proxy", true, "run kube-proxy; false with a CNI that replaces it")
	f.StringVar(&o.EndpointType, "endpoint-type", "", "what the Kubernetes API is reached by: node, dns, loadBalancer or `vip` (default: node for single, else loadBalancer)")
	f.StringVar(&o.EndpointAddress, "endpoint-address", "", "IP `address` or host name of the Kubernetes API")
	f.IntVar(&o.EndpointPort, "endpoint-port", 6443, "`port` of the Kubernetes API")
	f.StringVar(&o.Link, "vip-link", "eth0", "network `link` that carries the address of endpoint type vip")
	f.StringSliceVar(&o.ControlPlanes, "control-plane", nil, "`ADDRESS` or NAME=ADDRESS of a control plane; may be repeated")
	f.StringSliceVar(&o.Workers, "worker", nil, "`ADDRESS` or NAME=ADDRESS of a worker; may be repeated")
	f.StringVar(&o.Disk, "disk", "/dev/sda", "`disk` that Talos is installed on")
	f.BoolVar(&dry, "dry-run", false, "say what would be written, and write nothing")
	s.flags(cmd, true)
	fixed := func(values ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	}
	_ = cmd.RegisterFlagCompletionFunc("preset", fixed("single", "compact-ha", "ha-with-workers"))
	_ = cmd.RegisterFlagCompletionFunc("cni", fixed("flannel", "cilium", "none"))
	_ = cmd.RegisterFlagCompletionFunc("cni-tunnel", fixed("vxlan", "geneve"))
	_ = cmd.RegisterFlagCompletionFunc("endpoint-type", fixed("node", "dns", "loadBalancer", "vip"))
	return cmd
}

func initialize(cmd *cobra.Command, dir string, o scaffold.Options, s *sealing, dry bool) error {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return usagef("%s is no folder", dir)
	}
	if manifest := filepath.Join("clusters", o.Cluster, "cluster.yaml"); o.Cluster != "" {
		if _, err := os.Lstat(filepath.Join(dir, manifest)); err == nil {
			return usagef("%w\nName another folder, or another --cluster", &scaffold.ExistsError{Paths: []string{manifest}})
		}
	}
	if err := o.Valid(); err != nil {
		return usagef("%w", err)
	}
	recipients, fresh, err := s.keys(o.Cluster, dir)
	if err != nil {
		return err
	}
	o.Recipients = recipients
	plan, err := scaffold.New(o)
	if err != nil {
		return usagef("%w", err)
	}
	if err := passes(cmd.Context(), plan.Files); err != nil {
		return err
	}
	if err := scaffold.Conflicts(dir, plan.Files); err != nil {
		return usagef("%w\nName another folder, or another --cluster with the same keys", err)
	}
	out := cmd.OutOrStdout()
	if !dry {
		if fresh != nil {
			if err := fresh.Store(); err != nil {
				return err
			}
		}
		if err := scaffold.Write(dir, plan.Files); err != nil {
			return err
		}
	}
	return text(out, initReport(dir, plan, fresh, dry))
}

// passes checks files before they are written.
func passes(ctx context.Context, files []scaffold.File) error {
	fsys := fstest.MapFS{}
	for _, f := range files {
		fsys[f.Path] = &fstest.MapFile{Data: f.Data}
	}
	r, _, err := check.Run(ctx, check.Input{FS: fsys})
	if err != nil {
		return err
	}
	if r.Verdict != check.Passed {
		return usagef("nothing was written, for the repository would not pass its check:\n%s", strings.TrimSpace(report.Text(r)))
	}
	return nil
}

// initReport says what was done and what to do next.
func initReport(dir string, p *scaffold.Plan, fresh *scaffold.NewIdentity, dry bool) string {
	var b strings.Builder
	if written(&b, dir, p.Files, fresh, dry) {
		nextSteps(&b, dir, p, fresh)
	}
	return b.String()
}

// written lists the files with what each is for, and the new key; false where nothing was written.
func written(b *strings.Builder, dir string, files []scaffold.File, fresh *scaffold.NewIdentity, dry bool) bool {
	done := "Wrote"
	if dry {
		done = "Would write"
	}
	fmt.Fprintf(b, "%s %d files into %s:\n\n", done, len(files), dir)
	for _, f := range files {
		fmt.Fprintf(b, "  %-*s  %s\n", widest(files), f.Path, f.About)
	}
	if fresh != nil {
		keyWarning(b, fresh, dry)
	}
	if dry {
		b.WriteString("\nNothing was written (--dry-run).\n")
	}
	return !dry
}

func widest(files []scaffold.File) int {
	n := 0
	for _, f := range files {
		n = max(n, len(f.Path))
	}
	return n
}

func keyWarning(b io.Writer, fresh *scaffold.NewIdentity, dry bool) {
	verb := "A NEW AGE KEY WAS MADE"
	if dry {
		verb = "A NEW AGE KEY WOULD BE MADE"
	}
	fmt.Fprintf(b, "\n*** %s: %s\n*** It opens this cluster's secrets. Nobody can recover it: keep a copy in a safe place, off this machine.\n", verb, fresh.File())
	if !dry {
		fmt.Fprintf(b, "*** Its public key: %s\n", fresh.Recipient)
	}
}

func nextSteps(b io.Writer, dir string, p *scaffold.Plan, fresh *scaffold.NewIdentity) {
	fmt.Fprintf(b, "\nNext:\n\n")
	n := 0
	step := func(format string, args ...any) {
		n++
		fmt.Fprintf(b, "%2d. %s\n", n, fmt.Sprintf(format, args...))
	}
	if len(p.Placeholders) > 0 {
		step("Replace what nobody told me:\n      %s", strings.Join(p.Placeholders, "\n      "))
	}
	step("Look at the disk that Talos is installed on (%s, in clusters/%s/cluster.yaml).", p.Options.Disk, p.Options.Cluster)
	step("ichor check %s      # passes now; run it after each change (examples/pre-commit runs it before each commit)", dir)
	step("cd %s && git init -b main && git add . && git commit -m 'A first cluster'      # and push it to your forge", dir)
	key := "the file that holds your age key"
	if fresh != nil {
		key = fresh.File()
	}
	step("Run Ichor beside it (docs/running.md): SOPS_AGE_KEY_FILE=%s ichor run --repo URL --token-file FILE --state-dir DIR", key)
	step("Make ichor/check a required status of main, boot the machines from a Talos image, and change the cluster by pull requests.")
	if p.Options.CNI == "cilium" || p.Options.CNI == "none" {
		fmt.Fprintf(b, "\nWith --cni %s Talos installs no network of its own: nodes stay NotReady until it is there.\n", p.Options.CNI)
	}
}
