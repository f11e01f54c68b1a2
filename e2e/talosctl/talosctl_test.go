// Package talosctl runs the real Talos client against the lab: what it prints and how it exits is
// compared with what it did on real nodes.
package talosctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// binary finds talosctl v1.13.5: ICHOR_TALOSCTL, or built once by hack/tools.sh into a cache.
// It never skips: a suite that passes without having run proves nothing.
func binary(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("ICHOR_TALOSCTL"); p != "" {
		return p
	}
	script := filepath.Join("..", "..", "hack", "tools.sh")
	cmd := exec.Command(script, "talosctl")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("find talosctl: set ICHOR_TALOSCTL to a binary of v1.13.5, or let %s build one: %v\n%s", script, err, &errOut)
	}
	return strings.TrimSpace(out.String())
}

// story is a lab, a cluster's secrets and the client.
type story struct {
	t      *testing.T
	ctx    context.Context
	bin    string
	lab    *lab.Lab
	dir    string
	bundle *secrets.Bundle
	// compared are the captures that were compared with, used how often each command was run.
	compared map[string]bool
	used     map[string]map[verdict]int
}

func newStory(t *testing.T) *story {
	t.Helper()
	bin := binary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	s := &story{t: t, ctx: ctx, bin: bin, dir: t.TempDir(), compared: map[string]bool{}, used: map[string]map[verdict]int{}}
	var err error
	s.bundle, err = secrets.NewBundle(secrets.NewFixedClock(time.Now().Add(-time.Minute)), config.TalosVersion1_13)
	s.must(err)
	s.lab, err = lab.New(ctx, lab.Options{StateDir: filepath.Join(s.dir, "state"), OnEvent: func(e node.Event) {
		t.Logf("%s %s %s", e.Node, e.Kind, e.Detail)
	}})
	s.must(err)
	t.Cleanup(func() { s.lab.Close() })
	s.talosconfig("admin", role.Admin)
	s.talosconfig("reader", role.Reader)
	return s
}

func (s *story) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *story) talosconfig(name string, r role.Role) {
	s.t.Helper()
	cert, err := s.bundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(r), time.Hour)
	s.must(err)
	s.must(clientconfig.NewConfig("lab", nil, s.bundle.Certs.OS.Crt, cert).Save(filepath.Join(s.dir, name)))
}

// config writes a machine configuration to a file and returns its path.
func (s *story) config(t machine.Type, hostname string, edits ...string) string {
	s.t.Helper()
	in, err := generate.NewInput("lab", "https://127.0.90.1:6443", "1.36.0",
		generate.WithSecretsBundle(s.bundle), generate.WithVersionContract(config.TalosVersion1_13), generate.WithInstallDisk("/dev/vda"),
		generate.WithInstallImage("ghcr.io/siderolabs/installer:v1.13.5"))
	s.must(err)
	p, err := in.Config(t)
	s.must(err)
	b, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	s.must(err)
	text := strings.Replace(string(b), "auto: stable", "hostname: "+hostname, 1)
	text = strings.Replace(text, "    features:\n", "    time:\n        disabled: true\n    features:\n", 1)
	for i := 0; i+1 < len(edits); i += 2 {
		if !strings.Contains(text, edits[i]) {
			s.t.Fatalf("edit config: %q is not in it", edits[i])
		}
		text = strings.Replace(text, edits[i], edits[i+1], 1)
	}
	path := filepath.Join(s.dir, fmt.Sprintf("%s-%d.yaml", hostname, len(edits)))
	s.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// run runs talosctl and returns what it printed, standard output and error together as the
// captures have them, and its exit code.
func (s *story) run(args ...string) (string, int) {
	s.t.Helper()
	return s.runAs("admin", args...)
}

func (s *story) runAs(who string, args ...string) (string, int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.bin, append(args, "--talosconfig", filepath.Join(s.dir, who))...)
	cmd.Env = append(os.Environ(), "HOME="+s.dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("run talosctl %v: %v", args, err)
	}
	s.t.Logf("$ talosctl %s\n%s[rc=%d]", strings.Join(args, " "), out, cmd.ProcessState.ExitCode())
	return string(out), cmd.ProcessState.ExitCode()
}

// expect runs talosctl and checks the exit code and that the output, with runs of blanks made one,
// matches the pattern.
func (s *story) expect(rc int, pattern string, args ...string) string {
	s.t.Helper()
	out, got := s.run(args...)
	s.note(source, args)
	s.check(rc, got, pattern, out, args)
	return out
}

var blanks = regexp.MustCompile(`[ \t]+`)

func (s *story) check(rc, got int, pattern, out string, args []string) {
	s.t.Helper()
	if got != rc {
		s.t.Errorf("talosctl %v exited with %d, want %d\n%s", args, got, rc, out)
	}
	if !regexp.MustCompile("(?s)" + pattern).MatchString(blanks.ReplaceAllString(out, " ")) {
		s.t.Errorf("talosctl %v printed\n%s\nwant a match of\n%s", args, out, pattern)
	}
}

// eventually runs talosctl until it exits with 0.
func (s *story) eventually(args ...string) string {
	s.t.Helper()
	for {
		out, rc := s.run(args...)
		if rc == 0 {
			return out
		}
		select {
		case <-s.ctx.Done():
			s.t.Fatalf("talosctl %v never succeeded: %s", args, out)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// watch runs a command that doesn't end until its output matches the pattern.
func (s *story) watch(pattern string, args ...string) {
	s.t.Helper()
	s.watchWhile("^", func() {}, pattern, args...)
}

// watchWhile does something once a command that doesn't end printed what matches ready, and waits
// until all its output matches the pattern.
func (s *story) watchWhile(ready string, act func(), pattern string, args ...string) {
	s.t.Helper()
	s.note(source, args)
	ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.bin, append(args, "--talosconfig", filepath.Join(s.dir, "admin"))...)
	out, err := cmd.StdoutPipe()
	s.must(err)
	s.must(cmd.Start())
	first, re := regexp.MustCompile("(?s)"+ready), regexp.MustCompile("(?s)"+pattern)
	var seen []byte
	buf := make([]byte, 4096)
	for !re.MatchString(blanks.ReplaceAllString(string(seen), " ")) {
		n, err := out.Read(buf)
		seen = append(seen, buf[:n]...)
		if act != nil && first.MatchString(blanks.ReplaceAllString(string(seen), " ")) {
			act()
			act = nil
		}
		if err != nil {
			s.t.Errorf("talosctl %v printed\n%s\nwant a match of\n%s", args, seen, pattern)
			break
		}
	}
	cancel()
	_ = cmd.Wait() // it was killed
}
