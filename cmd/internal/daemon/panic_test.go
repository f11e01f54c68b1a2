package daemon

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
)

// crashEnv names, for the test's own binary run again, how it is to crash.
const (
	crashEnv = "ICHOR_TEST_CRASH"
	// crashDirEnv names the folder with the bundle and the identity that it is to use.
	crashDirEnv = "ICHOR_TEST_CRASH_DIR"
)

// crashes are faults of a program in the middle of a pass, with the real secrets opened and rendered.
var crashes = map[string]func(r *rig){
	"read past the end": func(r *rig) { r.touched = r.touched[:cap(r.touched)+1] },
	// Somebody's careless text: what holds secrets must not print them, however it is asked.
	"print the bundle": func(r *rig) {
		panic(fmt.Sprintf("%v %+v %#v", r.prepared.bundle, r.prepared.bundle, *r.prepared.bundle))
	},
	"print what is applied": func(r *rig) { panic(fmt.Sprintf("%v %+v %#v", r.prepared, *r.prepared, *r.prepared)) },
	"print the nodes' spec": func(r *rig) { panic(fmt.Sprintf("%v %+v %#v", r.spec, *r.spec, *r.spec)) },
	"print the target":      func(r *rig) { panic(fmt.Sprintf("%v %+v %#v", r.target, *r.target, *r.target)) },
	"print the keys":        func(r *rig) { panic(fmt.Sprintf("%v %+v %#v", r.keys, r.keys, &r.keys)) },
}

// TestACrashPrintsNoSecret: a Go program that panics prints the panic's value and every goroutine.
func TestACrashPrintsNoSecret(t *testing.T) {
	if how := os.Getenv(crashEnv); how != "" {
		r := newRig(t)
		r.nodes.during = func() { crashes[how](r) }
		r.say = func(*target, time.Time, fold.Cluster, []state.Event, map[string]plan.MachineFacts) {}
		r.pass(t.Context())
		t.Fatal("it did not crash")
	}
	data, keys := sealed()
	b, err := bundle.Open(data, "secrets.sops.yaml", keys)
	if err != nil {
		t.Fatal(err)
	}
	secrets := append(bundleTexts(t, b), identity)
	dir := t.TempDir()
	for name, text := range map[string]string{"secrets.sops.yaml": string(data), "key.txt": identity} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for how := range crashes {
		t.Run(strings.ReplaceAll(how, " ", "-"), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run", "^TestACrashPrintsNoSecret$")
			cmd.Env = append(os.Environ(), crashEnv+"="+how, crashDirEnv+"="+dir, "GOTRACEBACK=system")
			out, err := cmd.CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte("panic: ")) || !bytes.Contains(out, []byte("goroutine ")) {
				t.Fatalf("it did not crash: %v\n%s", err, out)
			}
			for _, s := range secrets {
				if bytes.Contains(out, []byte(s)) {
					t.Errorf("the crash shows a secret (%d bytes long)", len(s))
				}
			}
		})
	}
}

// bundleTexts are the values of a bundle as they may occur in a text.
func bundleTexts(t *testing.T, b *bundle.Bundle) []string {
	t.Helper()
	text, err := yaml.Marshal(b.Secrets())
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var out []string
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && len(n.Value) >= 12 {
			out = append(out, n.Value)
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	walk(&doc)
	if len(out) < 10 {
		t.Fatalf("only %d secrets were found", len(out))
	}
	return out
}
