package talos

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
)

// RemoveMember removes an etcd member by its ID (16 hex digits) through this node's own member. Role Admin. Talos checks
// nothing; etcd refuses what would cost it its quorum now. Kinds: NotFound (it is gone), EtcdRefused (not enough started
// members, unhealthy cluster: nothing was done), NoLeader, Timeout.
func (c *Client) RemoveMember(ctx context.Context, memberID string) error {
	id, err := strconv.ParseUint(memberID, 16, 64)
	if err != nil || id == 0 {
		return &Error{Kind: Failed, Op: "removing an etcd member", Endpoint: c.endpoint, Text: "no member ID"}
	}
	return c.call(ctx, options{op: "removing etcd member " + memberID, write: true, timeout: 2 * c.timeout}, func(ctx context.Context) error {
		return c.api.EtcdRemoveMemberByID(ctx, &machine.EtcdRemoveMemberByIDRequest{MemberId: id})
	})
}

// What a reset wipes, and what the machine does afterwards (TalosOperation resetMachine).
const (
	WipeSystem    = "system"
	WipeAll       = "all"
	AfterReboot   = "reboot"
	AfterShutdown = "shutdown"
)

// Reset of a node.
type Reset struct {
	// Wipe: WipeSystem (STATE and EPHEMERAL, and the volumes that 1.14 keeps apart of it) or WipeAll (the whole system disk, boot
	// loader included: the machine has to boot from another medium).
	Wipe string
	// After: AfterReboot or AfterShutdown.
	After string
}

// partOfSystem are the volumes that hold what a machine is. 1.14 can keep etcd's data, the container runtime's and the kubelet's
// on partitions of their own; a volume that only is a folder of EPHEMERAL goes with it and may not be named.
var partOfSystem = []string{"STATE", "EPHEMERAL", "ETCD", "CRI", "KUBELET"}

// Reset wipes the node without grace: a graceful one leaves etcd, waits for a member that is gone already, fails inside and
// comes back configured. User disks stay. Role Admin. The answer comes before anything ran.
func (c *Client) Reset(ctx context.Context, r Reset) error {
	req := &machine.ResetRequest{Reboot: r.After != AfterShutdown, Mode: machine.ResetRequest_SYSTEM_DISK}
	if r.Wipe != WipeAll {
		volumes, err := c.systemVolumes(ctx)
		if err != nil {
			return err
		}
		for _, v := range volumes {
			req.SystemPartitionsToWipe = append(req.SystemPartitionsToWipe, &machine.ResetPartitionSpec{Label: v, Wipe: true})
		}
	}
	return c.call(ctx, options{op: "resetting", write: true}, func(ctx context.Context) error {
		return c.api.ResetGeneric(ctx, req)
	})
}

// systemVolumes lists those of partOfSystem that are partitions of this node, in that order. A node that shows neither STATE
// nor EPHEMERAL is not wiped: an empty list would mean the whole disk.
func (c *Client) systemVolumes(ctx context.Context) ([]string, error) {
	have := map[string]bool{}
	err := c.call(ctx, options{op: "reading the volumes"}, func(ctx context.Context) error {
		list, err := safe.StateListAll[*block.VolumeStatus](ctx, c.api.COSI)
		if err != nil {
			return err
		}
		for v := range list.All() {
			if s := v.TypedSpec(); s.Type == block.VolumeTypePartition && s.Phase != block.VolumePhaseMissing {
				have[v.Metadata().ID()] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !have["STATE"] || !have["EPHEMERAL"] {
		return nil, &Error{Kind: NotSupported, Op: "resetting", Endpoint: c.endpoint, Text: "it shows no partitions STATE and EPHEMERAL"}
	}
	return slices.DeleteFunc(slices.Clone(partOfSystem), func(v string) bool { return !have[v] }), nil
}

// Through asks another node for its version through this one, whose apid forwards the call to that node's address. nil: it
// answers. An error of kind Unreachable or Timeout with through: this node answers and can't reach the other; without: this
// one does not answer.
func (c *Client) Through(ctx context.Context, endpoint string) (through bool, err error) {
	host := endpoint
	if i := strings.LastIndexByte(endpoint, ':'); i > strings.LastIndexByte(endpoint, ']') && strings.Count(endpoint, ":") == 1 || strings.HasPrefix(endpoint, "[") && i > 0 {
		host = endpoint[:i]
	}
	host = strings.Trim(host, "[]")
	if _, err := c.Version(ctx); err != nil {
		return false, err
	}
	err = c.call(ctx, options{op: "asking for " + endpoint, forwarded: true}, func(ctx context.Context) error {
		_, err := c.api.Version(client.WithNode(ctx, host))
		return err
	})
	return true, err
}
