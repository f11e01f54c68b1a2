package conformance

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
)

var (
	endpoint    = flag.String("endpoint", "", "address of a configured control plane")
	second      = flag.String("second", "", "address of a second control plane of its cluster")
	worker      = flag.String("worker", "", "address of a worker of its cluster")
	absent      = flag.String("absent", "", "address in the nodes' network at which nothing is")
	talosconfig = flag.String("talosconfig", "", "file with an os:admin credential of the cluster")
	maintenance = flag.String("insecure-endpoint", "", "address of a node in maintenance mode")
	configFile  = flag.String("config", "", "file with a control plane's configuration for the node in maintenance mode")
	destructive = flag.Bool("destructive", false, "change the named nodes: apply, bootstrap, reboot")
	deny        = flag.String("deny", "", "addresses and networks, separated by commas, that must not be asked anything")
	patience    = flag.Duration("patience", 10*time.Minute, "how long a real node may take")
)

// TestConformance runs the suite on the nodes that the flags name, or on the lab without any.
func TestConformance(t *testing.T) {
	if named := strings.Join([]string{*endpoint, *second, *worker, *absent, *talosconfig, *maintenance, *configFile}, ""); named == "" && !*destructive {
		runOnLab(t)
		return
	}
	target := Target{
		ControlPlane: *endpoint, Second: *second, Worker: *worker, Absent: *absent, Maintenance: *maintenance,
		Destructive: *destructive, Patience: *patience,
	}
	if *deny != "" {
		target.Deny = strings.Split(*deny, ",")
	}
	var err error
	if *talosconfig != "" {
		// Talos's Open makes a file that is not there.
		if _, err := os.Stat(*talosconfig); err != nil {
			t.Fatalf("-talosconfig: %v", err)
		}
		if target.Talosconfig, err = clientconfig.Open(*talosconfig); err != nil {
			t.Fatal(err)
		}
	}
	if *configFile != "" {
		if target.Config, err = os.ReadFile(*configFile); err != nil {
			t.Fatal(err)
		}
	}
	Run(t, target)
}

// TestStatements holds the table of statements and the cases against each other.
func TestStatements(t *testing.T) {
	cases := map[string]bool{}
	for _, c := range Cases() {
		for _, id := range c.ids() {
			cases[id] = true
			if titles()[id] == "" {
				t.Errorf("case %s checks %s, which statements.md does not have", c.IDs, id)
			}
		}
	}
	seen := map[string]bool{}
	for _, s := range statements() {
		if seen[s.id] {
			t.Errorf("statement %s is in the table twice", s.id)
		}
		seen[s.id] = true
		switch {
		case s.how == "case" && !cases[s.id]:
			t.Errorf("statement %s has no case", s.id)
		case s.how != "case" && cases[s.id]:
			t.Errorf("statement %s has a case, and the table says why not: %s", s.id, s.how)
		case s.how != "case" && len(strings.Fields(s.how)) < 3:
			t.Errorf("statement %s: %q is no reason", s.id, s.how)
		}
	}
	if len(seen) < 150 {
		t.Errorf("only %d statements were read from the table", len(seen))
	}
}

// TestRefusesTargets: nothing named, a node on the deny list, a node that is not there, a credential missing.
func TestRefusesTargets(t *testing.T) {
	for _, c := range []struct {
		name   string
		target Target
		want   string
	}{
		{"nothing named", Target{Destructive: true}, "no node was named"},
		{"denied", Target{Maintenance: "192.0.2.7", Deny: []string{"192.0.2.7"}}, "node 192.0.2.7 is on the deny list: nothing was asked"},
		{"denied absent", Target{Maintenance: "192.0.2.7", Absent: "192.0.2.8", Deny: []string{"192.0.2.8"}}, "node 192.0.2.8 is on the deny list"},
		{"denied network", Target{Maintenance: "192.0.2.7", Deny: []string{"192.0.2.0/24"}}, "node 192.0.2.7 is on the deny list: nothing was asked"},
		{"denied in another form", Target{Maintenance: "::ffff:192.0.2.7", Deny: []string{"192.0.2.7"}}, "is on the deny list"},
		{"bad deny list", Target{Maintenance: "192.0.2.7", Deny: []string{"the router"}}, `"the router" on the deny list is neither`},
		{"a name", Target{Maintenance: "cp1.example.com"}, `node "cp1.example.com" is no address`},
		{"no credential", Target{ControlPlane: "127.0.0.1"}, "-endpoint needs -talosconfig"},
		{"missing", Target{Maintenance: "127.77.77.77"}, "node 127.77.77.77 was named and does not answer: nothing was changed"},
	} {
		s := &site{Target: c.target}
		if err := s.check(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	s := &site{Target: Target{Maintenance: "127.0.0.1", Deny: []string{"127.0.0.9"}}}
	for _, a := range []string{"127.0.0.2", "127.0.0.9"} {
		if _, err := s.dial(t.Context(), a, nil); err == nil {
			t.Errorf("a client of %s was made, which was not named or is denied", a)
		}
	}
}

// TestCasesCanFail: what a case finds is reported, a deviation that is known is not, and one that is gone is.
func TestCasesCanFail(t *testing.T) {
	r := &R{t: t, ctx: t.Context(), s: &site{Target: Target{Known: map[string]string{"13-M01@13": "why"}}, minor: 13}}
	r.do(func(r *R) {
		want(r, "a value", 1, 2)
		r.is("an error", fmt.Errorf("other"), 5, "text")
		r.Fatalf("stop")
		r.Errorf("not reached")
	})
	if len(r.failures) != 3 || !strings.HasPrefix(r.failures[0], "suite_test.go:") {
		t.Errorf("failures are %q", r.failures)
	}
	if r.s.known(Case{IDs: "13-M02 13-M01"}) != "why" || r.s.known(Case{IDs: "13-M02"}) != "" {
		t.Error("known deviations are not found by their statement")
	}
	r = &R{t: t, ctx: t.Context()}
	r.ordered("steps", []string{"a", "c", "b"}, "a", "b", "c")
	r.ordered("steps", []string{"a"}, "a", "b")
	if len(r.failures) != 2 {
		t.Errorf("steps out of order: %q", r.failures)
	}
}

// TestUnfit: what a node says of itself keeps cases from it, and each says why.
func TestUnfit(t *testing.T) {
	s := &site{Target: Target{Maintenance: "127.0.0.1"}, tag: "v1.13.5", minor: 13, mode: "container"}
	skipped := 0
	for _, c := range Cases() {
		if why := s.unfit(c); why != "" {
			skipped++
			continue
		}
		if c.Needs&^NeedMaintenance != 0 || (c.Mode != "" && c.Mode != "container") || c.Min > 13 || (c.Max != 0 && c.Max < 13) {
			t.Errorf("case %s would run on a 1.13 container in maintenance", c.IDs)
		}
	}
	if skipped == 0 || skipped == len(Cases()) {
		t.Errorf("%d of %d cases are skipped", skipped, len(Cases()))
	}
}
