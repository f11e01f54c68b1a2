package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

var errNoEndpoints = errors.New("no controlplane endpoints discovered yet")

// client returns an etcd client of this node, with its admin certificate and from its address.
func (e *etcdService) client(ctx context.Context, endpoints ...string) (*clientv3.Client, error) {
	dialer := wire.Dialer(e.b.node.Spec().Address)
	return e.dial(ctx, endpoints, func(ctx context.Context, addr string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", addr)
	})
}

// localClient asks the node's own member. While none runs it can't connect: calls hang until
// their deadline, as they do on a node.
func (e *etcdService) localClient(ctx context.Context) (*clientv3.Client, error) {
	return e.dial(ctx, []string{"localhost:2379"}, func(ctx context.Context, _ string) (net.Conn, error) {
		e.mu.Lock()
		addr := e.local
		e.mu.Unlock()
		if addr == "" {
			return nil, errors.New("dial tcp 127.0.0.1:2379: connect: connection refused")
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	})
}

func (e *etcdService) dial(ctx context.Context, endpoints []string, dial func(context.Context, string) (net.Conn, error)) (*clientv3.Client, error) {
	conf, err := e.adminTLS()
	if err != nil {
		return nil, fmt.Errorf("error building etcd client TLS config: %w", err)
	}
	// Look again as often as the node tries to join, not up to grpc's two minutes.
	again := backoff.DefaultConfig
	again.BaseDelay = e.b.node.opts.Timings.JoinRetry
	again.MaxDelay = 5 * again.BaseDelay
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second, Context: ctx,
		TLS: conf, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(dial),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: 5 * time.Second}),
		},
	})
}

// clusterClient asks any control plane that the node knows.
func (e *etcdService) clusterClient(ctx context.Context) (*clientv3.Client, error) {
	eps := e.clientEndpoints()
	if len(eps) == 0 {
		return nil, errNoEndpoints
	}
	return e.client(ctx, eps...)
}

func (e *etcdService) clientEndpoints() []string {
	addrs := e.b.endpoints()
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, clientPort).String())
	}
	return out
}

// join adds this node to the cluster as a learner, again and again until a cluster takes it: the
// loop in which a control plane waits for its cluster, or for Bootstrap.
func (e *etcdService) join(ctx context.Context) (initial string, learner uint64, err error) {
	t := e.b.node.opts.Timings
	for {
		// An attempt that is cut short after the member was added leaves a learner behind that
		// blocks every other: Talos's 30 s are to be kept, on a busy host too.
		attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
		initial, learner, err = e.addMember(attempt)
		cancel()
		if err == nil || ctx.Err() != nil {
			return initial, learner, errors.Join(err, ctx.Err())
		}
		if !sleep(ctx, t.JoinRetry) {
			return "", 0, ctx.Err()
		}
	}
}

func (e *etcdService) addMember(ctx context.Context) (string, uint64, error) {
	cl, err := e.clusterClient(ctx)
	if err != nil {
		return "", 0, err
	}
	defer cl.Close()
	ctx = clientv3.WithRequireLeader(ctx)
	list, err := cl.MemberList(ctx)
	if err != nil {
		return "", 0, fmt.Errorf("error getting etcd member list: %w", err)
	}
	for _, m := range list.Members {
		if m.Name == e.name { // it lost its data, or it is another machine of this name
			if _, err := cl.MemberRemove(ctx, m.ID); err != nil {
				return "", 0, fmt.Errorf("error removing self from the member list: %w", err)
			}
		}
	}
	add, err := cl.MemberAddAsLearner(ctx, []string{e.peerURL()})
	if err != nil {
		return "", 0, fmt.Errorf("error adding member: %w", err)
	}
	list, err = cl.MemberList(ctx)
	if err != nil {
		return "", 0, fmt.Errorf("error getting second etcd member list: %w", err)
	}
	var parts []string
	for _, m := range list.Members {
		name := m.Name
		if m.ID == add.Member.ID {
			name = e.name
		}
		parts = append(parts, joinURLs(name, m.PeerURLs))
	}
	e.b.node.emit("etcd", "added as learner")
	return strings.Join(parts, ","), add.Member.ID, nil
}

// promote asks one control plane after the other to make the learner a voter, until it is one.
func (e *etcdService) promote(ctx context.Context, id uint64) {
	t := e.b.node.opts.Timings
	for sleep(ctx, t.PromoteRetry) {
		for _, ep := range e.clientEndpoints() {
			if e.promoteAt(ctx, ep, id) == nil {
				e.b.node.emit("etcd", "promoted")
				return
			}
		}
	}
}

func (e *etcdService) promoteAt(ctx context.Context, endpoint string, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cl, err := e.client(ctx, endpoint)
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = cl.MemberPromote(ctx, id)
	return err
}
