package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

const (
	clientPort = 2379
	peerPort   = 2380
)

// A member preallocates two log files of etcd's 64 MB each; thirty members would need 4 GB of disk, or of memory
// where temporary files lie in it.
func init() { wal.SegmentSizeBytes = 4 << 20 }

// etcdService is the etcd of a control plane: a real member, run in the lab's process.
//
// The member itself listens on ports of its own; ports 2379 and 2380 of the node are gates in
// front of it, so that the lab's network faults reach etcd too. The peer gate ends the mutual
// TLS (as etcd would, with the node's peer certificate), because only the certificate tells which
// node a peer is.
type etcdService struct {
	b *boot

	mu       sync.Mutex
	cancel   context.CancelFunc
	done     chan struct{}
	embed    *embed.Etcd
	local    string // where the member listens for clients
	peer     string // where it listens for peers
	gates    []*wire.Gate
	name     string
	learner  uint64
	hard     bool // stop without leave-taking
	disabled bool // stopped for good until the next boot (after leaving the cluster)
}

// launch says how etcd starts when it has no data.
type launch struct {
	bootstrap, recover, skipHash bool
}

func (b *boot) startEtcd() {
	e := &etcdService{b: b}
	b.mu.Lock()
	b.etcd = e
	b.mu.Unlock()
	e.start(launch{})
}

func (b *boot) getEtcd() *etcdService {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.etcd
}

// stopEtcd stops etcd as SIGTERM does: it hands leadership over first.
func (b *boot) stopEtcd() {
	e := b.getEtcd()
	if e == nil {
		return
	}
	e.stop(false)
	b.stopService("etcd")
}

func (e *etcdService) start(l launch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.disabled || e.b.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(e.b.ctx)
	e.cancel, e.done = cancel, make(chan struct{})
	done := e.done
	e.b.goDo(func() {
		defer close(done)
		e.run(ctx, l)
	})
}

// stop ends the member and waits for it.
func (e *etcdService) stop(hard bool) {
	e.mu.Lock()
	e.hard = hard
	cancel, done := e.cancel, e.done
	e.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	<-done
}

// kill is a power loss.
func (e *etcdService) kill() {
	e.mu.Lock()
	e.disabled = true
	e.mu.Unlock()
	e.stop(true)
}

// run keeps etcd running until it is stopped: Talos restarts it for ever.
func (e *etcdService) run(ctx context.Context, l launch) {
	for ctx.Err() == nil {
		err := e.once(ctx, l)
		remove(e.b, "etcd.MemberController", etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID).Metadata())
		if ctx.Err() != nil {
			return
		}
		e.b.node.emit("etcd", fmt.Sprintf("stopped: %v", err))
		e.b.svc.set("etcd", stFailed, fmt.Sprintf("Failed to start service: %v", err))
		sleep(ctx, 5*e.b.node.opts.Timings.JoinRetry)
	}
}

// once goes through one life of the member: join or bootstrap, serve, stop.
func (e *etcdService) once(ctx context.Context, l launch) error {
	b := e.b
	b.svc.set("etcd", stPreparing, "Running pre state")
	e.mu.Lock()
	e.name, e.learner = b.hostname(), 0
	e.mu.Unlock()
	if err := e.writePKI(); err != nil {
		return err
	}
	cfg, err := e.prepare(ctx, l)
	if err != nil {
		return err
	}
	b.svc.set("etcd", stPreparing, "Creating service runner")
	if why := e.tooOld(ctx, e.joined()); why != "" {
		return e.failForEver(ctx, why)
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.embed = server
	e.local = server.Clients[0].Addr().String()
	e.peer = server.Peers[0].Addr().String()
	learner := e.learner
	e.mu.Unlock()
	defer e.shut(server)
	if err := e.openGates(ctx); err != nil {
		return err
	}
	b.node.formed()
	b.svc.set("etcd", stRunning, "Started task etcd (PID 1) for container etcd")
	b.node.emit("etcd", "running")
	if learner != 0 {
		pctx, cancel := context.WithCancel(ctx)
		defer cancel()
		b.goDo(func() { e.promote(pctx, learner) })
	}
	return e.watch(ctx, server)
}

// watch checks the member's health until it stops.
func (e *etcdService) watch(ctx context.Context, server *embed.Etcd) error {
	t := e.b.node.opts.Timings
	wait := t.HealthDelay
	// One connection for all checks: a handshake for each would be most of what an idle lab does.
	cl, err := e.localClient(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-server.Err():
			return err
		case <-server.Server.StopNotify():
			return errors.New("the member has been removed from the cluster")
		case <-time.After(wait):
		}
		e.check(ctx, cl)
		wait = t.HealthPeriod
		if _, healthy := e.b.svc.is("etcd"); !healthy {
			wait = min(wait, 5*t.HealthDelay)
		}
	}
}

// check is Talos's health check: a linearizable read through the local member.
func (e *etcdService) check(ctx context.Context, cl *clientv3.Client) {
	ctx, cancel := context.WithTimeout(ctx, max(10*e.b.node.opts.Timings.HealthDelay, 2*time.Second))
	defer cancel()
	_, err := cl.Get(ctx, "health")
	if err != nil {
		if e.b.ctx.Err() == nil {
			e.b.svc.health("etcd", false, err.Error())
			e.b.followEtcd(false)
		}
		return
	}
	id := uint64(e.embed.Server.MemberID())
	put(e.b, "etcd.MemberController", etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID), func(r *etcdres.Member) {
		r.TypedSpec().MemberID = etcdres.FormatMemberID(id)
	})
	e.noteStorage(ctx, cl)
	e.b.svc.health("etcd", true, "")
	e.b.followEtcd(true)
}

