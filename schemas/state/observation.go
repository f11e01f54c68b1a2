package state

import (
	"fmt"
	"time"
)

// Observation is what was last seen of the fleet, for a check to put beside its verdict: as warnings with their age,
// never as part of it. The daemon has it from its own loops, ichor check from the status branch.
type Observation struct {
	// Now is when the check is made; the ages in messages are counted from it.
	Now time.Time
	// Clusters by name. One that is missing was never looked at.
	Clusters map[string]ObservedCluster
}

// ObservedCluster is what was last seen of one cluster.
type ObservedCluster struct {
	// At is when it was looked at. Zero is unknown.
	At time.Time
	// Voters and Learners that etcd listed; both 0 where it was not asked or gave no answer.
	Voters, Learners int
	// Held is what stops every act on the cluster, "" nothing.
	Held string
	// Machines by name.
	Machines map[string]ObservedMachine
}

// ObservedMachine is what was last seen of one machine.
type ObservedMachine struct {
	// TalosVersion that it runs, "" where that is not known.
	TalosVersion string
	// SilentSince is when it stopped answering; zero where it answers or was never asked.
	SilentSince time.Time
	// Reason and Message why it is not ready, "" where it is.
	Reason, Message string
}

// Cluster gives what was seen of a cluster; false where nothing was.
func (o *Observation) Cluster(name string) (ObservedCluster, bool) {
	if o == nil {
		return ObservedCluster{}, false
	}
	c, ok := o.Clusters[name]
	return c, ok
}

// Age says when something was seen: "seen 2026-11-30 19:40 UTC, 12m before this check".
func (o *Observation) Age(at time.Time) string {
	if at.IsZero() {
		return "at an unknown time"
	}
	text := "seen " + at.UTC().Format("2006-01-02 15:04 UTC")
	if o == nil || o.Now.IsZero() || o.Now.Before(at) {
		return text
	}
	return text + ", " + roundAge(o.Now.Sub(at)) + " before this check"
}

// roundAge prints a duration by its largest unit.
func roundAge(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
