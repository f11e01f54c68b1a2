package plan

import (
	"strconv"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Approval states of a machine.
const (
	approvedState = "approved"
	rejectedState = "rejected"
)

// machine is one machine in one call of Next.
type machine struct {
	name string
	// want is nil for a machine that the head does not have (or whose manifest does not parse: unparsed).
	want     *DesiredMachine
	unparsed bool
	inv      *state.MachineInventory
	facts    *MachineFacts
	intents  []*state.Intent

	ident identity
	// reason and message are set by the first rule that has something to say.
	reason, message string
	// taken by an action of this decision.
	taken bool
	// differs from the wish though the inventory does not know it (see adoption).
	differs bool
	// did is the reason of the record that took it.
	did string
}

func (m *machine) approved() bool { return m.want != nil && m.want.Approval == approvedState }

func (m *machine) controlPlane() bool { return m.role() == RoleControlPlane }

func (m *machine) role() string {
	if m.want != nil {
		return m.want.Role
	}
	if m.inv != nil {
		return m.inv.Role
	}
	return ""
}

// say gives the machine its reason, once.
func (m *machine) say(reason, message string) {
	if m.reason == "" {
		m.reason, m.message = reason, message
	}
}

func (m *machine) digest() string {
	if m.want == nil {
		return ""
	}
	return m.want.Digest
}

// sent tells whether the wish was sent to the node, as far as the inventory knows.
func (m *machine) sent() bool {
	return m.inv != nil && m.inv.SentDigest != "" && m.inv.SentDigest == m.digest()
}

// recorded tells whether the wish is recorded as in force.
func (m *machine) recorded() bool {
	return m.inv != nil && m.inv.InForceDigest != "" && m.inv.InForceDigest == m.digest()
}

// imageDiffers tells whether the node's configuration names another installer image than the wish.
func (m *machine) imageDiffers() bool {
	if m.facts == nil || m.facts.Config == nil {
		return false
	}
	for _, p := range m.facts.Config.Paths {
		if p.Document == "v1alpha1" && p.Path == "machine.install.image" {
			return true
		}
	}
	return false
}

// failed tells whether the wish is known not to come into force; another wish is another try.
func (m *machine) failed() bool {
	return m.inv != nil && m.inv.FailedDigest != "" && m.inv.FailedDigest == m.digest()
}

// broken tells whether an earlier wish failed on it, or was sent and left it unwell, and the head wants another: the
// commit that repairs it.
func (m *machine) broken() bool {
	if m.inv == nil {
		return false
	}
	if m.inv.FailedDigest != "" && m.inv.FailedDigest != m.digest() {
		return true
	}
	sent := m.inv.SentDigest
	return sent != "" && sent != m.inv.InForceDigest && sent != m.digest() && m.reach() == ReachOK && !m.well()
}

// newcomer: it waits in maintenance mode and was never brought up, so that it is no part of the cluster yet.
func (m *machine) newcomer() bool {
	return m.mode() == ModeMaintenance && !m.known() && m.intent(state.ActInstall) == nil
}

func (m *machine) joined() bool { return m.inv != nil && !m.inv.JoinedAt.IsZero() }

// known tells whether the inventory knows the machine as one that was configured.
func (m *machine) known() bool {
	return m.inv != nil && (m.joined() || m.inv.Identity.NodeID != "" || m.inv.InForceDigest != "")
}

func (m *machine) nodeReadySeen() bool { return m.inv != nil && m.inv.NodeReadySeen }

func (m *machine) intent(act state.Act) *state.Intent {
	for _, it := range m.intents {
		if it.Act == act {
			return it
		}
	}
	return nil
}

func (m *machine) reach() Reach {
	if m.facts == nil {
		return ReachUnknown
	}
	return m.facts.Reach
}

func (m *machine) mode() Mode {
	if m.reach() != ReachOK {
		return ModeUnknown
	}
	return m.facts.Mode
}

// answersConfigured: it answers over the secure API and is the machine that it should be.
func (m *machine) answersConfigured() bool { return m.mode() == ModeConfigured && m.ident.proved() }

// fresh tells whether the facts are young enough for a gate, and younger than what was last done to the machine.
func (m *machine) fresh(now time.Time, maxAge time.Duration) bool {
	if m.facts == nil || now.Sub(m.facts.At) > maxAge || m.facts.At.After(now) {
		return false
	}
	if m.inv != nil && m.facts.At.Before(m.inv.SentAt) {
		return false
	}
	for _, it := range m.intents {
		if m.facts.At.Before(it.At) {
			return false
		}
	}
	return true
}

// well tells whether the machine is well now.
func (m *machine) well() bool {
	return m.reach() == ReachOK && m.ident.proved() && SeenWell(*m.facts, m.role(), m.nodeReadySeen())
}

// notWell says why the machine is not well.
func (m *machine) notWell() string {
	switch {
	case m.facts == nil:
		return "it was not looked at"
	case m.reach() != ReachOK:
		return "it is unreachable"
	case m.facts.Mode != ModeConfigured:
		return "its API is in mode " + string(m.facts.Mode)
	case !m.ident.proved():
		return m.ident.why
	}
	if v := Ready(*m.facts, m.role(), m.nodeReadySeen()); v.Is != Yes {
		return v.Why
	}
	if m.controlPlane() {
		return HealthyMember(*m.facts).Why
	}
	return ""
}

// wellFor is how long the machine was seen well since it was last touched, up to the last read: what was not looked at
// was not well. 0 when it is not well.
func (m *machine) wellFor() time.Duration {
	if !m.well() || m.facts.WellSince.IsZero() {
		return 0
	}
	since := m.facts.WellSince
	if m.inv != nil && m.inv.SentAt.After(since) {
		since = m.inv.SentAt
	}
	return max(0, m.facts.At.Sub(since))
}

// etcdDown tells whether the machine is a control plane seen to run no etcd member: nothing is lost by touching it.
func (m *machine) etcdDown() bool { return m.facts != nil && EtcdDown(*m.facts) }

// EtcdDown tells whether facts show a configured machine that runs no etcd member. What could not be read is not down.
func EtcdDown(f MachineFacts) bool {
	if f.Reach != ReachOK || f.Mode != ModeConfigured || f.Etcd == nil {
		return false
	}
	return f.Etcd.MemberID == "" && f.Etcd.State != "" && f.Etcd.State != "Running"
}

// etcdEmpty tells whether the machine is seen waiting for bootstrap or to join, without etcd data.
func (m *machine) etcdEmpty() bool {
	return m.etcdDown() && m.facts.Etcd.State == "Preparing" && len(m.facts.Etcd.Members) == 0
}

// healthyMember is HealthyMember of a machine whose identity is proved.
func (m *machine) healthyMember() Verdict {
	switch {
	case m.facts == nil:
		return unknown("it was not looked at")
	case m.reach() != ReachOK:
		return no("it is unreachable")
	case m.facts.Mode != ModeConfigured:
		return no("its API is in mode " + string(m.facts.Mode))
	case !m.ident.proved():
		return no(m.ident.why)
	}
	return HealthyMember(*m.facts)
}

// minor of a version such as v1.13.5, -1 where it can't be read.
func minor(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 || parts[0] != "1" {
		return -1
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil {
		return -1
	}
	return n
}

// refusesWithoutReboot: nodes up to 1.13 refuse in NO_REBOOT mode what needs a reboot; later ones accept and wait.
func (m *machine) refusesWithoutReboot() bool { return minor(m.facts.TalosVersion) <= 13 }

// failure is why the wish could not be brought into force.
func (m *machine) failure() string {
	return firstText(m.inv.Failure, "its configuration could not be brought into force")
}
