package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a program that is started again whenever it ends, as the kubelet does with a container.
type process struct {
	name string
	path string
	args []string
	env  []string
	// log is the file that it writes to; an earlier one is kept beside it as .old.
	log string
	// grace is how long it may take to stop.
	grace time.Duration
	// lost says that the power is gone: then it is killed at once.
	lost func() bool
	// say tells of an end that nobody asked for.
	say func(detail string)
}

// run keeps the program running until ctx ends.
func (p *process) run(ctx context.Context) {
	pause := 500 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		p.say(fmt.Sprintf("%s ended: %v: %s", p.name, err, p.lastWords()))
		if time.Since(began) > time.Minute {
			pause = 500 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// once starts the program and waits for its end.
func (p *process) once(ctx context.Context) error {
	_ = os.Rename(p.log, p.log+".old")
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	// Nothing else of the lab's own environment: there may be an age key in it.
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, p.env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error {
		if p.lost() {
			return cmd.Process.Kill()
		}
		return cmd.Process.Signal(syscall.SIGTERM)
	}
	cmd.WaitDelay = p.grace
	// The kernel kills it when the lab dies, so that a lab that was killed leaves no API server behind on its ports.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	done := make(chan error, 1)
	go func() {
		// That signal comes at the end of the thread that started it: this one is kept for as long as it runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	return <-done
}

// lastWords are the end of the program's log, for people.
func (p *process) lastWords() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	last := lines[len(lines)-1]
	for _, l := range lines {
		if strings.HasPrefix(l, "Error:") || strings.Contains(l, "\"command failed\"") {
			last = l
		}
	}
	if len(last) > 300 {
		last = last[:300] + "…"
	}
	return last + " (all of it: " + p.log + ")"
}
