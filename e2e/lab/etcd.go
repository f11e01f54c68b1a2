package lab

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/siderolabs/crypto/x509"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// EtcdClient returns a client of the etcd of the cluster that the lab's control planes form, from
// outside, with a certificate made from the cluster's etcd CA. Where the lab holds control planes
// of several clusters, EtcdClientOf names one.
func (l *Lab) EtcdClient(ctx context.Context) (*clientv3.Client, error) {
	return l.etcdClient(ctx, func(*node.Node) bool { return true })
}

// EtcdClientOf is EtcdClient for the named control planes only.
func (l *Lab) EtcdClientOf(ctx context.Context, names ...string) (*clientv3.Client, error) {
	return l.etcdClient(ctx, func(n *node.Node) bool {
		for _, name := range names {
			if n.Name() == name {
				return true
			}
		}
		return false
	})
}

func (l *Lab) etcdClient(ctx context.Context, want func(*node.Node) bool) (*clientv3.Client, error) {
	var endpoints []string
	var ca *x509.PEMEncodedCertificateAndKey
	for _, n := range l.Nodes() {
		cfg := n.Config()
		if !want(n) || cfg == nil || cfg.Machine() == nil || !cfg.Machine().Type().IsControlPlane() {
			continue
		}
		ca = cfg.Cluster().Etcd().CA()
		endpoints = append(endpoints, "https://"+netip.AddrPortFrom(n.Spec().Address, 2379).String())
	}
	if ca == nil {
		return nil, errors.New("make etcd client: no control plane is configured")
	}
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, fmt.Errorf("make etcd client: %w", err)
	}
	pair, err := x509.NewKeyPair(authority, x509.CommonName("lab"), x509.NotAfter(time.Now().Add(24*time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	if err != nil {
		return nil, fmt.Errorf("make etcd client: %w", err)
	}
	roots := stdx509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Crt)
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 2 * time.Second, Context: ctx, Logger: zap.NewNop(),
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*pair.Certificate}, RootCAs: roots},
	})
}
