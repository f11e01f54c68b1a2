package bundle

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	stdx509 "crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v3"
)

// standInTime is when stand-in certificates begin: fixed, so that renders are byte-stable.
var standInTime = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// StandIn makes a bundle up for checks: the same cluster name gives the same one. It has just the keys that the
// real file shows (SOPS leaves keys readable, and empty values too): a missing one stays missing, and the render
// fails as it would with the real bundle. A nil ciphertext gives a whole bundle: that the file is not there is
// reported elsewhere. A file that is there and empty is malformed.
func StandIn(cluster string, ciphertext []byte) (*Bundle, error) {
	shows := func(...string) bool { return true }
	whole := ciphertext == nil
	if !whole {
		docs, err := documents(ciphertext)
		if err != nil {
			return nil, fmt.Errorf("make stand-in bundle of %s: %w", cluster, err)
		}
		shows = func(path ...string) bool { return shown(docs[0], path) }
	}
	m := maker{cluster: cluster, shows: shows}
	sb := m.bundle(whole)
	if m.err != nil {
		return nil, fmt.Errorf("make stand-in bundle of %s: %w", cluster, m.err)
	}
	return &Bundle{secrets: sb, StandIn: true}, nil
}

// shown tells whether the file has a value at the path. SOPS leaves empty strings and nulls as they are.
func shown(n *yaml.Node, path []string) bool {
	for _, key := range path {
		if n = mapValue(n, key); n == nil {
			return false
		}
	}
	return n.Kind == yaml.MappingNode || n.Kind == yaml.ScalarNode && n.Value != "" && n.ShortTag() != "!!null"
}

// maker derives everything from the cluster's name. Nothing of it is secret.
type maker struct {
	cluster string
	shows   func(path ...string) bool
	err     error
}

// seed derives n bytes for a purpose.
func (m *maker) seed(purpose string, n int) []byte {
	b, err := hkdf.Key(sha256.New, []byte("ichor stand-in bundle, never used on a node"), []byte(m.cluster), purpose, n)
	if err != nil {
		m.err = err
	}
	return b
}

func (m *maker) bundle(whole bool) *secrets.Bundle {
	sb := &secrets.Bundle{Clock: secrets.NewFixedClock(standInTime)}
	if m.shows("cluster") {
		sb.Cluster = &secrets.Cluster{
			ID:     m.value(encode64(m.seed("cluster id", 32)), "cluster", "id"),
			Secret: m.value(encode64(m.seed("cluster secret", 32)), "cluster", "secret"),
		}
	}
	if m.shows("secrets") {
		sb.Secrets = &secrets.Secrets{
			BootstrapToken:            m.value(m.token("bootstrap token"), "secrets", "bootstraptoken"),
			SecretboxEncryptionSecret: m.value(encode64(m.seed("secretbox", 32)), "secrets", "secretboxencryptionsecret"),
		}
		if !whole {
			sb.Secrets.AESCBCEncryptionSecret = m.value(encode64(m.seed("aescbc", 32)), "secrets", "aescbcencryptionsecret")
		}
	}
	if m.shows("trustdinfo") {
		sb.TrustdInfo = &secrets.TrustdInfo{Token: m.value(m.token("trustd token"), "trustdinfo", "token")}
	}
	if m.shows("certs") {
		sb.Certs = &secrets.Certs{
			Etcd:          m.ca("etcd", pkix.Name{Organization: []string{"etcd"}}),
			K8s:           m.ca("k8s", pkix.Name{Organization: []string{"kubernetes"}}),
			K8sAggregator: m.ca("k8saggregator", pkix.Name{CommonName: "front-proxy"}),
			OS:            m.ca("os", pkix.Name{Organization: []string{"talos"}}),
		}
		if m.shows("certs", "k8sserviceaccount") {
			sb.Certs.K8sServiceAccount = &x509.PEMEncodedKey{}
		}
		if m.shows("certs", "k8sserviceaccount", "key") {
			_, sb.Certs.K8sServiceAccount.Key = m.ecdsaKey("k8sserviceaccount")
		}
	}
	return sb
}

// value gives v where the real file has one at the path.
func (m *maker) value(v string, path ...string) string {
	if !m.shows(path...) {
		return ""
	}
	return v
}

// token has kubeadm's form: abcdef.0123456789abcdef.
func (m *maker) token(purpose string) string {
	const chars = "0123456789abcdefghijklmnopqrstuvwxyz"
	b := m.seed(purpose, 22)
	for i := range b {
		b[i] = chars[int(b[i])%len(chars)]
	}
	return string(b[:6]) + "." + string(b[6:])
}

// ca makes a self-signed authority of the kind that Talos makes: Ed25519 for Talos itself, ECDSA P-256 for the rest.
func (m *maker) ca(name string, subject pkix.Name) *x509.PEMEncodedCertificateAndKey {
	if !m.shows("certs", name) {
		return nil
	}
	var signer crypto.Signer
	var keyPEM []byte
	if name == "os" {
		signer, keyPEM = m.ed25519Key(name)
	} else {
		signer, keyPEM = m.ecdsaKey(name)
	}
	if m.err != nil {
		return nil
	}
	tmpl := &stdx509.Certificate{
		SerialNumber: new(big.Int).SetBytes(m.seed(name+" serial", 15)),
		Subject:      subject,
		NotBefore:    standInTime,
		NotAfter:     standInTime.AddDate(100, 0, 0),
		KeyUsage:     stdx509.KeyUsageDigitalSignature | stdx509.KeyUsageCertSign,
		ExtKeyUsage:  []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth, stdx509.ExtKeyUsageClientAuth},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := stdx509.CreateCertificate(nil, tmpl, tmpl, signer.Public(), deterministic{signer})
	if err != nil {
		m.err = err
		return nil
	}
	out := &x509.PEMEncodedCertificateAndKey{}
	if m.shows("certs", name, "crt") {
		out.Crt = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	if m.shows("certs", name, "key") {
		out.Key = keyPEM
	}
	return out
}

// deterministic signs without randomness: RFC 6979 for ECDSA (Sign's documented behaviour with a nil reader).
type deterministic struct{ crypto.Signer }

func (d deterministic) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return d.Signer.Sign(nil, digest, opts)
}

func (m *maker) ed25519Key(name string) (crypto.Signer, []byte) {
	key := ed25519.NewKeyFromSeed(m.seed(name+" key", ed25519.SeedSize))
	der, err := stdx509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		m.err = err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: x509.PEMTypeEd25519Private, Bytes: der})
}

// ecdsaKey takes the private scalar itself from the seed: key generation ignores the reader that it is given. A
// scalar out of range (chance 2^-32) is derived anew.
func (m *maker) ecdsaKey(name string) (crypto.Signer, []byte) {
	var key *ecdsa.PrivateKey
	var err error
	for i := range 8 {
		key, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), m.seed(fmt.Sprint(name, " key ", i), 32))
		if err == nil {
			break
		}
	}
	if err != nil {
		m.err = err
		return nil, nil
	}
	der, err := stdx509.MarshalECPrivateKey(key)
	if err != nil {
		m.err = err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: x509.PEMTypeECPrivate, Bytes: der})
}
