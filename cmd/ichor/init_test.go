package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/render/bundle"
)

// eachPreset makes a repository of every preset with every CNI, kind of endpoint and Talos version, and checks it.
func eachPreset(ts *testscript.TestScript, _ bool, _ []string) {
	n := 0
	for _, preset := range []string{"single", "compact-ha", "ha-with-workers"} {
		for _, more := range [][]string{
			nil,
			{"--cni", "cilium", "--cni-tunnel", "geneve", "--endpoint-type", "loadBalancer", "--endpoint-address", "10.0.0.10"},
			{"--cni", "cilium", "--kube-proxy=false", "--endpoint-type", "dns", "--endpoint-address", "api.example.com"},
			{"--cni", "none", "--endpoint-type", "vip", "--endpoint-address", "10.0.0.10", "--talos-version", "v1.12.5", "--kubernetes-version", "v1.35.0"},
			{"--endpoint-type", "vip", "--endpoint-port", "7443", "--talos-version", "1.13.5"},
		} {
			if n++; preset == "single" && n > 1 && n < 5 {
				// A new bundle costs seconds: what depends on the endpoint is seen with more than one control plane.
				continue
			}
			dir := fmt.Sprintf("preset-%d", n)
			args := append([]string{"init", dir, "--preset", preset, "--age-key-file", dir + ".key"}, more...)
			ts.Check(ts.Exec("ichor", args...))
			ts.Check(ts.Exec("ichor", "check", dir))
			if out := ts.ReadFile("stdout"); !strings.Contains(out, "passed: 0 errors, 0 warnings") {
				ts.Fatalf("ichor %s gives a repository with warnings:\n%s", strings.Join(args, " "), out)
			}
		}
	}
}

// fileMode compares a file's permissions: mode 600 FILE.
func fileMode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := strconv.FormatUint(uint64(info.Mode().Perm()), 8); got != args[0] {
		ts.Fatalf("%s has mode %s, want %s", args[1], got, args[0])
	}
}

// sealFile encrypts a file in its place, to an age key that is made where it is missing: seal FILE KEYFILE.
func sealFile(ts *testscript.TestScript, _ bool, args []string) {
	key := ts.MkAbs(args[1])
	if _, err := os.Stat(key); err != nil {
		id, err := age.GenerateX25519Identity()
		ts.Check(err)
		ts.Check(os.WriteFile(key, []byte(id.String()+"\n"), 0o600))
	}
	text, err := os.ReadFile(key)
	ts.Check(err)
	keys, err := bundle.ParseKeys(text)
	ts.Check(err)
	plain, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	sealed, err := bundle.Encrypt(plain, args[0], keys.Recipients(), "")
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), sealed, 0o644))
}

// talosctl runs the real one: talosctl ARGS...
func talosctl(ts *testscript.TestScript, neg bool, args []string) {
	bin := os.Getenv("ICHOR_TALOSCTL")
	if bin == "" {
		out, err := exec.Command(filepath.Join(packageDir, "../../hack/tools.sh"), "talosctl").Output()
		if err != nil {
			ts.Fatalf("get talosctl: %v (hack/tools.sh talosctl)", err)
		}
		bin = strings.TrimSpace(string(out))
	}
	if err := ts.Exec(bin, args...); (err != nil) != neg {
		ts.Fatalf("talosctl %s: %v", strings.Join(args, " "), err)
	}
}

// TestEveryCommandHasHelpWithAnExample takes every command that a person sees; cobra's own completion is left alone.
func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var visit func(c *cobra.Command)
	seen := 0
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			seen++
			if sub.Example == "" || sub.Short == "" || !strings.Contains(sub.Example, "ichor "+strings.TrimPrefix(sub.CommandPath(), "ichor ")) {
				t.Errorf("%s has no example of itself", sub.CommandPath())
			}
			visit(sub)
		}
	}
	visit(newRootCommand())
	if seen < 10 {
		t.Errorf("only %d commands were seen", seen)
	}
}
