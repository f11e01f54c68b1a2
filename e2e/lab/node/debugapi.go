package node

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// debugAPI is machine.DebugService (since 1.13).
type debugAPI struct {
	machine.UnimplementedDebugServiceServer
	boot *boot
}

// ContainerRun implements machine.DebugService up to where a container would run, which the lab has none of.
func (d *debugAPI) ContainerRun(srv grpc.BidiStreamingServer[machine.DebugContainerRunRequest, machine.DebugContainerRunResponse]) error {
	first, err := srv.Recv()
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "failed to receive spec: %v", err)
	}
	spec := first.GetSpec()
	if spec == nil {
		return status.Error(codes.InvalidArgument, "expected debug container spec")
	}
	if spec.GetProfile() != machine.DebugContainerRunRequestSpec_PROFILE_PRIVILEGED {
		return status.Errorf(codes.InvalidArgument, "unsupported debug container profile: %s", spec.GetProfile())
	}
	instance, err := d.boot.instance(spec.GetContainerd())
	if err != nil {
		return err
	}
	if _, ok := d.boot.findImage(instance, spec.ImageName); !ok {
		return status.Errorf(codes.NotFound, "image %[1]s not found: image %[1]q: not found", spec.ImageName)
	}
	return fmt.Errorf("failed to create container: the lab runs no containers")
}

// lvmAPI is machine.LVMService (since 1.14): a machine of the lab has no volume groups to remove.
type lvmAPI struct {
	machine.UnimplementedLVMServiceServer
	boot *boot
}

// mayRemove lets readers remove in maintenance only, as BlockDeviceWipe does.
func (l *lvmAPI) mayRemove(ctx context.Context) error {
	if l.boot.complete() && !rolesOf(ctx).Includes(role.Admin) {
		return errNotAuthorized
	}
	return nil
}

// LogicalVolumeRemove implements machine.LVMService.
func (l *lvmAPI) LogicalVolumeRemove(ctx context.Context, in *machine.LVMServiceLogicalVolumeRemoveRequest) (*emptypb.Empty, error) {
	if err := l.mayRemove(ctx); err != nil {
		return nil, err
	}
	return nil, status.Errorf(codes.NotFound, "logical volume %q not found", in.VolumeGroup+"/"+in.LogicalVolume)
}

// VolumeGroupRemove implements machine.LVMService.
func (l *lvmAPI) VolumeGroupRemove(ctx context.Context, in *machine.LVMServiceVolumeGroupRemoveRequest) (*emptypb.Empty, error) {
	if err := l.mayRemove(ctx); err != nil {
		return nil, err
	}
	return nil, status.Errorf(codes.NotFound, "volume group %q not found", in.VolumeGroup)
}

// PhysicalVolumeRemove implements machine.LVMService.
func (l *lvmAPI) PhysicalVolumeRemove(ctx context.Context, in *machine.LVMServicePhysicalVolumeRemoveRequest) (*emptypb.Empty, error) {
	if err := l.mayRemove(ctx); err != nil {
		return nil, err
	}
	return nil, status.Errorf(codes.NotFound, "physical volume %q not found", in.Device)
}
