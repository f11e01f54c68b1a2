package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const nodeUser = "system:node:"

func (l *kubelet) certificateFile() string {
	return filepath.Join(l.h.KubeletDir(), "pki", "kubelet-client-current.pem")
}

// storedCertificate is the one on the node's disk, if it is this node's and this cluster's.
func (l *kubelet) storedCertificate() *tls.Certificate {
	data, err := os.ReadFile(l.certificateFile())
	if err != nil {
		return nil
	}
	cert, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(acceptedCAs(l.cfg))
	_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil || cert.Leaf.Subject.CommonName != nodeUser+l.name {
		return nil
	}
	return &cert
}

// bootstrap is the kubelet's TLS bootstrap: a signing request with the bootstrap token, which the real controller
// manager approves and signs.
func (l *kubelet) bootstrap(ctx context.Context) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: nodeUser + l.name, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	crt, err := l.sign(ctx, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if err != nil {
		return nil, err
	}
	data := append(crt, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...)
	cert, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("read the signed certificate: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(l.certificateFile()), 0o700); err != nil {
		return nil, err
	}
	return &cert, writeFile(l.certificateFile(), data)
}

// sign has the cluster sign a request, and gives the certificate as PEM.
func (l *kubelet) sign(ctx context.Context, request []byte) ([]byte, error) {
	token := l.cfg.Cluster().Token()
	c := newClient(l.h.Spec().Address, l.endpoints, acceptedCAs(l.cfg), nil, token.ID()+"."+token.Secret())
	defer c.close()
	const all = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	var csr struct {
		Metadata meta
		Status   struct {
			Certificate []byte
			Conditions  []condition
		}
	}
	err := c.do(ctx, http.MethodPost, all, "", map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
		"metadata": map[string]any{"generateName": "csr-"},
		"spec": map[string]any{
			"request": request, "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
			"usages": []string{"digital signature", "client auth"},
		},
	}, &csr)
	if err != nil {
		return nil, err
	}
	name := csr.Metadata.Name
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && ctx.Err() == nil; {
		sleep(ctx, 200*time.Millisecond)
		if err := c.do(ctx, http.MethodGet, all+"/"+name, "", nil, &csr); err != nil {
			return nil, err
		}
		if len(csr.Status.Certificate) > 0 {
			return csr.Status.Certificate, nil
		}
		for _, cond := range csr.Status.Conditions {
			if cond.Type == "Denied" || cond.Type == "Failed" {
				return nil, fmt.Errorf("signing request %s: %s: %s", name, cond.Type, cond.Message)
			}
		}
	}
	return nil, errors.Join(fmt.Errorf("signing request %s was not answered", name), ctx.Err())
}