// shut ends the member's process.
func (e *etcdService) shut(server *embed.Etcd) {
	e.mu.Lock()
	hard := e.hard || e.b.ctx.Err() != nil
	gates := e.gates
	e.embed, e.local, e.peer, e.gates = nil, "", "", nil
	e.mu.Unlock()
	if hard {
		for _, g := range gates {
			g.Close()
		}
		server.Server.HardStop()
	}
	server.Close()
	for _, g := range gates {
		g.Close()
	}
}

// prepare builds the member's configuration as Talos builds the arguments of etcd.
func (e *etcdService) prepare(ctx context.Context, l launch) (*embed.Config, error) {
	b := e.b
	if l.recover {
		if err := e.restore(l.skipHash); err != nil {
			return nil, err
		}
	}
	cfg := e.baseConfig()
	if !b.disks.etcdEmpty() {
		return cfg, nil
	}
	if l.bootstrap {
		cfg.ClusterState = embed.ClusterStateFlagNew
		cfg.InitialCluster = e.name + "=" + e.peerURL()
		return cfg, nil
	}
	if initial := b.node.initialCluster(); initial != "" {
		cfg.ClusterState = embed.ClusterStateFlagNew
		cfg.InitialCluster = initial
		return cfg, nil
	}
	cfg.ClusterState = embed.ClusterStateFlagExisting
	initial, learner, err := e.join(ctx)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.learner = learner
	e.mu.Unlock()
	cfg.InitialCluster = initial
	return cfg, nil
}

func (e *etcdService) peerURL() string {
	return "https://" + netip.AddrPortFrom(e.b.node.Spec().Address, peerPort).String()
}

func (e *etcdService) baseConfig() *embed.Config {
	t := e.b.node.opts.Timings
	cfg := embed.NewConfig()
	cfg.Name = e.name
	cfg.Dir = e.b.disks.etcd()
	cfg.LogLevel = "fatal"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapcore.NewNopCore()))
	cfg.TickMs, cfg.ElectionMs = t.TickMs, t.ElectionMs
	cfg.UnsafeNoFsync = t.NoFsync
	cfg.EnableGRPCGateway = false
	cfg.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	addr := e.b.node.Spec().Address
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "https", Host: netip.AddrPortFrom(addr, clientPort).String()}}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "https", Host: netip.AddrPortFrom(addr, peerPort).String()}}
	pki := e.pkiDir()
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile: filepath.Join(pki, "server.crt"), KeyFile: filepath.Join(pki, "server.key"),
		TrustedCAFile: filepath.Join(pki, "ca.crt"), ClientCertAuth: true,
	}
	cfg.PeerTLSInfo = transport.TLSInfo{
		CertFile: filepath.Join(pki, "peer.crt"), KeyFile: filepath.Join(pki, "peer.key"),
		TrustedCAFile: filepath.Join(pki, "ca.crt"), ClientCertAuth: true,
	}
	return cfg
}

// restore makes a new single-member cluster from the uploaded snapshot.
func (e *etcdService) restore(skipHash bool) error {
	m := snapshot.NewV3(zap.NewNop())
	path := e.b.disks.snapshot()
	if _, err := m.Status(path); err != nil {
		return fmt.Errorf("error verifying snapshot: %w", err)
	}
	err := m.Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: e.name, OutputDataDir: e.b.disks.etcd(),
		PeerURLs: []string{e.peerURL()}, InitialCluster: e.name + "=" + e.peerURL(),
		SkipHashCheck: skipHash,
	})
	if err != nil {
		return fmt.Errorf("error recovering from the snapshot: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("error deleting snapshot: %w", err)
	}
	return nil
}

// openGates opens ports 2379 and 2380 of the node in front of the member.
func (e *etcdService) openGates(ctx context.Context) error {
	spec := e.b.node.Spec()
	client, err := e.b.node.opts.Net.Listen(ctx, spec.Name, netip.AddrPortFrom(spec.Address, clientPort))
	if err != nil {
		return err
	}
	peer, err := e.b.node.opts.Net.Listen(ctx, spec.Name, netip.AddrPortFrom(spec.Address, peerPort))
	if err != nil {
		client.Close()
		return err
	}
	e.mu.Lock()
	e.gates = []*wire.Gate{client, peer}
	local, peerAddr := e.local, e.peer
	e.mu.Unlock()
	tlsConf, err := e.peerTLS()
	if err != nil {
		return err
	}
	e.b.goDo(func() { serveForward(client, local, nil) })
	e.b.goDo(func() { serveForward(peer, peerAddr, &peerEnd{conf: tlsConf, net: e.b.node.opts.Net}) })
	return nil
}

func joinURLs(name string, urls []string) string {
	parts := make([]string, len(urls))
	for i, u := range urls {
		parts[i] = name + "=" + u
	}
	return strings.Join(parts, ",")
}
