package sim

import (
	"slices"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

func (i *ichor) record(a plan.Action) {
	i.f.note("%s: %s %s %s %s", i.name, a.Kind, a.Machine, a.Outcome, a.Reason)
	d := i.decided.Desired
	switch a.Kind {
	case plan.RecordAdopt:
		i.inv.Adopted = true
		i.inv.TalosVersion, i.inv.KubernetesVersion, i.inv.SecretsFingerprint = d.TalosVersion, d.KubernetesVersion, d.SecretsFingerprint
	case plan.RecordIdentity:
		m := i.entry(a.Machine)
		for _, p := range []struct {
			to   *string
			from string
		}{{&m.Identity.UUID, a.Identity.UUID}, {&m.Identity.NodeID, a.Identity.NodeID}, {&m.Identity.NodeName, a.Identity.NodeName}, {&m.Identity.MemberID, a.Identity.MemberID}} {
			if p.from != "" {
				*p.to = p.from
			}
		}
		if a.Joined && m.JoinedAt.IsZero() {
			m.JoinedAt = i.f.now
		}
	case plan.RecordNodeReady:
		i.entry(a.Machine).NodeReadySeen = true
	case plan.RecordInForce:
		m := i.entry(a.Machine)
		m.InForceDigest, m.InForceCommit = a.Digest, a.Commit
		m.Failure, m.FailedDigest, m.AnsweredDigest, m.AnsweredEffect = "", "", "", ""
	case plan.RecordApplied:
		i.inv.AppliedCommit, i.inv.AttemptedCommit = a.Commit, a.Commit
		for name, m := range i.inv.Machines {
			if w := i.want(name); w != nil && w.Digest == m.InForceDigest {
				m.InForceCommit = a.Commit
			}
		}
	case plan.RecordFailure:
		m := i.entry(a.Machine)
		m.Failure, m.FailedDigest = a.Message, a.Digest
	case plan.RecordRebootPending:
		m := i.entry(a.Machine)
		m.RebootPending, m.RebootPendingBootID = a.Paths, a.Expect.BootID
	case plan.CloseIntent:
		i.closeIntent(a)
	}
}

func (i *ichor) closeIntent(a plan.Action) {
	for k, it := range i.inv.Intents {
		if it.ID != a.IntentID {
			continue
		}
		i.inv.Intents = slices.Delete(i.inv.Intents, k, k+1)
		m := i.entry(a.Machine)
		switch {
		case a.Outcome == plan.OutcomeDone && it.Act == state.ActReboot:
			m.RebootPending, m.RebootPendingBootID = nil, ""
		case a.Outcome == plan.OutcomeNotDone && it.Act == state.ActBootstrap:
			i.inv.BootstrapMachine, i.inv.BootstrapUUID = "", ""
		case a.Outcome == plan.OutcomeFailed:
			m.Failure, m.FailedDigest = a.Message, a.Digest
		}
		return
	}
}
