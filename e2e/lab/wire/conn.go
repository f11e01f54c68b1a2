package wire

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection through a gate. It can be frozen: reads block, and writes vanish as
// they do into a socket buffer that nobody drains.
type Conn struct {
	net.Conn
	gate   *Gate
	source atomic.Pointer[string]

	mu     sync.Mutex
	frozen bool
	gone   chan struct{}
	once   sync.Once
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
	return verdict == Open
}

// obey applies a verdict. A frozen connection never thaws: what it swallowed is lost, so it
// is reset when the fault is over, as a real one is once the other side gave up on it.
func (c *Conn) obey(m Mode) {
	c.mu.Lock()
	frozen := c.frozen
	if m == Hang || m == Blackhole {
		c.frozen = true
	}
	c.mu.Unlock()
	if m == Refuse || (m == Open && frozen) {
		c.reset()
	}
}

func (c *Conn) isFrozen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frozen
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if d := c.gate.net.delayOf(c.gate.node); d > 0 {
		select {
		case <-time.After(d):
		case <-c.gone:
		}
	}
	if c.isFrozen() {
		<-c.gone
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.isFrozen() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn. A frozen connection's socket stays until the fault is over: no
// FIN gets through a cut.
func (c *Conn) Close() error {
	if c.isFrozen() {
		c.once.Do(func() { close(c.gone) })
		return nil
	}
	c.gate.forget(c)
	c.once.Do(func() { close(c.gone) })
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
