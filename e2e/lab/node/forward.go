package node

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// peerEnd ends the TLS of a peer connection at the gate and finds out which node it comes from.
type peerEnd struct {
	conf *tls.Config
	net  *wire.Net
}

// serveForward passes connections of a gate on to a local address until the gate closes.
func serveForward(g *wire.Gate, to string, end *peerEnd) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := g.Accept()
		if err != nil {
			return
		}
		wg.Go(func() { forwardConn(c, to, end) })
	}
}

func forwardConn(c net.Conn, to string, end *peerEnd) {
	defer c.Close()
	outer := c
	if end != nil {
		t := tls.Server(c, end.conf)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := t.HandshakeContext(ctx)
		cancel()
		if err != nil {
			return
		}
		if w, ok := c.(*wire.Conn); ok && !w.SetSource(end.source(t)) {
			// The rules swallow or refuse it: keep it until they change.
			io.Copy(io.Discard, t) //nolint:errcheck // ends with the connection
			return
		}
		outer = t
	}
	inner, err := net.DialTimeout("tcp", to, 5*time.Second)
	if err != nil {
		return
	}
	defer inner.Close()
	done := make(chan struct{}, 2)
	for _, p := range [][2]net.Conn{{inner, outer}, {outer, inner}} {
		go func() {
			io.Copy(p[0], p[1]) //nolint:errcheck // ends with either side
			done <- struct{}{}
		}()
	}
	<-done
	inner.Close()
	c.Close()
	<-done
}

// source is the node whose address the peer's certificate names.
func (p *peerEnd) source(t *tls.Conn) string {
	for _, cert := range t.ConnectionState().PeerCertificates[:1] {
		for _, ip := range cert.IPAddresses {
			if addr, ok := netip.AddrFromSlice(ip); ok {
				if name := p.net.NameOf(addr.Unmap()); name != "" {
					return name
				}
			}
		}
	}
	return wire.Outside
}
