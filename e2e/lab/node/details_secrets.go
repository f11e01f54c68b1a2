package node

import (
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/pem"
	"net"
	"net/netip"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
)

var secretDetails = []detail{
	{[]string{secrets.APIType, secrets.TrustdType, secrets.MaintenanceRootType}, (*boot).detailAPICerts},
	{[]string{secrets.CertSANType}, (*boot).detailCertSANs},
	{[]string{secrets.EtcdType}, (*boot).detailEtcdCerts},
	{[]string{secrets.KubernetesType, secrets.KubernetesDynamicCertsType, secrets.KubeletType}, (*boot).detailKubernetesCerts},
	{[]string{secrets.EncryptionSaltType}, (*boot).detailSalt},
}

// pemPair is a certificate that is in use, as a resource shows it.
func pemPair(c *tls.Certificate) *x509.PEMEncodedCertificateAndKey {
	if c == nil {
		return nil
	}
	out := &x509.PEMEncodedCertificateAndKey{}
	for _, der := range c.Certificate {
		out.Crt = append(out.Crt, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	if key, err := stdx509.MarshalPKCS8PrivateKey(c.PrivateKey); err == nil {
		out.Key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	}
	return out
}

func (b *boot) detailAPICerts(l *detailList) {
	b.mu.Lock()
	s := b.server
	b.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	server, client, cas := pemPair(s.cert), pemPair(s.proxy), s.cas
	s.mu.Unlock()
	spec := secrets.APICertsSpec{Server: server, Client: client, SkipVerifyingClientCert: s.maintenance}
	for _, c := range cas {
		spec.AcceptedCAs = append(spec.AcceptedCAs, &x509.PEMEncodedCertificate{Crt: c})
	}
	l.add("secrets.APIController", with(secrets.NewAPI(), spec))
	if !s.maintenance && b.machineType().IsControlPlane() {
		l.add("secrets.TrustdController", with(secrets.NewTrustd(), secrets.TrustdCertsSpec{AcceptedCAs: spec.AcceptedCAs, Server: server}))
	}
}

func (b *boot) detailCertSANs(l *detailList) {
	if !b.machineType().IsControlPlane() {
		return
	}
	ips := []netip.Addr{b.node.Spec().Address}
	for _, s := range b.serviceAddress(1) {
		ips = append(ips, netip.MustParseAddr(s))
	}
	ips = append(ips, netip.MustParseAddr("127.0.0.1"))
	dns := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + b.dnsDomain(), "localhost"}
	if h := b.hostname(); h != "" {
		dns = append(dns, h)
	}
	l.add("secrets.KubernetesCertSANsController", with(secrets.NewCertSAN(secrets.NamespaceName, secrets.CertSANKubernetesID), secrets.CertSANSpec{IPs: ips, DNSNames: dns}))
}

// leafCert is what a certificate is made for.
type leafCert struct {
	cn, org string
	usage   []stdx509.ExtKeyUsage
	ips     []net.IP
	dns     []string
	ttl     time.Duration
}

func (c leafCert) sign(ca *CA) *CA {
	if ca == nil {
		return nil
	}
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil
	}
	opts := []x509.Option{
		x509.CommonName(c.cn), x509.IPAddresses(c.ips), x509.DNSNames(c.dns), x509.NotAfter(time.Now().Add(c.ttl)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature | stdx509.KeyUsageKeyEncipherment), x509.ExtKeyUsage(c.usage),
	}
	if c.org != "" {
		opts = append(opts, x509.Organization(c.org))
	}
	pair, err := x509.NewKeyPair(authority, opts...)
	if err != nil {
		return nil
	}
	return x509.NewCertificateAndKeyFromKeyPair(pair)
}

var (
	serverUse = []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}
	clientUse = []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}
)

// once keeps what a function made as long as the configuration stays the same: certificates are
// not issued anew whenever something else changes.
func (b *boot) once(name string, make func() []detailItem) []detailItem {
	if b.details.issued == nil {
		b.details.issued = map[string]issued{}
	}
	if got, ok := b.details.issued[name]; ok && got.config == b.config() && got.host == b.hostname() {
		return got.items
	}
	out := make()
	b.details.issued[name] = issued{config: b.config(), host: b.hostname(), items: out}
	return out
}

