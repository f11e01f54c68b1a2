package node

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// route is where a call goes: here, to one node, or to many.
type route struct {
	local   bool
	targets []string
	many    bool
}

// routeOf is apid's director (internal/app/apid/pkg/director/director.go): the metadata key node
// names one target, nodes several.
func (a *api) routeOf(ctx context.Context, method string) (route, error) {
	md, ok := metadata.FromIncomingContext(ctx)
	if a.server.maintenance || !ok || len(md.Get("proxyfrom")) > 0 {
		return route{local: true}, nil
	}
	node, nodes := md.Get("node"), md.Get("nodes")
	if node != nil && len(node) != 1 {
		return route{}, status.Error(codes.InvalidArgument, "node metadata must be single-valued")
	}
	a.server.mu.Lock()
	forwards := a.server.proxy != nil
	a.server.mu.Unlock()
	if !forwards {
		if len(node) == 1 && a.isLocal(node[0]) {
			node = nil
		}
		if len(nodes) == 1 && a.isLocal(nodes[0]) {
			nodes = nil
		}
	}
	if nodes != nil && !manyAllowed(method) {
		return route{}, status.Errorf(codes.InvalidArgument, "one-2-many proxying is not supported for method %s", method)
	}
	if (nodes != nil || node != nil) && !forwards {
		return route{}, status.Error(codes.PermissionDenied, "no request forwarding")
	}
	switch {
	case nodes != nil:
		return route{targets: nodes, many: true}, nil
	case node != nil:
		return route{targets: node}, nil
	}
	return route{local: true}, nil
}

func manyAllowed(method string) bool {
	for _, p := range []string{
		"/machine.MachineService/", "/cluster.ClusterService/", "/inspect.InspectService/",
		"/storage.StorageService/", "/time.TimeService/",
	} {
		if strings.HasPrefix(method, p) {
			return true
		}
	}
	return false
}

func (a *api) isLocal(target string) bool {
	return target == a.boot.node.Spec().Address.String() || target == a.boot.hostname() ||
		target == "127.0.0.1" || target == "localhost"
}

// unary is the way of a unary call: roles, routing, rights, hooks, handler.
func (a *api) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx = context.WithValue(ctx, rolesKey{}, extractRoles(ctx, a.server.maintenance))
	rt, err := a.routeOf(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if rt.local {
		return a.serve(ctx, req, info.FullMethod, handler)
	}
	if !rt.many {
		return a.forward(ctx, rt.targets[0], req, info.FullMethod)
	}
	replies := make([]proto.Message, len(rt.targets))
	var wg sync.WaitGroup
	for i, t := range rt.targets {
		wg.Go(func() {
			reply, err := a.forward(ctx, t, req, info.FullMethod)
			replies[i] = tag(info.FullMethod, reply, t, err)
		})
	}
	wg.Wait()
	out := replies[0]
	for _, r := range replies[1:] {
		proto.Merge(out, r) // messages is a repeated field: the replies are joined
	}
	return out, nil
}

// serve runs the handler of this node.
func (a *api) serve(ctx context.Context, req any, method string, handler grpc.UnaryHandler) (any, error) {
	if err := a.admit(ctx, method); err != nil {
		return nil, err
	}
	call := Call{Node: a.boot.node.Name(), Method: method}
	if apply, ok := req.(*machine.ApplyConfigurationRequest); ok {
		call.Dry = apply.DryRun
	}
	hooks := a.boot.node.opts.Hooks
	if hooks != nil {
		if err := hooks.Before(ctx, call); err != nil {
			return nil, a.lose(ctx, err)
		}
	}
	reply, err := handler(ctx, req)
	if err == nil && hooks != nil {
		if err := hooks.After(ctx, call); err != nil {
			return nil, a.lose(ctx, err)
		}
	}
	return reply, asStatus(err)
}

