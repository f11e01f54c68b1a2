package wire

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// sinkhole makes an address swallow connection attempts: a listening socket whose queue is
// full and that nobody accepts from, so that Linux drops further SYNs, and a client sees what
// it sees when a cable is out (a dial that times out).
type sinkhole struct {
	fd    int
	fills []net.Conn
}

func openSinkhole(addr netip.AddrPort) (*sinkhole, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &sinkhole{fd: fd}
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		s.close()
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); err != nil {
		s.close()
		return nil, fmt.Errorf("bind %s: %w", addr, err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		s.close()
		return nil, os.NewSyscallError("listen", err)
	}
	// A queue of length 0 holds one connection; fill until a dial no longer completes.
	for range 8 {
		c, err := net.DialTimeout("tcp", addr.String(), 50*time.Millisecond)
		if err != nil {
			break
		}
		s.fills = append(s.fills, c)
	}
	return s, nil
}

func (s *sinkhole) close() {
	for _, c := range s.fills {
		c.Close()
	}
	syscall.Close(s.fd) //nolint:errcheck // nothing to do about it
}
