package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

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

// errDiskFull is what etcd dies of when it can't write any more.
var errDiskFull = fmt.Errorf("failed to save Raft hard state and entries: %w", syscall.ENOSPC)

// run is one start of the service: once the stage before the runner, which joins, bootstraps or
// recovers and is not tried again when it fails, then the member with what came out of it, which
// is restarted for ever (internal/app/machined/pkg/system/service_runner.go, v1.13.5).
func (e *etcdService) run(ctx context.Context, l launch) {
	first, err := e.pre(ctx, l)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		e.b.node.emit("etcd", fmt.Sprintf("did not start: %v", err))
		e.b.svc.set("etcd", stFailed, fmt.Sprintf("Failed to run pre stage: %v", err))
		return
	}
	e.b.svc.set("etcd", stPreparing, "Creating service runner")
	if first.learner != 0 {
		pctx, cancel := context.WithCancel(ctx)
		defer cancel()
		e.b.goDo(func() { e.promote(pctx, first.learner) })
	}
	for ctx.Err() == nil {
		err := e.once(ctx, first)
		remove(e.b, "etcd.MemberController", etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID).Metadata())
		if ctx.Err() != nil {
			return
		}
		e.b.node.emit("etcd", fmt.Sprintf("stopped: %v", err))
		e.b.svc.failing("etcd", fmt.Sprintf("Error running Containerd(etcd), going to restart forever: task \"etcd\" failed: exit code 1 (last log %q)", fmt.Sprint(err)))
		sleep(ctx, 5*e.b.node.opts.Timings.JoinRetry)
	}
}

// membership are the arguments with which a member starts on an empty data folder.
type membership struct {
	state, cluster string
	learner        uint64
}

// pre works out the arguments, as Talos does before it starts etcd's container.
func (e *etcdService) pre(ctx context.Context, l launch) (membership, error) {
	b := e.b
	b.svc.set("etcd", stPreparing, "Running pre state")
	e.mu.Lock()
	e.name = b.hostname()
	e.mu.Unlock()
	if err := e.writePKI(); err != nil {
		return membership{}, err
	}
	if l.recover {
		if err := e.restore(l.skipHash); err != nil {
			return membership{}, err
		}
	}
	switch {
	case !b.disks.etcdEmpty():
		return membership{}, nil
	case l.bootstrap:
		return membership{state: embed.ClusterStateFlagNew, cluster: e.name + "=" + e.peerURL()}, nil
	}
	if initial := b.node.initialCluster(); initial != "" {
		return membership{state: embed.ClusterStateFlagNew, cluster: initial}, nil
	}
	initial, learner, err := e.join(ctx)
	if err != nil {
		return membership{}, fmt.Errorf("failed to build initial etcd cluster: failed to build cluster arguments: %w", err)
	}
	return membership{state: embed.ClusterStateFlagExisting, cluster: initial, learner: learner}, nil
}

// once goes through one life of the member.
func (e *etcdService) once(ctx context.Context, m membership) error {
	b := e.b
	if full, _ := b.node.diskFull("EPHEMERAL"); full {
		return errDiskFull
	}
	cfg, err := e.baseConfig()
	if err != nil {
		return err
	}
	if why := e.tooOld(ctx, m.learner != 0); why != "" {
		return errors.New(why)
	}
	if m.cluster != "" {
		cfg.ClusterState, cfg.InitialCluster = m.state, m.cluster
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.embed = server
	e.local = server.Clients[0].Addr().String()
	e.peer = server.Peers[0].Addr().String()
	e.mu.Unlock()
	defer e.shut(server)
	if err := e.openGates(ctx); err != nil {
		return err
	}
	b.node.formed()
	b.svc.set("etcd", stRunning, "Started task etcd (PID 1) for container etcd")
	b.node.emit("etcd", "running")
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
		full, filled := e.b.node.diskFull("EPHEMERAL")
		if full {
			e.mu.Lock()
			e.hard = true
			e.mu.Unlock()
			return errDiskFull
		}
		select {
		case <-filled:
			continue
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
	e.hard = false
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

func (e *etcdService) peerURL() string {
	return "https://" + netip.AddrPortFrom(e.b.node.Spec().Address, peerPort).String()
}

// baseConfig is what etcd is started with, whatever its data: Talos's arguments and the
// configuration's cluster.etcd.extraArgs, such as quota-backend-bytes.
func (e *etcdService) baseConfig() (*embed.Config, error) {
	t := e.b.node.opts.Timings
	cfg := embed.NewConfig()
	if err := e.extraArgs(cfg); err != nil {
		return nil, err
	}
	cfg.Name = e.name
	cfg.Dir = e.b.disks.etcd()
	cfg.LogLevel = "fatal"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(e.b.etcdLogger())
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
	return cfg, nil
}

// extraArgs sets the flags that the configuration adds, before the member's own: those can't be
// set that way. One that etcd does not know ends it, again and again, as it does on a node.
func (e *etcdService) extraArgs(cfg *embed.Config) error {
	conf := e.b.config()
	if conf == nil || conf.Cluster() == nil || conf.Cluster().Etcd() == nil {
		return nil
	}
	args := conf.Cluster().Etcd().ExtraArgs()
	if len(args) == 0 {
		return nil
	}
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	cfg.AddFlags(flags)
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if flags.Lookup(name) == nil {
			if e.b.release.minor < 14 && strings.HasPrefix(name, "experimental-") {
				continue // etcd 3.6 knew it; the lab's 3.7 has no such flag any more
			}
			return fmt.Errorf("flag provided but not defined: -%s", name)
		}
		for _, value := range args[name] {
			if err := flags.Set(name, value); err != nil {
				return fmt.Errorf("invalid value %q for flag -%s: %w", value, name, err)
			}
		}
	}
	return nil
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
