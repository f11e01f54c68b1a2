package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// R is one run of a case. It collects what differs, so that a known deviation can be told from a find.
type R struct {
	t        *testing.T
	ctx      context.Context
	s        *site
	failures []string
	skip     string
	mu       sync.Mutex
	closers  []func() error
}

var errStop = errors.New("stop the case")

// do runs the case until it ends or gives up.
func (r *R) do(f func(*R)) {
	defer func() {
		for _, c := range r.closers {
			c() //nolint:errcheck // clients that only asked
		}
		if p := recover(); p != nil && p != errStop { //nolint:errorlint // a panic's value
			panic(p)
		}
	}()
	f(r)
}

// Errorf notes a difference.
func (r *R) Errorf(format string, args ...any) {
	_, file, line, _ := runtime.Caller(1)
	for depth := 2; strings.HasSuffix(file, "result.go") || strings.HasSuffix(file, "ask.go"); depth++ {
		_, file, line, _ = runtime.Caller(depth)
	}
	text := fmt.Sprintf("%s:%d: %s", file[strings.LastIndex(file, "/")+1:], line, masked(fmt.Sprintf(format, args...)))
	if !slices.Contains(r.failures, text) && len(r.failures) < 20 { // what is looked at again and again is said once
		r.failures = append(r.failures, text)
	}
}

// secretLine is a line of a configuration, or of a difference between two, that has a secret.
var secretLine = regexp.MustCompile(`(?i)((?:key|token|secret|crt|cert|encryptionsecret|id)\\?"?:\s*)[^\s,}\\]{6,}`)

// masked takes what nodes answer and leaves out what no output may have: configurations' secrets.
func masked(text string) string { return secretLine.ReplaceAllString(text, "${1}(masked)") }

// same compares configurations without showing them.
func (r *R) same(what string, got, wanted []byte) {
	if bytes.Equal(got, wanted) {
		return
	}
	var lines []string
	old := strings.Split(string(wanted), "\n")
	for line := range strings.Lines(string(got)) {
		if !slices.Contains(old, strings.TrimRight(line, "\n")) && len(lines) < 5 {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	r.Errorf("%s: it has %d bytes, want %d; lines that should not be there: %q", what, len(got), len(wanted), lines)
}

// Fatalf notes a difference and ends the case.
func (r *R) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(errStop)
}

// Skip ends the case with the reason why the target can't show it.
func (r *R) Skip(format string, args ...any) {
	r.skip = fmt.Sprintf(format, args...)
	panic(errStop)
}

func (r *R) must(err error) {
	if err != nil {
		r.Fatalf("%v", err)
	}
}

// is wants an error of a code with exactly this text.
func (r *R) is(what string, err error, code codes.Code, text string) {
	if status.Code(err) != code || status.Convert(err).Message() != text {
		r.Errorf("%s: got %v, want %s %q", what, err, code, text)
	}
}

// has wants an error of a code with all of these texts in it; code OK wants no error.
func (r *R) has(what string, err error, code codes.Code, texts ...string) {
	if status.Code(err) != code {
		r.Errorf("%s: got %v, want %s %q", what, err, code, texts)
		return
	}
	for _, text := range texts {
		if !strings.Contains(status.Convert(err).Message(), text) {
			r.Errorf("%s: got %v, want it to say %q", what, err, text)
		}
	}
}

func (r *R) ok(what string, err error) {
	if err != nil {
		r.Errorf("%s: got %v, want OK", what, err)
	}
}

// want compares a value.
func want[T comparable](r *R, what string, got, wanted T) {
	if got != wanted {
		r.Errorf("%s: got %v, want %v", what, got, wanted)
	}
}

// wait looks until cond holds; what it says last is told when it never does.
func (r *R) wait(what string, cond func() error) {
	r.waitFor(r.s.Patience/2, what, cond)
}

func (r *R) waitFor(d time.Duration, what string, cond func() error) {
	deadline := time.Now().Add(d)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) || r.ctx.Err() != nil {
			r.Fatalf("waited for %s: %v", what, err)
		}
		r.pause(30 * time.Millisecond)
	}
}

func (r *R) pause(d time.Duration) {
	select {
	case <-r.ctx.Done():
	case <-time.After(d):
	}
}

// brief is the case's context with a deadline for one call.
func (r *R) brief(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(r.ctx, d)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closers = append(r.closers, func() error { cancel(); return nil })
	return ctx
}

func (r *R) dial(addr string, cfg *clientconfig.Config) *client.Client {
	c, err := r.s.dial(r.ctx, addr, cfg)
	r.must(err)
	r.closers = append(r.closers, c.Close)
	return c
}

// insecure is a client without a certificate.
func (r *R) insecure(addr string) *client.Client { return r.dial(addr, nil) }

// admin is a client with the cluster's admin credential.
func (r *R) admin(addr string) *client.Client {
	if r.s.Talosconfig == nil {
		r.Skip("it needs a credential (-talosconfig)")
	}
	return r.dial(addr, r.s.Talosconfig)
}

// reading is a client with the role os:reader.
func (r *R) reading(addr string) *client.Client {
	cfg, err := r.s.readerConfig(r.ctx)
	r.must(err)
	return r.dial(addr, cfg)
}
