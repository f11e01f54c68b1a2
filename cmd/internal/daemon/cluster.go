package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/apply/act"
	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
)

// Inventory is what a cluster's loop asks of the journal; apply/journal.Journal is one.
type Inventory interface {
	Cluster(name string) *state.ClusterInventory
	Holding(now time.Time) error
}

// Nodes reads nodes; apply/observe.Observer is one.
type Nodes interface {
	Due(spec *observe.Cluster, now time.Time) (due []string, next time.Time)
	Observe(ctx context.Context, spec *observe.Cluster, which []string) (map[string]plan.MachineFacts, error)
	Forget(name string)
}

// Actor carries out actions; apply/act.Actor is one.
type Actor interface {
	Do(ctx context.Context, c *act.Cluster, actions []plan.Action) ([]act.Result, error)
}

// clusterLoop drives one cluster. Only its own goroutine runs pass; set is called by the repository's.
type clusterLoop struct {
	name     string
	log      *slog.Logger
	now      func() time.Time
	keys     bundle.Keys
	policy   plan.Policy
	observer bool // the whole instance is in observe mode
	commits  *commits
	inv      Inventory
	nodes    Nodes
	actor    Actor
	// say publishes what a pass found.
	say func(t *target, now time.Time, c fold.Cluster, fresh []state.Event, facts map[string]plan.MachineFacts)
	// acted counts acts, for the metrics.
	acted func(cluster, action, outcome string)

	mu     sync.Mutex
	target *target
	nudge  chan struct{}

	prepared *prepared
	spec     *observe.Cluster
	last     fold.Cluster
	// past gives what was last said before this process; nil once it was asked.
	past func(ctx context.Context, cluster string) (fold.Cluster, error)
	// touched machines are read again before the next decision: what was seen of them is from before the act.
	touched []string
	// did: something was done since it was last set to false.
	did bool
}

// set gives the loop a new target and wakes it.
func (c *clusterLoop) set(t *target) {
	c.mu.Lock()
	c.target = t
	c.mu.Unlock()
	c.wake()
}

// current gives the loop's target.
func (c *clusterLoop) current() *target {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.target
}

// wake makes the loop look now.
func (c *clusterLoop) wake() {
	select {
	case c.nudge <- struct{}{}:
	default:
	}
}

