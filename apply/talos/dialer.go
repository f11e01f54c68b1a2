package talos

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"ichor.maesh.dev/ichor/render/bundle"
)

// DefaultTimeout of one call: reachable means that the secure API answered within it (SPEC section 3).
const DefaultTimeout = 5 * time.Second

// idleTimeout after which an unused connection is closed. Longer than the default reachability interval, so that a
// pass over nodes at rest makes no handshake.
const idleTimeout = 5 * time.Minute

// port of apid, where an endpoint names none.
const port = "50000"

// Options of a Dialer. The zero value is good.
type Options struct {
	// Now is the clock (time.Now).
	Now func() time.Time
	// Timeout of one call (DefaultTimeout).
	Timeout time.Duration
}

// Dialer reaches the nodes of one cluster with certificates made from its secrets bundle. Connections are kept and
// shared. It is safe for concurrent use.
type Dialer struct {
	opt    Options
	pool   *stdx509.CertPool
	minter *minter
	scrub  *Scrubber

	mu      sync.Mutex
	clients map[key]*Client
	closed  bool
}

type key struct {
	endpoint string
	role     Role
}

// NewDialer makes a Dialer of a real bundle. A stand-in is refused with ErrStandIn.
func NewDialer(b *bundle.Bundle, opt Options) (*Dialer, error) {
	if b.StandIn {
		return nil, ErrStandIn
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Timeout == 0 {
		opt.Timeout = DefaultTimeout
	}
	certs := b.Secrets().Certs
	if certs == nil || certs.OS == nil {
		return nil, fmt.Errorf("use the secrets bundle: it has no Talos CA")
	}
	pool, err := authorities(certs.OS.Crt)
	if err != nil {
		return nil, err
	}
	return &Dialer{
		opt:     opt,
		pool:    pool,
		minter:  &minter{ca: certs.OS, now: opt.Now, certs: map[Role]minted{}},
		scrub:   NewScrubber(bundleValues(b)...),
		clients: map[key]*Client{},
	}, nil
}

// Endpoint gives ip:port with the port filled in.
func Endpoint(endpoint string) string {
	if _, _, err := net.SplitHostPort(endpoint); err == nil {
		return endpoint
	}
	return net.JoinHostPort(endpoint, port)
}

// Probe tells the mode of a node by a bare TLS handshake. Errors: Unreachable, Timeout.
func (d *Dialer) Probe(ctx context.Context, endpoint string) (Probe, error) {
	ctx, cancel := context.WithTimeout(ctx, d.opt.Timeout)
	defer cancel()
	return probe(ctx, Endpoint(endpoint), d.pool, d.opt.Now())
}

// Secure gives the shared client of a node for one role. It connects at the first call.
func (d *Dialer) Secure(endpoint string, r Role) (*Client, error) {
	k := key{endpoint: Endpoint(endpoint), role: r}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, &Error{Kind: Failed, Op: "connecting", Endpoint: k.endpoint, Text: "the dialer is closed"}
	}
	if c, ok := d.clients[k]; ok {
		return c, nil
	}
	c, err := d.client(k.endpoint, &tls.Config{
		RootCAs:    d.pool,
		MinVersion: tls.VersionTLS12,
		Time:       d.opt.Now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return d.minter.certificate(r)
		},
	})
	if err != nil {
		return nil, err
	}
	c.drop = func() { d.forget(k, c) }
	d.clients[k] = c
	return c, nil
}

// Maintenance gives a client of a node in maintenance mode that accepts only the certificate with this fingerprint:
// the one that the machine's manifest demands, else the one that Probe saw. The caller closes it.
func (d *Dialer) Maintenance(endpoint, pinned string) (*Client, error) {
	if pinned == "" {
		return nil, &Error{Kind: WrongCertificate, Op: "connecting", Endpoint: endpoint, Text: "no fingerprint to pin the certificate to"}
	}
	return d.client(Endpoint(endpoint), &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // pinned below
		MinVersion:         tls.VersionTLS12,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 || fingerprint(cs.PeerCertificates[0]) != pinned {
				return fmt.Errorf("leaf peer certificate %s: [%s]", markPinned, pinned)
			}
			return nil
		},
	})
}

func (d *Dialer) client(endpoint string, tc *tls.Config) (*Client, error) {
	cl, err := client.New(context.Background(), client.WithTLSConfig(tc), client.WithEndpoints(endpoint), client.WithGRPCDialOptions(
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(idleTimeout),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: 5 * time.Second}, MinConnectTimeout: d.opt.Timeout}),
	))
	if err != nil {
		return nil, classify("connecting", endpoint, err, false, d.scrub)
	}
	return &Client{api: cl, endpoint: endpoint, timeout: d.opt.Timeout, scrub: d.scrub, now: d.opt.Now}, nil
}

// forget takes a broken client out, so that the next call connects anew instead of waiting for gRPC's own retries
// (which would also go on for ever in the background).
func (d *Dialer) forget(k key, c *Client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clients[k] == c {
		delete(d.clients, k)
	}
}

// Keep closes the connections of every endpoint that is not in the list.
func (d *Dialer) Keep(endpoints []string) {
	want := make(map[string]bool, len(endpoints))
	for _, e := range endpoints {
		want[Endpoint(e)] = true
	}
	d.mu.Lock()
	var gone []*Client
	for k, c := range d.clients {
		if !want[k.endpoint] {
			gone = append(gone, c)
			delete(d.clients, k)
		}
	}
	d.mu.Unlock()
	for _, c := range gone {
		c.Close()
	}
}

// Scrubber gives the one that knows the bundle's values.
func (d *Dialer) Scrubber() *Scrubber { return d.scrub }

// Close closes all connections.
func (d *Dialer) Close() {
	d.mu.Lock()
	clients := d.clients
	d.clients, d.closed = map[key]*Client{}, true
	d.mu.Unlock()
	for _, c := range clients {
		c.Close()
	}
}
