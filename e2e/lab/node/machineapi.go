package node

import (
	"context"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Version implements machine.MachineService. features is there once a full configuration is.
func (a *api) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	v := &machine.Version{
		Version: &machine.VersionInfo{
			Tag: a.boot.node.Spec().TalosVersion, Sha: "51b0d8ed", GoVersion: "go1.26.8", Os: "linux", Arch: "amd64",
		},
		Platform: &machine.PlatformInfo{Name: "metal", Mode: "metal"},
	}
	if a.boot.complete() {
		v.Features = &machine.FeaturesInfo{Rbac: true}
	}
	return &machine.VersionResponse{Messages: []*machine.Version{v}}, nil
}

// Hostname implements machine.MachineService.
func (a *api) Hostname(context.Context, *emptypb.Empty) (*machine.HostnameResponse, error) {
	h := a.boot.hostname()
	if h == "" {
		h = "(none)" // the kernel's name before anyone set one
	}
	return &machine.HostnameResponse{Messages: []*machine.Hostname{{Hostname: h}}}, nil
}

// ServiceList implements machine.MachineService.
func (a *api) ServiceList(context.Context, *emptypb.Empty) (*machine.ServiceListResponse, error) {
	return &machine.ServiceListResponse{Messages: []*machine.ServiceList{{Services: a.boot.svc.list()}}}, nil
}

type timeAPI struct {
	timeapi.UnimplementedTimeServiceServer
	boot *boot
}

// Time implements time.TimeService: the first time server of the configuration is asked.
func (t timeAPI) Time(ctx context.Context, _ *emptypb.Empty) (*timeapi.TimeResponse, error) {
	servers, _ := t.boot.timeServers()
	return t.TimeCheck(ctx, &timeapi.TimeRequest{Server: servers[0]})
}

// TimeCheck implements time.TimeService: every time server's clock is the lab's, and right.
func (t timeAPI) TimeCheck(_ context.Context, in *timeapi.TimeRequest) (*timeapi.TimeResponse, error) {
	if in.Server == "" {
		return nil, status.Error(codes.InvalidArgument, "ntp server is required")
	}
	return &timeapi.TimeResponse{Messages: []*timeapi.Time{{
		Server: in.Server, Localtime: timestamppb.New(t.boot.node.now()), Remotetime: timestamppb.Now(),
	}}}, nil
}
