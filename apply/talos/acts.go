package talos

import (
	"context"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// Bootstrap starts etcd anew on the node. Role Admin. Kinds: NotAvailableYet (ask again), AlreadyBootstrapped (it has
// data), NotControlPlane, PermissionDenied (maintenance mode). The API does not keep anyone from bootstrapping a
// second member into a cluster of its own: the caller guards that.
func (c *Client) Bootstrap(ctx context.Context) error {
	err := c.call(ctx, options{op: "bootstrapping etcd", write: true, timeout: 2 * c.timeout}, func(ctx context.Context) error {
		return c.api.Bootstrap(ctx, &machine.BootstrapRequest{})
	})
	if e, ok := err.(*Error); ok && e.Kind == Busy {
		// FailedPrecondition here: the container runtime is not up, the time not in sync, an install under way.
		e.Kind = NotAvailableYet
	}
	return err
}

// Reboot asks for a reboot; the answer comes before anything ran. Role Operator.
func (c *Client) Reboot(ctx context.Context) error {
	return c.call(ctx, options{op: "rebooting", write: true}, func(ctx context.Context) error {
		return c.api.Reboot(ctx)
	})
}

// Forfeit hands etcd leadership on and gives the new leader's host name, "" where this node was not the leader. Role
// Admin.
func (c *Client) Forfeit(ctx context.Context) (string, error) {
	var to string
	err := c.call(ctx, options{op: "handing etcd leadership on", write: true, timeout: 2 * c.timeout}, func(ctx context.Context) error {
		reply, err := c.api.EtcdForfeitLeadership(ctx, &machine.EtcdForfeitLeadershipRequest{})
		if err != nil {
			return err
		}
		for _, m := range reply.GetMessages() {
			to = m.GetMember()
		}
		return nil
	})
	return to, err
}
