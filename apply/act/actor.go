package act

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/schemas/state"
)

// Observer reads nodes; observe.Observer is one.
type Observer interface {
	// Observe reads the machines in which now and gives facts whose At is not before the call, for those that it read.
	Observe(ctx context.Context, spec *observe.Cluster, which []string) (map[string]plan.MachineFacts, error)
	// Dialer gives the connections to the cluster's nodes.
	Dialer(spec *observe.Cluster) (*talos.Dialer, error)
}

// Journal is the inventory; journal.Journal is one.
type Journal interface {
	// Intend pushes the intent of a destructive act, with what also changes, or fails.
	Intend(ctx context.Context, now time.Time, cluster string, in state.Intent, also func(*state.ClusterInventory)) (state.Intent, error)
	// Note changes the inventory by a push, or in the state folder alone where the branch can't be reached.
	Note(ctx context.Context, now time.Time, edit func(*state.Inventory) error) error
	// Update changes the inventory by a push, or fails.
	Update(ctx context.Context, now time.Time, edit func(*state.Inventory) error) error
	// Cluster gives a copy of a cluster's part, nil where the inventory is not known.
	Cluster(name string) *state.ClusterInventory
	// Holding fails where this process may not write to nodes.
	Holding(now time.Time) error
}

// Outcome of an action.
type Outcome string

// Outcomes.
const (
	Done    Outcome = "done"
	NotDone Outcome = "not-done"
	Unknown Outcome = "unknown"
)

// Kind says why an action was not done, or why its outcome is not known.
type Kind string

// Kinds that are not those of package talos.
const (
	// KindPrecondition: what was expected is not so any more.
	KindPrecondition Kind = "precondition"
	// KindRefused: the node, or the check of its disks, does not accept the configuration.
	KindRefused Kind = "refused"
	// KindJournal: the inventory could not be written, so nothing was called.
	KindJournal Kind = "journal"
	// KindAudit: the audit log could not be written, so nothing was called.
	KindAudit Kind = "audit"
	// KindOther: anything else that kept it from being called.
	KindOther Kind = "other"
)

// Result of one action. Message holds no secret.
type Result struct {
	Action  plan.Action
	Outcome Outcome
	// Kind is one of this package or of talos, "" when it was done.
	Kind    Kind
	Message string
}

// Cluster is what an Actor needs to know of one.
type Cluster struct {
	// Nodes as the Observer reads them; Wish, Masked and Digest there are what is sent.
	Nodes *observe.Cluster
	// Desired is that of the Input that the decision was made of.
	Desired *plan.Desired
	// MergedBy says who brought the commit in, for the audit log.
	MergedBy string
}

// Actor carries out actions. It is safe for concurrent use by different clusters.
type Actor struct {
	Observer Observer
	Journal  Journal
	Audit    *Audit
	// Now is the clock.
	Now func() time.Time
}

// Do carries out the actions of one decision: first all that edit the inventory, in one write and in their order, then
// reads, then those on nodes, at the same time. An error means that the inventory could not be written; then nothing
// was done on a node.
func (a *Actor) Do(ctx context.Context, c *Cluster, actions []plan.Action) ([]Result, error) {
	out := make([]Result, len(actions))
	var names []string
	for i, action := range actions {
		out[i] = Result{Action: action, Outcome: Done}
		if action.Kind == plan.DoObserve {
			names = append(names, action.Machine)
		}
	}
	if err := a.record(ctx, c, actions); err != nil {
		return nil, err
	}
	if len(names) > 0 {
		if _, err := a.Observer.Observe(ctx, c.Nodes, names); err != nil {
			return nil, fmt.Errorf("observe %s: %w", c.Nodes.Name, err)
		}
	}
	var wg sync.WaitGroup
	for i, action := range actions {
		if action.Kind.OnNode() {
			wg.Go(func() { out[i] = a.onNode(ctx, c, action) })
		}
	}
	wg.Wait()
	return out, nil
}

