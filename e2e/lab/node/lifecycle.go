package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// Reboot implements machine.MachineService: it answers before anything happens.
func (a *api) Reboot(_ context.Context, in *machine.RebootRequest) (*machine.RebootResponse, error) {
	b, actor := a.boot, uuid.New().String()
	b.node.count(func(c *Counters) { c.Reboot++ })
	b.goDo(func() { b.sequence(seqReboot, actor, false, b.rebootPhases(in.Mode)) })
	return &machine.RebootResponse{Messages: []*machine.Reboot{{ActorId: actor}}}, nil
}

// Shutdown implements machine.MachineService. It takes over whatever runs.
func (a *api) Shutdown(_ context.Context, in *machine.ShutdownRequest) (*machine.ShutdownResponse, error) {
	b, actor := a.boot, uuid.New().String()
	b.node.count(func(c *Counters) { c.Shutdown++ })
	b.goDo(func() { b.sequence(seqShutdown, actor, true, b.shutdownPhases(in.Force)) })
	return &machine.ShutdownResponse{Messages: []*machine.Shutdown{{ActorId: actor}}}, nil
}

// Reset implements machine.MachineService.
func (a *api) Reset(_ context.Context, in *machine.ResetRequest) (*machine.ResetResponse, error) {
	b, actor := a.boot, uuid.New().String()
	labels, err := b.checkReset(in)
	if err != nil {
		return nil, err
	}
	b.node.count(func(c *Counters) { c.Reset++ })
	b.goDo(func() { b.sequence(seqReset, actor, false, b.resetPhases(in, labels)) })
	return &machine.ResetResponse{Messages: []*machine.Reset{{ActorId: actor}}}, nil
}

// checkReset refuses what Talos refuses (plain errors, so their code is Unknown), and returns the
// labels of the partitions to wipe.
func (b *boot) checkReset(in *machine.ResetRequest) ([]string, error) {
	disks := b.node.Spec().Disks
	if len(in.UserDisksToWipe) > 0 && in.Mode == machine.ResetRequest_SYSTEM_DISK {
		return nil, errors.New("reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
	}
	for _, dev := range in.UserDisksToWipe {
		i := slices.IndexFunc(disks, func(d Disk) bool { return "/dev/"+d.Name == dev })
		switch {
		case i < 0:
			return nil, fmt.Errorf("reset user disk failed: device %s wasn't found", dev)
		case disks[i].ReadOnly:
			return nil, fmt.Errorf("reset user disk failed: device %s is readonly", dev)
		case b.disks.installed() && disks[i].Name == b.systemDisk():
			return nil, fmt.Errorf("reset user disk failed: device %s is the system disk", dev)
		}
	}
	if len(in.SystemPartitionsToWipe) > 0 && in.Mode == machine.ResetRequest_USER_DISKS {
		return nil, errors.New("reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter")
	}
	var labels []string
	for _, p := range in.SystemPartitionsToWipe {
		there := map[string]bool{"META": b.disks.installed(), "STATE": exists(b.disks.state()), "EPHEMERAL": exists(b.disks.ephemeral())}
		located, known := there[p.Label]
		if !known {
			return nil, fmt.Errorf("failed to get volume status with label %q: resource VolumeStatuses.block.talos.dev(runtime/%s@undefined) doesn't exist", p.Label, p.Label)
		}
		if !located {
			return nil, fmt.Errorf("failed to reset: volume %q is not located", p.Label)
		}
		if p.Wipe {
			labels = append(labels, p.Label)
		}
	}
	return labels, nil
}

// wipe destroys partitions; without a label, the whole system disk.
func (b *boot) wipe(labels ...string) error {
	b.node.emit("wipe", fmt.Sprint(labels))
	return b.disks.wipe(labels...)
}

// leaveForReset leaves etcd, unless there is nothing to leave.
func (b *boot) leaveForReset(ctx context.Context) error {
	e := b.getEtcd()
	st, _, _ := b.svc.state("etcd")
	if e == nil || b.disks.etcdEmpty() || (st != stRunning && st != stStopping && st != stFailed) {
		return nil
	}
	// Seen on a virtual machine: some 15 s pass before the member goes, or can't.
	if !sleep(ctx, b.node.opts.Timings.Stop) {
		return ctx.Err()
	}
	return e.leave(ctx)
}
