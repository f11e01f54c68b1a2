package act

import (
	"context"
	"fmt"
	"slices"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/schemas/state"
)

// removeMember removes the machine's etcd member by its ID through the control plane Via.
func (t *task) removeMember(ctx context.Context) Result {
	a := t.action
	if a.MemberID == "" || a.MemberID != a.Expect.MemberListed || !slices.Contains(a.Expect.OthersHealthy, a.Via) {
		return notDone(KindOther, "a member is removed by its ID only, through a control plane that was looked at")
	}
	via := t.node(a.Via)
	if via == nil {
		return notDone(KindOther, "there is no machine "+a.Via)
	}
	c, err := t.dialer.Secure(via.Endpoint, talos.Admin)
	if err != nil {
		return failed(err)
	}
	// Of a dead machine another box may answer: the intent is about the one that is pinned.
	uuid := t.facts.Identity.UUID
	if a.Expect.Dead {
		uuid = t.pinned().UUID
	}
	if stop := t.intendTo(ctx, state.Intent{
		Act: state.ActRemoveMember, Machine: a.Machine, UUID: uuid, Commit: a.Commit,
		Detail: map[string]string{"member": a.MemberID, "via": a.Via},
	}, nil); stop != nil {
		return *stop
	}
	err = c.RemoveMember(ctx, a.MemberID)
	if talos.Is(err, talos.NotFound) {
		err = nil // it is gone
	}
	return t.outcome(ctx, err, talos.Lost, nil)
}

// reset wipes the machine.
func (t *task) reset(ctx context.Context) Result {
	c, err := t.dialer.Secure(t.machine.Endpoint, talos.Admin)
	if err != nil {
		return failed(err)
	}
	a := t.action
	if stop := t.intendTo(ctx, state.Intent{
		Act: state.ActReset, Machine: a.Machine, UUID: t.facts.Identity.UUID, Commit: a.Commit, BootID: t.facts.BootID,
		Detail: map[string]string{"wipe": a.Wipe, "after": a.After},
	}, nil); stop != nil {
		return *stop
	}
	return t.outcome(ctx, c.Reset(ctx, talos.Reset{Wipe: a.Wipe, After: a.After}), talos.Lost, nil)
}

// pinned is the identity of the machine as the inventory has it.
func (t *task) pinned() state.Identity {
	if c := t.Journal.Cluster(t.cluster.Nodes.Name); c != nil && c.Machines[t.action.Machine] != nil {
		return c.Machines[t.action.Machine].Identity
	}
	return state.Identity{}
}

// stillDead asks once more, of facts that were read for this call, whether the machine is proved dead.
func (t *task) stillDead(f plan.MachineFacts, others map[string]plan.MachineFacts) error {
	v := plan.Dead(plan.Death{
		Now: t.Now(), Grace: t.cluster.Desired.Grace, MaxAge: deathMaxAge, Pinned: t.pinned(), Facts: f, Siblings: others,
	})
	if v.Is != plan.Yes {
		return fmt.Errorf("%w: %s is not proved dead any more: %s", errPrecondition, t.action.Machine, v.Why)
	}
	return nil
}

// members compares what those that were read for this call list: all the same; MemberListed by each, MemberGone by none.
func members(e plan.Expect, others map[string]plan.MachineFacts) error {
	if e.MemberListed == "" && e.MemberGone == "" {
		return nil
	}
	if len(e.OthersHealthy) == 0 {
		return fmt.Errorf("%w: no control plane was named that could list the members", errPrecondition)
	}
	var first []string
	for i, name := range e.OthersHealthy {
		f := others[name]
		if f.Etcd == nil || f.Etcd.Members == nil {
			return fmt.Errorf("%w: %s does not list the members", errPrecondition, name)
		}
		var ids []string
		for _, m := range f.Etcd.Members {
			ids = append(ids, m.ID)
		}
		slices.Sort(ids)
		switch {
		case i == 0:
			first = ids
		case !slices.Equal(first, ids):
			return fmt.Errorf("%w: %s and %s list different members", errPrecondition, e.OthersHealthy[0], name)
		}
		if e.MemberListed != "" && !slices.Contains(ids, e.MemberListed) {
			return fmt.Errorf("%w: %s does not list member %s", errPrecondition, name, e.MemberListed)
		}
		if e.MemberGone != "" && slices.Contains(ids, e.MemberGone) {
			return fmt.Errorf("%w: %s still lists member %s", errPrecondition, name, e.MemberGone)
		}
	}
	return nil
}
