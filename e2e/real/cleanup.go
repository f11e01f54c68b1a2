package real

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// cleanupTime bounds the cleaning up.
const cleanupTime = 2 * time.Minute

// cleanup is what has to be undone at the end, last first.
type cleanup struct {
	mu   sync.Mutex
	list []undo
}

type undo struct {
	name string
	do   func(context.Context) error
}

func (c *cleanup) add(name string, do func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(slices.DeleteFunc(c.list, func(u undo) bool { return u.name == name }), undo{name, do})
}

func (c *cleanup) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = slices.DeleteFunc(c.list, func(u undo) bool { return u.name == name })
}

func (c *cleanup) pop() (undo, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == 0 {
		return undo{}, false
	}
	u := c.list[len(c.list)-1]
	c.list = c.list[:len(c.list)-1]
	return u, true
}

// AtEnd has something undone at the end, interrupted or not; what was added last is undone first.
func (g *Guard) AtEnd(name string, do func(context.Context) error) { g.made.add(name, do) }

// CleanUp undoes everything. What could not be undone is in the error, by name.
func (g *Guard) CleanUp(ctx context.Context) error {
	var errs []error
	for u, ok := g.made.pop(); ok; u, ok = g.made.pop() {
		if err := u.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("clean up %s: %w", u.name, err))
		}
	}
	return errors.Join(errs...)
}

// Main runs a suite under the guard and gives the process's exit code: the suite's, 2 when it was refused, 130 when it
// was interrupted, 1 when something was left behind. It cleans up in any case. It refuses to run under "go run" and "go
// test": they pass no signal on, so nothing would be cleaned up.
func Main(errOut io.Writer, suite func(ctx context.Context, g *Guard) int) int {
	if err := built(); err != nil {
		fmt.Fprintln(errOut, err)
		return 2
	}
	g, err := FromEnv(os.Getenv)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return 2
	}
	return g.supervise(errOut, suite)
}

// supervise runs the suite until it ends or a signal comes, and cleans up.
func (g *Guard) supervise(errOut io.Writer, suite func(ctx context.Context, g *Guard) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	done := make(chan int, 1)
	go func() { done <- suite(ctx, g) }()
	code := 0
	select {
	case code = <-done:
	case <-ctx.Done():
		fmt.Fprintln(errOut, "interrupted: cleaning up")
		code = 130
	}
	limited, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	if err := g.CleanUp(limited); err != nil {
		fmt.Fprintln(errOut, err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

// built says whether this is a program of its own.
func built() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if strings.Contains(self, "/go-build") {
		return refuse("under \"go run\" and \"go test\" an interrupt is lost and nothing is cleaned up: build it first (make e2e-real)")
	}
	return nil
}
