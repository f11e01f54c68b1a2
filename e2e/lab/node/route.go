package node

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
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
		a.boot.sayDeprecated(method)
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
	a.boot.thawed()
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
	if a.server.maintenance && a.boot.release.oldMaintenance && oldMaintenanceLacks[method] {
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
		a.boot.thawed()
		err := handler(srv, &streamWith{ServerStream: ss, ctx: ctx, call: call, hooks: hooks})
		if err == nil && hooks != nil {
			err = hooks.After(ctx, call)
			if err != nil {
				return a.lose(ctx, err)
			}
		}
		if errors.Is(err, ErrLoseReply) {
			return a.lose(ctx, err)
		}
		return asStatus(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make([]error, len(rt.targets))
	if len(rt.targets) > 1 && info.IsClientStream { // one target of nodes works: talosctl bootstrap --recover-from
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
