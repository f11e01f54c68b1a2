package observe

import (
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
)

// Due names the machines that are to be read now, and says when the next is due (SPEC section 4, Reachability): every
// interval; from the first failure on every Retry until the grace is over; then every interval again.
func (o *Observer) Due(spec *Cluster, now time.Time) (due []string, next time.Time) {
	o.mu.Lock()
	c := o.clusters[spec.Name]
	o.mu.Unlock()
	for i := range spec.Machines {
		m := &spec.Machines[i]
		var f plan.MachineFacts
		if c != nil {
			f = c.known(m).facts
		}
		at := dueAt(f, spec)
		if !at.After(now) {
			due = append(due, m.Name)
			continue
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return due, next
}

func dueAt(f plan.MachineFacts, spec *Cluster) time.Time {
	if f.At.IsZero() {
		return time.Time{}
	}
	if f.Reach == plan.ReachUnreachable {
		over := f.Since.Add(spec.Grace)
		if f.At.Before(over) {
			// The last of these reads is not before the end of the grace, so that its end is seen.
			return f.At.Add(spec.Retry)
		}
	}
	return f.At.Add(spec.Interval)
}
