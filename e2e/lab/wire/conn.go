package wire

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection through a gate. It can be dead: reads block, and writes vanish as they do
// into a socket buffer that nobody drains. It can be mute: only the writes vanish. Both are for
// good. And it can be held: reads and writes wait, and nothing is lost.
type Conn struct {
	net.Conn
	gate   *Gate
	source atomic.Pointer[string]

	mu   sync.Mutex
	dead bool
	mute bool
	hold chan struct{} // closed when the hold ends; nil when there is none
	gone chan struct{}
	once sync.Once
}

func newConn(g *Gate, c net.Conn, source string) *Conn {
	conn := &Conn{Conn: c, gate: g, gone: make(chan struct{})}
	conn.source.Store(&source)
	return conn
}

// Source is the end that the connection comes from.
func (c *Conn) Source() string { return *c.source.Load() }

// SetSource corrects the source once something better than the address tells it (a peer's
// certificate), and obeys the rule for it at once. It reports whether traffic may pass.
func (c *Conn) SetSource(node string) bool {
	c.source.Store(&node)
	verdict := c.gate.net.Verdict(node, c.gate.node)
	c.obey(verdict)
	return verdict.passes()
}

// passes says whether the server behind the gate gets to see a connection at all.
func (m Mode) passes() bool { return m == Open || m == Mute || m == Freeze }

// obey applies a verdict. A connection that lost bytes never recovers: it is reset when the fault
// is over, as a real one is once the other side gave up on it.
func (c *Conn) obey(m Mode) {
	c.mu.Lock()
	lost := c.dead || c.mute
	switch m {
	case Hang, Blackhole:
		c.dead = true
	case Mute:
		c.mute = true
	}
	if m == Freeze && c.hold == nil {
		c.hold = make(chan struct{})
	}
	if m != Freeze && c.hold != nil {
		close(c.hold)
		c.hold = nil
	}
	c.mu.Unlock()
	if m == Refuse || (m == Open && lost) {
		c.reset()
	}
}

// state waits while the connection is held, and says what is wrong with it then.
func (c *Conn) state() (dead, mute bool) {
	for {
		c.mu.Lock()
		dead, mute, hold := c.dead, c.mute, c.hold
		c.mu.Unlock()
		if hold == nil {
			return dead, mute
		}
		select {
		case <-hold:
		case <-c.gone:
			return dead, mute
		}
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if d := c.gate.net.delayOf(c.Source(), c.gate.node); d > 0 {
		select {
		case <-time.After(d):
		case <-c.gone:
		}
	}
	if dead, _ := c.state(); dead {
		<-c.gone
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if dead, mute := c.state(); dead || mute {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn. While a fault keeps what is sent, no FIN gets out: the socket stays
// until the fault is over.
func (c *Conn) Close() error {
	c.mu.Lock()
	kept := c.dead || c.mute || c.hold != nil
	c.dead = c.dead || kept
	c.mu.Unlock()
	c.once.Do(func() { close(c.gone) })
	if kept {
		return nil
	}
	c.gate.forget(c)
	return c.Conn.Close()
}

// reset closes at once, with RST.
func (c *Conn) reset() {
	c.gate.forget(c)
	c.once.Do(func() { close(c.gone) })
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) //nolint:errcheck // best effort: a FIN instead of a RST
	}
	c.Conn.Close()
}
