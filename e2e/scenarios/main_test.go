// Package scenarios runs the real ichor binary against labs and asserts what its users see: commit statuses, the status
// branch, metrics, the audit log, and what arrived at the nodes.
package scenarios

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"ichor.maesh.dev/ichor/render/bundle"
)

// long runs the longest variants: make test-all.
var long = flag.Bool("long", false, "run the longest variants")

// ichorBin is the binary that the tests run.
var ichorBin string

// slots bounds how many labs run at once: each has etcd members, and CI has two cores.
var slots = make(chan struct{}, 2)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	// The labs make age identities of their own; a person's are neither used nor shown to them.
	for _, name := range []string{bundle.EnvKey, bundle.EnvKeyFile} {
		if err := os.Unsetenv(name); err != nil {
			return 1, err
		}
	}
	dir, err := os.MkdirTemp("", "ichor-scenarios-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	ichorBin = filepath.Join(dir, "ichor")
	args := []string{"build", "-o", ichorBin}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(context.Background(), "go", append(args, "ichor.maesh.dev/ichor/cmd/ichor")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build ichor: %w\n%s", err, out)
	}
	return m.Run(), nil
}