type issued struct {
	config config.Provider
	host   string
	items  []detailItem
}

func (b *boot) detailEtcdCerts(l *detailList) {
	if !b.machineType().IsControlPlane() {
		return
	}
	l.items = append(l.items, b.once("etcd", func() []detailItem {
		ca, h := b.config().Cluster().Etcd().CA(), b.hostname()
		addr := net.IP(b.node.Spec().Address.AsSlice())
		both := append(append([]stdx509.ExtKeyUsage{}, serverUse...), clientUse...)
		day := 24 * time.Hour
		return []detailItem{{owner: "secrets.EtcdController", res: with(secrets.NewEtcd(), secrets.EtcdCertsSpec{
			Etcd:          leafCert{h, "", both, []net.IP{addr, net.IPv4(127, 0, 0, 1), net.IPv6loopback}, []string{h, "localhost"}, day}.sign(ca),
			EtcdPeer:      leafCert{h, "", both, []net.IP{addr}, []string{h}, day}.sign(ca),
			EtcdAdmin:     leafCert{"talos", "", clientUse, nil, nil, day}.sign(ca),
			EtcdAPIServer: leafCert{"kube-apiserver", "", clientUse, nil, nil, day}.sign(ca),
		})}}
	})...)
}

func (b *boot) detailKubernetesCerts(l *detailList) {
	if !b.complete() {
		return
	}
	cl := b.config().Cluster()
	kubelet := secrets.KubeletSpec{Endpoint: cl.Endpoint(), BootstrapTokenID: cl.Token().ID(), BootstrapTokenSecret: cl.Token().Secret(), AcceptedCAs: cl.AcceptedCAs()}
	if ca := cl.IssuingCA(); ca != nil {
		kubelet.AcceptedCAs = append(kubelet.AcceptedCAs, &x509.PEMEncodedCertificate{Crt: ca.Crt})
	}
	l.add("secrets.KubeletController", with(secrets.NewKubelet(secrets.KubeletID), kubelet))
	if !b.machineType().IsControlPlane() || cl.IssuingCA() == nil {
		return
	}
	l.items = append(l.items, b.once("kubernetes", func() []detailItem {
		var ips []net.IP
		for _, s := range append(b.serviceAddress(1), b.node.Spec().Address.String(), "127.0.0.1") {
			ips = append(ips, net.ParseIP(s))
		}
		year := 365 * 24 * time.Hour
		file := func(user, org string) string {
			text, err := kubeconfigFor(b.config(), time.Now(), user, user, org, year)
			if err != nil {
				return ""
			}
			return string(text)
		}
		return []detailItem{
			{owner: "secrets.KubernetesDynamicCertsController", res: with(secrets.NewKubernetesDynamicCerts(), secrets.KubernetesDynamicCertsSpec{
				APIServer:              leafCert{"kube-apiserver", "kube-master", serverUse, ips, []string{"kubernetes", "localhost", b.hostname()}, year}.sign(cl.IssuingCA()),
				APIServerKubeletClient: leafCert{"apiserver-kubelet-client", "system:masters", clientUse, nil, nil, year}.sign(cl.IssuingCA()),
				FrontProxy:             leafCert{"front-proxy-client", "", clientUse, nil, nil, year}.sign(cl.AggregatorCA()),
			})},
			{owner: "secrets.KubernetesController", res: with(secrets.NewKubernetes(), secrets.KubernetesCertsSpec{
				SchedulerKubeconfig: file("system:kube-scheduler", ""), ControllerManagerKubeconfig: file("system:kube-controller-manager", ""),
				LocalhostAdminKubeconfig: file("localhost", "system:masters"), AdminKubeconfig: file("admin", "system:masters"),
			})},
		}
	})...)
}

func (b *boot) detailSalt(l *detailList) {
	if exists(b.disks.state()) {
		l.add("secrets.EncryptionSaltController", with(secrets.NewEncryptionSalt(), secrets.EncryptionSaltSpec{DiskSalt: []byte(b.digestID("salt"))}))
	}
}
