package talos

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"ichor.maesh.dev/ichor/apply/plan"
)

// Probe is what a bare TLS handshake tells of a node.
type Probe struct {
	Mode plan.Mode
	// Fingerprint of the leaf: base64 of the SHA-256 of its SubjectPublicKeyInfo, as talosctl prints it.
	Fingerprint string
	// CommonName of the leaf.
	CommonName string
	// Expired: the leaf is of the cluster's CA, but not valid now (skewed clocks).
	Expired bool
}

const opProbe = "probing"

// probe tells the modes apart as talos.md 1.6 measured it: a configured node asks for a client certificate during
// the handshake, a node in maintenance mode does not and names itself maintenance-service.talos.dev. gRPC errors
// can't be used for it: which one comes is a race in TLS 1.3.
func probe(ctx context.Context, endpoint string, pool *stdx509.CertPool, now time.Time) (Probe, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return Probe{}, &Error{Kind: dialKind(ctx, err), Op: opProbe, Endpoint: endpoint, Text: err.Error()}
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	asked := false
	tc := tls.Client(conn, &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // the certificate is what is looked at
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &tls.Certificate{}, nil
		},
	})
	if err := tc.HandshakeContext(ctx); err != nil {
		return Probe{}, &Error{Kind: dialKind(ctx, err), Op: opProbe, Endpoint: endpoint, Text: "TLS handshake: " + err.Error()}
	}
	chain := tc.ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return Probe{}, &Error{Kind: Unreachable, Op: opProbe, Endpoint: endpoint, Text: "no certificate was presented"}
	}
	leaf := chain[0]
	p := Probe{Fingerprint: fingerprint(leaf), CommonName: leaf.Subject.CommonName}
	p.Mode, p.Expired = modeOf(asked, chain, pool, now)
	return p, nil
}

func modeOf(asked bool, chain []*stdx509.Certificate, pool *stdx509.CertPool, now time.Time) (plan.Mode, bool) {
	leaf := chain[0]
	if !asked {
		if leaf.Subject.CommonName == constants.MaintenanceServiceCommonName {
			return plan.ModeMaintenance, false
		}
		return plan.ModeForeign, false
	}
	opts := stdx509.VerifyOptions{Roots: pool, CurrentTime: now, Intermediates: stdx509.NewCertPool(), KeyUsages: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := leaf.Verify(opts)
	var invalid stdx509.CertificateInvalidError
	switch {
	case err == nil:
		return plan.ModeConfigured, false
	case errors.As(err, &invalid) && invalid.Reason == stdx509.Expired:
		// Ours all the same? Look at a moment at which the leaf is valid.
		opts.CurrentTime = leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
		if _, err := leaf.Verify(opts); err == nil {
			return plan.ModeConfigured, true
		}
	}
	return plan.ModeForeign, false
}

func fingerprint(leaf *stdx509.Certificate) string {
	sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func dialKind(ctx context.Context, err error) Kind {
	var ne net.Error
	if ctx.Err() != nil || errors.As(err, &ne) && ne.Timeout() {
		return Timeout
	}
	return Unreachable
}
