package talos

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"

	"ichor.maesh.dev/ichor/apply/plan"
)

// etcdTimeout of an etcd call through Talos. They hang where there is no etcd yet, and where there is no quorum.
const etcdTimeout = 3 * time.Second

// readTimeout of the member list, which is a linearizable read: a healthy member answers it in time (SPEC section 3).
const readTimeout = 2 * time.Second

// FormatMemberID gives 16 hex digits, as Talos's resources and etcdctl print a member ID; "" for 0.
func FormatMemberID(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", id)
}

// EtcdMembers lists the members as this node's own member knows them, sorted by ID. Kinds: Timeout (no etcd yet, or no
// quorum), Learner, NoLeader, NotControlPlane.
func (c *Client) EtcdMembers(ctx context.Context) ([]plan.Member, error) {
	var out []plan.Member
	err := c.call(ctx, options{op: "listing the etcd members", mayHang: true, timeout: readTimeout}, func(ctx context.Context) error {
		reply, err := c.api.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
		if err != nil {
			return err
		}
		for _, m := range reply.GetMessages() {
			for _, e := range m.GetMembers() {
				out = append(out, plan.Member{ID: FormatMemberID(e.GetId()), Name: e.GetHostname(), Learner: e.GetIsLearner(), PeerURLs: e.GetPeerUrls()})
			}
		}
		return nil
	})
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out, err
}

// EtcdStatus of the node's own member.
type EtcdStatus struct {
	MemberID, Leader string
	Learner          bool
	AppliedIndex     uint64
	Errors           []string
}

// EtcdStatus asks the node's own member.
func (c *Client) EtcdStatus(ctx context.Context) (*EtcdStatus, error) {
	var out *EtcdStatus
	err := c.call(ctx, options{op: "reading the etcd status", mayHang: true, timeout: etcdTimeout}, func(ctx context.Context) error {
		reply, err := c.api.EtcdStatus(ctx)
		if err != nil {
			return err
		}
		for _, m := range reply.GetMessages() {
			s := m.GetMemberStatus()
			out = &EtcdStatus{
				MemberID: FormatMemberID(s.GetMemberId()), Leader: FormatMemberID(s.GetLeader()), Learner: s.GetIsLearner(),
				AppliedIndex: s.GetRaftAppliedIndex(), Errors: s.GetErrors(),
			}
		}
		return nil
	})
	return out, err
}

// EtcdAlarms lists the alarms of the cluster as "NOSPACE on 16 hex digits", sorted. It hangs without quorum.
func (c *Client) EtcdAlarms(ctx context.Context) ([]string, error) {
	var out []string
	err := c.call(ctx, options{op: "listing the etcd alarms", mayHang: true, timeout: etcdTimeout}, func(ctx context.Context) error {
		reply, err := c.api.EtcdAlarmList(ctx)
		if err != nil {
			return err
		}
		for _, m := range reply.GetMessages() {
			for _, a := range m.GetMemberAlarms() {
				if a.GetAlarm() != machine.EtcdMemberAlarm_NONE {
					out = append(out, a.GetAlarm().String()+" on "+FormatMemberID(a.GetMemberId()))
				}
			}
		}
		return nil
	})
	sort.Strings(out)
	return out, err
}
