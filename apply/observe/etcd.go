package observe

import (
	"context"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/apply/etcd"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
)

// etcd reads the machine's own member: through the Talos API, and of etcd itself where its port answers. Where the
// service is not running nothing is asked: those calls hang until their deadline.
func (r *read) etcd(ctx context.Context, c *talos.Client) error {
	f := &plan.EtcdFact{At: r.facts.At}
	service, ok := r.facts.Services["etcd"]
	if !ok && r.facts.Services == nil {
		return nil
	}
	f.State = service.State
	r.facts.Etcd = f
	if !service.Running {
		return nil
	}
	var (
		wg       sync.WaitGroup
		st       *talos.EtcdStatus
		direct   *etcd.Look
		resource string
		stErr    error
		listErr  error
		alarmErr error
	)
	wg.Go(func() { st, stErr = c.EtcdStatus(ctx) })
	wg.Go(func() { f.Members, listErr = c.EtcdMembers(ctx) })
	wg.Go(func() { f.Alarms, alarmErr = c.EtcdAlarms(ctx) })
	wg.Go(func() { resource, _ = c.MemberID(ctx) })
	wg.Go(func() { direct, _ = r.cluster.etcd.Look(ctx, r.machine.Endpoint) })
	wg.Wait()
	for _, err := range []error{stErr, listErr, alarmErr} {
		if talos.Is(err, talos.Unreachable) {
			return err
		}
	}
	f.MemberID = resource
	if st != nil {
		f.MemberID, f.Leader, f.Learner, f.AppliedIndex, f.Errors = st.MemberID, st.Leader, st.Learner, st.AppliedIndex, st.Errors
	}
	linearizable(f, listErr, alarmErr)
	if direct != nil {
		worse(f, direct)
	}
	r.facts.Identity.MemberID = f.MemberID
	return nil
}

// linearizable: the member list that Talos gives is a linearizable read through the node's own member. An alarm list
// that can't be read is said, for an alarm may be set.
func linearizable(f *plan.EtcdFact, listErr, alarmErr error) {
	if talos.KindOf(listErr) != talos.Learner {
		ok := listErr == nil
		f.LinearizableRead = &ok
	}
	if alarmErr != nil && !f.Learner && talos.KindOf(alarmErr) != talos.Learner {
		f.Errors = append(f.Errors, "its alarms can't be read")
	}
}

// worse joins what etcd itself says: the worse of the two counts.
func worse(f *plan.EtcdFact, direct *etcd.Look) {
	f.Disagrees = etcd.Disagreement(f, direct)
	if !direct.LinearizableRead && !direct.Learner {
		no := false
		f.LinearizableRead = &no
	}
	f.Alarms = union(f.Alarms, direct.Alarms)
	f.Errors = union(f.Errors, direct.Errors)
}

func union(a, b []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, list := range [][]string{a, b} {
		for _, s := range list {
			if !seen[s] {
				seen[s] = true
				out = append(out, s)
			}
		}
	}
	return out
}

// Reads of indexes must be indexApart to show that a member keeps up (SPEC section 3); those of looks before count while
// they are no older than a fact may be. Samples are kept indexSpacing apart, so that few are enough.
const (
	indexApart   = time.Second
	indexMax     = 10 * time.Second
	indexSpacing = indexApart / 2
)

// catchUp says of each member that was read whether it keeps up with the leader: its applied index is near the
// leader's in two looks at least a second apart. The first may be that of a look before.
func (o *Observer) catchUp(ctx context.Context, c *cluster, spec *Cluster, reads []*read) {
	var members []*read
	for _, r := range reads {
		if e := r.facts.Etcd; r.facts.Reach == plan.ReachOK && e != nil && e.MemberID != "" && e.Leader != "" {
			members = append(members, r)
		}
	}
	if len(members) == 0 {
		return
	}
	at := o.opt.Now()
	index := o.indexes(ctx, c, spec, members, true)
	if wait := o.wait(members, at); wait > 0 {
		for _, r := range members {
			r.remember(at, index)
		}
		if !sleep(ctx, wait) {
			return
		}
		at = o.opt.Now()
		index = o.indexes(ctx, c, spec, members, false)
	}
	for _, r := range members {
		e := r.facts.Etcd
		e.AppliedIndex, e.LeaderIndex = index[e.MemberID], index[e.Leader]
		e.CaughtUp = caughtUp(r.earlier(at), r.sample(at, index), spec.MaxIndexLag)
		r.remember(at, index)
	}
}

