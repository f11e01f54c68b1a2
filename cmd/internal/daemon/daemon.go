package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/sync/loop"
	"ichor.maesh.dev/ichor/sync/webhook"
)

// Run runs Ichor until ctx ends, or, with once, for one pass: look, check, one round for each cluster, everything said.
// An error means that it could not begin.
func Run(ctx context.Context, p *Parts, once bool) error {
	d := &daemon{p: p, loops: map[string]*runningLoop{}}
	if once {
		return d.once(ctx)
	}
	return d.run(ctx)
}

// daemon is the running whole.
type daemon struct {
	p     *Parts
	mu    sync.Mutex
	loops map[string]*runningLoop
	wg    sync.WaitGroup
	ctx   context.Context // of the clusters' loops
}

// runningLoop is a cluster's loop with its end.
type runningLoop struct {
	*clusterLoop
	cancel context.CancelFunc
	done   chan struct{}
	// ending: it was told to end, and may be in the middle of a call still.
	ending bool
}

// run starts everything and waits for the end.
func (d *daemon) run(ctx context.Context) error {
	clusters, stopClusters := context.WithCancel(ctx)
	defer stopClusters()
	d.ctx = clusters
	listeners, err := d.listen()
	if err != nil {
		return err
	}
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	d.background(background, listeners)

	r := d.p.repository(d.assign)
	ready := d.readiness(r)
	if l := listeners.metrics; l != nil {
		d.goRun(func() {
			if err := serveHTTP(background, l, d.p.Metrics.Handler(), ready); err != nil {
				d.p.Log.Error("serve metrics", "error", err)
			}
		})
	}
	stopBeat := d.beat(background, r)
	d.lookUntil(ctx, r, listeners.nudges)

	d.p.Log.Info("stopping: what is under way is finished")
	stopClusters()
	d.waitClusters()
	stopBeat()
	d.settle(context.WithoutCancel(ctx))
	stopBackground()
	d.wg.Wait()
	return nil
}

// lookUntil looks at the repository, paced, until ctx ends.
func (d *daemon) lookUntil(ctx context.Context, r *repositoryLoop, nudges <-chan struct{}) {
	pacer := &loop.Pacer{Interval: d.p.Config.Interval}
	for ctx.Err() == nil {
		err := r.look(ctx)
		pacer.Report(err)
		if r.more && err == nil {
			continue
		}
		if _, err := pacer.Wait(ctx, nudges); err != nil {
			return
		}
	}
}

// settleTime bounds the last pushes and posts of a shutdown.
const settleTime = 10 * time.Second

// settle pushes what was put, hands the inventory back and posts what is queued, as far as time allows; what is left
// survives in the state folder.
func (d *daemon) settle(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := d.p.Say.flush(limited); err != nil {
		d.p.Log.Warn("push the last pages", "error", err)
	}
	if err := d.p.Flush(limited); err != nil {
		d.p.Log.Warn("some commit statuses are still queued; the next start posts them", "error", err)
	}
	if d.p.Release != nil {
		if err := d.p.Release(limited, d.p.Now()); err != nil {
			d.p.Log.Warn("hand the inventory back", "error", err)
		}
	}
}

// listeners are what others can reach.
type listeners struct {
	metrics net.Listener
	webhook net.Listener
	handler *webhook.Handler
	nudges  <-chan struct{}
}

// listen opens the sockets before anything runs, so that a taken port is an error at the start.
func (d *daemon) listen() (listeners, error) {
	var ls listeners
	var err error
	if addr := d.p.Config.Metrics.Listen; addr != "" {
		if ls.metrics, err = net.Listen("tcp", addr); err != nil {
			return ls, fmt.Errorf("listen for metrics.listen: %w", err)
		}
	}
	if addr := d.p.Config.Webhook.Listen; addr != "" {
		ls.handler, err = webhook.New(webhook.Options{
			SecretFile: d.p.Config.Webhook.SecretFile, Repository: d.p.Config.Forge.Repository, Log: d.p.Log,
			GitLab: d.p.Config.Forge.Kind == "gitlab",
		})
		if err != nil {
			return ls, fmt.Errorf("set up the webhook: %w", err)
		}
		if ls.webhook, err = net.Listen("tcp", addr); err != nil {
			return ls, fmt.Errorf("listen for webhook.listen: %w", err)
		}
		ls.nudges = ls.handler.Nudges()
	}
	return ls, nil
}

