package node

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// socket is one that a service has.
type socket struct {
	proto, local string
	port         uint32
	remote       string
	rport        uint32
	process      string
}

// sockets are those that the services have: where they listen, and etcd's and the kubelet's connections.
func (b *boot) sockets() []socket {
	own := b.node.Spec().Address.String()
	listens := []socket{
		{proto: "tcp6", local: "::", port: 50000, process: "apid"},
		{proto: "tcp6", local: "::", port: 50001, process: "trustd"},
		{proto: "tcp6", local: "::", port: 2379, process: "etcd"},
		{proto: "tcp6", local: "::", port: 2380, process: "etcd"},
		{proto: "tcp6", local: "::", port: 10250, process: "kubelet"},
		{proto: "tcp", local: "127.0.0.1", port: 10248, process: "kubelet"},
		{proto: "tcp6", local: "::", port: 6443, process: "kube-apiserver"},
		{proto: "tcp", local: "127.0.0.1", port: 10257, process: "kube-controller-manager"},
		{proto: "tcp", local: "127.0.0.1", port: 10259, process: "kube-scheduler"},
	}
	if b.complete() {
		listens = append(listens, socket{proto: "tcp", local: "127.0.0.53", port: 53, process: "machined"}, socket{proto: "udp", local: "127.0.0.53", port: 53, process: "machined"})
	}
	up := map[string]bool{}
	for _, p := range b.processes() {
		up[p.name] = true
	}
	var out []socket
	for _, s := range listens {
		if up[s.process] {
			out = append(out, s)
		}
	}
	if up["etcd"] {
		for i, a := range b.endpoints() {
			if a.String() != own {
				out = append(out, socket{proto: "tcp", local: own, port: uint32(41000 + i), remote: a.String(), rport: 2380, process: "etcd"})
			}
		}
	}
	if up["kubelet"] {
		out = append(out, socket{proto: "tcp", local: "127.0.0.1", port: 41500, remote: "127.0.0.1", rport: 7445, process: "kubelet"})
	}
	return out
}

// Netstat implements machine.MachineService.
func (a *api) Netstat(_ context.Context, in *machine.NetstatRequest) (*machine.NetstatResponse, error) {
	if in.Filter < machine.NetstatRequest_ALL || in.Filter > machine.NetstatRequest_LISTENING {
		return nil, status.Errorf(codes.InvalidArgument, "invalid filter: %v", in.Filter)
	}
	out := &machine.Netstat{}
	if !in.GetNetns().GetHostnetwork() {
		return &machine.NetstatResponse{Messages: []*machine.Netstat{out}}, nil
	}
	l4 := in.GetL4Proto()
	asked := map[string]bool{"tcp": l4.GetTcp(), "tcp6": l4.GetTcp6(), "udp": l4.GetUdp(), "udp6": l4.GetUdp6()}
	pids := map[string]int32{}
	for _, p := range a.boot.processes() {
		pids[p.name] = p.pid
	}
	for i, s := range a.boot.sockets() {
		listening := s.remote == ""
		if !asked[s.proto] || (in.Filter == machine.NetstatRequest_LISTENING && !listening) || (in.Filter == machine.NetstatRequest_CONNECTED && listening) {
			continue
		}
		r := &machine.ConnectRecord{
			L4Proto: s.proto, Localip: s.local, Localport: s.port, Remoteip: s.remote, Remoteport: s.rport,
			State: machine.ConnectRecord_ESTABLISHED, Inode: uint64(20000 + i), Ref: 2, Pointer: 0, Process: &machine.ConnectRecord_Process{},
		}
		if listening {
			r.Remoteip, r.State = map[string]string{"tcp": "0.0.0.0", "udp": "0.0.0.0", "tcp6": "::", "udp6": "::"}[s.proto], machine.ConnectRecord_LISTEN
			if s.proto == "udp" {
				r.State = machine.ConnectRecord_CLOSE
			}
		}
		if in.GetFeature().GetPid() {
			r.Process = &machine.ConnectRecord_Process{Pid: uint32(pids[s.process]), Name: s.process}
		}
		out.Connectrecord = append(out.Connectrecord, r)
	}
	return &machine.NetstatResponse{Messages: []*machine.Netstat{out}}, nil
}

// PacketCapture implements machine.MachineService. It knows the interfaces; opening a raw socket is
// refused, as to a node without the right to: the lab's network is not the machine's own.
func (a *api) PacketCapture(in *machine.PacketCaptureRequest, srv machine.MachineService_PacketCaptureServer) error {
	a.boot.showDetail(network.LinkStatusType)
	_, err := safe.StateGetByID[*network.LinkStatus](srv.Context(), a.boot.state, in.Interface)
	if state.IsNotFoundError(err) {
		return status.Errorf(codes.NotFound, "interface %q not found", in.Interface)
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("error creating afpacket handle: operation not permitted")
}
