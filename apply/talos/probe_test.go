package talos

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	stdx509 "crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render/bundle"
)

// generated makes a bundle once: its RSA key takes a second. It is three days old, so that a leaf may have expired.
var generated = [2]func() (*bundle.Bundle, error){sync.OnceValues(generate), sync.OnceValues(generate)}

func generate() (*bundle.Bundle, error) {
	b, _, err := bundle.Generate("v1.13", secrets.NewFixedClock(time.Now().Add(-72*time.Hour)))
	return b, err
}

func realBundle(t *testing.T, n int) *bundle.Bundle {
	t.Helper()
	b, err := generated[n]()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// leaf makes a server certificate, signed by the CA of a bundle, or by itself.
func leaf(t *testing.T, b *bundle.Bundle, cn string, notBefore, notAfter time.Time) tls.Certificate {
	t.Helper()
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &stdx509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: cn}, NotBefore: notBefore, NotAfter: notAfter,
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1")}, KeyUsage: stdx509.KeyUsageDigitalSignature, ExtKeyUsage: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth},
	}
	parent, signer := tmpl, any(priv)
	if b != nil {
		ca, err := b.Secrets().Certs.OS.GetCert()
		if err != nil {
			t.Fatal(err)
		}
		key, err := b.Secrets().Certs.OS.GetKey()
		if err != nil {
			t.Fatal(err)
		}
		parent, signer = ca, key
	}
	der, err := stdx509.CreateCertificate(rand.Reader, tmpl, parent, pub, signer)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: priv}
}

// serve accepts TLS connections as apid does, until the test ends.
func serve(t *testing.T, cfg *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close() //nolint:errcheck // a test's connection
				if cfg == nil {
					_, _ = c.Read(make([]byte, 1<<16))
					_, _ = c.Read(make([]byte, 1))
					return
				}
				_ = tls.Server(c, cfg).Handshake()
			}()
		}
	}()
	return l.Addr().String()
}

func TestProbe(t *testing.T) {
	ours, theirs := realBundle(t, 0), realBundle(t, 1)
	now := time.Now()
	day := func(n int) time.Time { return now.Add(time.Duration(n) * 24 * time.Hour) }
	d, err := NewDialer(ours, Options{Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range []struct {
		name    string
		cert    tls.Certificate
		auth    tls.ClientAuthType
		mode    plan.Mode
		expired bool
	}{
		{"maintenance", leaf(t, nil, "maintenance-service.talos.dev", day(-1), day(1)), tls.NoClientCert, plan.ModeMaintenance, false},
		{"configured", leaf(t, ours, "cp1", day(-1), day(1)), tls.RequireAnyClientCert, plan.ModeConfigured, false},
		{"expired", leaf(t, ours, "cp1", day(-2), day(-1)), tls.RequireAnyClientCert, plan.ModeConfigured, true},
		{"another cluster", leaf(t, theirs, "cp1", day(-1), day(1)), tls.RequireAnyClientCert, plan.ModeForeign, false},
		{"another cluster, expired", leaf(t, theirs, "cp1", day(-2), day(-1)), tls.RequireAnyClientCert, plan.ModeForeign, false},
		{"names itself maintenance, asks for a certificate", leaf(t, nil, "maintenance-service.talos.dev", day(-1), day(1)), tls.RequireAnyClientCert, plan.ModeForeign, false},
		{"something else", leaf(t, nil, "example.org", day(-1), day(1)), tls.NoClientCert, plan.ModeForeign, false},
		{"our CA, asks for nothing", leaf(t, ours, "cp1", day(-1), day(1)), tls.NoClientCert, plan.ModeForeign, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := serve(t, &tls.Config{Certificates: []tls.Certificate{c.cert}, ClientAuth: c.auth, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})
			p, err := d.Probe(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := stdx509.ParseCertificate(c.cert.Certificate[0])
			if err != nil {
				t.Fatal(err)
			}
			if p.Mode != c.mode || p.Expired != c.expired || p.Fingerprint != fingerprint(parsed) || p.CommonName != parsed.Subject.CommonName {
				t.Fatalf("got %+v", p)
			}
		})
	}
	t.Run("closed", func(t *testing.T) {
		if _, err := d.Probe(t.Context(), "127.0.0.1:1"); !Is(err, Unreachable) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		if _, err := d.Probe(t.Context(), serve(t, nil)); !Is(err, Timeout) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Probe(ctx, serve(t, nil)); !IsUnreachable(err) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestMint(t *testing.T) {
	b := realBundle(t, 0)
	now := time.Now()
	m := &minter{ca: b.Secrets().Certs.OS, now: func() time.Time { return now }, certs: map[Role]minted{}}
	first, err := m.certificate(Reader)
	if err != nil {
		t.Fatal(err)
	}
	x, err := stdx509.ParseCertificate(first.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Subject.Organization) != 1 || x.Subject.Organization[0] != "os:reader" {
		t.Errorf("roles %v", x.Subject.Organization)
	}
	// Talos refuses anything but exactly clientAuth.
	if len(x.ExtKeyUsage) != 1 || x.ExtKeyUsage[0] != stdx509.ExtKeyUsageClientAuth {
		t.Errorf("usage %v", x.ExtKeyUsage)
	}
	if back := now.Sub(x.NotBefore); back < 4*time.Minute || back > 6*time.Minute {
		t.Errorf("backdated by %s", back)
	}
	if left := x.NotAfter.Sub(now); left > certTTL+time.Second || left < certTTL-time.Second {
		t.Errorf("good for %s", left)
	}
	pool, err := authorities(b.Secrets().Certs.OS.Crt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Verify(stdx509.VerifyOptions{Roots: pool, KeyUsages: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if again, _ := m.certificate(Reader); again != first {
		t.Error("minted anew for nothing")
	}
	if other, _ := m.certificate(Admin); other == first {
		t.Error("one certificate for two roles")
	}
	for _, jump := range []time.Duration{certTTL/2 + time.Minute, -2 * certTTL} {
		now = now.Add(jump)
		if next, _ := m.certificate(Reader); next == first {
			t.Errorf("not renewed after the clock moved by %s", jump)
		}
	}
}

func TestStandInIsRefused(t *testing.T) {
	b, err := bundle.StandIn("c", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewDialer(b, Options{}); err != ErrStandIn {
		t.Fatalf("got %v", err)
	}
}

// TestPinned: the maintenance client speaks to the pinned certificate alone.
func TestPinned(t *testing.T) {
	d, err := NewDialer(realBundle(t, 0), Options{Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Maintenance("127.0.0.1:1", ""); !Is(err, WrongCertificate) {
		t.Fatalf("no fingerprint: %v", err)
	}
	addr := serve(t, &tls.Config{Certificates: []tls.Certificate{leaf(t, nil, "maintenance-service.talos.dev", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))}, NextProtos: []string{"h2"}})
	c, err := d.Maintenance(addr, "AAAA")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Version(t.Context()); !Is(err, WrongCertificate) {
		t.Fatalf("another certificate: %v", err)
	}
}

func TestEndpoint(t *testing.T) {
	for in, want := range map[string]string{"10.0.0.1": "10.0.0.1:50000", "10.0.0.1:50001": "10.0.0.1:50001", "::1": "[::1]:50000", "[::1]:7": "[::1]:7"} {
		if got := Endpoint(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}
