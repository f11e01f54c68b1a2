package lab

import (
	"fmt"
	"net/netip"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// find returns a node or says that there is none.
func (l *Lab) find(name string) (*node.Node, error) {
	if n := l.Node(name); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("find node %q: the lab has none of that name", name)
}

// Cut takes the node's network away, in both directions, etcd's traffic included: connections
// that exist go silent, new ones time out. What a pulled cable does.
func (l *Lab) Cut(name string) error { return l.cut(name, wire.Blackhole) }

// Refuse makes the node's ports refuse connections and breaks those that exist; its own calls to
// others fail too. What a host without the software does.
func (l *Lab) Refuse(name string) error { return l.cut(name, wire.Refuse) }

func (l *Lab) cut(name string, m wire.Mode) error {
	if _, err := l.find(name); err != nil {
		return err
	}
	l.net.Cut(name, m)
	l.say(name, "cut", m.String())
	return nil
}

// CutBetween cuts the traffic from one node to another, one way; wire.Outside is everybody who is
// no node, wire.Any everybody. Cut both ways with two calls. The way is that of the one who begins
// to talk: what the other calls still gets through, as with a firewall.
func (l *Lab) CutBetween(from, to string) error {
	if err := l.ends(from, to); err != nil {
		return err
	}
	l.net.Set(from, to, wire.Blackhole)
	l.say(to, "cut", "from "+from)
	return nil
}

// ends checks the two ends of a rule; one of them at least is a node.
func (l *Lab) ends(from, to string) error {
	nodes := 0
	for _, end := range []string{from, to} {
		if end == wire.Any || end == wire.Outside {
			continue
		}
		nodes++
		if _, err := l.find(end); err != nil {
			return err
		}
	}
	if nodes == 0 || from == to {
		return fmt.Errorf("set a fault between %q and %q: two ends are wanted, one of them a node", from, to)
	}
	return nil
}

// Mute loses all that the node answers, to everybody: what is sent on connections that exist
// arrives and takes effect. New connections time out.
func (l *Lab) Mute(name string) error {
	if _, err := l.find(name); err != nil {
		return err
	}
	l.net.Set(wire.Any, name, wire.Mute)
	l.say(name, "mute", "")
	return nil
}

// Freeze stops the machine where it is, as a hypervisor's pause does. Nothing is lost: calls that
// were sent meanwhile take effect after Heal, long after their callers gave up. (etcd's member
// in it is cut off and not stopped: it notices that it is no leader before the thaw.)
func (l *Lab) Freeze(name string) error {
	n, err := l.find(name)
	if err != nil {
		return err
	}
	n.Freeze()
	l.net.Cut(name, wire.Freeze)
	l.say(name, "freeze", "")
	return nil
}

// HangBetween makes what one node begins with another be accepted and never answered.
func (l *Lab) HangBetween(from, to string) error {
	if err := l.ends(from, to); err != nil {
		return err
	}
	l.net.Set(from, to, wire.Hang)
	l.say(to, "hang", "from "+from)
	return nil
}

// Hang makes the node accept connections and never answer, to everybody.
func (l *Lab) Hang(name string) error {
	if _, err := l.find(name); err != nil {
		return err
	}
	l.net.Set(wire.Any, name, wire.Hang)
	l.say(name, "hang", "")
	return nil
}

// Slow delays all that the node receives.
func (l *Lab) Slow(name string, d time.Duration) error {
	if _, err := l.find(name); err != nil {
		return err
	}
	l.net.Slow(wire.Any, name, d)
	l.say(name, "slow", d.String())
	return nil
}

// SlowBetween delays what one end receives from the other.
func (l *Lab) SlowBetween(from, to string, d time.Duration) error {
	if err := l.ends(from, to); err != nil {
		return err
	}
	l.net.Slow(from, to, d)
	l.say(to, "slow", d.String()+" from "+from)
	return nil
}

// Heal ends every fault of the node that lasts: of the network, a freeze, its refusal of
// configurations, full disks, a wrong clock, and an impersonation. Hooks stay.
func (l *Lab) Heal(name string) error {
	n, err := l.find(name)
	if err != nil {
		return err
	}
	l.net.Heal(name)
	n.Thaw()
	n.Refuse("")
	n.FillDisk("")
	n.SetClock(0, true)
	l.say(name, "heal", "")
	return n.Unmask()
}

// Reboot power-cycles the node. A power cycle ends a freeze.
func (l *Lab) Reboot(name string) error { return l.power(name, (*node.Node).Reboot) }

// Kill takes the node's power away until Start; etcd stops where it is.
func (l *Lab) Kill(name string) error { return l.power(name, (*node.Node).Kill) }

// Start powers the node on.
func (l *Lab) Start(name string) error { return l.do(name, (*node.Node).Start) }

// Wipe loses the node's disks: it comes back in maintenance mode.
func (l *Lab) Wipe(name string) error { return l.power(name, (*node.Node).Wipe) }

func (l *Lab) power(name string, f func(*node.Node) error) error {
	return l.do(name, func(n *node.Node) error {
		err := f(n)
		l.net.Thaw(name)
		return err
	})
}

// Move gives the node another loopback address.
func (l *Lab) Move(name string, addr netip.Addr) error {
	for _, n := range l.Nodes() {
		if n.Name() != name && n.Spec().Address == addr {
			return fmt.Errorf("move node %s: node %s has address %s", name, n.Name(), addr)
		}
	}
	return l.do(name, func(n *node.Node) error { return n.Move(addr) })
}

// Swap lets two nodes change their addresses, as DHCP leases do.
func (l *Lab) Swap(a, b string) error {
	na, err := l.find(a)
	if err != nil {
		return err
	}
	nb, err := l.find(b)
	if err != nil {
		return err
	}
	if a == b {
		return fmt.Errorf("swap node %s with itself", a)
	}
	return node.Swap(na, nb)
}

// Misroute lets another node of the lab answer at this one's address, with its own certificate
// and disks, until Heal: a wrong route, or an address given out twice.
func (l *Lab) Misroute(name, other string) error {
	n, err := l.find(other)
	if err != nil {
		return err
	}
	if _, err := l.find(name); err != nil {
		return err
	}
	if name == other {
		return fmt.Errorf("let node %s answer for itself: another node is wanted", name)
	}
	l.net.Divert(name, n.Spec().Address)
	l.say(name, "impersonate", other)
	return nil
}

// Twin adds a second machine at another address that runs with the node's configuration, its name
// included, on disks of its own: somebody cloned a machine, or imaged a replacement too early. A
// control plane's twin takes the first one's place in etcd.
func (l *Lab) Twin(name, twin string, addr netip.Addr) (*node.Node, error) {
	n, err := l.find(name)
	if err != nil {
		return nil, err
	}
	cfg := n.ConfigBytes()
	if len(cfg) == 0 {
		return nil, fmt.Errorf("add a twin of node %s: it has no configuration", name)
	}
	spec := n.Spec()
	return l.AddConfigured(node.Spec{Name: twin, Address: addr, TalosVersion: spec.TalosVersion, Disks: spec.Disks}, cfg)
}

// FillDisk makes a partition ("STATE" or "EPHEMERAL") full until Heal: nothing more can be written to it.
func (l *Lab) FillDisk(name, label string) error {
	if label != "STATE" && label != "EPHEMERAL" {
		return fmt.Errorf("fill the disk of node %s: partition %q: want STATE or EPHEMERAL", name, label)
	}
	return l.do(name, func(n *node.Node) error {
		n.FillDisk(label)
		return nil
	})
}

// SetClock makes the node's clock wrong by an offset until Heal. synced says whether the node
// believes in it (a wrong time server) or knows that it has no time (none).
func (l *Lab) SetClock(name string, offset time.Duration, synced bool) error {
	return l.do(name, func(n *node.Node) error {
		n.SetClock(offset, synced)
		return nil
	})
}

// Impersonate lets another machine answer at the node's address until Heal.
func (l *Lab) Impersonate(name string, m node.Mask) error {
	return l.do(name, func(n *node.Node) error { return n.Impersonate(m) })
}

// RefuseConfig makes the node refuse every configuration with the given reason.
func (l *Lab) RefuseConfig(name, reason string) error {
	return l.do(name, func(n *node.Node) error {
		n.Refuse(reason)
		return nil
	})
}

func (l *Lab) do(name string, f func(*node.Node) error) error {
	n, err := l.find(name)
	if err != nil {
		return err
	}
	return f(n)
}

func (l *Lab) say(name, kind, detail string) {
	l.event(node.Event{Time: time.Now().UTC(), Node: name, Kind: kind, Detail: detail})
}
