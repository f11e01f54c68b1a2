// Package etcd asks the members of a cluster themselves, on port 2379, with a client certificate made from the secrets
// bundle's etcd CA. It only reads, and reads only what health needs (SPEC section 3). No answer there is no
// disagreement: the port is often closed to the outside.
package etcd

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/crypto/x509"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render/bundle"
)

const (
	// Timeout of a look: a healthy member answers a linearizable read within it (SPEC section 3).
	Timeout = 2 * time.Second
	// dialTimeout of the bare connection that tells a closed port from a slow member.
	dialTimeout = time.Second
	port        = "2379"
	certTTL     = time.Hour
	backdate    = 5 * time.Minute
)

// ErrNoAnswer: the port is closed, or nothing that holds our CA answers there. It says nothing about the member.
var ErrNoAnswer = errors.New("ask etcd on port 2379")

// Clients keeps one connection a member. It is safe for concurrent use.
type Clients struct {
	pool *stdx509.CertPool
	ca   *x509.PEMEncodedCertificateAndKey
	now  func() time.Time

	mu      sync.Mutex
	cert    *tls.Certificate
	until   time.Time
	clients map[string]*clientv3.Client
	closed  bool
}

// New makes Clients of a real bundle.
func New(b *bundle.Bundle, now func() time.Time) (*Clients, error) {
	if b.StandIn {
		return nil, errors.New("use a stand-in secrets bundle for etcd: it is made for checks only")
	}
	certs := b.Secrets().Certs
	if certs == nil || certs.Etcd == nil {
		return nil, errors.New("use the secrets bundle: it has no etcd CA")
	}
	pool := stdx509.NewCertPool()
	if !pool.AppendCertsFromPEM(certs.Etcd.Crt) {
		return nil, errors.New("read the etcd CA of the secrets bundle: no certificate in it")
	}
	return &Clients{pool: pool, ca: certs.Etcd, now: now, clients: map[string]*clientv3.Client{}}, nil
}

// Look is what one member says of itself and of the others.
type Look struct {
	MemberID, Leader string
	Learner          bool
	AppliedIndex     uint64
	// LinearizableRead through this member answered in time.
	LinearizableRead bool
	Members          []plan.Member
	Alarms           []string
	Errors           []string
}

// Look asks the member on the host of endpoint (a Talos endpoint, ip:50000). Errors: ErrNoAnswer.
func (c *Clients) Look(ctx context.Context, endpoint string) (*Look, error) {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		host = endpoint
	}
	addr := net.JoinHostPort(host, port)
	ctx, cancel := context.WithTimeout(ctx, Timeout+dialTimeout)
	defer cancel()
	if err := knock(ctx, addr); err != nil {
		c.forget(addr)
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	cl, err := c.client(addr)
	if err != nil {
		return nil, err
	}
	out, err := look(ctx, cl, addr)
	if err != nil {
		c.forget(addr)
		return nil, fmt.Errorf("%w: status: %w", ErrNoAnswer, err)
	}
	return out, nil
}

// knock makes a bare connection: etcd's client would try again and again until the deadline at a closed port.
func knock(ctx context.Context, addr string) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

func look(ctx context.Context, cl *clientv3.Client, addr string) (*Look, error) {
	sctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	st, err := cl.Status(sctx, "https://"+addr)
	if err != nil {
		return nil, err
	}
	out := &Look{
		MemberID: id(st.Header.GetMemberId()), Leader: id(st.Leader), Learner: st.IsLearner,
		AppliedIndex: st.RaftAppliedIndex, Errors: st.Errors,
	}
	if out.Learner {
		// A learner answers nothing else.
		return out, nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		// The key need not exist: what is asked is whether a read with a quorum is answered (etcd's own health check).
		_, err := cl.Get(sctx, "health")
		out.LinearizableRead = err == nil
	})
	wg.Go(func() {
		if list, err := cl.MemberList(sctx); err == nil {
			out.Members = members(list)
		}
	})
	wg.Go(func() {
		if list, err := cl.AlarmList(sctx); err == nil {
			out.Alarms = alarms(list)
		}
	})
	wg.Wait()
	return out, nil
}

