package harness

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/siderolabs/crypto/x509"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/ichor/render/bundle"
)

// Writer writes to etcd all the time, as a cluster's API servers do, and counts. A write counts as failed when it isn't
// acknowledged within 5 s, retries included.
type Writer struct {
	client *clientv3.Client
	stop   context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	counts WriteCounts
}

// WriteCounts is what a Writer saw.
type WriteCounts struct {
	Writes, Failed int
	// LongestGap between two acknowledged writes.
	LongestGap time.Duration
	// LastError of a failed write.
	LastError string
}

// WriteDeadline is when a write that isn't acknowledged has failed.
const WriteDeadline = 5 * time.Second

// EtcdClient makes a client with a certificate of the bundle's etcd authority.
func EtcdClient(b *bundle.Bundle, endpoints []string) (*clientv3.Client, error) {
	ca := b.Secrets().Certs.Etcd
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, fmt.Errorf("make an etcd client: %w", err)
	}
	pair, err := x509.NewKeyPair(authority, x509.CommonName("writer"), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	if err != nil {
		return nil, fmt.Errorf("make an etcd client: %w", err)
	}
	pool := stdx509.NewCertPool()
	pool.AppendCertsFromPEM(ca.Crt)
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{*pair.Certificate}},
	})
}

// StartWriter writes every 20 ms until Stop.
func StartWriter(b *bundle.Bundle, endpoints []string) (*Writer, error) {
	client, err := EtcdClient(b, endpoints)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Writer{client: client, stop: cancel, done: make(chan struct{})}
	go w.run(ctx)
	return w, nil
}

func (w *Writer) run(ctx context.Context) {
	defer close(w.done)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := w.write(ctx, n)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.counts.Writes++
		if err != nil {
			w.counts.Failed++
			w.counts.LastError = err.Error()
		} else {
			now := time.Now()
			w.counts.LongestGap = max(w.counts.LongestGap, now.Sub(last))
			last = now
		}
		w.mu.Unlock()
	}
}

// write puts one key; attempts are bounded, so that one on a dead connection is tried again elsewhere within the
// deadline.
func (w *Writer) write(ctx context.Context, n int) error {
	limited, cancel := context.WithTimeout(ctx, WriteDeadline)
	defer cancel()
	for {
		attempt, end := context.WithTimeout(limited, time.Second)
		_, err := w.client.Put(attempt, "/ichor-writer", fmt.Sprint(n))
		end()
		if err == nil || limited.Err() != nil {
			return err
		}
	}
}

// Counts so far.
func (w *Writer) Counts() WriteCounts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

// Stop ends the writing and gives the counts.
func (w *Writer) Stop() WriteCounts {
	w.stop()
	<-w.done
	_ = w.client.Close() // nothing is written any more
	return w.Counts()
}

func (c WriteCounts) String() string {
	return fmt.Sprintf("%d writes, %d failed, longest gap %s", c.Writes, c.Failed, c.LongestGap.Round(time.Millisecond))
}
