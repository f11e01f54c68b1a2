package act

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/schemas/state"
)

// note edits the cluster's part, by a push or in the state folder. A note that fails is told with the result: what it
// says is only a hint, for observation settles everything.
func (t *task) note(ctx context.Context, edit func(*state.ClusterInventory)) error {
	return t.Journal.Note(ctx, t.Now(), func(inv *state.Inventory) error {
		edit(journal.Of(inv, t.cluster.Nodes.Name))
		return nil
	})
}

// push is note for what must be known to whoever comes after: where it can't be pushed, nothing may be called.
func (t *task) push(ctx context.Context, edit func(*state.ClusterInventory)) error {
	return t.Journal.Update(ctx, t.Now(), func(inv *state.Inventory) error {
		edit(journal.Of(inv, t.cluster.Nodes.Name))
		return nil
	})
}

// after joins what a note that follows a call returned to the call's result.
func after(r Result, err error) Result {
	if err != nil {
		r.Message = join(r.Message, "the inventory could not be written after it: "+err.Error())
	}
	return r
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// intend pushes the intent, then announces the act. A Result: stop, nothing may be called.
func (t *task) intend(ctx context.Context, act state.Act, also func(*state.ClusterInventory)) *Result {
	return t.intendTo(ctx, state.Intent{
		Act: act, Machine: t.action.Machine, UUID: t.facts.Identity.UUID, Commit: t.action.Commit, BootID: t.facts.BootID, Digest: t.action.Digest,
	}, also)
}

func (t *task) intendTo(ctx context.Context, intent state.Intent, also func(*state.ClusterInventory)) *Result {
	in, err := t.Journal.Intend(ctx, t.Now(), t.cluster.Nodes.Name, intent, also)
	if err != nil {
		r := notDone(KindJournal, "its intent could not be pushed: "+err.Error())
		return &r
	}
	t.intent = in.ID
	if err := t.announce(); err != nil {
		r := after(notDone(KindAudit, err.Error()), t.drop(ctx, nil))
		return &r
	}
	return nil
}

// drop removes the intent of an act that was definitely not done.
func (t *task) drop(ctx context.Context, also func(*state.ClusterInventory)) error {
	return t.note(ctx, func(c *state.ClusterInventory) {
		if in, ok := journal.CloseIntent(c, t.intent); ok {
			notBootstrapped(c, in)
		}
		if also != nil {
			also(c)
		}
	})
}

// sent notes that the call was answered.
func (t *task) sent(ctx context.Context) error {
	return t.note(ctx, func(c *state.ClusterInventory) { journal.MarkSent(c, t.intent) })
}

// failure is why the configuration can't be brought into force.
func (t *task) failure(msg string) func(*state.ClusterInventory) {
	return func(c *state.ClusterInventory) {
		m := journal.MachineOf(c, t.action.Machine)
		m.Failure, m.FailedDigest = msg, t.action.Digest
	}
}

// sentAs is what is remembered of a configuration that is about to be sent.
func (t *task) sentAs(send plan.Send) func(*state.ClusterInventory) {
	return func(c *state.ClusterInventory) {
		m := journal.MachineOf(c, t.action.Machine)
		m.SentDigest, m.SentCommit, m.SentAt, m.SentMode = t.action.Digest, t.action.Commit, t.Now().UTC(), string(send)
		c.AttemptedCommit = t.action.Commit
	}
}

// refused tells whether the node read the configuration and rejected it.
func refused(err error) bool { return talos.Is(err, talos.InvalidConfig) }

// refusedIn: in maintenance mode of 1.12, the only one that knows no mode but AUTO, a configuration that does not
// parse is answered without a code.
func refusedIn(mode talos.ApplyMode, err error) bool {
	return refused(err) || mode == talos.Auto && talos.Is(err, talos.Failed)
}

func (t *task) install(ctx context.Context) Result {
	pinned := t.action.Expect.Fingerprint
	if pinned == "" {
		pinned = t.facts.Fingerprint
	}
	if t.facts.Mode != plan.ModeMaintenance {
		return notDone(KindPrecondition, "it is not in maintenance mode")
	}
	c, err := t.dialer.Maintenance(t.machine.Endpoint, pinned)
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	disks, err := c.Disks(ctx)
	if err != nil {
		return failed(err)
	}
	if _, err := talos.MatchInstallDisk(t.machine.Wish, disks); err != nil {
		r := notDone(KindRefused, err.Error())
		if len(disks) == 0 {
			// They may not have been found yet.
			return r
		}
		return after(r, t.note(ctx, t.failure(r.Message)))
	}
	apply := talos.Apply{Config: t.machine.Wish, Mode: talos.NoReboot, DryRun: true, Scrub: t.scrub}
	_, err = c.Apply(ctx, apply)
	if talos.Is(err, talos.NotSupported) {
		apply.Mode = talos.Auto
		_, err = c.Apply(ctx, apply)
	}
	if err != nil {
		if refusedIn(apply.Mode, err) {
			r := notDone(KindRefused, err.Error())
			return after(r, t.note(ctx, t.failure(r.Message)))
		}
		return failed(err)
	}
	stop := t.intend(ctx, state.ActInstall, func(c *state.ClusterInventory) {
		m := journal.MachineOf(c, t.action.Machine)
		m.Role, m.Endpoint, m.Identity.UUID = t.machine.Role, t.machine.Endpoint, t.facts.Identity.UUID
		if w := wanted(t.cluster.Desired, t.action.Machine); w != nil {
			m.Hostname = w.Hostname
		}
		t.sentAs(plan.SendNoReboot)(c)
	})
	if stop != nil {
		return *stop
	}
	apply.DryRun = false
	_, err = c.Apply(ctx, apply)
	return t.outcome(ctx, err, func(err error) bool { return talos.Lost(err) }, func(err error) func(*state.ClusterInventory) {
		if refused(err) {
			return t.failure(err.Error())
		}
		return nil
	})
}

// outcome writes down what became of a call with an intent: answered, unknown (the intent stays), or not done (it is
// dropped, with what also says).
func (t *task) outcome(ctx context.Context, err error, stays func(error) bool, also func(error) func(*state.ClusterInventory)) Result {
	switch {
	case err == nil:
		return after(Result{Outcome: Done}, t.sent(ctx))
	case stays(err):
		r := failed(err)
		r.Outcome = Unknown
		return r
	}
	var edit func(*state.ClusterInventory)
	if also != nil {
		edit = also(err)
	}
	return after(failed(err), t.drop(ctx, edit))
}

func (t *task) bootstrap(ctx context.Context) Result {
	c, err := t.dialer.Secure(t.machine.Endpoint, talos.Admin)
	if err != nil {
		return failed(err)
	}
	if stop := t.intend(ctx, state.ActBootstrap, func(c *state.ClusterInventory) {
		c.BootstrapMachine, c.BootstrapUUID = t.action.Machine, t.facts.Identity.UUID
	}); stop != nil {
		return *stop
	}
	err = c.Bootstrap(ctx)
	return t.outcome(ctx, err, func(err error) bool {
		return talos.Lost(err) || talos.Is(err, talos.AlreadyBootstrapped)
	}, nil)
}

func (t *task) reboot(ctx context.Context) Result {
	c, err := t.dialer.Secure(t.machine.Endpoint, talos.Operator)
	if err != nil {
		return failed(err)
	}
	if stop := t.intend(ctx, state.ActReboot, nil); stop != nil {
		return *stop
	}
	return t.outcome(ctx, c.Reboot(ctx), talos.Lost, nil)
}

func (t *task) forfeit(ctx context.Context) Result {
	c, err := t.dialer.Secure(t.machine.Endpoint, talos.Admin)
	if err != nil {
		return failed(err)
	}
	if err := t.announce(); err != nil {
		return notDone(KindAudit, err.Error())
	}
	to, err := c.Forfeit(ctx)
	if err != nil {
		return failed(err)
	}
	if to == "" {
		return Result{Outcome: Done, Message: "it was not the leader"}
	}
	return Result{Outcome: Done, Message: "leadership went to " + to}
}

func (t *task) configure(ctx context.Context) Result {
	if f := t.facts.Config; f != nil && f.TryPending {
		return notDone(KindPrecondition, "a try is pending on it: any other apply, a dry run too, would take its way back")
	}
	c, err := t.dialer.Secure(t.machine.Endpoint, talos.Admin)
	if err != nil {
		return failed(err)
	}
	if r := t.dryRun(ctx, c); r != nil {
		return *r
	}
	if err := t.announce(); err != nil {
		return notDone(KindAudit, err.Error())
	}
	write := t.note
	if t.action.Disrupts != "" || t.action.Send == plan.SendTry {
		write = t.push
	}
	var before state.MachineInventory
	if err := write(ctx, func(c *state.ClusterInventory) {
		before = *journal.MachineOf(c, t.action.Machine)
		t.sentAs(t.action.Send)(c)
	}); err != nil {
		return notDone(KindJournal, "what is about to be sent could not be noted: "+err.Error())
	}
	reply, err := c.Apply(ctx, t.apply(false))
	switch {
	case err == nil:
		r := Result{Outcome: Done}
		for _, w := range reply.Warnings {
			r.Message = join(r.Message, "warning: "+w)
		}
		return r
	case talos.Lost(err):
		return failed(err)
	}
	return after(t.rejected(ctx, err), t.note(ctx, func(c *state.ClusterInventory) {
		m := journal.MachineOf(c, t.action.Machine)
		m.SentDigest, m.SentCommit, m.SentAt, m.SentMode = before.SentDigest, before.SentCommit, before.SentAt, before.SentMode
	}))
}

var modes = map[plan.Send]talos.ApplyMode{plan.SendNoReboot: talos.NoReboot, plan.SendStaged: talos.Staged, plan.SendTry: talos.Try}

func (t *task) apply(dry bool) talos.Apply {
	return talos.Apply{Config: t.machine.Wish, Mode: modes[t.action.Send], DryRun: dry, TryTimeout: t.action.TryTimeout, Scrub: t.scrub}
}

// dryRun asks the node whether it accepts. nil: it does.
func (t *task) dryRun(ctx context.Context, c *talos.Client) *Result {
	if _, ok := modes[t.action.Send]; !ok {
		r := notDone(KindOther, fmt.Sprintf("this Ichor can't send in the way %q", t.action.Send))
		return &r
	}
	if r := t.immediate(ctx, c); r != nil {
		return r
	}
	if _, err := c.Apply(ctx, t.apply(true)); err != nil {
		r := t.rejected(ctx, err)
		return &r
	}
	return nil
}

// immediate: what is to be staged on a node up to 1.13, because the table says that it needs a reboot, is asked for
// without one first. Where the node would take it so, its answer wins, and plan decides anew.
func (t *task) immediate(ctx context.Context, c *talos.Client) *Result {
	if t.action.Send != plan.SendStaged || !decides(t.facts.TalosVersion) {
		return nil
	}
	ask := t.apply(true)
	ask.Mode = talos.NoReboot
	_, err := c.Apply(ctx, ask)
	switch {
	case talos.Is(err, talos.NeedsReboot):
		return nil
	case err != nil:
		r := t.rejected(ctx, err)
		return &r
	}
	if c := t.Journal.Cluster(t.cluster.Nodes.Name); c != nil {
		if m := c.Machines[t.action.Machine]; m != nil && m.AnsweredDigest == t.action.Digest {
			return nil
		}
	}
	r := after(notDone(KindPrecondition, "the node takes this change without a reboot"), t.answer(ctx, "immediate"))
	return &r
}

// decides tells whether a node of this version says in a dry run what needs a reboot: up to 1.13 it does.
func decides(version string) bool {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 || parts[0] != "1" {
		return false
	}
	minor, err := strconv.Atoi(parts[1])
	return err == nil && minor <= 13
}

// answer notes what the node's dry run says of this configuration.
func (t *task) answer(ctx context.Context, effect string) error {
	return t.note(ctx, func(c *state.ClusterInventory) {
		m := journal.MachineOf(c, t.action.Machine)
		m.AnsweredEffect, m.AnsweredDigest = effect, t.action.Digest
	})
}

// rejected writes down a definite refusal.
func (t *task) rejected(ctx context.Context, err error) Result {
	r := failed(err)
	switch {
	case talos.Is(err, talos.NeedsReboot):
		return after(r, t.answer(ctx, "reboot"))
	case refused(err):
		r.Kind = KindRefused
		return after(r, t.note(ctx, t.failure(r.Message)))
	}
	return r
}

// confirm sends what is under a try once more, for good. No dry run: that would end the try in itself.
func (t *task) confirm(ctx context.Context) Result {
	if f := t.facts.Config; f == nil || !f.Equal || f.ForDigest != t.action.Digest {
		return notDone(KindPrecondition, "the configuration to be confirmed is not in force")
	}
	c, err := t.dialer.Secure(t.machine.Endpoint, talos.Admin)
	if err != nil {
		return failed(err)
	}
	if err := t.announce(); err != nil {
		return notDone(KindAudit, err.Error())
	}
	if err := t.note(ctx, func(c *state.ClusterInventory) {
		journal.MachineOf(c, t.action.Machine).SentMode = string(plan.SendNoReboot)
	}); err != nil {
		return notDone(KindJournal, "the confirmation could not be noted: "+err.Error())
	}
	_, err = c.Apply(ctx, talos.Apply{Config: t.machine.Wish, Mode: talos.NoReboot, Scrub: t.scrub})
	if err != nil {
		return failed(err)
	}
	return Result{Outcome: Done}
}
