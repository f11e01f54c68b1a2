package v1alpha1

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Defaults of the kinds, as SPEC section 1 has them.
const (
	DefaultAPIPort       = 6443
	DefaultTalosPort     = 50000
	DefaultDNSDomain     = "cluster.local"
	DefaultPodSubnet     = "10.244.0.0/16"
	DefaultServiceSubnet = "10.96.0.0/12"

	DefaultSettle       = 30 * time.Second
	DefaultDrainTimeout = 5 * time.Minute
	DefaultInterval     = 2 * time.Minute
	DefaultGrace        = 60 * time.Second
)

// Values of enumerations.
const (
	CNIFlannel = "flannel"
	CNICilium  = "cilium"
	CNINone    = "none"

	TunnelVXLAN  = "vxlan"
	TunnelGeneve = "geneve"

	ModeApply   = "apply"
	ModeObserve = "observe"

	RebootAuto   = "auto"
	RebootWindow = "window"
	RebootManual = "manual"

	DriftCorrect = "correct"
	DriftReport  = "report"
)

// Valid tells a positive Go duration.
func (d Duration) Valid() bool {
	v, err := time.ParseDuration(string(d))
	return err == nil && v > 0
}

// Or gives the duration, or def where it is empty or not valid.
func (d Duration) Or(def time.Duration) time.Duration {
	if v, err := time.ParseDuration(string(d)); err == nil && v > 0 {
		return v
	}
	return def
}

// parse gives the number and whether it is a percentage.
func (v IntOrPercent) parse() (n int, percent, ok bool) {
	digits, percent := strings.CutSuffix(string(v), "%")
	if strings.Trim(digits, "0123456789") != "" {
		return 0, percent, false
	}
	n, err := strconv.Atoi(digits)
	return n, percent, err == nil && n >= 1 && n <= 1_000_000 && (!percent || n <= 100)
}

// Valid tells a whole number from 1 or a percentage from 1% to 100%.
func (v IntOrPercent) Valid() bool {
	_, _, ok := v.parse()
	return ok
}

// Of gives how many of total it is: a percentage is rounded down, as Kubernetes does for maxUnavailable, and the
// answer is at least 1, so that a rollout always moves. Empty (or not valid) is 1.
func (v IntOrPercent) Of(total int) int {
	n, percent, ok := v.parse()
	switch {
	case !ok:
		return 1
	case percent:
		return max(1, total*n/100)
	}
	return n
}

// Errors of NormalizeEndpoint.
var (
	errEndpointForm = errors.New("want ip or ip:port")
	errEndpointZone = errors.New("an address with a zone means something else on every machine")
	errEndpointPort = errors.New("port 0 can't be reached")
	errEndpointAddr = errors.New("an unspecified, multicast or broadcast address is no single node's")
)

// NormalizeEndpoint reads a TalosMachine's endpoint: ip or ip:port, with IPv6 in brackets or, without a port, bare.
// The port's default is 50000, so that ip and ip:50000 are the same. An IPv4 address in IPv6 form is the IPv4 one.
func NormalizeEndpoint(endpoint string) (netip.AddrPort, error) {
	addr, port := endpoint, uint16(DefaultTalosPort)
	if ap, err := netip.ParseAddrPort(endpoint); err == nil {
		if ap.Port() == 0 {
			return netip.AddrPort{}, errEndpointPort
		}
		addr, port = ap.Addr().String(), ap.Port()
	} else if inner, ok := strings.CutPrefix(endpoint, "["); ok {
		if addr, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(addr, ":") {
			return netip.AddrPort{}, errEndpointForm
		}
	}
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.AddrPort{}, errEndpointForm
	}
	if ip.Zone() != "" {
		return netip.AddrPort{}, errEndpointZone
	}
	if ip = ip.Unmap(); ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return netip.AddrPort{}, errEndpointAddr
	}
	return netip.AddrPortFrom(ip, port), nil
}

// EffectiveContract gives the version contract: the one given, else the minor version of talosVersion, with v. It
// is "" where talosVersion is no version.
func (s TalosClusterSpec) EffectiveContract() string {
	if s.Contract != "" {
		return "v" + strings.TrimPrefix(s.Contract, "v")
	}
	parts := strings.SplitN(strings.TrimPrefix(s.TalosVersion, "v"), ".", 3)
	if len(parts) < 3 {
		return ""
	}
	return fmt.Sprintf("v%s.%s", parts[0], parts[1])
}

// Defaulted gives a copy in which every documented default is filled in; what has no default stays as it is.
func (s TalosClusterSpec) Defaulted() TalosClusterSpec {
	s.Contract = s.EffectiveContract()
	s.Endpoint.Port = cmp.Or(s.Endpoint.Port, DefaultAPIPort)
	s.Network = s.Network.Defaulted()
	s.Rollout = s.Rollout.Defaulted()
	s.Reachability.Interval = cmp.Or(s.Reachability.Interval, Duration(DefaultInterval.String()))
	s.Reachability.Grace = cmp.Or(s.Reachability.Grace, Duration(DefaultGrace.String()))
	return s
}

// Defaulted gives a copy with the defaults.
func (s NetworkSpec) Defaulted() NetworkSpec {
	if len(s.PodSubnets) == 0 {
		s.PodSubnets = []string{DefaultPodSubnet}
	}
	if len(s.ServiceSubnets) == 0 {
		s.ServiceSubnets = []string{DefaultServiceSubnet}
	}
	s.DNSDomain = cmp.Or(s.DNSDomain, DefaultDNSDomain)
	s.CNI.Preset = cmp.Or(s.CNI.Preset, CNIFlannel)
	s.KubeProxy = orTrue(s.KubeProxy)
	return s
}

// Defaulted gives a copy with the defaults.
func (s RolloutSpec) Defaulted() RolloutSpec {
	s.Mode = cmp.Or(s.Mode, ModeApply)
	s.WorkerMaxUnavailable = cmp.Or(s.WorkerMaxUnavailable, "1")
	s.Settle = cmp.Or(s.Settle, Duration(DefaultSettle.String()))
	s.Drain.Enabled = orTrue(s.Drain.Enabled)
	s.Drain.Timeout = cmp.Or(s.Drain.Timeout, Duration(DefaultDrainTimeout.String()))
	s.Reboot = cmp.Or(s.Reboot, RebootAuto)
	s.Try = orTrue(s.Try)
	s.OnDrift = cmp.Or(s.OnDrift, DriftCorrect)
	return s
}

// Merged gives the cluster's install settings with the machine's own put over them, one by one. A disk and a disk
// selector override each other, and so do an image and a schematic.
func (s InstallSpec) Merged(own InstallSpec) InstallSpec {
	if own.Disk != "" || own.DiskSelector != nil {
		s.Disk, s.DiskSelector = own.Disk, own.DiskSelector
	}
	if own.Image != "" || own.Schematic != "" {
		s.Image, s.Schematic = own.Image, own.Schematic
	}
	if own.Wipe != nil {
		s.Wipe = own.Wipe
	}
	return s
}

// orTrue gives b, or true where it is not given.
func orTrue(b *bool) *bool {
	if b != nil {
		return b
	}
	t := true
	return &t
}
