package node

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"github.com/siderolabs/talos/pkg/machinery/api/inspect"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// ErrLoseReply, returned by a hook, makes the node break the connection instead of answering.
var ErrLoseReply = errors.New("lose the reply")

// server is apid while it listens: in maintenance mode or with the cluster's certificates.
type server struct {
	gate        *wire.Gate
	grpc        *grpc.Server
	maintenance bool

	mu   sync.Mutex
	cert *tls.Certificate
	cas  [][]byte
	// proxy is the certificate for calls to other nodes; nil on a worker, which forwards nothing.
	proxy *tls.Certificate
	fp    x509.Fingerprint
	conns map[string]*grpc.ClientConn
}

// api serves the methods. One value serves all services of one boot.
type api struct {
	machine.UnimplementedMachineServiceServer
	boot   *boot
	server *server
}

// openAPI opens port 50000. In configured mode on a worker it fails until a control plane signs.
func (b *boot) openAPI(maintenance bool) error {
	s := &server{maintenance: maintenance, conns: map[string]*grpc.ClientConn{}}
	if err := b.certify(s); err != nil {
		return err
	}
	b.mu.Lock()
	dead := b.dead
	b.mu.Unlock()
	if dead {
		return errors.New("open API: the configuration was rolled back to none")
	}
	spec := b.node.Spec()
	gate, err := b.node.opts.Net.Listen(b.ctx, spec.Name, netip.AddrPortFrom(spec.Address, constants.ApidPort))
	if err != nil {
		return err
	}
	s.gate = gate
	a := &api{boot: b, server: s}
	s.grpc = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(s.tlsConfig(b.node.now))),
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.ChainUnaryInterceptor(a.unary),
		grpc.ChainStreamInterceptor(a.stream),
	)
	b.register(s.grpc, a)

	b.mu.Lock()
	if b.ctx.Err() != nil {
		b.mu.Unlock()
		gate.Close()
		return b.ctx.Err()
	}
	b.server = s
	b.mu.Unlock()
	b.goDo(func() {
		_ = s.grpc.Serve(softListener{gate}) // ends when the gate closes
	})
	put(b, "runtime.APIServiceConfigController", runtime.NewAPIServiceConfig(), func(r *runtime.APIServiceConfig) {
		*r.TypedSpec() = runtime.APIServiceConfigSpec{
			ListenAddress: ":50000", NodeRoutingDisabled: maintenance,
			ReadonlyRoleMode: maintenance, SkipVerifyingClientCert: maintenance,
		}
	})
	b.svc.up("apid")
	b.node.emit("api", map[bool]string{true: "maintenance " + s.fp.String(), false: "configured"}[maintenance])
	return nil
}

// register adds the services that the release has.
func (b *boot) register(srv *grpc.Server, a *api) {
	machine.RegisterMachineServiceServer(srv, a)
	storage.RegisterStorageServiceServer(srv, &storageAPI{boot: b})
	filtered := state.WrapCore(state.Filter(b.state, b.detailed(accessPolicy(b.state))))
	cosi.RegisterStateServer(srv, cosiserver.NewState(filtered))
	if a.server.maintenance && b.release.oldMaintenance {
		return
	}
	if b.release.lifecycle {
		machine.RegisterImageServiceServer(srv, &imageAPI{boot: b})
		machine.RegisterLifecycleServiceServer(srv, &lifecycleAPI{boot: b})
		machine.RegisterDebugServiceServer(srv, &debugAPI{boot: b})
	}
	if b.release.newResources {
		machine.RegisterLVMServiceServer(srv, &lvmAPI{boot: b})
	}
	cluster.RegisterClusterServiceServer(srv, &clusterAPI{api: a})
	inspect.RegisterInspectServiceServer(srv, &inspectAPI{boot: b})
	timeapi.RegisterTimeServiceServer(srv, &timeAPI{boot: b})
}

// softListener lets grpc stop accepting without breaking the connections that exist.
type softListener struct{ *wire.Gate }

// Close implements net.Listener.
func (l softListener) Close() error {
	l.StopAccepting()
	return nil
}

