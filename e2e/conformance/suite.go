// Package conformance asks a node whether it behaves as real Talos nodes were seen to: codes,
// texts, resources, sequences. It runs on the lab and on real nodes, and never touches a node
// that was not named. statements.md lists what it asks and what it does not.
package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
)

// Target is what the suite may ask and change. Addresses are the nodes' own, without port.
type Target struct {
	// Maintenance is a node in maintenance mode.
	Maintenance string
	// ControlPlane is a configured control plane with a running etcd; Second and Worker are of
	// the same cluster. Calls are sent to them, and through ControlPlane to the others.
	ControlPlane, Second, Worker string
	// Absent is an address in the nodes' network at which nothing is, asked for through ControlPlane.
	Absent string
	// Talosconfig has an os:admin credential of the cluster. Its endpoints are not used.
	Talosconfig *clientconfig.Config
	// Config is the control plane's configuration that the maintenance node gets when Destructive.
	Config []byte
	// Destructive lets the suite change nodes: apply, bootstrap, reboot and reset them.
	Destructive bool
	// Deny are addresses and networks (192.0.2.1, 10.0.0.0/8) that must not be asked anything,
	// whatever else is said.
	Deny []string
	// Version is the Talos version of the machines that NewBench makes.
	Version string
	// NewBench makes machines of its own; nil on real nodes.
	NewBench func(t *testing.T, name string) Bench
	// Known are deviations, by statement (or statement@minor), with the reason: they are skipped
	// with it, and fail when they no longer deviate.
	Known map[string]string
	// Patience is how long a machine may take to come to what is expected; default 10 minutes.
	Patience time.Duration
}

// Bench makes machines of one cluster and its credentials.
type Bench interface {
	// Add powers on a blank machine that the platform calls by its name, and returns its address.
	Add(name, version string) string
	// Config is a complete configuration of the bench's cluster for a machine: library contract
	// 1.13 or, for minor 14, 1.14. Its endpoint is the machine added first.
	Config(kind mtype.Type, hostname string, minor int) []byte
	// Talosconfig has an admin credential, Reader one of os:reader, Foreign an admin's of another cluster.
	Talosconfig() *clientconfig.Config
	Reader() *clientconfig.Config
	Foreign() *clientconfig.Config
	// Absent is an address in the machines' network at which nothing is.
	Absent() string
	// Kill takes a machine's power, Start gives it back, Wipe loses its disks (power on).
	Kill(name string)
	Start(name string)
	Wipe(name string)
	// Cut takes a machine off the network, Heal puts it back.
	Cut(name string)
	Heal(name string)
	// SetNodeReady says whether Kubernetes calls the machine's Node ready.
	SetNodeReady(name string, ready bool)
	// Reinstall exchanges the installed version and keeps the disks, without power in between.
	Reinstall(name, version string)
}

// Need is what a case can't do without.
type Need int

// Needs.
const (
	NeedMaintenance Need = 1 << iota
	NeedControlPlane
	NeedSecond
	NeedWorker
	NeedAbsent
	NeedConfig
	NeedChange // Target.Destructive
	NeedBench
)

// Case checks one statement or more.
type Case struct {
	// IDs are the statements, separated by spaces; the first names the case.
	IDs string
	// Needs are what must be given.
	Needs Need
	// Min and Max are the Talos minor versions that behave so; 0 means from 13, and any later.
	Min, Max int
	// Mode is the form that behaves so: "metal", "container", or both when empty.
	Mode string
	run  func(*R)
}

// scene is cases that run in order on the same nodes.
type scene struct {
	name  string
	cases []Case
}

func scenes() []scene {
	return []scene{
		{"maintenance", maintenanceCases()},
		{"first-boot", firstBootCases()},
		{"join", joinCases()},
		{"configured", configuredCases()},
		{"apply", applyCases()},
		{"apply-1.14", apply114Cases()},
		{"lifecycle", lifecycleCases()},
	}
}

// Cases returns all cases in the order in which they run; for the table of statements.
func Cases() []Case {
	var out []Case
	for _, s := range scenes() {
		out = append(out, s.cases...)
	}
	return append(out, benchCases()...)
}

// Run checks the target. It refuses a target with a node that is denied or does not answer.
func Run(t *testing.T, target Target) {
	t.Helper()
	if target.Patience == 0 {
		target.Patience = 10 * time.Minute
	}
	s := &site{Target: target}
	if target.NewBench != nil {
		s.prepareBench(t)
	}
	if err := s.check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, sc := range scenes() {
		t.Run(sc.name, func(t *testing.T) { s.runAll(t, sc.cases) })
	}
	t.Run("bench", func(t *testing.T) {
		for _, c := range benchCases() {
			t.Run(c.name(), func(t *testing.T) {
				t.Parallel()
				own := *s // a case with machines of its own changes nothing for the others
				own.runOne(t, c)
			})
		}
	})
}

