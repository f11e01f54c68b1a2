package plan

import "ichor.maesh.dev/ichor/schemas/state"

// runBringUp brings up approved machines that wait in maintenance mode, and bootstraps etcd once per cluster.
func runBringUp(w *world) {
	if w.in.Inventory == nil {
		return
	}
	for _, m := range w.byRank() {
		if !m.taken && m.mode() == ModeMaintenance && len(m.intents) == 0 {
			w.install(m)
		}
	}
	w.bootstrap()
	for _, m := range w.cps {
		if m.answersConfigured() && !m.joined() && w.in.Inventory.Adopted && w.bootstrapped() {
			if why := w.notJoined(m); why != "" && !m.failed() {
				m.say(state.ReasonProgressing, "it is waited for as a member: "+why)
				w.again(w.in.Policy.Poll)
				w.look(m, "it is waited for as a member")
			}
		}
	}
}

func (w *world) install(m *machine) {
	a := wish{kind: DoInstall, m: m, destructive: true, changes: true}
	if w.refused(a) != nil {
		return
	}
	w.do(m, Action{
		Kind: DoInstall, Send: SendNoReboot, Digest: m.digest(), Disrupts: "its system disk is written", Expect: w.expect(a),
		Reason: "it waits in maintenance mode and is approved",
	})
}

// bootstrap picks the first control plane that waits and bootstraps etcd on it when every approved one is seen empty.
func (w *world) bootstrap() {
	if w.bootstrapped() && w.off != "bootstrap-once" {
		return
	}
	var m *machine
	for _, o := range w.cps {
		if m == nil && !o.taken && len(o.intents) == 0 && o.answersConfigured() && o.etcdEmpty() {
			m = o
		}
	}
	if m == nil {
		return
	}
	a := wish{kind: DoBootstrap, m: m, destructive: true}
	if r := w.refused(a); r != nil {
		for _, o := range w.cps {
			if o.answersConfigured() && o.etcdEmpty() {
				o.say(r.reason, r.message)
			}
		}
		return
	}
	e := w.expect(a)
	e.EtcdEmptyOn = names(w.cps)
	w.do(m, Action{
		Kind: DoBootstrap, Digest: m.digest(), Expect: e,
		Reason: "every approved control plane waits without etcd data: etcd is bootstrapped here",
	})
}
