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
// no node. Cut both ways with two calls.
func (l *Lab) CutBetween(from, to string) error {
	l.net.Set(from, to, wire.Blackhole)
	l.say(to, "cut", "from "+from)
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
	l.net.Slow(name, d)
	l.say(name, "slow", d.String())
	return nil
}

// Heal ends every network fault of the node, its refusal of configurations, and an impersonation.
func (l *Lab) Heal(name string) error {
	n, err := l.find(name)
	if err != nil {
		return err
	}
	l.net.Heal(name)
	n.Refuse("")
	l.say(name, "heal", "")
	return n.Unmask()
}

// Reboot power-cycles the node.
func (l *Lab) Reboot(name string) error { return l.do(name, (*node.Node).Reboot) }

// Kill takes the node's power away until Start; etcd stops where it is.
func (l *Lab) Kill(name string) error { return l.do(name, (*node.Node).Kill) }

// Start powers the node on.
func (l *Lab) Start(name string) error { return l.do(name, (*node.Node).Start) }

// Wipe loses the node's disks: it comes back in maintenance mode.
func (l *Lab) Wipe(name string) error { return l.do(name, (*node.Node).Wipe) }

// Move gives the node another loopback address.
func (l *Lab) Move(name string, addr netip.Addr) error {
	for _, n := range l.Nodes() {
		if n.Name() != name && n.Spec().Address == addr {
			return fmt.Errorf("move node %s: node %s has address %s", name, n.Name(), addr)
		}
	}
	return l.do(name, func(n *node.Node) error { return n.Move(addr) })
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
	if l.opts.OnEvent != nil {
		l.opts.OnEvent(node.Event{Time: time.Now().UTC(), Node: name, Kind: kind, Detail: detail})
	}
}
