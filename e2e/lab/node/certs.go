package node

import (
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

const certTTL = 24 * time.Hour

// CA is a certificate authority with its key, both as PEM.
type CA = x509.PEMEncodedCertificateAndKey

// maintenanceCert issues the certificate of the maintenance API: a fresh Ed25519 authority with
// an empty subject, and a leaf for every address and name of the machine.
func maintenanceCert(now time.Time, addr netip.Addr, hostname string) (*tls.Certificate, error) {
	ca, err := x509.NewSelfSignedCertificateAuthority(validFrom(now)...)
	if err != nil {
		return nil, fmt.Errorf("make maintenance authority: %w", err)
	}
	return issue(ca, now, addr, names(hostname), x509.CommonName(constants.MaintenanceServiceCommonName))
}

// names are the DNS names of a machine: none while it has no hostname.
func names(hostname string) []string {
	if hostname == "" {
		return nil
	}
	return []string{hostname}
}

// apiCert issues the certificate of the secure API from the cluster's machine CA. The SANs are
// those of Talos: the node's addresses, loopback, the hostname and machine.certSANs. An address
// inside of Kubernetes' networks does not count as the node's.
func apiCert(ca *CA, now time.Time, addr netip.Addr, inKubernetes bool, hostname string, certSANs []string) (*tls.Certificate, error) {
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, fmt.Errorf("load machine CA: %w", err)
	}
	dns := names(hostname)
	var ips []net.IP
	for _, san := range certSANs {
		if ip := net.ParseIP(san); ip != nil {
			ips = append(ips, ip)
		} else if !slices.Contains(dns, san) {
			dns = append(dns, san)
		}
	}
	own := loopbacks(addr)
	if inKubernetes {
		own = own[1:]
	}
	return issue(authority, now, addr, dns, x509.CommonName(hostname), x509.IPAddresses(append(ips, own...)))
}

func loopbacks(addr netip.Addr) []net.IP {
	return []net.IP{addr.AsSlice(), net.IPv4(127, 0, 0, 1), net.IPv6loopback}
}

// validFrom is the validity of a certificate that a node issues, by the node's own clock: a clock
// that is wrong makes certificates that are not yet valid, or expired.
func validFrom(now time.Time) []x509.Option {
	return []x509.Option{x509.NotBefore(now), x509.NotAfter(now.Add(certTTL))}
}

func issue(ca *x509.CertificateAuthority, now time.Time, addr netip.Addr, dns []string, more ...x509.Option) (*tls.Certificate, error) {
	opts := append(validFrom(now),
		x509.IPAddresses(loopbacks(addr)), x509.DNSNames(dns),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}),
	)
	pair, err := x509.NewKeyPair(ca, append(opts, more...)...)
	if err != nil {
		return nil, fmt.Errorf("issue server certificate: %w", err)
	}
	return pair.Certificate, nil
}

// proxyCert issues the client certificate with which a control plane's apid talks to other nodes.
func proxyCert(ca *CA, now time.Time) (*tls.Certificate, error) {
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, fmt.Errorf("load machine CA: %w", err)
	}
	pair, err := x509.NewKeyPair(authority, append(validFrom(now),
		x509.Organization("os:impersonator"),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}),
	)...)
	if err != nil {
		return nil, fmt.Errorf("issue proxy certificate: %w", err)
	}
	return pair.Certificate, nil
}

// verifyUsage is apid's extra check: a client certificate is for client authentication and nothing else.
func verifyUsage(_ [][]byte, chains [][]*stdx509.Certificate) error {
	if len(chains) == 0 {
		return errors.New("no verified chains")
	}
	for _, cert := range chains[0] {
		if !cert.IsCA && !slices.Equal(cert.ExtKeyUsage, []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}) {
			return fmt.Errorf("certificate %q is missing the client auth extended key usage", cert.Subject)
		}
	}
	return nil
}

// pool builds a pool of PEM certificates.
func pool(pems ...[]byte) *stdx509.CertPool {
	p := stdx509.NewCertPool()
	for _, pem := range pems {
		p.AppendCertsFromPEM(pem)
	}
	return p
}
