package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Gate is a listener of one node on one port that obeys the network's faults.
// It satisfies net.Listener; connections that a fault keeps out are never accepted.
type Gate struct {
	net  *Net
	node string
	addr netip.AddrPort

	mu     sync.Mutex
	ln     net.Listener
	sink   *sinkhole
	conns  map[*Conn]struct{}
	ready  chan net.Conn
	done   chan struct{}
	deaf   bool // accepts no more
	closed bool
}

// Listen opens a gate of a node.
//
// It retries for a moment when the address is in use: a port of a node that just rebooted
// may still be held by the listener that is going away.
func (n *Net) Listen(ctx context.Context, node string, addr netip.AddrPort) (*Gate, error) {
	g := &Gate{
		net: n, node: node, addr: addr,
		conns: map[*Conn]struct{}{},
		ready: make(chan net.Conn),
		done:  make(chan struct{}),
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := g.reopen()
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return nil, fmt.Errorf("listen on %s for node %s: %w", addr, node, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	n.mu.Lock()
	n.gates[g] = struct{}{}
	n.mu.Unlock()
	return g, nil
}

// reopen brings the sockets in line with the rule for everybody; g.mu must not be held.
func (g *Gate) reopen() error {
	want := g.net.closed(g.node)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.deaf {
		return nil
	}
	// What a machine that is frozen or can't send gets, its kernel can't answer: dials time out.
	swallow := want == Blackhole || want == Freeze || want == Mute
	if !swallow && g.sink != nil {
		g.sink.close()
		g.sink = nil
	}
	if want == Refuse || swallow {
		if g.ln != nil {
			g.ln.Close()
			g.ln = nil
		}
		if swallow && g.sink == nil {
			sink, err := openSinkhole(g.addr)
			if err != nil {
				return err
			}
			g.sink = sink
		}
		return nil
	}
	if g.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", g.addr.String())
	if err != nil {
		return err
	}
	g.ln = ln
	go g.acceptFrom(ln)
	return nil
}

func (g *Gate) acceptFrom(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		src := g.net.NameOf(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
		conn := newConn(g, c, src)
		if !g.admit(conn) {
			continue
		}
		if to, ok := g.net.divertedTo(g.node); ok {
			go divert(conn, netip.AddrPortFrom(to, g.addr.Port()))
			continue
		}
		select {
		case g.ready <- conn:
		case <-g.done:
			conn.reset()
		}
	}
}

// admit registers a connection and says whether the server may see it.
func (g *Gate) admit(c *Conn) bool {
	verdict := g.net.Verdict(c.Source(), g.node)
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		c.reset()
		return false
	}
	g.conns[c] = struct{}{}
	g.mu.Unlock()
	c.obey(verdict)
	return verdict.passes()
}

// divert splices a connection to another machine; it breaks when nobody listens there.
func divert(c *Conn, to netip.AddrPort) {
	defer c.reset()
	other, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
	if err != nil {
		return
	}
	defer other.Close()
	done := make(chan struct{}, 2)
	for _, p := range [][2]net.Conn{{other, c}, {c, other}} {
		go func() {
			io.Copy(p[0], p[1]) //nolint:errcheck // ends with either side
			done <- struct{}{}
		}()
	}
	<-done
}

// resetAll breaks every connection.
func (g *Gate) resetAll() {
	g.mu.Lock()
	conns := make([]*Conn, 0, len(g.conns))
	for c := range g.conns {
		conns = append(conns, c)
	}
	g.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
}

// reconsider applies the rules in force to the sockets and to connections that exist.
func (g *Gate) reconsider() {
	for range 100 {
		if err := g.reopen(); err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	g.mu.Lock()
	conns := make([]*Conn, 0, len(g.conns))
	for c := range g.conns {
		conns = append(conns, c)
	}
	g.mu.Unlock()
	for _, c := range conns {
		c.obey(g.net.Verdict(c.Source(), g.node))
	}
}

// Accept implements net.Listener.
func (g *Gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.ready:
		return c, nil
	case <-g.done:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (g *Gate) Addr() net.Addr { return net.TCPAddrFromAddrPort(g.addr) }

// Close implements net.Listener: the port is closed and every connection is reset.
func (g *Gate) Close() error {
	g.net.mu.Lock()
	delete(g.net.gates, g)
	g.net.mu.Unlock()

	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	if !g.deaf {
		close(g.done)
	}
	if g.ln != nil {
		g.ln.Close()
	}
	if g.sink != nil {
		g.sink.close()
	}
	g.mu.Unlock()
	g.resetAll()
	return nil
}

// StopAccepting closes the port and leaves the connections as they are.
func (g *Gate) StopAccepting() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.deaf {
		return
	}
	g.deaf = true
	close(g.done)
	if g.ln != nil {
		g.ln.Close()
		g.ln = nil
	}
	if g.sink != nil {
		g.sink.close()
		g.sink = nil
	}
}

// Drop resets the connection that comes from the given remote address; a reply on its way is lost.
func (g *Gate) Drop(remote string) bool {
	g.mu.Lock()
	var hit *Conn
	for c := range g.conns {
		if c.RemoteAddr().String() == remote {
			hit = c
		}
	}
	g.mu.Unlock()
	if hit == nil {
		return false
	}
	hit.reset()
	return true
}

func (g *Gate) forget(c *Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}
