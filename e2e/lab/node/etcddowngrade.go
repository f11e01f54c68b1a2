package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// EtcdDowngradeValidate implements machine.MachineService.
func (a *api) EtcdDowngradeValidate(ctx context.Context, in *machine.EtcdDowngradeValidateRequest) (*machine.EtcdDowngradeValidateResponse, error) {
	v, err := a.downgrade(ctx, "etcd downgrade validate", clientv3.DowngradeValidate, &in.Version)
	if err != nil {
		return nil, err
	}
	return &machine.EtcdDowngradeValidateResponse{Messages: []*machine.EtcdDowngradeValidate{{ClusterDowngrade: v}}}, nil
}

// EtcdDowngradeEnable implements machine.MachineService.
func (a *api) EtcdDowngradeEnable(ctx context.Context, in *machine.EtcdDowngradeEnableRequest) (*machine.EtcdDowngradeEnableResponse, error) {
	v, err := a.downgrade(ctx, "etcd downgrade enable", clientv3.DowngradeEnable, &in.Version)
	if err != nil {
		return nil, err
	}
	return &machine.EtcdDowngradeEnableResponse{Messages: []*machine.EtcdDowngradeEnable{{ClusterDowngrade: v}}}, nil
}

// EtcdDowngradeCancel implements machine.MachineService.
func (a *api) EtcdDowngradeCancel(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdDowngradeCancelResponse, error) {
	v, err := a.downgrade(ctx, "etcd downgrade cancel", clientv3.DowngradeCancel, nil)
	if err != nil {
		return nil, err
	}
	return &machine.EtcdDowngradeCancelResponse{Messages: []*machine.EtcdDowngradeCancel{{ClusterDowngrade: v}}}, nil
}

// downgrade asks the local member. The error's text is Talos's, copied there from another call.
func (a *api) downgrade(ctx context.Context, name string, act clientv3.DowngradeAction, version *string) (*machine.EtcdClusterDowngrade, error) {
	e, err := a.etcdOf(name)
	if err != nil {
		return nil, err
	}
	to := ""
	if version != nil {
		if err := checkDowngrade(*version); err != nil {
			return nil, err
		}
		to = *version
	}
	cl, err := e.localClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	r, err := cl.Downgrade(ctx, act, to)
	if err != nil {
		return nil, fmt.Errorf("failed to query etcd status: %w", err)
	}
	return &machine.EtcdClusterDowngrade{ClusterVersion: r.Version}, nil
}

// checkDowngrade checks the version as Talos does before etcd is asked.
func checkDowngrade(version string) error {
	bad := func(text string) error { return status.Error(codes.InvalidArgument, text) }
	if version == "" {
		return bad("version is required for etcd downgrade")
	}
	parts := strings.Split(version, ".")
	if len(parts) != 2 {
		return bad("version should be in MAJOR.MINOR format")
	}
	major, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return bad("major version should be a number")
	}
	minor, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return bad("minor version should be a number")
	}
	if major < 3 || (major == 3 && minor < 5) {
		return bad("etcd downgrade is only supported to 3.5 and later versions")
	}
	return nil
}