// task is one action on a node while it is carried out.
type task struct {
	*Actor
	cluster *Cluster
	action  plan.Action
	machine *observe.Machine
	dialer  *talos.Dialer
	// facts of the machine, read for this action.
	facts plan.MachineFacts
	scrub *talos.Scrubber
	// intent that was pushed, "" none.
	intent string
}

func (a *Actor) onNode(ctx context.Context, c *Cluster, action plan.Action) Result {
	t := &task{Actor: a, cluster: c, action: action}
	if r := t.prepare(ctx); r != nil {
		return t.result(*r)
	}
	var r Result
	switch action.Kind {
	case plan.DoInstall:
		r = t.install(ctx)
	case plan.DoBootstrap:
		r = t.bootstrap(ctx)
	case plan.DoConfigure:
		r = t.configure(ctx)
	case plan.DoConfirm:
		r = t.confirm(ctx)
	case plan.DoForfeit:
		r = t.forfeit(ctx)
	case plan.DoReboot:
		r = t.reboot(ctx)
	case plan.DoRemoveMember:
		r = t.removeMember(ctx)
	case plan.DoReset:
		r = t.reset(ctx)
	default:
		r = notDone(KindOther, fmt.Sprintf("this Ichor can't carry out %q", action.Kind))
	}
	return t.result(r)
}

// result completes r and writes it down.
func (t *task) result(r Result) Result {
	r.Action = t.action
	t.Audit.end(t.entry(), r)
	return r
}

func (t *task) entry() entry {
	return entry{
		Cluster: t.cluster.Nodes.Name, Machine: t.action.Machine, Act: string(t.action.Kind), Send: string(t.action.Send), Commit: t.action.Commit,
		MergedBy: t.cluster.MergedBy, Digest: t.action.Digest, Intent: t.intent, Endpoint: t.facts.Endpoint, UUID: t.facts.Identity.UUID,
	}
}

// prepare finds the machine, looks whether this process may act, and reads the precondition. nil: go on.
func (t *task) prepare(ctx context.Context) *Result {
	stop := func(k Kind, msg string) *Result { r := notDone(k, msg); return &r }
	for i := range t.cluster.Nodes.Machines {
		if m := &t.cluster.Nodes.Machines[i]; m.Name == t.action.Machine {
			t.machine = m
		}
	}
	if t.machine == nil {
		return stop(KindOther, "there is no machine "+t.action.Machine)
	}
	if sends(t.action.Kind) && (t.machine.Wish.Empty() || t.machine.Digest != t.action.Digest) {
		return stop(KindPrecondition, "the configuration at hand is not the one that was decided on")
	}
	if err := t.Journal.Holding(t.Now()); err != nil {
		return stop(KindJournal, err.Error())
	}
	d, err := t.Observer.Dialer(t.cluster.Nodes)
	if err != nil {
		return stop(KindOther, err.Error())
	}
	t.dialer = d
	t.scrub = d.Scrubber().With(talos.SecretValues(t.machine.Wish.Reveal(), t.machine.Masked)...)
	if err := t.expected(ctx); err != nil {
		return stop(KindPrecondition, err.Error())
	}
	return nil
}

// sends tells whether an action sends a configuration.
func sends(k plan.ActionKind) bool {
	return k == plan.DoInstall || k == plan.DoConfigure || k == plan.DoConfirm
}

func notDone(k Kind, msg string) Result { return Result{Outcome: NotDone, Kind: k, Message: msg} }

// failed makes a Result of a call's error: unknown where the call may have arrived.
func failed(err error) Result {
	r := Result{Outcome: NotDone, Kind: Kind(talos.KindOf(err)), Message: err.Error()}
	if talos.Lost(err) {
		r.Outcome = Unknown
	}
	return r
}

// announce writes the beginning into the audit log; without it no call.
func (t *task) announce() error { return t.Audit.begin(t.entry()) }

// errPrecondition is for what Expect names and is not so.
var errPrecondition = errors.New("check the precondition")
