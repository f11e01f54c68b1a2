package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// checkControlPlane refuses what only control planes serve.
func (a *api) checkControlPlane(name string) error {
	if !a.boot.machineType().IsControlPlane() {
		return status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", name)
	}
	return nil
}

// etcdOf returns the node's etcd for a call of the given name. Before etcd was started at all
// there is still something to ask, which never answers.
func (a *api) etcdOf(name string) (*etcdService, error) {
	if err := a.checkControlPlane(name); err != nil {
		return nil, err
	}
	if e := a.boot.getEtcd(); e != nil {
		return e, nil
	}
	if !a.boot.etcdConfigured() {
		if name == "member list" {
			return nil, errNoEndpoints
		}
		return nil, errors.New("failed to create etcd client: error building etcd client TLS config: open /system/secrets/etcd/admin.crt: no such file or directory")
	}
	e := &etcdService{b: a.boot, name: a.boot.hostname(), disabled: true}
	if err := e.writePKI(); err != nil {
		return nil, fmt.Errorf("failed to create etcd client: %w", err)
	}
	return e, nil
}

// EtcdMemberList implements machine.MachineService.
func (a *api) EtcdMemberList(ctx context.Context, in *machine.EtcdMemberListRequest) (*machine.EtcdMemberListResponse, error) {
	e, err := a.etcdOf("member list")
	if err != nil {
		return nil, err
	}
	var cl *clientv3.Client
	if in.QueryLocal {
		cl, err = e.localClient(ctx)
	} else {
		cl, err = e.clusterClient(ctx)
	}
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	resp, err := cl.MemberList(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return nil, err
	}
	out := &machine.EtcdMembers{}
	for _, m := range resp.Members {
		out.LegacyMembers = append(out.LegacyMembers, m.Name)
		out.Members = append(out.Members, &machine.EtcdMember{
			Id: m.ID, Hostname: m.Name, PeerUrls: m.PeerURLs, ClientUrls: m.ClientURLs, IsLearner: m.IsLearner,
		})
	}
	return &machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{out}}, nil
}

// EtcdStatus implements machine.MachineService.
func (a *api) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdStatusResponse, error) {
	e, err := a.etcdOf("etcd status")
	if err != nil {
		return nil, err
	}
	cl, err := e.localClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	r, err := cl.Status(ctx, "localhost:2379")
	if err != nil {
		return nil, fmt.Errorf("failed to query etcd status: %w", err)
	}
	protocol, storage := e.versions()
	return &machine.EtcdStatusResponse{Messages: []*machine.EtcdStatus{{MemberStatus: &machine.EtcdMemberStatus{
		MemberId: r.Header.MemberId, ProtocolVersion: protocol, DbSize: r.DbSize, DbSizeInUse: r.DbSizeInUse,
		Leader: r.Leader, RaftIndex: r.RaftIndex, RaftTerm: r.RaftTerm, RaftAppliedIndex: r.RaftAppliedIndex,
		StorageVersion: storage, Errors: r.Errors, IsLearner: r.IsLearner,
	}}}}, nil
}

// EtcdRemoveMemberByID implements machine.MachineService. Only etcd's own rules protect the quorum.
func (a *api) EtcdRemoveMemberByID(ctx context.Context, in *machine.EtcdRemoveMemberByIDRequest) (*machine.EtcdRemoveMemberByIDResponse, error) {
	e, err := a.etcdOf("etcd remove member")
	if err != nil {
		return nil, err
	}
	cl, err := e.clusterClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	if err := removeMember(clientv3.WithRequireLeader(ctx), cl, in.MemberId); err != nil {
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return nil, status.Error(codes.NotFound, err.Error())
		}
		return nil, fmt.Errorf("failed to remove member: %w", err)
	}
	a.boot.node.count(func(c *Counters) { c.EtcdRemoveMember++ })
	return &machine.EtcdRemoveMemberByIDResponse{Messages: []*machine.EtcdRemoveMemberByID{{}}}, nil
}