// run passes until ctx ends. The call that is under way when it ends is finished by act (its own deadline bounds it).
func (c *clusterLoop) run(ctx context.Context) {
	for {
		next := c.pass(ctx)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.nudge:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// minPause keeps a loop from spinning whatever a decision says.
const minPause = 50 * time.Millisecond

// pass is one round: observe what is due, decide, act, say. It gives the time until the next.
func (c *clusterLoop) pass(ctx context.Context) time.Duration {
	t := c.current()
	if t == nil {
		return time.Minute
	}
	c.remember(ctx)
	c.prepare(ctx, t)
	facts := map[string]plan.MachineFacts{}
	now := c.now()
	d := c.desired(ctx, now)
	if c.prepared.bundle != nil && !d.Suspend {
		due, _ := c.nodes.Due(c.spec, now)
		facts = c.observe(ctx, append(due, c.touched...))
		c.touched = nil
	}
	if ctx.Err() != nil {
		return time.Minute
	}
	var events []state.Event
	for round := 0; ; round++ {
		var decision plan.Decision
		decision, facts, d = c.decide(ctx, d, facts)
		results, acted := c.act(ctx, &d, decision)
		events = append(events, acted...)
		if round < maxRounds && recordedOnly(decision, results) {
			// Only the inventory changed: what that makes possible is decided at once, and nothing is said in between.
			events = append(events, decision.Events...)
			d = c.desired(ctx, c.now())
			continue
		}
		c.publish(t, d, decision, facts, events)
		return c.pause(d.Suspend, decision, results)
	}
}

// remember takes up what was last said of the cluster; that can't be had costs events, never safety.
func (c *clusterLoop) remember(ctx context.Context) {
	if c.past == nil {
		return
	}
	last, err := c.past(ctx, c.name)
	if err != nil {
		c.log.Warn("read what was last said; events begin anew", "cluster", c.name, "error", err)
	}
	c.last, c.past = last, nil
}

// maxRounds bounds how often one pass decides again after it wrote the inventory.
const maxRounds = 3

// recordedOnly tells whether a decision changed the inventory and did nothing else.
func recordedOnly(d plan.Decision, results []act.Result) bool {
	did := false
	for _, r := range results {
		if r.Outcome != act.Done || r.Action.Kind.OnNode() {
			return false
		}
		did = true
	}
	for _, a := range d.Actions {
		if a.Kind.OnNode() {
			return false
		}
	}
	return did
}

// prepare opens secrets and renders again when the target is another.
func (c *clusterLoop) prepare(ctx context.Context, t *target) {
	if c.prepared != nil && c.prepared.target == t {
		return
	}
	if c.prepared != nil && same(c.prepared.target, t) && len(c.prepared.holds) == 0 {
		// Another head with the same target: what was opened and rendered holds.
		p := *c.prepared
		p.target = t
		c.prepared = &p
		return
	}
	c.prepared = prepare(ctx, t, c.keys)
}

// same tells whether two targets are the same objects: the same commit's fleet.
func same(a, b *target) bool { return a.commit == b.commit && a.cluster == b.cluster }

// desired maps the target for this moment (windows, inventory) and sets what the observer reads.
func (c *clusterLoop) desired(ctx context.Context, now time.Time) plan.Desired {
	inv := c.inv.Cluster(c.name)
	baseline := func(commit string) map[string]string { return c.commits.baseline(ctx, commit, c.name) }
	d := desired(c.prepared, inv, baseline, c.observer, now)
	if err := c.inv.Holding(now); err != nil && inv != nil {
		d.Holds = append(d.Holds, plan.Hold{Reason: state.ReasonFenced, Message: err.Error()})
	}
	var key []byte
	if keys := c.keys.MACKeys("fingerprint"); len(keys) > 0 {
		key = keys[0]
	}
	c.spec = nodes(c.prepared, &d, inv, c.policy, key)
	return d
}

func (c *clusterLoop) observe(ctx context.Context, which []string) map[string]plan.MachineFacts {
	if which == nil {
		which = []string{} // nil would read every machine
	}
	facts, err := c.nodes.Observe(ctx, c.spec, which)
	if err != nil {
		c.log.Error("read the nodes", "cluster", c.name, "error", err)
		return map[string]plan.MachineFacts{}
	}
	return facts
}

// maxLooks bounds how often one pass looks again because a decision asked for newer facts.
const maxLooks = 3

// decide asks the core, reads what it wants to see, and asks again.
func (c *clusterLoop) decide(ctx context.Context, d plan.Desired, facts map[string]plan.MachineFacts,
) (plan.Decision, map[string]plan.MachineFacts, plan.Desired) {
	for look := 0; ; look++ {
		now := c.now()
		decision := plan.Next(plan.Input{
			Now: now, Desired: d, Observed: facts, Inventory: c.inv.Cluster(c.name), Policy: c.policy,
		})
		var which []string
		for _, a := range decision.Actions {
			if a.Kind == plan.DoObserve {
				which = append(which, a.Machine)
			}
		}
		if len(which) == 0 || look == maxLooks || c.prepared.bundle == nil || ctx.Err() != nil {
			return decision, facts, d
		}
		facts = c.observe(ctx, which)
		d = c.desired(ctx, c.now())
	}
}

// act carries out what the decision wants beside reading.
func (c *clusterLoop) act(ctx context.Context, d *plan.Desired, decision plan.Decision) ([]act.Result, []state.Event) {
	var actions []plan.Action
	for _, a := range decision.Actions {
		if a.Kind != plan.DoObserve {
			actions = append(actions, a)
		}
	}
	if len(actions) == 0 || c.inv.Holding(c.now()) != nil || ctx.Err() != nil {
		return nil, nil
	}
	// A stop must not cut a call in the middle: each has its own deadline, and what it did is recorded after it.
	results, err := c.actor.Do(context.WithoutCancel(ctx), &act.Cluster{Nodes: c.spec, Desired: d, MergedBy: c.prepared.target.mergedBy}, actions)
	if err != nil && !errors.Is(err, context.Canceled) {
		c.log.Error("write the inventory", "cluster", c.name, "error", err)
	}
	var events []state.Event
	for _, r := range results {
		c.did = c.did || r.Outcome == act.Done
		if !r.Action.Kind.OnNode() {
			continue
		}
		c.acted(c.name, string(r.Action.Kind), string(r.Outcome))
		c.touched = append(c.touched, r.Action.Machine)
		message := r.Action.Reason
		if r.Message != "" {
			message = string(r.Outcome) + ": " + r.Message
		}
		events = append(events, state.Event{
			At: c.now(), Cluster: c.name, Machine: r.Action.Machine, Reason: eventReason(r), Message: message, Commit: d.Commit,
		})
	}
	return results, events
}

// eventReason names an act and its outcome as events do: ConfigureDone, RebootUnknown.
func eventReason(r act.Result) string {
	out := ""
	up := true
	for _, ch := range string(r.Action.Kind) + "-" + string(r.Outcome) {
		if ch == '-' {
			up = true
			continue
		}
		if up && ch >= 'a' && ch <= 'z' {
			ch -= 'a' - 'A'
		}
		up = false
		out += string(ch)
	}
	return out
}

func (c *clusterLoop) publish(t *target, d plan.Desired, decision plan.Decision, facts map[string]plan.MachineFacts,
	events []state.Event,
) {
	now := c.now()
	next, fresh := fold.Fold(c.last, fold.Input{Now: now, Desired: d, Observed: facts, Decision: decision, Events: events})
	c.last = next
	for _, e := range fresh {
		c.log.Info(e.Message, "cluster", e.Cluster, "machine", e.Machine, "reason", e.Reason, "commit", short(e.Commit))
	}
	c.say(t, now, next, fresh, facts)
}

// pause until the next pass: what the decision asks for, or when the next machine is due, whatever is sooner.
// A suspended cluster is not read, so nothing of it is due.
func (c *clusterLoop) pause(suspended bool, decision plan.Decision, results []act.Result) time.Duration {
	next := decision.LookAgain
	if next <= 0 {
		next = time.Minute
	}
	if c.prepared.bundle != nil && !suspended {
		now := c.now()
		due, at := c.nodes.Due(c.spec, now)
		switch {
		case len(due) > 0:
			next = min(next, c.policy.Poll)
		case !at.IsZero():
			next = min(next, at.Sub(now))
		}
	}
	for _, r := range results {
		if r.Outcome == act.Done {
			next = min(next, c.policy.Poll)
		}
	}
	return max(next, minPause)
}
