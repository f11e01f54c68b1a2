package wire

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// echo opens a gate of node "b" that sends back what it gets, and returns the network and address.
func echo(t *testing.T, last byte) (*Net, netip.AddrPort) {
	t.Helper()
	n := New()
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 200, last}), 50000)
	n.Name(addr.Addr(), "b")
	n.Name(netip.AddrFrom4([4]byte{127, 0, 201, last}), "a")
	g, err := n.Listen(t.Context(), "b", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	go func() {
		for {
			c, err := g.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c) //nolint:errcheck // ends with the connection
			}()
		}
	}()
	return n, addr
}

// from dials from the address of node "a", or from outside.
func from(t *testing.T, node string, to netip.AddrPort) (net.Conn, error) {
	t.Helper()
	d := &net.Dialer{Timeout: 300 * time.Millisecond}
	if node == "a" {
		b := to.Addr().As4()
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 201, b[3])}
	}
	return d.DialContext(t.Context(), "tcp", to.String())
}

// talk says whether a byte comes back within a short while.
func talk(c net.Conn) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) //nolint:errcheck // a closed one fails at Read
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func dialAndTalk(t *testing.T, node string, to netip.AddrPort) error {
	t.Helper()
	c, err := from(t, node, to)
	if err != nil {
		return err
	}
	defer c.Close()
	return talk(c)
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestCutAndHeal(t *testing.T) {
	n, addr := echo(t, 1)
	c, err := from(t, "", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := talk(c); err != nil {
		t.Fatal(err)
	}
	n.Cut("b", Blackhole)
	if err := talk(c); !timedOut(err) {
		t.Errorf("a connection through the cut: %v, want silence", err)
	}
	if _, err := from(t, "", addr); !timedOut(err) {
		t.Errorf("a dial through the cut: %v, want a timeout", err)
	}
	n.Heal("b")
	if err := talk(c); err == nil || timedOut(err) {
		t.Errorf("the old connection after the cut: %v, want a reset", err)
	}
	if err := dialAndTalk(t, "", addr); err != nil {
		t.Errorf("after the cut: %v", err)
	}
}

func TestRefuse(t *testing.T) {
	n, addr := echo(t, 2)
	c, err := from(t, "", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := talk(c); err != nil {
		t.Fatal(err)
	}
	n.Cut("b", Refuse)
	if err := talk(c); err == nil || timedOut(err) {
		t.Errorf("a connection to a node that refuses: %v, want a reset", err)
	}
	if _, err := from(t, "", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a dial: %v", err)
	}
}

func TestHangAcceptsAndIsSilent(t *testing.T) {
	n, addr := echo(t, 3)
	n.Set(Any, "b", Hang)
	if err := dialAndTalk(t, "", addr); !timedOut(err) {
		t.Errorf("a node that hangs: %v", err)
	}
	n.Set(Any, "b", Open)
	if err := dialAndTalk(t, "", addr); err != nil {
		t.Errorf("after the hang: %v", err)
	}
}

func TestBetweenTwoOneWay(t *testing.T) {
	n, addr := echo(t, 4)
	n.Set("a", "b", Blackhole)
	if err := dialAndTalk(t, "a", addr); err == nil {
		t.Error("a reached b through the cut")
	}
	if err := dialAndTalk(t, "", addr); err != nil {
		t.Errorf("the outside is kept from b: %v", err)
	}
	n.Cut("a", Refuse) // what a node that is cut off sends gets nowhere
	if err := dialAndTalk(t, "a", addr); err == nil {
		t.Error("a node that is cut off reached another")
	}
	n.Heal("a")
	if err := dialAndTalk(t, "a", addr); err != nil {
		t.Errorf("after healing a: %v", err)
	}
}

func TestSlow(t *testing.T) {
	n, addr := echo(t, 5)
	n.Slow(Any, "b", 150*time.Millisecond)
	start := time.Now()
	if err := dialAndTalk(t, "", addr); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 150*time.Millisecond {
		t.Errorf("the answer of a slow node took %s", took)
	}
}

func TestVerdictIsTheWorst(t *testing.T) {
	n := New()
	n.Set("a", "b", Hang)
	n.Set(Any, "b", Refuse)
	for _, c := range []struct {
		src, dst string
		want     Mode
	}{{"a", "b", Refuse}, {Outside, "b", Refuse}, {"b", "a", Open}, {"b", "b", Open}} {
		if got := n.Verdict(c.src, c.dst); got != c.want {
			t.Errorf("verdict from %q to %q is %s, want %s", c.src, c.dst, got, c.want)
		}
	}
}