// admit checks rights, and that machined is still there behind apid.
func (a *api) admit(ctx context.Context, method string) error {
	if a.boot.machinedGone.Load() {
		return status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /system/run/machined/machine.sock: connect: no such file or directory"`)
	}
	if a.server.maintenance && a.boot.node.release.oldMaintenance && oldMaintenanceLacks[method] {
		return status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")
	}
	return authorize(ctx, method)
}

// oldMaintenanceLacks are what the maintenance server of 1.12 refuses without an admin.
var oldMaintenanceLacks = set(
	"/machine.MachineService/Version", "/machine.MachineService/Upgrade", "/machine.MachineService/Reset",
	"/machine.MachineService/MetaWrite", "/machine.MachineService/MetaDelete",
)

// lose breaks the caller's connection when the hook wants that, else passes the hook's error on.
func (a *api) lose(ctx context.Context, err error) error {
	if !errors.Is(err, ErrLoseReply) {
		return asStatus(err)
	}
	if p, ok := peer.FromContext(ctx); ok {
		a.server.gate.Drop(p.Addr.String())
	}
	return status.Error(codes.Unavailable, "reply lost")
}

// asStatus gives a plain error the code that it has on a node.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	if errors.Is(err, context.Canceled) {
		return status.Error(codes.Canceled, err.Error())
	}
	return status.Error(codes.Unknown, err.Error())
}

// stream is the way of a streaming call.
func (a *api) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := context.WithValue(ss.Context(), rolesKey{}, extractRoles(ss.Context(), a.server.maintenance))
	rt, err := a.routeOf(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	if rt.local {
		if err := a.admit(ctx, info.FullMethod); err != nil {
			return err
		}
		call := Call{Node: a.boot.node.Name(), Method: info.FullMethod}
		hooks := a.boot.node.opts.Hooks
		if hooks != nil {
			if err := hooks.Before(ctx, call); err != nil {
				return a.lose(ctx, err)
			}
		}
		err := handler(srv, &streamWith{ServerStream: ss, ctx: ctx})
		if err == nil && hooks != nil {
			err = hooks.After(ctx, call)
			if err != nil {
				return a.lose(ctx, err)
			}
		}
		return asStatus(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make([]error, len(rt.targets))
	if rt.many && info.IsClientStream {
		return status.Errorf(codes.InvalidArgument, "one-2-many proxying is not supported for method %s", info.FullMethod)
	}
	var req proto.Message
	if !info.IsClientStream {
		if req, err = messageOf(info.FullMethod, true); err != nil {
			return err
		}
		if err := ss.RecvMsg(req); err != nil {
			return err
		}
	}
	for i, t := range rt.targets {
		wg.Go(func() { errs[i] = a.pipe(ctx, ss, &mu, t, info, req, rt.many) })
	}
	wg.Wait()
	if rt.many {
		return nil // errors went as messages
	}
	return errs[0]
}

type streamWith struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWith) Context() context.Context { return s.ctx }

// pipe forwards a stream to one target.
func (a *api) pipe(ctx context.Context, ss grpc.ServerStream, mu *sync.Mutex, target string, info *grpc.StreamServerInfo, req proto.Message, many bool) error {
	err := a.pipeRaw(ctx, ss, mu, target, info, req, many)
	if err != nil && many {
		mu.Lock()
		defer mu.Unlock()
		return ss.SendMsg(tag(info.FullMethod, nil, target, err))
	}
	return err
}

func (a *api) pipeRaw(ctx context.Context, ss grpc.ServerStream, mu *sync.Mutex, target string, info *grpc.StreamServerInfo, req proto.Message, many bool) error {
	conn, ctx, err := a.dial(ctx, target)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cs, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: info.IsServerStream, ClientStreams: info.IsClientStream}, info.FullMethod)
	if err != nil {
		return err
	}
	if req != nil {
		if err := cs.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	} else if err := upload(ss, cs, info.FullMethod); err != nil {
		return err
	}
	if err := cs.CloseSend(); err != nil {
		return err
	}
	for {
		msg, err := messageOf(info.FullMethod, false)
		if err != nil {
			return err
		}
		if err := cs.RecvMsg(msg); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if many {
			msg = tag(info.FullMethod, msg, target, nil)
		}
		mu.Lock()
		err = ss.SendMsg(msg)
		mu.Unlock()
		if err != nil {
			return err
		}
		if !info.IsServerStream {
			return nil
		}
	}
}

