package harness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Env reads the file that `ichor-lab up` writes for shells: export NAME=value.
func Env(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var env []string
	for line := range strings.Lines(string(data)) {
		if kv, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); ok {
			name, value, _ := strings.Cut(kv, "=")
			env = append(env, name+"="+strings.Trim(value, `'"`))
		}
	}
	return env, nil
}

// FastFlags make a daemon look and act in the lab's time. The age of facts stays at its default: it must be well above
// the 5 s that a silent machine is waited for, else that one makes the facts of all others too old.
func FastFlags() []string {
	return []string{
		"--interval", "300ms", "--status-pace", "20ms", "--status-per-hour", "-1", "--status-batch-time", "500ms",
		"--nodes-retry-interval", "3s", "--nodes-unreachable-retry", "500ms",
		"--nodes-poll", "200ms", "--nodes-reboot-timeout", "1m", "--nodes-join-timeout", "2m", "--nodes-config-timeout", "30s",
		"--takeover-after", "20s", "--log-format", "json",
	}
}

// Process is a running child with its output.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	mu  sync.Mutex
	out bytes.Buffer
	// Tee gets each line too; set before Start.
	tee func(line string)
}

// Start runs a binary with an environment on top of this process's. Its output is kept; tee (nil: nobody) gets each line.
func Start(bin string, env []string, tee func(line string), args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(bin, args...), done: make(chan struct{}), tee: tee}
	p.cmd.Env = append(os.Environ(), env...)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	// A child of a test that dies must not live on.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	_ = w.Close() // the child has its own
	read := make(chan struct{})
	go func() {
		defer close(read)
		s := bufio.NewScanner(r)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			p.mu.Lock()
			p.out.WriteString(s.Text() + "\n")
			p.mu.Unlock()
			if p.tee != nil {
				p.tee(s.Text())
			}
		}
	}()
	go func() {
		p.err = p.cmd.Wait()
		<-read
		_ = r.Close()
		close(p.done)
	}()
	return p, nil
}

// Output so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// Done is closed at the end.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends it as a crash does, and waits.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

// Signal sends a signal; one that has ended already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Stop asks it to end and waits at most 20 s.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(20 * time.Second):
		p.Kill()
		return errors.New("it did not stop within 20 s")
	}
}

// Run runs a command to its end and gives its output and exit code.
func Run(ctx context.Context, bin string, env []string, args ...string) (string, int, error) {
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode(), nil
	}
	return string(out), 0, err
}

// Pid of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }
