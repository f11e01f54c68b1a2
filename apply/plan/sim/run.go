package sim

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// Result of one run.
type Result struct {
	Seed     uint64
	Problems []string
	// Log is the tail of what happened.
	Log []string
	// Shape says how many control planes and workers there were, Bootstraps how often etcd was bootstrapped.
	Shape string
	// Sent counts the configurations that reached nodes, Commits the heads.
	Sent, Commits int
}

// Failed tells whether an invariant was broken or the fleet did not converge.
func (r Result) Failed() bool { return len(r.Problems) > 0 }

// String prints a failure as it is reported.
func (r Result) String() string {
	return fmt.Sprintf("seed %d (%s): %s\n%s", r.Seed, r.Shape, strings.Join(r.Problems, "; "), strings.Join(r.Log, "\n"))
}

// Options of a run.
type Options struct {
	// Next is the decision core; nil is plan.Next.
	Next func(plan.Input) plan.Decision
	// FaultTime is how long faults are injected, in virtual time; 0 is 40 minutes.
	FaultTime time.Duration
	// Patience is how long the fleet may take to converge afterwards; 0 is three hours.
	Patience time.Duration
}

// Run one seed.
func Run(seed uint64, o Options) Result {
	if o.Next == nil {
		o.Next = plan.Next
	}
	if o.FaultTime == 0 {
		o.FaultTime = 40 * time.Minute
	}
	if o.Patience == 0 {
		o.Patience = 3 * time.Hour
	}
	f := newFleet(seed)
	f.faults = true
	r := &runner{f: f, next: o.Next, active: f.start("ichor-1")}
	for end := f.now.Add(o.FaultTime); f.now.Before(end) && len(f.problems) == 0; {
		r.pass()
	}
	f.faults = false
	f.finalHead()
	for end, skip := f.now.Add(o.Patience), f.now.Add(o.Patience/4); f.now.Before(end) && len(f.problems) == 0; {
		if r.pass(); r.done {
			break
		}
		if f.now.After(skip) && f.desired.SkipKubernetesGates == "" {
			// two control planes broken before they joined keep each other waiting: a person gives the reason
			f.desired.SkipKubernetesGates = "two kubelets are down"
			f.commit("skip the Kubernetes gates")
		}
	}
	if len(f.problems) == 0 && !r.done {
		f.violated("the fleet did not converge: %+v", r.last.Progress)
		for _, m := range r.last.Machines {
			f.note("%s: %s: %s", m.Name, m.Reason, m.Message)
		}
	}
	res := Result{Seed: seed, Problems: f.problems, Log: f.log, Shape: f.shape(), Commits: f.commits}
	for _, n := range f.nodes {
		res.Sent += n.sent
	}
	return res
}

