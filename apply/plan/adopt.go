package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/schemas/state"
)

// adoption is what is known of machines that are configured and that the inventory does not know.
type adoption struct {
	// differ are those whose configuration is not the wish, sorted; digest is that of the difference.
	differ []*machine
	digest string
	acked  bool
	// waiting says what has to be seen first, "" nothing.
	waiting string
	// configured machines there are at all.
	configured []*machine
	message    string
}

// free tells whether a machine may be written as far as adoption goes.
func (a adoption) free(m *machine) bool {
	return a.acked || !m.differs
}

// acked tells whether a digest or commit was acknowledged.
func (w *world) acked(digest string) bool {
	if digest == "" {
		return false
	}
	for _, a := range w.in.Desired.Acks {
		if a == digest {
			return true
		}
	}
	if w.in.Inventory != nil {
		for _, a := range w.in.Inventory.Acks {
			if a == digest {
				return true
			}
		}
	}
	return false
}

// digestOf lines, in their order.
func digestOf(lines []string) string {
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// toolDigest acknowledges all machines whose render the tool changed at once.
func (w *world) toolDigest() string {
	if w.index.toolDigest != "" {
		return w.index.toolDigest
	}
	var lines []string
	for _, m := range w.approved() {
		if m.inv != nil && m.inv.InForceDigest != "" && m.inv.InForceDigest != m.digest() && m.want.BaselineDigest != m.inv.InForceDigest {
			lines = append(lines, m.name+" "+m.digest())
		}
	}
	w.index.toolDigest = digestOf(lines)
	return w.index.toolDigest
}

// adopt looks at the configured machines that the inventory does not know (SPEC section 3, "Adoption").
func (w *world) adopt() {
	if w.in.Inventory == nil {
		return
	}
	a := &w.adoption
	adopted := w.in.Inventory.Adopted
	var lines []string
	for _, m := range w.approved() {
		if adopted && (m.inv != nil || m.mode() != ModeConfigured) {
			continue
		}
		if m.ident.mismatch() && !m.controlPlane() {
			// Another box answers there: it is not of this cluster, is never written, and keeps nobody waiting. A control
			// plane is waited for: the one that is meant may have etcd's data.
			continue
		}
		if why := w.adoptionNeeds(m); why != "" {
			if a.waiting == "" && (!adopted || m.answersConfigured()) {
				a.waiting = why
			}
			if m.reach() == ReachOK || m.facts == nil {
				w.look(m, "needed for adoption")
			}
			continue
		}
		if m.mode() != ModeConfigured {
			continue
		}
		a.configured = append(a.configured, m)
		if c := m.facts.Config; !c.Equal || !c.PersistentEqual {
			a.differ = append(a.differ, m)
			m.differs = true
			lines = append(lines, strings.Join([]string{m.name, m.digest(), c.Running}, " "))
		}
	}
	if len(a.differ) > 0 {
		a.digest = digestOf(lines)
		a.acked = w.acked(a.digest)
	}
	if !adopted {
		w.adoptCluster()
	}
}

// adoptionNeeds says what has to be seen of a machine before the cluster can be adopted, "" nothing. A worker that
// can't be reached is compared when it is back.
func (w *world) adoptionNeeds(m *machine) string {
	switch {
	case m.facts == nil:
		return m.name + " was not looked at yet"
	case m.reach() != ReachOK && m.controlPlane():
		return "control plane " + m.name + " can't be reached"
	case m.reach() != ReachOK:
		return ""
	case m.facts.Mode == ModeUnknown:
		return "the mode of " + m.name + " is not known"
	case !m.ident.proved():
		return m.name + ": " + m.ident.why
	case m.facts.Mode == ModeMaintenance:
		return ""
	case !w.compared(m):
		return "the configuration of " + m.name + " was not compared with the head yet"
	case m.want.CheckedDigest != m.digest():
		return "the configuration rendered for " + m.name + " is not the one that was checked"
	}
	return ""
}

// adoptCluster adopts when there is nothing to adopt, no difference, or an acknowledged one.
func (w *world) adoptCluster() {
	a := &w.adoption
	const head = "this inventory does not know the cluster yet"
	switch {
	case a.waiting != "":
		a.message = head + ": " + a.waiting
	case len(a.differ) > 0 && !a.acked:
		a.message = fmt.Sprintf("%s: %d configured machines differ from the head (%s); acknowledge %s to have it written",
			head, len(a.differ), strings.Join(names(a.differ), ", "), a.digest)
	default:
		a.message = head + ": it is being recorded"
		w.recordAdoption()
	}
}

func (w *world) recordAdoption() {
	d := w.in.Desired
	if d.Suspend || d.Observe || !d.CheckPassed || len(w.approved()) == 0 || len(d.Holds) > 0 {
		return
	}
	why := "every machine that answers waits in maintenance mode: nothing to adopt"
	switch a := w.adoption; {
	case a.acked:
		why = "the difference " + a.digest + " is acknowledged"
	case len(a.configured) > 0:
		why = "no machine differs from the head"
	}
	w.actions = append(w.actions, Action{Kind: RecordAdopt, Commit: d.Commit, Reason: why, Message: why})
	w.event(nil, state.ReasonProgressing, "cluster adopted: "+why)
	for _, m := range w.adoption.configured {
		w.pin(m)
	}
	w.again(w.in.Policy.Poll)
}

func names(ms []*machine) []string {
	var out []string
	for _, m := range ms {
		out = append(out, m.name)
	}
	return out
}
