package talos

import (
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/bundle"
)

// Role of the client certificate: an act takes the least that it needs (Talos: machined's role table).
type Role string

// Roles.
const (
	// Reader reads what is not sensitive.
	Reader Role = Role(role.Reader)
	// Operator reboots.
	Operator Role = Role(role.Operator)
	// Admin reads the machine configuration, applies one, bootstraps, hands etcd leadership on.
	Admin Role = Role(role.Admin)
)

const (
	certTTL = time.Hour
	// backdate keeps a node whose clock is behind from refusing the certificate.
	backdate = 5 * time.Minute
)

// ErrStandIn: a made-up bundle must never reach a node.
var ErrStandIn = errors.New("use a stand-in secrets bundle for a node: it is made for checks only")

// minter makes short-lived client certificates in memory, one a role, shared by all nodes of a cluster.
type minter struct {
	ca  *x509.PEMEncodedCertificateAndKey
	now func() time.Time

	mu    sync.Mutex
	certs map[Role]minted
}

type minted struct {
	cert  *tls.Certificate
	until time.Time
}

// certificate gives a certificate that is good for at least half of its life.
func (m *minter) certificate(r Role) (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if c, ok := m.certs[r]; ok && now.Before(c.until.Add(-certTTL/2)) && now.After(c.until.Add(-certTTL-backdate)) {
		return c.cert, nil
	}
	pem, err := secrets.NewAdminCertificateAndKey(now.Add(-backdate), m.ca, role.MakeSet(role.Role(r)), certTTL+backdate)
	if err != nil {
		return nil, fmt.Errorf("mint a Talos client certificate of role %s: %w", r, err)
	}
	cert, err := tls.X509KeyPair(pem.Crt, pem.Key)
	if err != nil {
		return nil, fmt.Errorf("load the minted Talos client certificate: %w", err)
	}
	m.certs[r] = minted{cert: &cert, until: now.Add(certTTL)}
	return &cert, nil
}

// authorities gives the pool of the cluster's Talos CA.
func authorities(crt []byte) (*stdx509.CertPool, error) {
	pool := stdx509.NewCertPool()
	if !pool.AppendCertsFromPEM(crt) {
		return nil, errors.New("read the Talos CA of the secrets bundle: no certificate in it")
	}
	return pool, nil
}

// bundleValues lists every value of a bundle, for the Scrubber.
func bundleValues(b *bundle.Bundle) []string {
	data, err := yaml.Marshal(b.Secrets())
	if err != nil {
		return nil
	}
	var tree any
	if yaml.Unmarshal(data, &tree) != nil {
		return nil
	}
	var out []string
	leaves(tree, &out)
	return out
}