func (s *site) runAll(t *testing.T, cases []Case) {
	for _, c := range cases {
		t.Run(c.name(), func(t *testing.T) { s.runOne(t, c) })
	}
}

func (c Case) ids() []string { return strings.Fields(c.IDs) }

func (c Case) name() string {
	id := c.ids()[0]
	return id + " " + titles()[id]
}

// runOne runs a case, or prints why not.
func (s *site) runOne(t *testing.T, c Case) {
	if why := s.unfit(c); why != "" {
		t.Skip("skipped: " + why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
	defer cancel()
	r := &R{t: t, ctx: ctx, s: s}
	r.do(c.run)
	known := s.known(c)
	switch {
	case r.skip != "":
		t.Skip("skipped: " + r.skip)
	case known != "" && len(r.failures) > 0:
		t.Skipf("known deviation: %s\n%s", known, strings.Join(r.failures, "\n"))
	case known != "":
		t.Errorf("no longer deviates, take it off the list of known deviations: %s", known)
	default:
		for _, f := range r.failures {
			t.Error(f)
		}
	}
}

func (s *site) known(c Case) string {
	for _, id := range c.ids() {
		if why := s.Known[fmt.Sprintf("%s@%d", id, s.minor)]; why != "" {
			return why
		}
		if why := s.Known[id]; why != "" {
			return why
		}
	}
	return ""
}

// unfit says why a case can't run on the target: what the nodes say of themselves, or what is not given.
func (s *site) unfit(c Case) string {
	lowest := c.Min
	if lowest == 0 {
		lowest = 13
	}
	switch {
	case s.minor < lowest || (c.Max != 0 && s.minor > c.Max):
		return fmt.Sprintf("the node says it is %s; this is about 1.%d%s", s.tag, lowest, upTo(c.Max))
	case c.Mode != "" && s.mode != c.Mode:
		return fmt.Sprintf("the node's platform mode is %q; this is about %q", s.mode, c.Mode)
	}
	for _, n := range []struct {
		need Need
		ok   bool
		flag string
	}{
		{NeedMaintenance, s.Maintenance != "", "a node in maintenance mode (-insecure-endpoint)"},
		{NeedControlPlane, s.ControlPlane != "", "a control plane (-endpoint)"},
		{NeedSecond, s.Second != "", "a second control plane (-second)"},
		{NeedWorker, s.Worker != "", "a worker (-worker)"},
		{NeedAbsent, s.Absent != "", "an address without a node (-absent)"},
		{NeedConfig, len(s.Target.Config) > 0, "a configuration for the maintenance node (-config)"},
		{NeedChange, s.Destructive, "leave to change nodes (-destructive)"},
		{NeedBench, s.NewBench != nil, "machines that can be made and broken at will: the lab"},
	} {
		if c.Needs&n.need != 0 && !n.ok {
			return "it needs " + n.flag
		}
	}
	return ""
}

func upTo(m int) string {
	if m == 0 {
		return " and later"
	}
	return " to 1." + strconv.Itoa(m)
}

// check refuses a target that is denied, says nothing, or does not answer.
func (s *site) check(ctx context.Context) error {
	named := s.named()
	if len(named) == 0 {
		return fmt.Errorf("no node was named: give -endpoint, -insecure-endpoint or both")
	}
	if err := s.denyNames(); err != nil {
		return err
	}
	for _, a := range append(slices.Clone(named), s.Absent) {
		if a == "" {
			continue
		}
		if _, err := netip.ParseAddr(a); err != nil {
			return fmt.Errorf("node %q is no address: name nodes by their addresses, without a port", a)
		}
		if s.denied(a) {
			return fmt.Errorf("node %s is on the deny list: nothing was asked", a)
		}
	}
	if s.ControlPlane != "" && s.Talosconfig == nil {
		return fmt.Errorf("-endpoint needs -talosconfig")
	}
	for _, a := range named {
		if err := s.learn(ctx, a); err != nil {
			return fmt.Errorf("node %s was named and does not answer: nothing was changed: %w", a, err)
		}
	}
	return nil
}

// denyNames refuses a deny list with an entry that would deny nothing.
func (s *site) denyNames() error {
	for _, d := range s.Deny {
		if _, err := netip.ParsePrefix(d); err == nil {
			continue
		}
		if _, err := netip.ParseAddr(d); err != nil {
			return fmt.Errorf("%q on the deny list is neither an address nor a network: nothing was asked", d)
		}
	}
	return nil
}

// denied says whether an address is on the deny list, or in one of its networks.
func (s *site) denied(addr string) bool {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(s.Deny, func(d string) bool {
		if p, err := netip.ParsePrefix(d); err == nil {
			return p.Contains(a.Unmap())
		}
		other, err := netip.ParseAddr(d)
		return err != nil || other.Unmap() == a.Unmap()
	})
}

// named are the nodes that may be asked.
func (s *site) named() []string {
	var out []string
	for _, a := range []string{s.Maintenance, s.ControlPlane, s.Second, s.Worker} {
		if a != "" && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
