package plan

import (
	"sort"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// rule is one family. They run in the order of rules; each gives actions to machines that no earlier one has taken.
type rule struct {
	name string
	run  func(*world)
}

// rules in their fixed order (SPEC section 3): safety gates → finish what was started → repair → bring-up → Talos
// upgrade → configuration → Kubernetes → removal of live machines → done. A rule that can act takes its machines and
// its share of the disruption budget; one that can only wait keeps nobody from acting on what it does not touch.
var rules = []rule{
	{"gates", runGates},
	{"finish", runFinish},
	{"repair", runRepair},
	{"bring-up", runBringUp},
	{"upgrade", runUpgrade},
	{"configure", runConfigure},
	{"kubernetes", runKubernetes},
	{"removal", runRemoval},
	{"done", runDone},
}

// Next takes everything that is known of one cluster and says what may be done now, and why not more.
func Next(in Input) Decision { return next(in, "") }

// next is Next with one gate switched off, for the tests that prove that the gate is needed.
func next(in Input, off string) Decision {
	w := newWorld(in, off)
	for _, r := range rules {
		r.run(w)
	}
	return w.decision()
}

// world is one call of Next: the input arranged by machine, and the decision as it grows.
type world struct {
	in  Input
	off string

	ms     []*machine
	byName map[string]*machine
	// cps and workers are the approved machines of the head, sorted by name; all is both.
	cps, workers, all []*machine
	// index of what would be looked for once per machine.
	index index

	adoption adoption
	// cpTaken is the control plane that was given an action on its node in this decision.
	cpTaken string

	actions   []Action
	observe   map[string]string
	events    []state.Event
	lookAgain time.Duration
}

func newWorld(in Input, off string) *world {
	w := &world{in: in, off: off, byName: map[string]*machine{}, observe: map[string]string{}, lookAgain: in.Desired.Interval}
	if w.lookAgain <= 0 {
		w.lookAgain = 2 * time.Minute
	}
	w.gather()
	sort.Slice(w.ms, func(i, j int) bool { return w.ms[i].name < w.ms[j].name })
	for _, m := range w.ms {
		if f, ok := in.Observed[m.name]; ok && f.Reach != ReachUnknown {
			m.facts = &f
		}
		if !m.approved() {
			continue
		}
		w.all = append(w.all, m)
		if m.want.Role == RoleControlPlane {
			w.cps = append(w.cps, m)
		} else {
			w.workers = append(w.workers, m)
		}
	}
	w.index = newIndex(w)
	for _, m := range w.ms {
		w.identify(m)
	}
	return w
}

// gather arranges the head and the inventory by machine.
func (w *world) gather() {
	in := w.in
	get := func(name string) *machine {
		m := w.byName[name]
		if m == nil {
			m = &machine{name: name}
			w.byName[name] = m
			w.ms = append(w.ms, m)
		}
		return m
	}
	for i := range in.Desired.Machines {
		d := &in.Desired.Machines[i]
		get(d.Name).want = d
	}
	for _, name := range in.Desired.UnknownMachines {
		get(name).unparsed = true
	}
	if in.Inventory != nil {
		for name, mi := range in.Inventory.Machines {
			if mi == nil || (!mi.RemovedAt.IsZero() && w.byName[name] == nil) {
				continue
			}
			get(name).inv = mi
		}
		for i := range in.Inventory.Intents {
			it := &in.Inventory.Intents[i]
			m := get(it.Machine)
			m.intents = append(m.intents, it)
		}
	}
}

// approved machines of the head, by name.
func (w *world) approved() []*machine { return w.all }

// again asks to be called again after d at the latest.
func (w *world) again(d time.Duration) {
	if d < w.in.Policy.Poll {
		d = w.in.Policy.Poll
	}
	if d > 0 && d < w.lookAgain {
		w.lookAgain = d
	}
}

// look asks for a machine to be read, unless it was read just now.
func (w *world) look(m *machine, why string) {
	w.again(w.in.Policy.Poll)
	if m.facts != nil && !m.facts.At.Before(w.in.Now) {
		return
	}
	if _, ok := w.observe[m.name]; !ok {
		w.observe[m.name] = why
	}
}

// watchFor looks at a machine several times before d is over: being well for a time is more than being well at its ends.
func (w *world) watchFor(m *machine, d time.Duration, why string) {
	const looks = 5
	every := max(w.in.Policy.Poll, w.in.Desired.Settle/looks)
	w.again(min(d, every))
	if m.facts != nil && w.in.Now.Sub(m.facts.At) >= every {
		w.look(m, why)
	}
}

// do gives a machine an action. It takes the machine, and the control plane's turn where it is one.
func (w *world) do(m *machine, a Action) {
	a.Machine = m.name
	if a.Commit == "" {
		a.Commit = w.in.Desired.Commit
	}
	w.actions = append(w.actions, a)
	m.taken = true
	if a.Kind.OnNode() {
		if a.Kind != DoInstall {
			w.tally().acts(m)
		}
		if m.want != nil && m.want.Role == RoleControlPlane {
			w.cpTaken = m.name
		}
		m.say(state.ReasonProgressing, a.Reason)
	}
	w.again(w.in.Policy.Poll)
}

// record adds an inventory edit. It takes nobody's turn, but the machine waits for the next look.
func (w *world) record(m *machine, a Action) {
	a.Machine = m.name
	if a.Commit == "" {
		a.Commit = w.in.Desired.Commit
	}
	w.actions = append(w.actions, a)
	m.taken, m.did = true, a.Reason
	w.again(w.in.Policy.Poll)
}

func (w *world) event(m *machine, reason, message string) {
	e := state.Event{At: w.in.Now, Cluster: w.in.Desired.Name, Reason: reason, Message: message, Commit: w.in.Desired.Commit}
	if m != nil {
		e.Machine = m.name
	}
	w.events = append(w.events, e)
}

// decision puts the actions in their order: observations, records, acts on nodes.
func (w *world) decision() Decision {
	d := Decision{LookAgain: w.lookAgain, Events: w.events}
	for _, m := range w.ms {
		if why, ok := w.observe[m.name]; ok {
			d.Actions = append(d.Actions, Action{Kind: DoObserve, Machine: m.name, Reason: why, Commit: w.in.Desired.Commit})
		}
	}
	for _, onNode := range []bool{false, true} {
		for _, a := range w.actions {
			if a.Kind.OnNode() == onNode {
				d.Actions = append(d.Actions, a)
			}
		}
	}
	d.Machines = w.machineDecisions()
	d.Conditions = w.conditions()
	d.Progress = w.progress(d)
	return d
}
