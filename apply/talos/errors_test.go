package talos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/ichor/render/mask"
)

// TestClassify has the codes and texts that real nodes gave (facts: talos.md, talos-observed.md).
func TestClassify(t *testing.T) {
	const (
		immediate = "this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n-  token: topsecrettoken\n"
		cpOnly    = "bootstrap is only available on control plane nodes"
	)
	for _, c := range []struct {
		code codes.Code
		text string
		kind Kind
		lost bool
	}{
		{codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.9:50000: connect: connection refused"`, Unreachable, false},
		{codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`, Unreachable, false},
		{codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: certificate required"`, Unreachable, false},
		{codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: leaf peer certificate doesn't match the provided fingerprints: [AAAA]"`, WrongCertificate, false},
		{codes.Unavailable, "error reading from server: EOF", Unreachable, true},
		{codes.Unavailable, `closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: NO_ERROR`, Unreachable, true},
		{codes.Unavailable, "write tcp 127.0.0.1:4->127.0.0.9:50000: write: broken pipe", Unreachable, true},
		{codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /system/run/machined/machine.sock: connect: no such file or directory"`, Unreachable, false},
		{codes.DeadlineExceeded, "context deadline exceeded", Timeout, true},
		{codes.DeadlineExceeded, "latest balancer error: connection error: desc = \"transport: Error while dialing\"", Timeout, false},
		{codes.Canceled, "context canceled", Timeout, true},
		{codes.PermissionDenied, "not authorized", PermissionDenied, false},
		{codes.Unimplemented, cpOnly, NotControlPlane, false},
		{codes.Unimplemented, "apply configuration --mode='no-reboot' is not supported in maintenance mode", NotSupported, false},
		{codes.AlreadyExists, "etcd data directory is not empty", AlreadyBootstrapped, false},
		{codes.FailedPrecondition, "another apply configuration is already in progress", Busy, false},
		{codes.InvalidArgument, immediate, NeedsReboot, false},
		{codes.InvalidArgument, "1 error occurred:\n\t* cluster controlplane endpoint is required\n\n", InvalidConfig, false},
		{codes.Unknown, "etcdserver: rpc not supported for learner", Learner, true},
		{codes.Unknown, "etcdserver: no leader", NoLeader, true},
		{codes.Internal, "stream terminated by RST_STREAM", Failed, true},
	} {
		e := classify("trying", "127.0.0.9:50000", fmt.Errorf("wrapped: %w", status.Error(c.code, c.text)), true, NewScrubber("topsecrettoken"))
		if e.Kind != c.kind || e.Lost != c.lost {
			t.Errorf("%s %q: got kind %s, lost %t", c.code, c.text, e.Kind, e.Lost)
		}
		if strings.Contains(e.Error(), "topsecret") || strings.Contains(e.Error(), "diff:") {
			t.Errorf("%s: the text got out: %s", c.code, e)
		}
		if read := classify("trying", "x", status.Error(c.code, c.text), false, nil); read.Lost {
			t.Errorf("%s %q: a read has nothing to lose", c.code, c.text)
		}
	}
	if e := classify("trying", "x", context.DeadlineExceeded, false, nil); e.Kind != Timeout {
		t.Errorf("a bare deadline: %s", e.Kind)
	}
	if !Is(fmt.Errorf("outer: %w", &Error{Kind: Busy}), Busy) || Is(errors.New("x"), Busy) || KindOf(nil) != "" || KindOf(errors.New("x")) != Failed {
		t.Error("kinds")
	}
}

func TestScrubber(t *testing.T) {
	pem := "-----BEGIN CERTIFICATE-----\nMIIBPzCB8qADAgECAhEA1234567890abcdef\n-----END CERTIFICATE-----\n"
	s := NewScrubber("correct-horse", "abc", pem, "")
	for text, held := range map[string]bool{
		"a token correct-horse was refused":                true,
		"value MIIBPzCB8qADAgECAhEA1234567890abcdef in it": true,
		"abc is too short to be looked for":                false,
		"-----BEGIN CERTIFICATE----- expected":             false,
		"machine.token is required":                        false,
	} {
		if got := s.Clean(text); (got == Withheld) != held {
			t.Errorf("%q: got %q", text, got)
		}
	}
	if got := s.With("battery-staple").Clean("battery-staple"); got != Withheld {
		t.Errorf("With: %q", got)
	}
	if got := s.Clean("battery-staple"); got == Withheld {
		t.Error("With changed the first")
	}
	if got := (*Scrubber)(nil).Clean(strings.Repeat("é", maxText)); len(got) > maxText+8 {
		t.Errorf("not bounded: %d", len(got))
	}
}

func TestSecretValues(t *testing.T) {
	config := []byte("machine:\n  token: aaaa.bbbb\n  type: worker\n  env: {P: hidden-by-extra, Q: plain}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: w1\n")
	masked, err := mask.Config(config, []mask.Path{{Document: "v1alpha1", Path: "machine.env.P"}})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(SecretValues(config, masked), " ")
	for _, want := range []string{"aaaa.bbbb", "hidden-by-extra"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %q", want, got)
		}
	}
	for _, not := range []string{"worker", "plain", "w1"} {
		if strings.Contains(got, not) {
			t.Errorf("%s is no secret: %q", not, got)
		}
	}
	// A masked form of something else proves nothing: everything counts.
	if got := strings.Join(SecretValues(config, mask.Render{}), " "); !strings.Contains(got, "worker") || !strings.Contains(got, "aaaa.bbbb") {
		t.Errorf("without a masked form: %q", got)
	}
}