func removeMember(ctx context.Context, cl *clientv3.Client, id uint64) error {
	if _, err := cl.MemberRemove(ctx, id); err != nil {
		return fmt.Errorf("failed to remove member %d: %w", id, err)
	}
	return nil
}

// EtcdLeaveCluster implements machine.MachineService.
func (a *api) EtcdLeaveCluster(ctx context.Context, _ *machine.EtcdLeaveClusterRequest) (*machine.EtcdLeaveClusterResponse, error) {
	e, err := a.etcdOf("etcd leave")
	if err != nil {
		return nil, err
	}
	if err := e.leave(ctx); err != nil {
		return nil, fmt.Errorf("failed to leave cluster: %w", err)
	}
	a.boot.node.count(func(c *Counters) { c.EtcdLeaveCluster++ })
	return &machine.EtcdLeaveClusterResponse{Messages: []*machine.EtcdLeaveCluster{{}}}, nil
}

// leave removes the own member, stops etcd for the rest of this boot and deletes its data.
func (e *etcdService) leave(ctx context.Context) error {
	cl, err := e.clusterClient(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	e.mu.Lock()
	running := e.embed
	e.mu.Unlock()
	if running == nil {
		return errors.New("etcd member is not running")
	}
	id := uint64(running.Server.MemberID())
	deadline := time.Now().Add(5 * time.Minute)
	for {
		err := removeMember(clientv3.WithRequireLeader(ctx), cl, id)
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotFound) {
			break
		}
		again := errors.Is(err, rpctypes.ErrUnhealthy) || errors.Is(err, rpctypes.ErrStopped)
		if !again || time.Now().After(deadline) {
			return fmt.Errorf("1 error(s) occurred:\n\t%w", err)
		}
		if !sleep(ctx, e.b.node.opts.Timings.JoinRetry) {
			return ctx.Err()
		}
	}
	e.mu.Lock()
	e.disabled = true
	e.mu.Unlock()
	e.stop(false)
	e.b.stopService("etcd")
	if err := os.RemoveAll(e.b.disks.etcd()); err != nil {
		return fmt.Errorf("failed to remove etcd data: %w", err)
	}
	return nil
}

// EtcdForfeitLeadership implements machine.MachineService: the first other member in list order
// gets it, a learner too, and then etcd refuses.
func (a *api) EtcdForfeitLeadership(ctx context.Context, _ *machine.EtcdForfeitLeadershipRequest) (*machine.EtcdForfeitLeadershipResponse, error) {
	e, err := a.etcdOf("etcd forfeit leadership")
	if err != nil {
		return nil, err
	}
	name, err := e.forfeit(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to forfeit leadership: %w", err)
	}
	a.boot.node.count(func(c *Counters) { c.EtcdForfeit++ })
	return &machine.EtcdForfeitLeadershipResponse{Messages: []*machine.EtcdForfeitLeadership{{Member: name}}}, nil
}

func (e *etcdService) forfeit(ctx context.Context) (string, error) {
	cl, err := e.localClient(ctx)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	list, err := cl.MemberList(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return "", fmt.Errorf("failed to list etcd members: %w", err)
	}
	if len(list.Members) == 1 {
		return "", errors.New("cannot forfeit leadership, only one member")
	}
	st, err := cl.Status(ctx, "localhost:2379")
	if err != nil {
		return "", err
	}
	if st.Leader != st.Header.MemberId {
		return "", nil
	}
	for _, m := range list.Members {
		if m.ID == st.Header.MemberId {
			continue
		}
		if _, err := cl.MoveLeader(ctx, m.ID); err != nil {
			if errors.Is(err, rpctypes.ErrNotLeader) {
				return "", nil
			}
			return "", err
		}
		return m.Name, nil
	}
	return "", nil
}

// EtcdAlarmList implements machine.MachineService.
func (a *api) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdAlarmListResponse, error) {
	e, err := a.etcdOf("etcd alarm list")
	if err != nil {
		return nil, err
	}
	cl, err := e.localClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	r, err := cl.AlarmList(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to list etcd alarms: %w", err)
	}
	return &machine.EtcdAlarmListResponse{Messages: []*machine.EtcdAlarm{{MemberAlarms: alarms(r.Alarms)}}}, nil
}

