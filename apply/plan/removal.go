package plan

import "ichor.maesh.dev/ichor/schemas/state"

// runRemoval holds and says what leaves: removal is not built yet, and nothing is guessed at. It holds the machine, not
// its cluster.
func runRemoval(w *world) {
	for _, m := range w.ms {
		switch {
		case m.unparsed:
			m.say(state.ReasonCheckFailed, "its manifest at the head does not parse: it is unknown, not gone, and nothing is done to it")
		case m.want == nil && m.inv != nil:
			if to := w.renamedTo(m); to != "" {
				m.say(state.ReasonNotSupported, "it has the name "+to+" at the head (same UUID): renaming is not supported yet")
				continue
			}
			m.say(state.ReasonDeleteRefused, "it is gone from the head; removal is not supported yet, so it stays as it is")
		default:
			if reason, why := m.notApproved(); why != "" {
				m.say(reason, why)
			}
		}
	}
}

// notApproved says why a machine of the head is not Ichor's to write, "" it is.
func (m *machine) notApproved() (reason, why string) {
	switch {
	case m.want == nil:
		return state.ReasonWaiting, "it is not of this commit"
	case m.want.Approval == approvedState:
		return "", ""
	case m.want.Approval == rejectedState && m.known():
		return state.ReasonDeleteRefused, "it was approved and is rejected at the head: that is a removal, which is not supported yet, so it stays as it is"
	case m.want.Approval == rejectedState:
		return state.ReasonRejected, "it is rejected"
	case m.known():
		return state.ReasonNotSupported, "it was approved and can't be pending again; it stays as it is"
	}
	return state.ReasonPendingApproval, "it is not approved yet"
}

// renamedTo names the machine of the head that has the UUID of one that is gone.
func (w *world) renamedTo(m *machine) string {
	if m.inv.Identity.UUID == "" {
		return ""
	}
	if o := other(w.index.wantUUIDs[m.inv.Identity.UUID], m); o != nil {
		return o.name
	}
	return ""
}
