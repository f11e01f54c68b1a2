package sim

import (
	"fmt"
	"time"
)

// config is a machine configuration as the simulation sees it: three numbers whose change is live, restarts etcd and the
// API server, or needs a reboot, and what is wrong with it.
type config struct {
	Live, Restart, Reboot int
	// Bad: "" good, refuse (the node rejects it), break (its kubelet does not come up with it), cut (it can't be
	// reached with it for a quarter of an hour, or until a try is taken back).
	Bad string
	// BadAt is the commit that made it bad.
	BadAt int
}

func (c config) digest() string {
	return fmt.Sprintf("l%d-r%d-b%d%s%d", c.Live, c.Restart, c.Reboot, c.Bad, c.BadAt)
}

// node is a machine that behaves as Talos does (facts/talos.md 1, 3, 6, 7).
type node struct {
	name, role, uuid string
	minor            int

	nodeID     string
	configured bool
	// running and stored configuration; storedShown is false after a reboot until the next apply that stores.
	running, stored config
	storedShown     bool
	// booted is the configuration of the last boot: what needs a reboot comes from it.
	booted config
	// tryEnds is when a try is taken back to tryBack; zero none.
	tryEnds time.Time
	tryBack config

	bootID int
	// downUntil: it boots, or has no power; downKind is installing, rebooting or off.
	downUntil time.Time
	downKind  string
	// restartUntil: etcd and the API server restart.
	restartUntil time.Time
	// cutUntil: Ichor does not reach it (the others do).
	cutUntil time.Time
	// badUntil: a bad configuration cuts it off, until someone helps at the console.
	badUntil time.Time
	// mended is the bad configuration for which someone helped: it does not cut the node off again.
	mended config
	// driftAt is when someone else changed it last.
	driftAt time.Time
	// otherUntil: another box answers at its address.
	otherUntil time.Time

	// member of etcd, 0 none. It survives reboots.
	member    int
	learner   bool
	joinAt    time.Time
	promoteAt time.Time

	// badAsMember: its configuration came while it was a member (before, a bad one can't be told from waiting).
	badAsMember bool
	// storedAsMember is the same of the stored one, which comes into force with a boot.
	storedAsMember bool
	// sent counts the configurations that reached it.
	sent int
}

func (n *node) up(now time.Time) bool { return !now.Before(n.downUntil) }

// etcdUp tells whether its member takes part.
func (n *node) etcdUp(now time.Time) bool {
	return n.configured && n.member != 0 && n.up(now) && !now.Before(n.restartUntil)
}

func (n *node) kubeletUp(now time.Time) bool { return n.up(now) && n.running.Bad != "break" }

func (n *node) reachable(now time.Time) bool {
	return n.up(now) && !now.Before(n.cutUntil) && !now.Before(n.badUntil)
}

func (n *node) goDown(now time.Time, d time.Duration, kind string) {
	if until := now.Add(d); until.After(n.downUntil) {
		n.downUntil, n.downKind = until, kind
	}
	n.bootID++
	if n.configured {
		// a boot takes what is stored, and ends a try
		if n.stored != n.running {
			n.badAsMember = n.storedAsMember
		}
		n.running, n.booted, n.storedShown, n.tryEnds = n.stored, n.stored, false, time.Time{}
		if n.running.Bad == "cut" && n.badAsMember && n.mended != n.running {
			n.mended = n.running
			n.badUntil = n.downUntil.Add(15 * time.Minute)
		}
	}
}

// tick takes a try back whose time is over.
func (n *node) tick(now time.Time) {
	if !n.tryEnds.IsZero() && !now.Before(n.tryEnds) {
		if n.running.Bad == "cut" {
			n.badUntil = now
		}
		n.running, n.tryEnds = n.tryBack, time.Time{}
	}
}

// needsReboot tells whether a reboot would bring anything into force.
func (n *node) needsReboot() bool {
	return n.booted.Reboot != n.running.Reboot || n.running != n.stored
}

type answer int

const (
	accepted answer = iota
	rejected
	needsReboot
)

// dryRun answers what an apply in a mode would.
func (n *node) dryRun(c config, mode string) answer {
	if c.Bad == "refuse" {
		return rejected
	}
	if n.minor <= 13 && n.configured && mode != "staged" && c.Reboot != n.running.Reboot {
		return needsReboot
	}
	return accepted
}

// apply a configuration that passed the dry-run.
func (n *node) apply(now time.Time, c config, mode string, timeout time.Duration) {
	n.sent++
	asMember := n.member != 0 || n.role == "worker"
	if mode == "staged" {
		n.storedAsMember = asMember // what runs stays what it was
		n.stored, n.storedShown = c, true
		n.tryEnds = time.Time{}
		return
	}
	n.badAsMember = asMember
	if mode != "try" {
		n.storedAsMember = asMember
	}
	if c.Bad == "cut" {
		n.badUntil, n.mended = now.Add(15*time.Minute), c // then someone helps at the console
	}
	if c.Restart != n.running.Restart {
		n.restartUntil = now.Add(4 * time.Second)
	}
	if mode == "try" {
		n.tryBack, n.tryEnds = n.running, now.Add(timeout)
		n.running = c
		return
	}
	n.tryEnds = time.Time{}
	n.running, n.stored, n.storedShown = c, c, true
}
