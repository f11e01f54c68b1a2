package plan

// runRepair mends machines that a configuration broke, before anything else is brought up or changed: the commit that
// repairs a machine goes on though the rollout has stopped at it, and a control plane that runs no member may be
// touched first. (A proved-dead member is not removed by this stage.)
func runRepair(w *world) {
	if w.in.Inventory == nil {
		return
	}
	for _, m := range w.byRank() {
		if !m.taken && (m.broken() || m.controlPlane() && m.etcdDown() && m.sentEver()) {
			w.configure(m)
		}
	}
}

// sentEver: Ichor has sent it a configuration, or has seen one in force.
func (m *machine) sentEver() bool {
	return m.inv != nil && (m.inv.SentDigest != "" || m.inv.InForceDigest != "")
}
