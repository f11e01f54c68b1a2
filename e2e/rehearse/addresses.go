package rehearse

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

// talosPort is where nodes of the lab listen.
const talosPort = 50000

// addresses maps the addresses of a repository to loopback ones, the same ones for the same. Networks stay
// recognisable: 192.0.2.11 becomes 127.N.0.11, and the next network's machines lie in 127.N.1.
type addresses struct {
	n      byte
	nets   map[netip.Prefix]byte
	known  map[string]netip.Addr // by endpoint as ip, or ip:port where the port is not Talos's
	taken  map[netip.Addr]bool
	labels map[netip.Addr]string // what a loopback address stands for
}

// newAddresses finds a part of 127.0.0.0/8 where nothing listens, so that a lab that runs is left alone.
func newAddresses() (*addresses, error) {
	for n := byte(100); n < 250; n++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.%d.255.254:%d", n, talosPort))
		if err != nil {
			continue
		}
		_ = l.Close() // only asked
		return &addresses{n: n, nets: map[netip.Prefix]byte{}, known: map[string]netip.Addr{}, taken: map[netip.Addr]bool{}, labels: map[netip.Addr]string{}}, nil
	}
	return nil, errors.New("find free loopback addresses: port 50000 can't be listened on at any of 127.100.0.0 to 127.249.0.0")
}

// split takes an endpoint apart.
func split(endpoint string) (netip.Addr, int, error) {
	if a, err := netip.ParseAddr(strings.Trim(endpoint, "[]")); err == nil {
		return a.Unmap(), talosPort, nil
	}
	ap, err := netip.ParseAddrPort(endpoint)
	return ap.Addr().Unmap(), int(ap.Port()), err
}

// of gives the loopback address for an endpoint; ok is false where it is no address.
func (a *addresses) of(endpoint string) (addr netip.Addr, ok bool) {
	ip, port, err := split(endpoint)
	if err != nil {
		return netip.Addr{}, false
	}
	key := ip.String()
	if port != talosPort {
		key = net.JoinHostPort(key, strconv.Itoa(port))
	}
	if m, ok := a.known[key]; ok {
		return m, true
	}
	m := a.free(ip)
	a.known[key], a.taken[m], a.labels[m] = m, true, key
	return m, true
}

// free chooses an address that is not taken.
func (a *addresses) free(ip netip.Addr) netip.Addr {
	prefix, last := netip.PrefixFrom(ip, 24).Masked(), byte(1)
	if ip.Is4() {
		last = ip.As4()[3]
	} else {
		prefix = netip.PrefixFrom(ip, 64).Masked()
		last = ip.As16()[15]
	}
	for {
		third, known := a.nets[prefix]
		if !known {
			third = byte(len(a.nets))
			a.nets[prefix] = third
		}
		for i := range 254 {
			m := netip.AddrFrom4([4]byte{127, a.n, third, (last+byte(i)-1)%254 + 1})
			if !a.taken[m] {
				return m
			}
		}
		prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{0, 0, byte(len(a.nets)), 0}), 24) // full: one more
	}
}

// network maps a range, for discovery.
func (a *addresses) network(cidr string) (string, bool) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil || !p.Addr().Is4() || p.Bits() < 24 {
		return "", false
	}
	wide := netip.PrefixFrom(p.Addr(), 24).Masked()
	third, known := a.nets[wide]
	if !known {
		third = byte(len(a.nets))
		a.nets[wide] = third
	}
	four := p.Masked().Addr().As4()
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, a.n, third, four[3]}), p.Bits()).String(), true
}

// machines gives every machine of a fleet its address, so that other places that name it are mapped alike.
func (a *addresses) machines(fl *fleet.Fleet) {
	for _, c := range fl.Clusters {
		for _, m := range c.Machines {
			if m.Manifest != nil {
				a.of(m.Manifest.Spec.Endpoint)
			}
		}
	}
}
