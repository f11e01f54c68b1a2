package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// crashed is thrown where Ichor is killed.
type crashed struct{}

// fenced is thrown where another holder took over.
type fenced struct{}

// ichor is one process: what it remembers is lost with it.
type ichor struct {
	f     *fleet
	name  string
	epoch int64
	facts map[string]plan.MachineFacts
	// inv is its copy of the inventory with notes that may not be pushed yet.
	inv *state.ClusterInventory
	// dirty: inv has what is not pushed. It lies in the state folder, and a process that is started again there has it.
	dirty bool
	// decided is the input of the decision that is carried out.
	decided plan.Input
}

func (f *fleet) start(name string) *ichor {
	f.epoch++
	f.note("%s starts with epoch %d", name, f.epoch)
	return &ichor{f: f, name: name, epoch: f.epoch, facts: map[string]plan.MachineFacts{}, inv: clone(f.inv)}
}

// restart is the process started again with the same state folder.
func (i *ichor) restart() *ichor {
	n := i.f.start(fmt.Sprintf("ichor-%d", i.f.epoch+1))
	if i.dirty {
		n.inv, n.dirty = i.inv, true
	}
	return n
}

// boundary is where a process may be killed.
func (i *ichor) boundary() {
	if i.f.faults && i.f.chance(0.02) {
		panic(crashed{})
	}
}

// push writes the inventory by compare-and-swap; false: the branch can't be reached.
func (i *ichor) push() bool {
	i.boundary()
	if i.epoch != i.f.epoch {
		panic(fenced{})
	}
	if i.f.now.Before(i.f.pushFail) {
		i.dirty = true
		return false
	}
	i.f.inv, i.dirty = clone(i.inv), false
	i.f.gen++
	i.boundary()
	return true
}

func clone(c *state.ClusterInventory) *state.ClusterInventory {
	if c == nil {
		return nil
	}
	out := *c
	out.Acks = slices.Clone(c.Acks)
	out.Intents = slices.Clone(c.Intents)
	out.Machines = map[string]*state.MachineInventory{}
	for name, m := range c.Machines {
		mm := *m
		mm.RebootPending = slices.Clone(m.RebootPending)
		out.Machines[name] = &mm
	}
	return &out
}

func (i *ichor) entry(name string) *state.MachineInventory {
	if i.inv.Machines == nil {
		i.inv.Machines = map[string]*state.MachineInventory{}
	}
	m := i.inv.Machines[name]
	if m == nil {
		m = &state.MachineInventory{}
		i.inv.Machines[name] = m
		if d := i.want(name); d != nil {
			m.Role, m.Endpoint, m.Hostname = d.Role, d.Endpoint, d.Hostname
		}
	}
	return m
}

func (i *ichor) want(name string) *plan.DesiredMachine {
	for k := range i.decided.Desired.Machines {
		if i.decided.Desired.Machines[k].Name == name {
			return &i.decided.Desired.Machines[k]
		}
	}
	return nil
}

// observe reads a node and keeps since when it answers and is well.
func (i *ichor) observe(name string) {
	n := i.f.node(name)
	if n == nil {
		return
	}
	now := i.f.facts(n)
	was, had := i.facts[name]
	now.Since = i.f.now
	if had && was.Reach == now.Reach {
		now.Since = was.Since
	}
	var seen bool
	if m := i.inv.Machines[name]; m != nil {
		seen = m.NodeReadySeen
	}
	if plan.SeenWell(now, n.role, seen) {
		now.WellSince = i.f.now
		if had && !was.WellSince.IsZero() && was.BootID == now.BootID {
			now.WellSince = was.WellSince
		}
	}
	i.facts[name] = now
}

// do carries out the actions of one decision.
func (i *ichor) do(d plan.Decision) {
	if i.dirty {
		i.push()
	}
	before := clone(i.inv)
	records, strict := false, false
	for _, a := range d.Actions {
		if !a.Kind.OnNode() && a.Kind != plan.DoObserve {
			i.record(a)
			records = true
			strict = strict || a.Kind == plan.RecordRebootPending
		}
	}
	if records && !i.push() && strict {
		i.inv = before
		return
	}
	for _, a := range d.Actions {
		if a.Kind.OnNode() {
			i.boundary()
			i.act(a)
			i.observe(a.Machine)
		}
	}
}

// expected checks the precondition again, on the node itself.
func (i *ichor) expected(n *node, a plan.Action) bool {
	f := i.f.facts(n)
	e := a.Expect
	if f.Reach != plan.ReachOK || (e.Mode != "" && f.Mode != e.Mode) || (e.UUID != "" && f.Identity.UUID != e.UUID) ||
		(e.NodeID != "" && f.Identity.NodeID != e.NodeID) || (e.BootID != "" && f.BootID != e.BootID) ||
		(e.MemberID != "" && f.Identity.MemberID != e.MemberID) || (e.EtcdDown && !plan.EtcdDown(f)) {
		return false
	}
	for _, o := range e.OthersHealthy {
		of := i.f.facts(i.f.node(o))
		if !plan.SeenWell(of, plan.RoleControlPlane, false) && !(e.SkipKubernetes && plan.HealthyMember(of).Is == plan.Yes) {
			return false
		}
	}
	for _, o := range e.EtcdEmptyOn {
		of := i.f.facts(i.f.node(o))
		if of.Reach != plan.ReachOK || of.Mode != plan.ModeConfigured || of.Etcd == nil || of.Etcd.State != "Preparing" || of.Etcd.MemberID != "" {
			return false
		}
	}
	return true
}

