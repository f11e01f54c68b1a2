package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Reboot implements machine.MachineService: it answers before anything happens.
func (a *api) Reboot(_ context.Context, in *machine.RebootRequest) (*machine.RebootResponse, error) {
	b, actor := a.boot, uuid.New().String()
	b.node.count(func(c *Counters) { c.Reboot++ })
	b.goDo(func() { b.sequence("reboot", actor, false, b.reboot(in.Mode)) })
	return &machine.RebootResponse{Messages: []*machine.Reboot{{ActorId: actor}}}, nil
}

// reboot is the reboot sequence. Nothing is drained, and etcd's leadership is not handed over but
// by etcd itself as it stops. FORCE skips the orderly stop.
func (b *boot) reboot(mode machine.RebootRequest_Mode) func(context.Context) error {
	return func(ctx context.Context) error {
		b.setStage(runtime.MachineStageRebooting)
		if mode != machine.RebootRequest_FORCE {
			b.publishPhase("cleanup", machine.PhaseEvent_START)
			b.publishPhase("cleanup", machine.PhaseEvent_STOP)
			b.stopAll(ctx)
		}
		b.publishPhase("reboot", machine.PhaseEvent_START)
		b.finish(outcome{down: b.node.opts.Timings.Down})
		return nil
	}
}

// Shutdown implements machine.MachineService. It takes over whatever runs.
func (a *api) Shutdown(context.Context, *machine.ShutdownRequest) (*machine.ShutdownResponse, error) {
	b, actor := a.boot, uuid.New().String()
	b.node.count(func(c *Counters) { c.Shutdown++ })
	b.goDo(func() {
		b.sequence("shutdown", actor, true, func(ctx context.Context) error {
			b.setStage(runtime.MachineStageShuttingDown)
			b.stopAll(ctx)
			b.finish(outcome{off: true})
			return nil
		})
	})
	return &machine.ShutdownResponse{Messages: []*machine.Shutdown{{ActorId: actor}}}, nil
}

// Reset implements machine.MachineService.
func (a *api) Reset(_ context.Context, in *machine.ResetRequest) (*machine.ResetResponse, error) {
	b, actor := a.boot, uuid.New().String()
	if err := b.checkReset(in); err != nil {
		return nil, err
	}
	b.node.count(func(c *Counters) { c.Reset++ })
	b.goDo(func() { b.sequence("reset", actor, false, b.reset(in)) })
	return &machine.ResetResponse{Messages: []*machine.Reset{{ActorId: actor}}}, nil
}

// checkReset refuses what Talos refuses; plain errors, so their code is Unknown.
func (b *boot) checkReset(in *machine.ResetRequest) error {
	disks := b.node.Spec().Disks
	if len(in.UserDisksToWipe) > 0 && in.Mode == machine.ResetRequest_SYSTEM_DISK {
		return errors.New("reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
	}
	for _, dev := range in.UserDisksToWipe {
		i := slices.IndexFunc(disks, func(d Disk) bool { return "/dev/"+d.Name == dev })
		switch {
		case i < 0:
			return fmt.Errorf("reset user disk failed: device %s wasn't found", dev)
		case disks[i].ReadOnly:
			return fmt.Errorf("reset user disk failed: device %s is readonly", dev)
		case b.disks.installed() && disks[i].Name == b.systemDisk():
			return fmt.Errorf("reset user disk failed: device %s is the system disk", dev)
		}
	}
	if len(in.SystemPartitionsToWipe) > 0 && in.Mode == machine.ResetRequest_USER_DISKS {
		return errors.New("reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter")
	}
	for _, p := range in.SystemPartitionsToWipe {
		there := map[string]bool{"META": b.disks.installed(), "STATE": exists(b.disks.state()), "EPHEMERAL": exists(b.disks.ephemeral())}
		located, known := there[p.Label]
		if !known {
			return fmt.Errorf("failed to get volume status with label %q: resource VolumeStatuses.block.talos.dev(runtime/%s@undefined) doesn't exist", p.Label, p.Label)
		}
		if !located {
			return fmt.Errorf("failed to reset: volume %q is not located", p.Label)
		}
	}
	return nil
}

// reset is the reset sequence: leave etcd if asked to be graceful, stop, wipe, and reboot or stay off.
func (b *boot) reset(in *machine.ResetRequest) func(context.Context) error {
	return func(ctx context.Context) error {
		b.setStage(runtime.MachineStageResetting)
		if in.Graceful && b.machineType().IsControlPlane() {
			b.stopPods()
			if err := b.leaveForReset(ctx); err != nil {
				return fmt.Errorf("error running phase 4 in reset sequence: task 1/1: failed, failed to leave cluster: %w", err)
			}
		}
		b.stopAll(ctx)
		if in.Mode != machine.ResetRequest_USER_DISKS {
			var labels []string
			for _, p := range in.SystemPartitionsToWipe {
				if p.Wipe {
					labels = append(labels, p.Label)
				}
			}
			if len(labels) > 0 || len(in.SystemPartitionsToWipe) == 0 {
				b.node.emit("wipe", fmt.Sprint(labels))
				if err := b.disks.wipe(labels...); err != nil {
					return err
				}
			}
		}
		b.finish(outcome{off: !in.Reboot, down: b.node.opts.Timings.Down})
		return nil
	}
}

// leaveForReset leaves etcd, unless there is nothing to leave.
func (b *boot) leaveForReset(ctx context.Context) error {
	e := b.getEtcd()
	st, _, _ := b.svc.state("etcd")
	if e == nil || b.disks.etcdEmpty() || (st != stRunning && st != stStopping && st != stFailed) {
		return nil
	}
	return e.leave(ctx)
}