func upload(ss grpc.ServerStream, cs grpc.ClientStream, method string) error {
	for {
		msg, err := messageOf(method, true)
		if err != nil {
			return err
		}
		if err := ss.RecvMsg(msg); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := cs.SendMsg(msg); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // the reason comes with the reply
			}
			return err
		}
	}
}

// forward sends a unary call to another node's apid.
func (a *api) forward(ctx context.Context, target string, req any, method string) (proto.Message, error) {
	conn, ctx, err := a.dial(ctx, target)
	if err != nil {
		return nil, err
	}
	reply, err := messageOf(method, false)
	if err != nil {
		return nil, err
	}
	return reply, conn.Invoke(ctx, method, req, reply)
}

// dial returns a connection to a target over mutual TLS, from this node's address, and the
// context with the metadata that apid passes on.
func (a *api) dial(ctx context.Context, target string) (*grpc.ClientConn, context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	md.Set("talos-role", rolesOf(ctx).Strings()...)
	md.Set("proxyfrom", "unknown")
	if authority := md.Get(":authority"); len(authority) > 0 {
		md.Set("proxyfrom", authority...)
	}
	for _, k := range []string{":authority", "nodes", "node"} {
		delete(md, k)
	}
	ctx = metadata.NewOutgoingContext(ctx, md)

	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.conns[target]; c != nil {
		return c, ctx, nil
	}
	dialer := wire.Dialer(a.boot.node.Spec().Address)
	conf := backoff.DefaultConfig
	conf.MaxDelay = 15 * time.Second
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(target, "50000"),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: pool(s.cas...), Certificates: []tls.Certificate{*s.proxy},
		})),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: conf, MinConnectTimeout: 20 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize)),
	)
	if err != nil {
		return nil, nil, status.Error(codes.Internal, err.Error())
	}
	s.conns[target] = conn
	return conn, ctx, nil
}

// messageOf makes an empty request or reply of a method, from the descriptors that are linked in.
func messageOf(method string, request bool) (proto.Message, error) {
	parts := strings.Split(strings.TrimPrefix(method, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(parts[0]))
	if err != nil {
		return nil, status.Errorf(codes.Unimplemented, "unknown service %s", parts[0])
	}
	m := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(parts[1]))
	if m == nil {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s for service %s", parts[1], parts[0])
	}
	desc := m.Output()
	if request {
		desc = m.Input()
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(desc.FullName())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return t.New().Interface(), nil
}

// tag writes the target, and the error if there was one, into a reply's metadata, as one-to-many proxying does.
func tag(method string, reply proto.Message, target string, err error) proto.Message {
	meta := &common.Metadata{Hostname: target}
	if err != nil {
		meta.Error, meta.Status = err.Error(), status.Convert(err).Proto()
	}
	if reply == nil || err != nil {
		var merr error
		if reply, merr = messageOf(method, false); merr != nil {
			return &common.EmptyResponse{Messages: []*common.Empty{{Metadata: meta}}}
		}
	}
	m := reply.ProtoReflect()
	if field := m.Descriptor().Fields().ByName("messages"); field != nil && field.IsList() {
		list := m.Mutable(field).List()
		if list.Len() == 0 {
			list.Append(list.NewElement())
		}
		for i := range list.Len() {
			setMetadata(list.Get(i).Message(), meta)
		}
		return reply
	}
	setMetadata(m, meta)
	return reply
}

func setMetadata(m protoreflect.Message, meta *common.Metadata) {
	if f := m.Descriptor().Fields().ByName("metadata"); f != nil {
		m.Set(f, protoreflect.ValueOfMessage(meta.ProtoReflect()))
	}
}
