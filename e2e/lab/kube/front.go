package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// serve passes connections of a listener on to where to says, until the listener closes. Where to says nothing, or
// nothing answers there, the connection is closed.
func serve(ln net.Listener, dial func() (net.Conn, error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close()
			inner, err := dial()
			if err != nil {
				return
			}
			defer inner.Close()
			join(c, inner)
		})
	}
}

// join copies both ways until either side ends.
func join(a, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			io.Copy(p[0], p[1]) //nolint:errcheck // ends with either side
			done <- struct{}{}
		}()
	}
	<-done
	a.Close()
	b.Close()
	<-done
}

var errNoBackend = errors.New("nothing runs behind it")

func dialer(to func() string) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		addr := to()
		if addr == "" {
			return nil, errNoBackend
		}
		return net.DialTimeout("tcp", addr, 2*time.Second)
	}
}

// gate is port 6443 of a control plane: open while there is an API server behind it, refused otherwise. Faults of the
// network act on it.
type gate struct {
	h    *node.Host
	addr netip.AddrPort
	to   func() string
	open *wire.Gate
	done chan struct{}
}

// follow opens and closes the gate as the API server behind it comes and goes.
func (g *gate) follow(ctx context.Context) {
	defer g.close()
	for ctx.Err() == nil {
		addr := g.to()
		up := false
		if addr != "" {
			c, err := net.DialTimeout("tcp", addr, time.Second)
			if up = err == nil; up {
				c.Close()
			}
		}
		switch {
		case up && g.open == nil:
			ln, err := g.h.Net().Listen(ctx, g.h.Name(), g.addr)
			if err != nil {
				g.h.Emit("error", err.Error())
				break
			}
			g.open, g.done = ln, make(chan struct{})
			go func(done chan struct{}) {
				defer close(done)
				serve(ln, dialer(g.to))
			}(g.done)
		case !up:
			g.close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (g *gate) close() {
	if g.open != nil {
		g.open.Close()
		<-g.done
		g.open = nil
	}
}

// balancer answers at a cluster's endpoint where that is no machine's address: a load balancer that asks one control
// plane after the other, and leaves out those that don't answer.
type balancer struct {
	ln    net.Listener
	mu    sync.Mutex
	next  int
	peers map[string]netip.AddrPort // control planes by the lab's name for them
}

func openBalancer(addr netip.AddrPort) (*balancer, error) {
	ln, err := net.Listen("tcp", addr.String())
	if err != nil {
		return nil, err
	}
	b := &balancer{ln: ln, peers: map[string]netip.AddrPort{}}
	go serve(ln, b.dial)
	return b, nil
}

func (b *balancer) set(name string, addr netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.peers[name] = addr
}

func (b *balancer) dial() (net.Conn, error) {
	b.mu.Lock()
	var list []netip.AddrPort
	for _, a := range b.peers {
		list = append(list, a)
	}
	b.next++
	first := b.next
	b.mu.Unlock()
	sortAddrs(list)
	for i := range list {
		if c, err := net.DialTimeout("tcp", list[(first+i)%len(list)].String(), 500*time.Millisecond); err == nil {
			return c, nil
		}
	}
	return nil, errNoBackend
}