// wait says how long until each member has a sample that is old enough.
func (o *Observer) wait(members []*read, now time.Time) time.Duration {
	var wait time.Duration
	for _, r := range members {
		if r.earlier(now) != (sample{}) {
			continue
		}
		own := indexApart
		for _, s := range r.indexes {
			if s.member == r.facts.Etcd.MemberID && s.applied > 0 && s.leader > 0 && !s.at.After(now) && now.Sub(s.at) < indexApart {
				own = min(own, indexApart-now.Sub(s.at))
			}
		}
		wait = max(wait, own)
	}
	return wait
}

func (r *read) sample(at time.Time, index map[string]uint64) sample {
	e := r.facts.Etcd
	return sample{at: at, member: e.MemberID, applied: index[e.MemberID], leader: index[e.Leader]}
}

// earlier gives the newest sample that is old enough, the zero one where there is none.
func (r *read) earlier(now time.Time) sample {
	var best sample
	for _, s := range r.indexes {
		if age := now.Sub(s.at); s.member == r.facts.Etcd.MemberID && s.applied > 0 && s.leader > 0 && age >= indexApart && age <= indexMax && s.at.After(best.at) {
			best = s
		}
	}
	return best
}

// remember keeps a sample, and drops those that are too old. The list is not shared with the look before.
func (r *read) remember(at time.Time, index map[string]uint64) {
	var keep []sample
	for _, s := range r.indexes {
		if at.Sub(s.at) <= indexMax {
			keep = append(keep, s)
		}
	}
	if n := len(keep); n == 0 || at.Sub(keep[n-1].at) >= indexSpacing {
		keep = append(keep, r.sample(at, index))
	}
	r.indexes = keep
}

// caughtUp is nil where one of the four indexes is not known.
func caughtUp(a, b sample, lag uint64) *bool {
	for _, s := range []sample{a, b} {
		if s.applied == 0 || s.leader == 0 {
			return nil
		}
	}
	ok := a.applied+lag >= a.leader && b.applied+lag >= b.leader
	return &ok
}

// indexes gives the applied index by member ID of all control planes that answer: those that were read, as read just
// now where fresh says so, and the others, among which the leader may be.
func (o *Observer) indexes(ctx context.Context, c *cluster, spec *Cluster, members []*read, fresh bool) map[string]uint64 {
	out := map[string]uint64{}
	done := map[string]bool{}
	if fresh {
		for _, r := range members {
			out[r.facts.Etcd.MemberID] = r.facts.Etcd.AppliedIndex
			done[r.machine.Name] = true
		}
	}
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	for i := range spec.Machines {
		m := &spec.Machines[i]
		if m.Role != plan.RoleControlPlane || done[m.Name] || !runsEtcd(c.known(m).facts) && !reading(members, m.Name) {
			continue
		}
		wg.Go(func() {
			cl, err := c.talos.Secure(m.Endpoint, talos.Reader)
			if err != nil {
				return
			}
			if st, err := cl.EtcdStatus(ctx); err == nil && st != nil {
				mu.Lock()
				out[st.MemberID] = st.AppliedIndex
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return out
}

// runsEtcd: as last seen. At a member that does not run the call would hang.
func runsEtcd(f plan.MachineFacts) bool { return f.Etcd != nil && f.Etcd.MemberID != "" }

func reading(members []*read, name string) bool {
	for _, r := range members {
		if r.machine.Name == name {
			return true
		}
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