// EtcdAlarmDisarm implements machine.MachineService: it disarms all alarms of the cluster.
func (a *api) EtcdAlarmDisarm(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdAlarmDisarmResponse, error) {
	e, err := a.etcdOf("etcd alarm disarm")
	if err != nil {
		return nil, err
	}
	cl, err := e.localClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	r, err := cl.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	if err != nil {
		return nil, fmt.Errorf("failed to disarm etcd alarm: %w", err)
	}
	return &machine.EtcdAlarmDisarmResponse{Messages: []*machine.EtcdAlarmDisarm{{MemberAlarms: alarms(r.Alarms)}}}, nil
}

func alarms(in []*etcdserverpb.AlarmMember) []*machine.EtcdMemberAlarm {
	out := make([]*machine.EtcdMemberAlarm, 0, len(in))
	for _, m := range in {
		kind := machine.EtcdMemberAlarm_NONE
		switch m.Alarm {
		case etcdserverpb.AlarmType_NOSPACE:
			kind = machine.EtcdMemberAlarm_NOSPACE
		case etcdserverpb.AlarmType_CORRUPT:
			kind = machine.EtcdMemberAlarm_CORRUPT
		}
		out = append(out, &machine.EtcdMemberAlarm{MemberId: m.MemberID, Alarm: kind})
	}
	return out
}

// EtcdDefragment implements machine.MachineService, for the local member.
func (a *api) EtcdDefragment(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdDefragmentResponse, error) {
	e, err := a.etcdOf("etcd defragment")
	if err != nil {
		return nil, err
	}
	cl, err := e.localClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	if _, err := cl.Defragment(ctx, "localhost:2379"); err != nil {
		return nil, fmt.Errorf("failed to defragment etcd: %w", err)
	}
	return &machine.EtcdDefragmentResponse{Messages: []*machine.EtcdDefragment{{}}}, nil
}

// EtcdSnapshot implements machine.MachineService: the stream is the database with etcd's trailer.
func (a *api) EtcdSnapshot(_ *machine.EtcdSnapshotRequest, srv machine.MachineService_EtcdSnapshotServer) error {
	e, err := a.etcdOf("etcd snapshot")
	if err != nil {
		return err
	}
	cl, err := e.localClient(srv.Context())
	if err != nil {
		return fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	rd, err := cl.Snapshot(srv.Context())
	if err != nil {
		return fmt.Errorf("failed reading etcd snapshot: %w", err)
	}
	defer rd.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := rd.Read(buf)
		if n > 0 {
			if serr := srv.Send(&common.Data{Bytes: append([]byte(nil), buf[:n]...)}); serr != nil {
				return serr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// EtcdRecover implements machine.MachineService: it keeps the upload for a Bootstrap that recovers.
func (a *api) EtcdRecover(srv machine.MachineService_EtcdRecoverServer) error {
	path := a.boot.disks.snapshot()
	if !exists(filepath.Dir(path)) {
		return status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	}
	if err := a.checkControlPlane("etcd recover"); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("error creating etcd recovery snapshot: %w", err)
	}
	if err := receive(srv, f, func() error { return a.boot.node.roomFor(a.boot.disks, path) }); err != nil {
		f.Close()
		os.Remove(path)
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("error closing snapshot: %w", err)
	}
	a.boot.node.count(func(c *Counters) { c.EtcdRecover++ })
	return srv.SendAndClose(&machine.EtcdRecoverResponse{Messages: []*machine.EtcdRecover{{}}})
}

func receive(srv machine.MachineService_EtcdRecoverServer, w io.Writer, room func() error) error {
	for {
		msg, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := room(); err != nil {
			return fmt.Errorf("error writing snapshot: %w", err)
		}
		if _, err := w.Write(msg.Bytes); err != nil {
			return fmt.Errorf("error writing snapshot: %w", err)
		}
	}
}
