// Package wire is the network between the lab's nodes and to them: who may talk to whom.
//
// All of the lab runs on loopback, where nothing ever fails. A Net holds the faults between
// named ends (a node's name, or Outside for everybody else), and each Gate is a listener that
// obeys them: it drops or freezes connections that exist and refuses or swallows new ones.
package wire

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Outside is the end that is no node: Ichor, talosctl, a test.
const Outside = ""

// Any stands for every end in a rule.
const Any = "*"

// Mode says what happens to traffic from one end to another.
type Mode int

// Modes, from healthy to gone.
const (
	// Open lets traffic pass.
	Open Mode = iota
	// Mute lets in what is sent and loses every answer: a call takes effect, and the caller never
	// hears. New connections time out when the rule is for everybody.
	Mute
	// Freeze holds everything without losing it, as a machine that is paused does: what was sent
	// meanwhile is read, and answered, after the thaw.
	Freeze
	// Hang completes the TCP handshake and then never answers, as a frozen process does.
	Hang
	// Blackhole swallows everything: connects time out, connections that exist go silent.
	Blackhole
	// Refuse answers new connections with a reset and resets those that exist.
	Refuse
)

// String names the mode as the command line does.
func (m Mode) String() string {
	return [...]string{"open", "mute", "freeze", "hang", "blackhole", "refuse"}[m]
}

type pair struct{ src, dst string }

// Net holds the faults between ends. The zero value isn't usable; call New.
type Net struct {
	mu     sync.Mutex
	rules  map[pair]Mode
	delay  map[pair]time.Duration
	astray map[string]netip.Addr
	names  map[netip.Addr]string
	gates  map[*Gate]struct{}
}

// New returns a network without faults.
func New() *Net {
	return &Net{
		rules:  map[pair]Mode{},
		delay:  map[pair]time.Duration{},
		astray: map[string]netip.Addr{},
		names:  map[netip.Addr]string{},
		gates:  map[*Gate]struct{}{},
	}
}

// Name says which node owns an address, so that a connection's source is known.
func (n *Net) Name(addr netip.Addr, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[addr] = node
}

// Forget says that nobody owns an address any more.
func (n *Net) Forget(addr netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.names, addr)
}

// NameOf returns the node that owns the address, or Outside.
func (n *Net) NameOf(addr netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names[addr]
}

// Set makes a rule for traffic from src to dst; either may be Any. Open removes the rule.
func (n *Net) Set(src, dst string, m Mode) {
	n.mu.Lock()
	if m == Open {
		delete(n.rules, pair{src, dst})
	} else {
		n.rules[pair{src, dst}] = m
	}
	n.mu.Unlock()
	n.apply()
}

// Cut makes a rule for both directions between a node and everybody.
func (n *Net) Cut(node string, m Mode) {
	n.mu.Lock()
	for _, p := range []pair{{Any, node}, {node, Any}} {
		if m == Open {
			delete(n.rules, p)
		} else {
			n.rules[p] = m
		}
	}
	n.mu.Unlock()
	n.apply()
}

// Slow delays whatever dst receives from src by d; either may be Any. Zero heals it.
func (n *Net) Slow(src, dst string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d <= 0 {
		delete(n.delay, pair{src, dst})
		return
	}
	n.delay[pair{src, dst}] = d
}

// Divert passes connections to a node on to the same port of another address, as a wrong route or
// a second machine with the node's address does. An invalid address ends it. Connections that
// exist break.
func (n *Net) Divert(node string, to netip.Addr) {
	n.mu.Lock()
	delete(n.astray, node)
	if to.IsValid() {
		n.astray[node] = to
	}
	gates := n.gatesOf(node)
	n.mu.Unlock()
	for _, g := range gates {
		g.resetAll()
	}
}

func (n *Net) divertedTo(node string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to, ok := n.astray[node]
	return to, ok
}

// gatesOf is called with n.mu held.
func (n *Net) gatesOf(node string) []*Gate {
	var out []*Gate
	for g := range n.gates {
		if g.node == node {
			out = append(out, g)
		}
	}
	return out
}

// Heal removes every fault that names the node.
func (n *Net) Heal(node string) {
	n.mu.Lock()
	for p := range n.rules {
		if p.src == node || p.dst == node {
			delete(n.rules, p)
		}
	}
	for p := range n.delay {
		if p.src == node || p.dst == node {
			delete(n.delay, p)
		}
	}
	_, diverted := n.astray[node]
	n.mu.Unlock()
	if diverted {
		n.Divert(node, netip.Addr{})
	}
	n.apply()
}

// Thaw removes the rules that freeze the node, and no other.
func (n *Net) Thaw(node string) {
	n.mu.Lock()
	for p, m := range n.rules {
		if m == Freeze && (p.src == node || p.dst == node) {
			delete(n.rules, p)
		}
	}
	n.mu.Unlock()
	n.apply()
}

// Verdict says what happens to traffic from src to dst: the worst rule that matches.
func (n *Net) Verdict(src, dst string) Mode {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.verdict(src, dst)
}

func (n *Net) verdict(src, dst string) Mode {
	if src == dst {
		return Open // a node talks to itself over its own loopback
	}
	worst := Open
	for _, p := range []pair{{src, dst}, {Any, dst}, {src, Any}, {Any, Any}} {
		if m := n.rules[p]; m > worst {
			worst = m
		}
	}
	return worst
}

// closed is the rule for everybody: it decides whether the sockets of dst listen at all.
func (n *Net) closed(dst string) Mode {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rules[pair{Any, dst}]
}

func (n *Net) delayOf(src, dst string) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.delay) == 0 || src == dst {
		return 0
	}
	var longest time.Duration
	for _, p := range []pair{{src, dst}, {Any, dst}, {src, Any}, {Any, Any}} {
		longest = max(longest, n.delay[p])
	}
	return longest
}

func (n *Net) apply() {
	n.mu.Lock()
	gates := make([]*Gate, 0, len(n.gates))
	for g := range n.gates {
		gates = append(gates, g)
	}
	n.mu.Unlock()
	for _, g := range gates {
		g.reconsider()
	}
}

// Dialer returns a dialer whose connections come from the node's own address.
func Dialer(addr netip.Addr) *net.Dialer {
	return &net.Dialer{
		Timeout:   5 * time.Second,
		LocalAddr: &net.TCPAddr{IP: addr.AsSlice()},
	}
}
