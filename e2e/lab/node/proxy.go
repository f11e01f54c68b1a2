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
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// streamWith is a stream that this node serves, with the caller's roles and the hooks.
type streamWith struct {
	grpc.ServerStream
	ctx   context.Context
	call  Call
	hooks Hooks
}

func (s *streamWith) Context() context.Context { return s.ctx }

// SendMsg runs the hooks before each message of the answer. A stream sends from one goroutine.
func (s *streamWith) SendMsg(m any) error {
	if s.hooks != nil {
		s.call.Message++
		if err := s.hooks.During(s.ctx, s.call); err != nil {
			return err
		}
	}
	return s.ServerStream.SendMsg(m)
}

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
			Time: a.boot.node.now,
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