func newFleet(seed uint64) *fleet {
	f := &fleet{
		rnd: rand.New(rand.NewPCG(seed, 7)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		wishes: map[string]config{}, inv: &state.ClusterInventory{},
	}
	cps := 1 + f.rnd.IntN(5)
	workers := f.rnd.IntN(4)
	minor := 13 + f.rnd.IntN(2)
	f.desired = plan.Desired{
		Name: "c1", CheckPassed: true, TalosVersion: "v1.13.5", KubernetesVersion: "v1.36.0", Contract: "v1.13",
		ControlPlaneCount: cps, SecretsFingerprint: "s", EncryptedFingerprint: "e", WorkerMaxUnavailable: 1 + f.rnd.IntN(2),
		Settle: f.between(time.Second, 30*time.Second), Grace: time.Minute, Interval: 2 * time.Minute, Reboot: "auto", InWindow: true,
		Try: f.chance(0.7),
	}
	for k := range cps + workers {
		n := &node{name: fmt.Sprintf("cp%d", k+1), role: plan.RoleControlPlane, minor: minor}
		if k >= cps {
			n.name, n.role = fmt.Sprintf("w%d", k-cps+1), plan.RoleWorker
		}
		n.uuid = "uuid-" + n.name
		f.nodes = append(f.nodes, n)
		f.wishes[n.name] = config{}
	}
	f.commit("the fleet")
	return f
}

func (f *fleet) shape() string {
	cps := f.count(plan.RoleControlPlane)
	return fmt.Sprintf("%d control planes, %d workers, Talos 1.%d, try %v, settle %s", cps, len(f.nodes)-cps, f.nodes[0].minor, f.desired.Try, f.desired.Settle)
}

// commit makes the present wishes the head.
func (f *fleet) commit(why string) {
	f.commits++
	f.desired.Commit = fmt.Sprintf("commit-%d", f.commits)
	f.desired.Machines = nil
	for _, n := range f.nodes {
		wish := f.wishes[n.name]
		m := plan.DesiredMachine{
			Name: n.name, Role: n.role, Approval: "approved", Endpoint: n.name + ":50000", Hostname: n.name, UUID: n.uuid,
			Digest: wish.digest(), CheckedDigest: wish.digest(),
		}
		f.desired.Machines = append(f.desired.Machines, m)
	}
	f.note("head is %s: %s %v", f.desired.Commit, why, f.wishes)
}

// runner drives one or two processes.
type runner struct {
	f      *fleet
	next   func(plan.Input) plan.Decision
	active *ichor
	// stale is a process that was replaced and does not know it yet.
	stale *ichor
	last  plan.Decision
	done  bool
	count int
}

// pass is one pass of one process, and the time until the next.
func (r *runner) pass() {
	f := r.f
	if f.faults && f.chance(0.01) && r.stale == nil && !r.active.dirty && !f.now.Before(f.pushFail) {
		r.stale = r.active
		r.active = f.start(fmt.Sprintf("ichor-%d", f.epoch+1))
	}
	i := r.active
	if r.stale != nil && f.chance(0.5) {
		i = r.stale
	}
	look := r.onePass(i)
	f.checkAlways()
	f.advance(f.between(time.Second, max(time.Second, min(look, 10*time.Second))))
}

// onePass returns when to look again; a process that is killed starts again.
func (r *runner) onePass(i *ichor) (look time.Duration) {
	look = time.Second
	defer func() {
		switch p := recover(); p.(type) {
		case nil:
		case crashed:
			r.f.note("%s is killed", i.name)
			if i == r.stale {
				r.stale = nil
			} else {
				r.active = i.restart()
			}
		case fenced:
			r.f.note("%s is fenced", i.name)
			r.stale = nil
		default:
			panic(p)
		}
	}()
	d := r.decide(i)
	looked := false
	for _, a := range d.Actions {
		if a.Kind == plan.DoObserve {
			i.observe(a.Machine)
			looked = true
		}
	}
	if looked {
		d = r.decide(i)
	}
	i.do(d)
	if i == r.active {
		r.last = d
		r.done = !r.f.faults && d.Progress.State == plan.ProgressDone && len(d.Actions) == 0 && r.f.converged()
	}
	return d.LookAgain
}

// decide calls Next, now and then twice, to see that it answers the same.
func (r *runner) decide(i *ichor) plan.Decision {
	in := i.input()
	i.decided = in
	for k := range in.Desired.Machines {
		m := &in.Desired.Machines[k]
		if e := in.Inventory.Machines[m.Name]; e != nil {
			m.BaselineDigest = e.InForceDigest // the tool does not change in here
		}
	}
	d := r.next(in)
	r.count++
	if r.count%16 == 0 && !reflect.DeepEqual(d, r.next(in)) {
		r.f.violated("the same input gave another decision")
	}
	if d.LookAgain <= 0 {
		r.f.violated("the decision never looks again")
	}
	return d
}

// converged is the truth: every node runs and stores the wish, booted with it, etcd whole.
func (f *fleet) converged() bool {
	for _, n := range f.nodes {
		wish := f.wishes[n.name]
		if !n.configured || n.running != wish || n.stored != wish || n.booted.Reboot != wish.Reboot || !n.up(f.now) {
			return false
		}
		if n.role == plan.RoleControlPlane && (n.member == 0 || n.learner) {
			return false
		}
	}
	return f.quorum()
}
