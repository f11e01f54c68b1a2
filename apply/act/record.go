package act

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// record makes one write of all actions that edit the inventory.
func (a *Actor) record(ctx context.Context, c *Cluster, actions []plan.Action) error {
	var edits []plan.Action
	for _, action := range actions {
		if !action.Kind.OnNode() && action.Kind != plan.DoObserve {
			edits = append(edits, action)
		}
	}
	if len(edits) == 0 {
		return nil
	}
	now := a.Now()
	write := a.Journal.Note
	if slices.ContainsFunc(edits, mustBePushed) {
		write = a.Journal.Update
	}
	err := write(ctx, now, func(inv *state.Inventory) error {
		ci := journal.Of(inv, c.Nodes.Name)
		for _, e := range edits {
			if e.Kind == plan.RecordOperation {
				recordOperation(inv, e, now)
				continue
			}
			if err := recordOne(ci, c.Desired, e, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record what was decided for %s: %w", c.Nodes.Name, err)
	}
	return nil
}

// mustBePushed tells the edits that may not be kept in the state folder alone: nobody else would know of them.
func mustBePushed(e plan.Action) bool {
	switch e.Kind {
	case plan.RecordRebootPending:
		return len(e.Paths) > 0 // a node from 1.14 on never says that it waits for a reboot
	case plan.RecordRemoval, plan.RecordRemoved, plan.RecordRenamed, plan.RecordOperation:
		return true
	}
	return false
}

func recordOperation(inv *state.Inventory, a plan.Action, now time.Time) {
	if inv.Operations == nil {
		inv.Operations = map[string]state.OperationRecord{}
	}
	inv.Operations[a.OperationKey] = state.OperationRecord{State: a.OperationState, Message: a.Message, At: now.UTC()}
}

// recordRemoved ends a removal: the machine has left, or (replace, reset) it is as if it had never been brought up.
func recordRemoved(c *state.ClusterInventory, a plan.Action, now time.Time) {
	m := journal.MachineOf(c, a.Machine)
	m.Removal, m.Drain = clonedRemoval(a.Removal), nil
	if m.Removal == nil || m.Removal.Kind == state.RemovalRemove {
		m.RemovedAt = now.UTC()
		return
	}
	fresh := &state.MachineInventory{Role: m.Role, Endpoint: m.Endpoint, Hostname: m.Hostname, Removal: m.Removal, RemovedAt: m.RemovedAt}
	if m.Removal.Kind == state.RemovalReset {
		fresh.Identity.UUID = m.Identity.UUID // the box is the same
	}
	c.Machines[a.Machine] = fresh
}

func clonedRemoval(r *state.Removal) *state.Removal {
	if r == nil {
		return nil
	}
	out := *r
	out.Steps = slices.Clone(r.Steps)
	return &out
}

// recordOne makes one edit, as the protocol in package plan says.
func recordOne(c *state.ClusterInventory, d *plan.Desired, a plan.Action, now time.Time) error {
	switch a.Kind {
	case plan.RecordAdopt:
		c.Adopted = true
		fill(&c.TalosVersion, d.TalosVersion)
		fill(&c.KubernetesVersion, d.KubernetesVersion)
		fill(&c.Contract, d.Contract)
		fill(&c.SecretsFingerprint, d.SecretsFingerprint)
		fill(&c.EncryptedFingerprint, d.EncryptedFingerprint)
	case plan.RecordIdentity:
		recordIdentity(c, d, a, now)
	case plan.RecordInForce:
		m := journal.MachineOf(c, a.Machine)
		m.InForceDigest, m.InForceCommit = a.Digest, a.Commit
		if w := wanted(d, a.Machine); w != nil {
			m.Hostname = w.Hostname
		}
		m.Failure, m.FailedDigest, m.AnsweredDigest, m.AnsweredEffect = "", "", "", ""
	case plan.RecordApplied:
		recordApplied(c, d, a)
	case plan.RecordFailure:
		m := journal.MachineOf(c, a.Machine)
		m.Failure, m.FailedDigest = a.Message, a.Digest
	case plan.RecordRebootPending:
		m := journal.MachineOf(c, a.Machine)
		m.RebootPending, m.RebootPendingBootID = a.Paths, a.Expect.BootID
		if len(a.Paths) == 0 {
			m.RebootPending, m.RebootPendingBootID = nil, ""
		}
	case plan.RecordNodeReady:
		journal.MachineOf(c, a.Machine).NodeReadySeen = true
	case plan.RecordKubernetesSeen:
		c.KubernetesSeen = true
	case plan.RecordDrain:
		m := journal.MachineOf(c, a.Machine)
		m.Drain = nil
		if a.Drain != nil {
			d := *a.Drain
			m.Drain = &d
		}
	case plan.RecordRemoval:
		journal.MachineOf(c, a.Machine).Removal = clonedRemoval(a.Removal)
	case plan.RecordRemoved:
		recordRemoved(c, a, now)
	case plan.RecordRenamed:
		if m := c.Machines[a.From]; m != nil && a.From != a.Machine {
			c.Machines[a.Machine] = m
			delete(c.Machines, a.From)
		}
	case plan.CloseIntent:
		closeIntent(c, a)
	default:
		return fmt.Errorf("record %q: this Ichor does not know it", a.Kind)
	}
	return nil
}

func fill(into *string, from string) {
	if *into == "" {
		*into = from
	}
}

func replace(into *string, from string) {
	if from != "" {
		*into = from
	}
}

func wanted(d *plan.Desired, machine string) *plan.DesiredMachine {
	for i := range d.Machines {
		if d.Machines[i].Name == machine {
			return &d.Machines[i]
		}
	}
	return nil
}

func recordIdentity(c *state.ClusterInventory, d *plan.Desired, a plan.Action, now time.Time) {
	_, known := c.Machines[a.Machine]
	m := journal.MachineOf(c, a.Machine)
	replace(&m.Identity.UUID, a.Identity.UUID)
	replace(&m.Identity.NodeID, a.Identity.NodeID)
	replace(&m.Identity.NodeName, a.Identity.NodeName)
	replace(&m.Identity.MemberID, a.Identity.MemberID)
	if w := wanted(d, a.Machine); w != nil {
		m.Role, m.Endpoint = w.Role, w.Endpoint
		if !known {
			m.Hostname = w.Hostname
		}
	}
	if a.Joined && m.JoinedAt.IsZero() {
		m.JoinedAt = now.UTC()
	}
}

func recordApplied(c *state.ClusterInventory, d *plan.Desired, a plan.Action) {
	// What is in force everywhere was attempted too, where nothing had to be sent for it: it is the newest good commit, and
	// what later heads have to descend from.
	c.AppliedCommit, c.AttemptedCommit = a.Commit, a.Commit
	c.TalosVersion, c.KubernetesVersion, c.Contract = d.TalosVersion, d.KubernetesVersion, d.Contract
	c.SecretsFingerprint = cmp.Or(d.RenewedSecrets, d.SecretsFingerprint)
	c.EncryptedFingerprint = cmp.Or(d.RenewedEncrypted, d.EncryptedFingerprint)
	for name, m := range c.Machines {
		if w := wanted(d, name); w != nil && m.InForceDigest != "" && m.InForceDigest == w.Digest {
			m.InForceCommit = a.Commit
		}
	}
}

func closeIntent(c *state.ClusterInventory, a plan.Action) {
	in, ok := journal.CloseIntent(c, a.IntentID)
	if !ok {
		// Closed before: the write arrived and its answer did not.
		return
	}
	switch a.Outcome {
	case plan.OutcomeDone:
		if in.Act == state.ActReboot {
			m := journal.MachineOf(c, in.Machine)
			m.RebootPending, m.RebootPendingBootID = nil, ""
		}
	case plan.OutcomeNotDone:
		notBootstrapped(c, in)
	case plan.OutcomeFailed:
		m := journal.MachineOf(c, in.Machine)
		m.Failure, m.FailedDigest = a.Message, a.Digest
	}
}

// notBootstrapped takes back where etcd was to be bootstrapped.
func notBootstrapped(c *state.ClusterInventory, in state.Intent) {
	if in.Act == state.ActBootstrap && c.BootstrapMachine == in.Machine {
		c.BootstrapMachine, c.BootstrapUUID = "", ""
	}
}
