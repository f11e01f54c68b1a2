package node

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bootstrap implements machine.MachineService. Nothing here or on a real node keeps a second
// control plane without data from starting a second cluster.
func (a *api) Bootstrap(ctx context.Context, in *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	b := a.boot
	if !b.criUp(ctx) || b.installing() {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	if err := a.checkControlPlane("bootstrap"); err != nil {
		return nil, err
	}
	if b.release.multiDoc && !b.etcdConfigured() {
		return nil, status.Error(codes.InvalidArgument, "etcd is not configured, bootstrap is not possible")
	}
	if !b.timeSynced(ctx) {
		return nil, status.Error(codes.FailedPrecondition, "time is not in sync yet")
	}
	if !b.disks.etcdEmpty() {
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	e := b.getEtcd()
	if e == nil {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	e.stop(false)
	b.svc.set("etcd", stFinished, "Bootstrap requested")
	e.start(launch{bootstrap: true, recover: in.RecoverEtcd, skipHash: in.RecoverSkipHashCheck})
	b.node.count(func(c *Counters) { c.Bootstrap++ })
	b.node.emit("bootstrap", "")
	return &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{}}}, nil
}

// criUp waits a moment for the container runtime, where the release does.
func (b *boot) criUp(ctx context.Context) bool {
	if !b.release.bootstrapWaits {
		up, _ := b.svc.is("cri")
		return up
	}
	ctx, cancel := context.WithTimeout(ctx, b.node.opts.Timings.BootstrapWait)
	defer cancel()
	return b.waitUp(ctx, "cri")
}

func (b *boot) timeSynced(ctx context.Context) bool {
	if b.checkTime() == "" {
		return true
	}
	// Talos waits 5 s for the time to be in sync.
	sleep(ctx, 5*b.node.opts.Timings.BootstrapWait)
	return b.checkTime() == ""
}

// Bootstrap starts etcd's first member on the node, as the lab itself and not as a caller: it is
// not counted. It waits until the node can, and does nothing on a node with etcd data.
func (n *Node) Bootstrap(ctx context.Context) error {
	for {
		b := n.current()
		if b != nil && b.machineType().IsControlPlane() {
			if !b.disks.etcdEmpty() {
				return nil
			}
			if e := b.getEtcd(); e != nil {
				e.stop(false)
				b.svc.set("etcd", stFinished, "Bootstrap requested")
				e.start(launch{bootstrap: true})
				return nil
			}
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("bootstrap node %s: %w", n.Name(), ctx.Err())
		}
	}
}

// Config is the configuration that is active on the node; nil when it has none or is off.
func (n *Node) Config() config.Provider {
	if b := n.current(); b != nil {
		return b.config()
	}
	return nil
}
