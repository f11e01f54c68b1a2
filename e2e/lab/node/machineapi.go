package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/inspect"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
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

// ServiceStart implements machine.MachineService; only the kubelet may be started.
func (a *api) ServiceStart(_ context.Context, in *machine.ServiceStartRequest) (*machine.ServiceStartResponse, error) {
	if in.Id != "kubelet" {
		return nil, fmt.Errorf("service %q doesn't support start operation via API", in.Id)
	}
	if up, _ := a.boot.svc.is("kubelet"); !up {
		a.boot.goDo(a.boot.restartKubelet)
	}
	return &machine.ServiceStartResponse{Messages: []*machine.ServiceStart{{Resp: "Service \"kubelet\" started"}}}, nil
}

// ServiceStop implements machine.MachineService; no service of Talos may be stopped.
func (a *api) ServiceStop(_ context.Context, in *machine.ServiceStopRequest) (*machine.ServiceStopResponse, error) {
	return nil, fmt.Errorf("service %q doesn't support stop operation via API", in.Id)
}

// ServiceRestart implements machine.MachineService; only the kubelet may be restarted.
func (a *api) ServiceRestart(_ context.Context, in *machine.ServiceRestartRequest) (*machine.ServiceRestartResponse, error) {
	if in.Id != "kubelet" {
		return nil, fmt.Errorf("service %q doesn't support restart operation via API", in.Id)
	}
	a.boot.goDo(a.boot.restartKubelet)
	return &machine.ServiceRestartResponse{Messages: []*machine.ServiceRestart{{Resp: "Service \"kubelet\" restarted"}}}, nil
}

// Read implements machine.MachineService for the files that the lab has: the boot ID is what
// clients compare to see that a node rebooted.
func (a *api) Read(in *machine.ReadRequest, srv machine.MachineService_ReadServer) error {
	files := map[string]string{
		"/proc/sys/kernel/random/boot_id": a.boot.id + "\n",
		"/proc/sys/kernel/hostname":       a.boot.hostname() + "\n",
		"/etc/os-release": fmt.Sprintf("NAME=\"Talos\"\nID=talos\nVERSION_ID=%[1]s\nPRETTY_NAME=\"Talos (%[1]s)\"\n",
			a.boot.node.Spec().TalosVersion),
	}
	content, ok := files[in.Path]
	if made, there := a.boot.configuredFile(in.Path); there {
		content, ok = string(made), true
	}
	if !ok {
		return fmt.Errorf("stat %s: no such file or directory", in.Path)
	}
	return srv.Send(&common.Data{Bytes: []byte(content)})
}

// Memory implements machine.MachineService with the figures of a small machine (KiB).
func (a *api) Memory(context.Context, *emptypb.Empty) (*machine.MemoryResponse, error) {
	return &machine.MemoryResponse{Messages: []*machine.Memory{{Meminfo: &machine.MemInfo{
		Memtotal: 4 << 20, Memfree: 2 << 20, Memavailable: 3 << 20,
	}}}}, nil
}

type storageAPI struct {
	storage.UnimplementedStorageServiceServer
	boot *boot
}

// Disks implements storage.StorageService.
func (s *storageAPI) Disks(context.Context, *emptypb.Empty) (*storage.DisksResponse, error) {
	spec := s.boot.node.Spec()
	out := &storage.Disks{}
	for _, d := range spec.Disks {
		out.Disks = append(out.Disks, &storage.Disk{
			DeviceName: "/dev/" + d.Name, Size: d.Size, Model: d.Model, Serial: d.Serial, Wwid: d.WWID, Readonly: d.ReadOnly,
			SystemDisk: s.boot.disks.installed() && d.Name == s.boot.systemDisk(), Subsystem: "/sys/class/block",
			Type: storage.Disk_HDD,
		})
	}
	return &storage.DisksResponse{Messages: []*storage.Disks{out}}, nil
}

type timeAPI struct {
	timeapi.UnimplementedTimeServiceServer
}

// Time implements time.TimeService: the node's clock is the lab's.
func (timeAPI) Time(context.Context, *emptypb.Empty) (*timeapi.TimeResponse, error) {
	now := timestamppb.Now()
	return &timeapi.TimeResponse{Messages: []*timeapi.Time{{Server: "lab", Localtime: now, Remotetime: now}}}, nil
}

// TimeCheck implements time.TimeService.
func (t timeAPI) TimeCheck(ctx context.Context, in *timeapi.TimeRequest) (*timeapi.TimeResponse, error) {
	r, err := t.Time(ctx, &emptypb.Empty{})
	if err == nil {
		r.Messages[0].Server = in.Server
	}
	return r, err
}

type clusterAPI struct {
	cluster.UnimplementedClusterServiceServer
	boot *boot
}

// HealthCheck implements cluster.ClusterService: it follows what the lab can know, the stages of
// the machines and etcd's members, and says that it stops before Kubernetes.
func (c *clusterAPI) HealthCheck(in *cluster.HealthCheckRequest, srv cluster.ClusterService_HealthCheckServer) error {
	say := func(s string) error { return srv.Send(&cluster.HealthCheckProgress{Message: s}) }
	if !c.boot.machineType().IsControlPlane() {
		return status.Error(codes.Unimplemented, "health check is only available on control plane nodes")
	}
	ctx := srv.Context()
	if in.WaitTimeout != nil && in.WaitTimeout.AsDuration() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, in.WaitTimeout.AsDuration())
		defer cancel()
	}
	if err := say("waiting for all nodes to be running and ready: ..."); err != nil {
		return err
	}
	for {
		bad := c.notReady()
		if len(bad) == 0 {
			break
		}
		if err := say(fmt.Sprintf("waiting for all nodes to be running and ready: not ready: %v", bad)); err != nil {
			return err
		}
		if !sleep(ctx, c.boot.node.opts.Timings.HealthPeriod) {
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if err := say("waiting for all nodes to be running and ready: OK"); err != nil {
		return err
	}
	return say("the lab runs no Kubernetes: its checks are skipped")
}

func (c *clusterAPI) notReady() []string {
	var bad []string
	for _, n := range c.boot.node.opts.Peers() {
		b := n.current()
		if b == nil || !b.belongsTo(c.boot.config().Cluster().ID()) {
			continue
		}
		if !n.Ready() {
			bad = append(bad, b.hostname())
		}
	}
	slices.Sort(bad)
	return bad
}

type inspectAPI struct {
	inspect.UnimplementedInspectServiceServer
}
