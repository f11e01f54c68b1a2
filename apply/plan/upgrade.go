package plan

import "ichor.maesh.dev/ichor/schemas/state"

// runUpgrade holds a version change: upgrades are not built yet, and a version never leaks into a configuration as an
// image field (the gate version-change refuses every write meanwhile).
func runUpgrade(w *world) {
	if w.in.Inventory == nil {
		return
	}
	why := versionChange(w.in)
	if why == "" {
		return
	}
	for _, m := range w.approved() {
		if m.answersConfigured() && w.compared(m) && !w.equal(m) {
			m.say(state.ReasonVersionChange, why)
		}
	}
}