// reply decides what becomes of a call: sent and answered, sent but the reply lost, or lost before it arrived.
func (i *ichor) reply() (arrives, answered bool) {
	if !i.f.faults {
		return true, true
	}
	switch r := i.f.rnd.Float64(); {
	case r < 0.05:
		return true, false
	case r < 0.10:
		return false, false
	}
	return true, true
}

func (i *ichor) act(a plan.Action) {
	n := i.f.node(a.Machine)
	i.f.note("%s: %s %s %s %q", i.name, a.Kind, a.Machine, a.Send, a.Reason)
	if i.epoch != i.f.epoch {
		panic(fenced{}) // the lease in front says so before anything is sent
	}
	i.f.checkAct(i, n, a)
	if !i.expected(n, a) {
		i.f.note("  precondition gone")
		return
	}
	switch a.Kind {
	case plan.DoInstall, plan.DoBootstrap, plan.DoReboot:
		i.destructive(n, a)
	case plan.DoConfigure:
		i.configure(n, a)
	case plan.DoConfirm:
		i.confirm(n, a)
	case plan.DoForfeit:
		if _, up := i.f.voters(); len(up) > 1 {
			for _, u := range up {
				if u != n {
					i.f.leader = u.member
					break
				}
			}
		}
	}
}

var acts = map[plan.ActionKind]state.Act{
	plan.DoInstall: state.ActInstall, plan.DoBootstrap: state.ActBootstrap, plan.DoReboot: state.ActReboot,
}

func (i *ichor) destructive(n *node, a plan.Action) {
	wish := i.f.wishes[n.name]
	if a.Kind == plan.DoInstall && n.dryRun(wish, "no-reboot") == rejected {
		m := i.entry(n.name)
		m.Failure, m.FailedDigest = "the node refuses it", a.Digest
		i.push()
		return
	}
	before := clone(i.inv)
	it := state.Intent{
		ID: fmt.Sprintf("%d-%d-%s-%s", i.epoch, i.f.gen, acts[a.Kind], n.name), Act: acts[a.Kind], Machine: n.name,
		UUID: a.Expect.UUID, Commit: a.Commit, Epoch: i.epoch, At: i.f.now, BootID: a.Expect.BootID, Digest: a.Digest,
	}
	i.inv.Intents = append(i.inv.Intents, it)
	switch a.Kind {
	case plan.DoInstall:
		m := i.entry(n.name)
		m.Identity.UUID = a.Expect.UUID
		m.SentDigest, m.SentCommit, m.SentAt, m.SentMode = a.Digest, a.Commit, i.f.now, string(plan.SendNoReboot)
	case plan.DoBootstrap:
		i.inv.BootstrapMachine, i.inv.BootstrapUUID = n.name, a.Expect.UUID
	}
	if !i.push() {
		i.inv = before // no push, no call
		return
	}
	arrives, answered := i.reply()
	if arrives {
		i.f.call(n, a, wish)
	}
	i.boundary()
	if answered {
		for k := range i.inv.Intents {
			if i.inv.Intents[k].ID == it.ID {
				i.inv.Intents[k].Sent = true
			}
		}
		i.push()
	}
}

// call is what the node does.
func (f *fleet) call(n *node, a plan.Action, wish config) {
	switch a.Kind {
	case plan.DoInstall:
		n.configured, n.running, n.stored, n.storedShown, n.booted = true, wish, wish, true, wish
		n.nodeID = "node-" + n.uuid
		n.joinAt = f.now.Add(f.between(10*time.Second, time.Minute))
		n.goDown(f.now, f.between(20*time.Second, 3*time.Minute), "installing")
	case plan.DoBootstrap:
		if n.member == 0 {
			f.members++
			f.bootstraps++
			n.member = f.members
			if f.bootstraps > 1 {
				f.violated("etcd was bootstrapped a second time, on %s", n.name)
			}
		}
	case plan.DoReboot:
		n.goDown(f.now, f.between(5*time.Second, 4*time.Minute), "rebooting")
	}
}

func (i *ichor) configure(n *node, a plan.Action) {
	wish := i.f.wishes[n.name]
	m := i.entry(n.name)
	switch n.dryRun(wish, string(a.Send)) {
	case rejected:
		m.Failure, m.FailedDigest = "the node refuses it", a.Digest
		i.push()
		return
	case needsReboot:
		m.AnsweredEffect, m.AnsweredDigest = "reboot", a.Digest
		i.push()
		return
	}
	before := *m
	m.SentDigest, m.SentCommit, m.SentAt, m.SentMode = a.Digest, a.Commit, i.f.now, string(a.Send)
	i.inv.AttemptedCommit = a.Commit
	if !i.push() && (a.Disrupts != "" || a.Send == plan.SendTry) {
		*m = before
		return
	}
	arrives, _ := i.reply()
	if arrives {
		n.apply(i.f.now, wish, string(a.Send), a.TryTimeout)
	}
	i.boundary()
}

func (i *ichor) confirm(n *node, a plan.Action) {
	m := i.entry(n.name)
	arrives, answered := i.reply()
	if arrives {
		n.apply(i.f.now, i.f.wishes[n.name], string(plan.SendNoReboot), 0)
	}
	i.boundary()
	if answered {
		m.SentMode = string(plan.SendNoReboot)
		i.push()
	}
}

// observed is the input of Next.
func (i *ichor) input() plan.Input {
	return plan.Input{
		Now: i.f.now, Desired: i.f.desired, Observed: maps.Clone(i.facts), Inventory: clone(i.inv), Policy: plan.DefaultPolicy(),
	}
}
