// Package start_test does what docs/start.md says, as a new user would.
package start_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var block = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestTheWalkOfTheStartPage runs the page's commands in one shell, in order, and looks at what they print.
func TestTheWalkOfTheStartPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/start.md")
	if err != nil {
		t.Fatal(err)
	}
	bin, dir := t.TempDir(), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin+string(filepath.Separator), "../../cmd/ichor", "../../cmd/ichor-lab").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	// The shell's own processes end with it.
	script := "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"
	blocks := block.FindAllStringSubmatch(string(page), -1)
	for _, b := range blocks {
		script += b[1]
	}
	if len(blocks) < 6 {
		t.Fatalf("the page has only %d blocks of commands", len(blocks))
	}
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = []string{
		"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=ann", "GIT_AUTHOR_EMAIL=ann@example.com", "GIT_COMMITTER_NAME=ann", "GIT_COMMITTER_EMAIL=ann@example.com",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "ichor.log"))
		t.Fatalf("%v\n%s\nichor run:\n%s", err, out, log)
	}
	for _, want := range []string{
		"passed: 0 errors, 0 warnings; 3 new machines",
		"success  3 new machines",
		"failure  clusters/home/patches/scheduling.yaml:13:7: ",
		"allowShedulingOnControlPlanes",
		"success  3 machines change (live)",
		"failed: 1 error",
		"merged",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nobody sees %q in:\n%s", want, out)
		}
	}
	if strings.Contains(string(out), "AGE-SECRET-KEY") {
		t.Error("the walk shows a secret key")
	}
}
