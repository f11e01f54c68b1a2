package node

import (
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/siderolabs/crypto/x509"
)

func (e *etcdService) pkiDir() string { return filepath.Join(e.b.disks.run(), "etcd-pki") }

// writePKI issues the member's certificates from cluster.etcd.ca, as Talos's etcd secrets
// controller does: server and peer with the node's address and name, and an admin client.
func (e *etcdService) writePKI() error {
	cfg := e.b.config()
	if cfg == nil || cfg.Cluster() == nil || cfg.Cluster().Etcd().CA() == nil {
		return errors.New("failed to generate etcd PKI: no etcd CA in the configuration")
	}
	e.b.pkiMu.Lock() // calls that come before etcd does write them too
	defer e.b.pkiMu.Unlock()
	ca := cfg.Cluster().Etcd().CA()
	addr := net.IP(e.b.node.Spec().Address.AsSlice())
	both := []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth, stdx509.ExtKeyUsageClientAuth}
	hostname := e.name
	for _, c := range []struct {
		file, cn string
		ips      []net.IP
		dns      []string
		usage    []stdx509.ExtKeyUsage
	}{
		{"server", hostname, []net.IP{addr, net.IPv4(127, 0, 0, 1), net.IPv6loopback}, []string{hostname, "localhost"}, both},
		{"peer", hostname, []net.IP{addr}, []string{hostname}, both},
		{"admin", "talos", nil, nil, []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}},
	} {
		authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
		if err != nil {
			return fmt.Errorf("failed loading CA from config: %w", err)
		}
		pair, err := x509.NewKeyPair(authority,
			x509.CommonName(c.cn), x509.IPAddresses(c.ips), x509.DNSNames(c.dns),
			x509.NotAfter(time.Now().Add(87600*time.Hour)), x509.ExtKeyUsage(c.usage),
			x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment),
		)
		if err != nil {
			return fmt.Errorf("failed generating %s key pair: %w", c.file, err)
		}
		pem := x509.NewCertificateAndKeyFromKeyPair(pair)
		if err := errors.Join(
			e.b.disks.write(filepath.Join(e.pkiDir(), c.file+".crt"), pem.Crt),
			e.b.disks.write(filepath.Join(e.pkiDir(), c.file+".key"), pem.Key),
		); err != nil {
			return err
		}
	}
	return e.b.disks.write(filepath.Join(e.pkiDir(), "ca.crt"), ca.Crt)
}

func (e *etcdService) load(name string) (tls.Certificate, *stdx509.CertPool, error) {
	e.b.pkiMu.Lock()
	defer e.b.pkiMu.Unlock()
	cert, err := tls.LoadX509KeyPair(filepath.Join(e.pkiDir(), name+".crt"), filepath.Join(e.pkiDir(), name+".key"))
	if err != nil {
		return cert, nil, err
	}
	ca, err := os.ReadFile(filepath.Join(e.pkiDir(), "ca.crt"))
	return cert, pool(ca), err
}

// adminTLS is the node's own client identity towards etcd.
func (e *etcdService) adminTLS() (*tls.Config, error) {
	cert, roots, err := e.load("admin")
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, RootCAs: roots}, nil
}

// peerTLS is the server side towards other members.
func (e *etcdService) peerTLS() (*tls.Config, error) {
	cert, roots, err := e.load("peer")
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	}, nil
}
