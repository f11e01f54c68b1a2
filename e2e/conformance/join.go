package conformance

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func joinCases() []Case {
	return []Case{
		{IDs: "13-T19 13-T20 14-J01 14-O14 14-O15", Needs: NeedControlPlane | NeedChange | NeedBench, run: secondJoins},
		{IDs: "13-T14", Needs: NeedControlPlane | NeedSecond, run: bootstrapSecond},
		{IDs: "13-T22 13-T23 13-T24", Needs: NeedControlPlane | NeedSecond | NeedChange | NeedBench, run: quorumLost},
	}
}

// secondJoins adds a control plane with the same secrets; the endpoint's address is enough for it to join.
func secondJoins(r *R) {
	b := r.s.bench
	a := b.Add(secondName, r.s.Version)
	r.s.Second = a
	r.waitMaintenance(a)
	r.apply(r.insecure(a), b.Config(mtype.TypeControlPlane, secondName, r.s.minorFor()), auto)
	var seen []string
	onLearner, fromOther := false, false
	r.wait("the second member to vote", func() error {
		members, err := r.members(r.admin(r.s.ControlPlane), true)
		if err != nil {
			return err
		}
		for _, m := range members {
			switch {
			case m.GetHostname() == firstName:
			case m.GetIsLearner() && m.GetHostname() == "":
				note(&seen, "nameless learner")
				if len(m.GetClientUrls()) != 0 || len(m.GetPeerUrls()) != 1 || m.GetId() == 0 {
					r.Errorf("the nameless learner is %v", m)
				}
			case m.GetIsLearner():
				note(&seen, "learner")
			default:
				note(&seen, "voter")
			}
		}
		if n := len(seen); n > 0 && seen[n-1] != "voter" {
			if _, err := r.members(r.admin(a), true); status.Code(err) == codes.Unknown {
				r.is("queryLocal on the learner", err, codes.Unknown, "etcdserver: rpc not supported for learner")
				onLearner = true
			}
			if m, err := r.members(r.admin(a), false); err == nil && len(m) == 2 {
				fromOther = true
			}
		}
		if len(members) < 2 || seen[len(seen)-1] != "voter" {
			return fmt.Errorf("members are %v", members)
		}
		return nil
	})
	r.ordered("the second member", seen, "nameless learner", "learner", "voter")
	if len(seen) < 2 {
		r.Errorf("the second member was seen as %q only: it must be a learner first", seen)
	}
	if !onLearner {
		r.Errorf("the learner was never caught refusing the member list")
	}
	if r.s.minor >= 14 && !fromOther {
		r.Errorf("the joining node never answered with the list of the other member")
	}
	r.waitReady(a)
}

func bootstrapSecond(r *R) {
	r.mayBootstrap(r.s.Second)
	_, err := r.admin(r.s.Second).MachineClient.Bootstrap(r.ctx, &machine.BootstrapRequest{})
	r.is("Bootstrap", err, codes.AlreadyExists, "etcd data directory is not empty")
}

// quorumLost takes the second of two members away for a while.
func quorumLost(r *R) {
	b := r.s.bench
	b.Kill(secondName)
	defer func() {
		b.Start(secondName)
		r.waitReady(r.s.Second)
	}()
	c := r.admin(r.s.ControlPlane)
	r.wait("the first member to see no leader", func() error {
		resp, err := c.MachineClient.EtcdStatus(r.brief(5*time.Second), empty())
		if err != nil {
			r.Fatalf("EtcdStatus fails: %v", err)
		}
		st := resp.GetMessages()[0].GetMemberStatus()
		if st.GetLeader() != 0 {
			return errors.New("it has a leader still")
		}
		if strings.Join(st.GetErrors(), ", ") != "etcdserver: no leader" {
			return fmt.Errorf("errors are %v", st.GetErrors())
		}
		return nil
	})
	for _, local := range []bool{true, false} {
		start := time.Now()
		_, err := r.members(c, local)
		r.is("EtcdMemberList", err, codes.Unknown, "etcdserver: no leader")
		if took := time.Since(start); took > 8*time.Second {
			r.Errorf("EtcdMemberList took %s, want some seconds at most", took)
		}
	}
	_, err := c.MachineClient.EtcdAlarmList(r.brief(2*time.Second), empty())
	r.has("EtcdAlarmList", err, codes.DeadlineExceeded)
}
