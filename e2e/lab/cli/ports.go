package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// portWait is how long a port may stay taken: a lab that was just ended lets go of its ports one after the other.
const portWait = 2 * time.Second

// freePorts says an error when somebody else listens where a machine's Talos API is to be. Without it a second lab with the same
// addresses would come up as if all were well, and what is meant for its nodes would reach those of the first.
func freePorts(ctx context.Context, machines []Machine) error {
	end := time.Now().Add(portWait)
	for _, m := range machines {
		addr := netip.AddrPortFrom(m.Address, constants.ApidPort)
		for {
			ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr.String())
			if err == nil {
				ln.Close()
				break
			}
			if !errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("start nodes: machine %s of cluster %s: %w", m.Name, m.Cluster, err)
			}
			if time.Now().After(end) {
				return fmt.Errorf("start nodes: %s of machine %s of cluster %s is taken, perhaps by another lab: end it (\"ichor-lab down\" with its --state), or give the machines other addresses", addr, m.Name, m.Cluster)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}
