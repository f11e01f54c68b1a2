package node

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
)

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
