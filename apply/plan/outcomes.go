package plan

import (
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// sentPatience: an act that was answered but whose effect is not seen is given so many RetryIntervals.
const sentPatience = 4

// settle looks for the outcome of an intent. A fact that is older than the intent says nothing.
func (w *world) settle(m *machine, it *state.Intent) {
	m.say(state.ReasonProgressing, fmt.Sprintf("the outcome of its %s is not seen yet", it.Act))
	w.again(w.in.Policy.Poll)
	if m.facts == nil || !m.facts.At.After(it.At) {
		w.look(m, "the outcome of an intent has to be seen")
		return
	}
	switch it.Act {
	case state.ActInstall:
		w.settleInstall(m, it)
	case state.ActBootstrap:
		w.settleBootstrap(m, it)
	case state.ActReboot:
		w.settleReboot(m, it)
	}
	if !m.taken && w.in.Now.Sub(m.facts.At) >= w.in.Policy.Poll {
		w.look(m, "the outcome of an intent has to be seen")
	}
}

// patience is how long the effect of an act is waited for before it counts as not done.
func (w *world) patience(it *state.Intent) time.Duration {
	if it.Sent {
		return sentPatience * w.in.Policy.RetryInterval
	}
	return max(w.in.Policy.RetryInterval, callDeadline)
}

// callDeadline is longer than any call that act makes (10 s): an act that was not answered can't take effect any more
// after it, however short the retry interval is set. A bootstrap that came late would split the cluster.
const callDeadline = 12 * time.Second

func (w *world) closeIntent(m *machine, it *state.Intent, outcome, message string) {
	w.record(m, Action{
		Kind: CloseIntent, IntentID: it.ID, Outcome: outcome, Commit: it.Commit, Digest: it.Digest,
		Reason: message, Message: message,
	})
	w.event(m, outcomeReason(outcome), string(it.Act)+" of "+m.name+": "+message)
}

func outcomeReason(outcome string) string {
	if outcome == OutcomeFailed {
		return state.ReasonFailed
	}
	return state.ReasonProgressing
}

func (w *world) settleInstall(m *machine, it *state.Intent) {
	age := m.facts.At.Sub(it.At)
	switch {
	case m.mode() == ModeConfigured && sameUUID(it.UUID, m):
		w.closeIntent(m, it, OutcomeDone, "it took its configuration")
	case m.mode() == ModeMaintenance && sameUUID(it.UUID, m) && age >= w.patience(it):
		if it.Sent {
			w.closeIntent(m, it, OutcomeFailed, "it took its configuration and is in maintenance mode again: the install failed, or it boots from another medium")
		} else {
			w.closeIntent(m, it, OutcomeNotDone, "it still waits in maintenance mode")
		}
	case m.reach() != ReachOK && age >= w.joinTimeout(m, it.At) && m.inv != nil && m.inv.FailedDigest != it.Digest:
		w.fail(m, it.Digest, "it did not answer with its configuration after the install: "+m.facts.Error)
	}
}

// joinTimeout is JoinTimeout, counted from when the machine could join: not before a control plane has joined.
func (w *world) joinTimeout(m *machine, since time.Time) time.Duration {
	start, any := since, false
	for _, o := range w.cps {
		if o != m && o.joined() {
			any = true
			if o.inv.JoinedAt.After(start) && !m.joined() {
				start = o.inv.JoinedAt
			}
		}
	}
	if !any && !m.controlPlane() {
		return 1 << 62
	}
	return start.Sub(since) + w.in.Policy.JoinTimeout
}

func (w *world) settleBootstrap(m *machine, it *state.Intent) {
	if m.mode() != ModeConfigured || m.facts.Etcd == nil || !sameUUID(it.UUID, m) {
		return
	}
	age := m.facts.At.Sub(it.At)
	switch {
	case m.facts.Etcd.MemberID != "":
		w.closeIntent(m, it, OutcomeDone, "etcd is bootstrapped on it")
	case w.memberElsewhere(m):
		w.closeIntent(m, it, OutcomeDone, "another control plane is a member, so etcd is bootstrapped")
	case age >= w.patience(it) && m.etcdEmpty():
		// It was to happen on this machine alone, and did not. Before it is asked for again, all are looked at.
		w.closeIntent(m, it, OutcomeNotDone, "it still waits without etcd data")
	}
}

// memberElsewhere tells whether another control plane is seen to be a member.
func (w *world) memberElsewhere(m *machine) bool {
	for _, o := range w.cps {
		if o != m && o.answersConfigured() && o.facts.Etcd != nil && o.facts.Etcd.MemberID != "" {
			return true
		}
	}
	return false
}

func (w *world) settleReboot(m *machine, it *state.Intent) {
	age := m.facts.At.Sub(it.At)
	back := m.mode() == ModeConfigured && m.facts.BootID != "" && it.BootID != ""
	switch {
	case back && m.facts.BootID != it.BootID && m.ident.proved():
		w.closeIntent(m, it, OutcomeDone, "it rebooted and is back")
	case back && m.facts.BootID == it.BootID && !it.Sent && age >= w.patience(it) && m.facts.Stage == "running":
		w.closeIntent(m, it, OutcomeNotDone, "it did not reboot")
	case age >= w.in.Policy.RebootTimeout && back:
		w.closeIntent(m, it, OutcomeFailed, "it was told to reboot and did not")
	case age >= w.in.Policy.RebootTimeout && m.inv != nil && m.inv.FailedDigest != it.Digest:
		w.fail(m, it.Digest, "it did not come back from its reboot: "+orNone(m.facts.Error))
	}
}

// sameUUID: the machine that answers is the one that an intent was for. An intent without a UUID is for any.
func sameUUID(uuid string, m *machine) bool {
	return uuid == "" || strings.EqualFold(m.facts.Identity.UUID, uuid)
}

// fail records that a configuration could not be brought into force on a machine.
func (w *world) fail(m *machine, digest, why string) {
	w.record(m, Action{Kind: RecordFailure, Digest: digest, Reason: why, Message: why})
	w.event(m, state.ReasonFailed, m.name+": "+why)
}