func members(list *clientv3.MemberListResponse) []plan.Member {
	out := make([]plan.Member, 0, len(list.Members))
	for _, m := range list.Members {
		out = append(out, plan.Member{ID: id(m.GetID()), Name: m.GetName(), Learner: m.GetIsLearner(), PeerURLs: m.GetPeerURLs()})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

func alarms(list *clientv3.AlarmResponse) []string {
	var out []string
	for _, a := range list.Alarms {
		if a.GetAlarm() != etcdserverpb.AlarmType_NONE {
			out = append(out, a.GetAlarm().String()+" on "+id(a.GetMemberID()))
		}
	}
	sort.Strings(out)
	return out
}

// id gives 16 hex digits, as Talos prints a member ID; "" for 0.
func id(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", n)
}

func (c *Clients) client(addr string) (*clientv3.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("%w: closed", ErrNoAnswer)
	}
	if cl, ok := c.clients[addr]; ok {
		return cl, nil
	}
	cl, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + addr},
		TLS: &tls.Config{
			RootCAs:    c.pool,
			MinVersion: tls.VersionTLS12,
			Time:       c.now,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return c.certificate()
			},
		},
		DialOptions: []grpc.DialOption{grpc.WithNoProxy()},
		Logger:      zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("make an etcd client for %s: %w", addr, err)
	}
	c.clients[addr] = cl
	return cl, nil
}

// forget closes a member's connection: gRPC would go on dialling it for ever.
func (c *Clients) forget(addr string) {
	c.mu.Lock()
	cl := c.clients[addr]
	delete(c.clients, addr)
	c.mu.Unlock()
	if cl != nil {
		_ = cl.Close() // an error of closing a connection tells nothing
	}
}

func (c *Clients) certificate() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.cert != nil && now.Before(c.until.Add(-certTTL/2)) && now.After(c.until.Add(-certTTL-backdate)) {
		return c.cert, nil
	}
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(c.ca)
	if err != nil {
		return nil, errors.New("load the etcd CA of the secrets bundle: it is no usable CA")
	}
	pair, err := x509.NewKeyPair(ca,
		x509.CommonName("ichor"),
		x509.NotBefore(now.Add(-backdate)), x509.NotAfter(now.Add(certTTL)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}),
	)
	if err != nil {
		return nil, errors.New("mint an etcd client certificate: the etcd CA of the secrets bundle does not sign")
	}
	c.cert, c.until = pair.Certificate, now.Add(certTTL)
	return c.cert, nil
}

// Close closes all connections.
func (c *Clients) Close() {
	c.mu.Lock()
	clients := c.clients
	c.clients, c.closed = map[string]*clientv3.Client{}, true
	c.mu.Unlock()
	for _, cl := range clients {
		_ = cl.Close()
	}
}

// Disagreement says in which way etcd itself says otherwise than the Talos API did, "" in none. Only what both know is
// compared. Indexes move all the time, and so are not.
func Disagreement(talos *plan.EtcdFact, direct *Look) string {
	var out []string
	if talos.MemberID != "" && direct.MemberID != "" && talos.MemberID != direct.MemberID {
		out = append(out, fmt.Sprintf("member %s, etcd itself says %s", talos.MemberID, direct.MemberID))
	}
	if talos.Leader != direct.Leader {
		out = append(out, fmt.Sprintf("leader %s, etcd itself says %s", orNone(talos.Leader), orNone(direct.Leader)))
	}
	if talos.Learner != direct.Learner {
		out = append(out, fmt.Sprintf("learner %t, etcd itself says %t", talos.Learner, direct.Learner))
	}
	if a, b := listing(talos.Members), listing(direct.Members); talos.Members != nil && direct.Members != nil && a != b {
		out = append(out, fmt.Sprintf("members %s, etcd itself says %s", a, b))
	}
	return strings.Join(out, "; ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func listing(members []plan.Member) string {
	var out []string
	for _, m := range members {
		s := m.ID
		if m.Learner {
			s += " (learner)"
		}
		out = append(out, s)
	}
	sort.Strings(out)
	return strings.Join(out, ",")
}