// background runs what outlives the loops in a shutdown: posting, pushing, listening.
func (d *daemon) background(ctx context.Context, ls listeners) {
	d.goRun(func() {
		if err := d.p.Write(ctx); err != nil {
			d.p.Log.Error("write the status branch", "error", err)
		}
	})
	d.goRun(func() {
		if err := d.p.Post(ctx); err != nil {
			d.p.Log.Error("post commit statuses", "error", err)
		}
	})
	if ls.handler != nil {
		d.goRun(func() {
			if err := webhook.Serve(ctx, ls.webhook, ls.handler); err != nil && !errors.Is(err, net.ErrClosed) {
				d.p.Log.Error("serve the webhook", "error", err)
			}
		})
	}
	d.goRun(func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			d.p.Metrics.Outbox(d.p.Queued())
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// beat keeps the inventory ours until the function that it gives is called, which waits for its end: one that goes on
// would take back what is handed back.
func (d *daemon) beat(ctx context.Context, r *repositoryLoop) func() {
	limited, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.beat(limited, d.p.Config.Interval)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (d *daemon) goRun(f func()) { d.wg.Go(f) }

// readiness says whether the repository and the inventory were read.
func (d *daemon) readiness(r *repositoryLoop) func() error {
	return func() error {
		if !r.looked.Load() {
			return errors.New("the repository has not been read yet")
		}
		return nil
	}
}

// endWait is how long the repository's loop waits for the end of a cluster's: a call to a slow node may take much longer,
// and then the next look sees to it. A cluster never has two loops.
const endWait = time.Second

// over waits for the end of a loop, up to d, and tells whether it came.
func (l *runningLoop) over(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.done:
		return true
	case <-timer.C:
		return false
	}
}

// assign gives each cluster's loop its target; loops of clusters that are gone end.
func (d *daemon) assign(next map[string]*target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, l := range d.loops {
		if next[name] == nil && !l.ending {
			l.ending = true
			l.cancel()
		}
		if l.ending && l.over(endWait) {
			delete(d.loops, name)
			if next[name] == nil {
				d.p.Say.forget(name)
				d.p.forget(name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(next)) {
		l := d.loops[name]
		if l == nil {
			ctx, cancel := context.WithCancel(d.ctx)
			l = &runningLoop{clusterLoop: d.p.cluster(name), cancel: cancel, done: make(chan struct{})}
			d.loops[name] = l
			l.set(next[name])
			go func() {
				defer close(l.done)
				l.run(ctx)
			}()
			continue
		}
		if !l.ending && l.current() != next[name] {
			l.set(next[name])
		}
	}
}

func (d *daemon) waitClusters() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.loops {
		l.cancel()
		<-l.done
	}
}

// maxOnce bounds the rounds of run --once.
const maxOnce = 20

// once does one pass and says what it found.
func (d *daemon) once(ctx context.Context) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.background(background, listeners{})
	var next map[string]*target
	r := d.p.repository(func(t map[string]*target) { next = t })
	stopBeat := d.beat(background, r) // a long check must not cost the right to act
	err := r.look(ctx)
	var wg sync.WaitGroup
	for _, name := range slices.Sorted(maps.Keys(next)) {
		l := d.p.cluster(name)
		l.set(next[name])
		wg.Go(func() {
			// A pass is all that can be done now: until a round finds nothing to do but wait.
			for range maxOnce {
				if l.did = false; ctx.Err() != nil {
					return
				}
				l.pass(ctx)
				if !l.did {
					return
				}
			}
		})
	}
	wg.Wait()
	stopBeat()
	d.settle(context.WithoutCancel(ctx))
	stop()
	d.wg.Wait()
	switch {
	case r.head == nil && err != nil:
		return fmt.Errorf("look at the repository: %w", err)
	case r.head == nil && ctx.Err() == nil && r.gone:
		return fmt.Errorf("look at the repository: %s has no branch %s (--branch)", d.p.Config.Repo, d.p.Config.Branch)
	}
	return ctx.Err()
}

// cluster makes the loop of one cluster.
func (p *Parts) cluster(name string) *clusterLoop {
	l := &clusterLoop{
		name: name, log: p.Log, now: p.Now, keys: p.Keys, policy: p.Policy, observer: p.Config.Mode == "observe",
		commits: p.commits, inv: p.Journal, nodes: p.Nodes, actor: p.Actor, nudge: make(chan struct{}, 1),
		acted: p.Metrics.Action,
	}
	if p.past != nil {
		l.past = p.past
	}
	l.say = func(t *target, now time.Time, c fold.Cluster, _ []state.Event, facts map[string]plan.MachineFacts) {
		p.Say.cluster(t, now, c, facts)
	}
	return l
}

// repository makes the repository's loop.
func (p *Parts) repository(assign func(map[string]*target)) *repositoryLoop {
	return &repositoryLoop{
		log: p.Log, now: p.Now, looker: p.Looker, commits: p.commits, journal: p.Journal, say: p.Say, metrics: p.Metrics,
		branch: p.Config.Branch, only: p.Config.Clusters, assign: assign, finding: p.Finding, foreign: p.Foreign,
		accept: p.Accept,
	}
}