// closeAPI closes port 50000 and breaks every connection. Calls that are being served get the
// given time to end, as apid gives them when it is stopped.
func (b *boot) closeAPI(grace time.Duration) {
	b.mu.Lock()
	s := b.server
	b.server = nil
	b.mu.Unlock()
	if s == nil {
		return
	}
	if grace > 0 {
		s.gate.StopAccepting()
		stopped := make(chan struct{})
		go func() {
			s.grpc.GracefulStop()
			close(stopped)
		}()
		select {
		case <-stopped:
		case <-time.After(grace):
		case <-b.ctx.Done():
		}
	}
	s.gate.Close()
	s.grpc.Stop()
	s.mu.Lock()
	conns := s.conns
	s.conns = map[string]*grpc.ClientConn{}
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	if b.ctx.Err() == nil {
		b.svc.set("apid", stStopping, "Sending SIGTERM to task apid")
		b.svc.set("apid", stFinished, "Service finished successfully")
	}
}

// tlsConfig asks for the certificates anew at each handshake: they change while it listens.
func (s *server) tlsConfig(now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			cfg := &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
				SessionTicketsDisabled: true, Certificates: []tls.Certificate{*s.cert}, Time: now,
			}
			if !s.maintenance {
				cfg.ClientAuth = tls.RequireAndVerifyClientCert
				cfg.ClientCAs = pool(s.cas...)
				cfg.VerifyPeerCertificate = verifyUsage
			}
			return cfg, nil
		},
	}
}

// certify issues the server's certificates from what the configuration says now.
func (b *boot) certify(s *server) error {
	spec := b.node.Spec()
	hostname, now := b.hostname(), b.node.now()
	var cert, proxy *tls.Certificate
	var cas [][]byte
	var err error
	if s.maintenance {
		cert, err = maintenanceCert(now, spec.Address, hostname)
	} else {
		cfg := b.config()
		if cfg == nil || cfg.Machine() == nil {
			return errors.New("open API: no configuration")
		}
		sec := cfg.Machine().Security()
		for _, ca := range sec.AcceptedCAs() {
			cas = append(cas, ca.Crt)
		}
		if ca := sec.IssuingCA(); ca != nil {
			cas = append(cas, ca.Crt)
		}
		if b.machineType().IsControlPlane() {
			if cert, err = apiCert(sec.IssuingCA(), now, spec.Address, b.inKubernetes(), hostname, sec.CertSANs()); err == nil {
				proxy, err = proxyCert(sec.IssuingCA(), now)
			}
		} else {
			cert, err = b.askTrustd(hostname, sec.CertSANs())
		}
	}
	if err != nil {
		return fmt.Errorf("open API of node %s: %w", spec.Name, err)
	}
	fp, err := x509.SPKIFingerprintFromDER(cert.Certificate[0])
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.EqualFunc(s.cas, cas, bytes.Equal) {
		for target, c := range s.conns { // they trust the old authorities
			c.Close()
			delete(s.conns, target)
		}
	}
	s.cert, s.cas, s.proxy, s.fp = cert, cas, proxy, fp
	return nil
}

// askTrustd has a control plane of the cluster sign the worker's certificate. Who a worker can
// ask are the control planes it knows; they must be up, reachable and share the machine token.
func (b *boot) askTrustd(hostname string, certSANs []string) (*tls.Certificate, error) {
	token := b.config().Machine().Security().Token()
	for _, peer := range b.controlPlanes() {
		pb := peer.current()
		if pb == nil || peer == b.node {
			continue
		}
		cfg := pb.config()
		if cfg == nil || cfg.Machine() == nil || cfg.Machine().Security().Token() != token {
			continue
		}
		if up, _ := pb.svc.is("trustd"); !up || b.node.opts.Net.Verdict(b.node.Name(), peer.Name()) != wire.Open {
			continue
		}
		return apiCert(cfg.Machine().Security().IssuingCA(), peer.now(), b.node.Spec().Address, b.inKubernetes(), hostname, certSANs)
	}
	return nil, errors.New("no control plane's trustd answers")
}

// recertify renews the certificates after a change of the configuration or the hostname.
func (b *boot) recertify() {
	b.mu.Lock()
	s := b.server
	b.mu.Unlock()
	if s == nil || (!s.maintenance && !b.complete()) {
		return
	}
	if err := b.certify(s); err != nil && b.ctx.Err() == nil {
		b.node.emit("error", fmt.Sprintf("renew API certificate: %v", err))
	}
}

// MaintenanceFingerprint is the SPKI fingerprint of the certificate that the node's maintenance
// API shows now, as --cert-fingerprint and TalosMachine.spec.certFingerprint take it; empty when
// the node is not in maintenance mode.
func (n *Node) MaintenanceFingerprint() string {
	b := n.current()
	if b == nil {
		return ""
	}
	b.mu.Lock()
	s := b.server
	b.mu.Unlock()
	if s == nil || !s.maintenance {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fp.String()
}
