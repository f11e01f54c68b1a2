package kube

import (
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// certLife is how long the certificates of the control plane are good for, as Talos makes them.
const certLife = 365 * 24 * time.Hour

// pair is a certificate with its key, both as PEM.
type pair = x509.PEMEncodedCertificateAndKey

// identity is who a certificate is for.
type identity struct {
	name, organization string
	ips                []net.IP
	dns                []string
	server             bool
	life               time.Duration
}

// issue makes a certificate of an authority. It is good from an hour ago, for nodes whose clock is behind.
func issue(ca *pair, id identity) (*pair, error) {
	if ca == nil || len(ca.Crt) == 0 || len(ca.Key) == 0 {
		return nil, fmt.Errorf("issue certificate for %s: the configuration has no authority with a key for it", id.name)
	}
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id.name, err)
	}
	usage := stdx509.ExtKeyUsageClientAuth
	if id.server {
		usage = stdx509.ExtKeyUsageServerAuth
	}
	opts := []x509.Option{
		x509.CommonName(id.name), x509.IPAddresses(id.ips), x509.DNSNames(id.dns),
		x509.NotBefore(time.Now().Add(-time.Hour)), x509.NotAfter(time.Now().Add(id.life)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature | stdx509.KeyUsageKeyEncipherment),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{usage}),
	}
	if id.organization != "" {
		opts = append(opts, x509.Organization(id.organization))
	}
	p, err := x509.NewKeyPair(authority, opts...)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id.name, err)
	}
	return x509.NewCertificateAndKeyFromKeyPair(p), nil
}

// acceptedCAs are the authorities whose clients the API server takes: the issuing one and, in a rotation, others.
func acceptedCAs(cfg config.Provider) []byte {
	var all []byte
	if ca := cfg.Cluster().IssuingCA(); ca != nil {
		all = append(all, ca.Crt...)
	}
	for _, ca := range cfg.Cluster().AcceptedCAs() {
		all = append(all, ca.Crt...)
	}
	return all
}

// serverNames are what the API server's certificate is for, as Talos makes it: the node, the endpoint, certSANs, the
// service's names and first address, loopback.
func serverNames(cfg config.Provider, h *node.Host) (ips []net.IP, dns []string) {
	domain := "cluster.local"
	if n := cfg.K8sNetworkConfig(); n != nil {
		domain = n.DNSDomain()
		for _, p := range n.ServiceCIDRs() {
			ips = append(ips, p.Masked().Addr().Next().AsSlice())
		}
	}
	ips = append(ips, h.Spec().Address.AsSlice(), net.IPv4(127, 0, 0, 1), net.IPv6loopback)
	dns = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + domain, "localhost"}
	names := slices.Clone(cfg.K8sAPIServerConfig().CertSANs())
	if u := cfg.Cluster().Endpoint(); u != nil {
		names = append(names, u.Hostname())
	}
	for _, n := range append(names, h.Hostname()) {
		if ip := net.ParseIP(n); ip != nil {
			ips = append(ips, ip)
		} else if n != "" {
			dns = append(dns, n)
		}
	}
	return ips, dns
}

// writeSecrets writes the keys and certificates of a control plane's static pods, all from the authorities of its
// machine configuration. They are readable by the owner only.
func writeSecrets(dir string, cfg config.Provider, h *node.Host) error {
	cl := cfg.Cluster()
	ips, dns := serverNames(cfg, h)
	sa := cl.ServiceAccount()
	if sa == nil {
		return errors.New("write secrets of the control plane: the configuration has no service account key")
	}
	key, err := sa.GetKey()
	if err != nil {
		return fmt.Errorf("write secrets of the control plane: read service account key: %w", err)
	}
	files := map[string][]byte{
		"ca.crt":              acceptedCAs(cfg),
		"service-account.key": key.GetPrivateKeyPEM(),
		"service-account.pub": key.GetPublicKeyPEM(),
		"issuing-ca.crt":      cl.IssuingCA().Crt,
		"issuing-ca.key":      cl.IssuingCA().Key,
	}
	if cl.Etcd().CA() == nil || cl.AggregatorCA() == nil {
		return errors.New("write secrets of the control plane: the configuration has no etcd or aggregator authority")
	}
	files["etcd-ca.crt"], files["aggregator-ca.crt"] = cl.Etcd().CA().Crt, cl.AggregatorCA().Crt
	for name, c := range map[string]struct {
		ca *pair
		id identity
	}{
		"apiserver":                {cl.IssuingCA(), identity{name: "kube-apiserver", organization: "kube-master", ips: ips, dns: dns, server: true}},
		"apiserver-kubelet-client": {cl.IssuingCA(), identity{name: "apiserver-kubelet-client", organization: "system:masters"}},
		"front-proxy-client":       {cl.AggregatorCA(), identity{name: "front-proxy-client"}},
		"etcd-client":              {cl.Etcd().CA(), identity{name: "kube-apiserver"}},
		"controller-manager":       {cl.IssuingCA(), identity{name: controllerManagerUser, organization: controllerManagerUser}},
		"scheduler":                {cl.IssuingCA(), identity{name: schedulerUser, organization: schedulerUser}},
		"admin":                    {cl.IssuingCA(), identity{name: adminUser, organization: "system:masters"}},
	} {
		c.id.life = certLife
		p, err := issue(c.ca, c.id)
		if err != nil {
			return err
		}
		files[name+".crt"], files[name+".key"] = p.Crt, p.Key
	}
	for name, data := range files {
		if err := writeFile(filepath.Join(dir, name), data); err != nil {
			return fmt.Errorf("write secrets of the control plane: %w", err)
		}
	}
	return nil
}

// writeServerCertificate writes a certificate of the API server that is good for more addresses.
func (l layout) writeServerCertificate(cfg config.Provider, h *node.Host, more []net.IP) error {
	ips, dns := serverNames(cfg, h)
	p, err := issue(cfg.Cluster().IssuingCA(), identity{
		name: "kube-apiserver", organization: "kube-master", ips: append(ips, more...), dns: dns, server: true, life: certLife,
	})
	if err == nil {
		err = errors.Join(writeFile(l.file("apiserver.key"), p.Key), writeFile(l.file("apiserver.crt"), p.Crt))
	}
	if err != nil {
		return fmt.Errorf("write the API server's certificate: %w", err)
	}
	return nil
}

// writeFile replaces a file as a whole: programs that read it again see the old one or the new one.
func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*") // made with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone after the rename
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
