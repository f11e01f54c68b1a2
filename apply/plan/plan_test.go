package plan

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// TestImports: the decision core imports the schemas, its own arithmetic, and of the standard library nothing that does
// I/O, reads a clock by itself (time is for values), or is random.
func TestImports(t *testing.T) {
	allowed := map[string]bool{
		"cmp": true, "crypto/sha256": true, "encoding/hex": true, "fmt": true, "maps": true, "slices": true, "sort": true,
		"strconv": true, "strings": true, "time": true,
		"ichor.maesh.dev/ichor/schemas/state": true, "ichor.maesh.dev/ichor/apply/plan/quorum": true,
	}
	for _, pkg := range []string{".", "./quorum"} {
		out, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range strings.Fields(string(out)) {
			if !allowed[path] {
				t.Errorf("%s imports %s", pkg, path)
			}
		}
	}
	out, err := exec.Command("grep", "-nE", `time\.(Now|Sleep|After|Tick|NewTimer|Since|Until)\(|^\s*go func|\bselect\b|\bchan\b`, "--include=*.go",
		"--exclude=*_test.go", "-r", ".", "--exclude-dir=sim").Output()
	if err == nil {
		t.Errorf("the decision core reads a clock or starts something:\n%s", out)
	}
}

// TestGateNames: a gate is switched off by its name, so names are unique.
func TestGateNames(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range gateList {
		if seen[g.name] || g.name == "" {
			t.Errorf("gate name %q twice or empty", g.name)
		}
		seen[g.name] = true
	}
}

func TestRuleOrder(t *testing.T) {
	var names []string
	for _, r := range rules {
		names = append(names, r.name)
	}
	if got := strings.Join(names, " "); got != "gates finish repair bring-up upgrade configure kubernetes removal done" {
		t.Errorf("the rules run in the order %s", got)
	}
}

func TestReady(t *testing.T) {
	yes, no := true, false
	base := func() MachineFacts { return *newScenario().configured("w1") }
	cases := []struct {
		name   string
		change func(*MachineFacts)
		seen   bool
		want   Tri
	}{
		{"ready", func(*MachineFacts) {}, false, Yes},
		{"installing says ready true", func(f *MachineFacts) { f.Stage = "installing" }, false, No},
		{"booting", func(f *MachineFacts) { f.Stage = "booting" }, false, No},
		{"stage not read", func(f *MachineFacts) { f.Stage = "" }, false, Unknown},
		{"services not read", func(f *MachineFacts) { f.Services = nil }, false, Unknown},
		{"readiness not read", func(f *MachineFacts) { f.Ready = nil }, false, Unknown},
		{"kubelet gone", func(f *MachineFacts) { delete(f.Services, "kubelet") }, false, No},
		{"kubelet unhealthy", func(f *MachineFacts) { f.Services["kubelet"] = ServiceFact{Running: true, Healthy: &no} }, false, No},
		{"kubelet without a health check", func(f *MachineFacts) { f.Services["kubelet"] = ServiceFact{Running: true} }, false, Yes},
		{"node not ready, never was (no CNI)", func(f *MachineFacts) { f.Ready, f.Unmet, f.NodeReady = &no, []string{"nodeReady"}, &no }, false, Yes},
		{"node not ready, was", func(f *MachineFacts) { f.Ready, f.Unmet, f.NodeReady = &no, []string{"nodeReady"}, &no }, true, No},
		{"node ready", func(f *MachineFacts) { f.NodeReady = &yes }, true, Yes},
		{"static pods", func(f *MachineFacts) { f.Ready, f.Unmet = &no, []string{"staticPods"} }, false, No},
		{"not ready, unknown why", func(f *MachineFacts) { f.Ready = &no }, false, No},
	}
	for _, c := range cases {
		f := base()
		c.change(&f)
		if v := Ready(f, RoleWorker, c.seen); v.Is != c.want || (v.Is != Yes) != (v.Why != "") {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}

func TestHealthyMember(t *testing.T) {
	no := false
	s := newScenario()
	s.fleet(3, 0)
	cases := []struct {
		name   string
		change func(*EtcdFact)
		want   Tri
	}{
		{"healthy", func(*EtcdFact) {}, Yes},
		{"learner", func(e *EtcdFact) { e.Learner = true }, No},
		{"alarm", func(e *EtcdFact) { e.Alarms = []string{"NOSPACE"} }, No},
		{"error", func(e *EtcdFact) { e.Errors = []string{"etcdserver: no leader"} }, No},
		{"no leader", func(e *EtcdFact) { e.Leader = "" }, No},
		{"disagrees", func(e *EtcdFact) { e.Disagrees = "2379 says another leader" }, No},
		{"read failed", func(e *EtcdFact) { e.LinearizableRead = &no }, No},
		{"read not tried", func(e *EtcdFact) { e.LinearizableRead = nil }, Unknown},
		{"behind", func(e *EtcdFact) { e.CaughtUp = &no }, No},
		{"lag not known", func(e *EtcdFact) { e.CaughtUp = nil }, Unknown},
		{"no member, preparing", func(e *EtcdFact) { e.MemberID, e.State = "", "Preparing" }, No},
		{"nothing known", func(e *EtcdFact) { e.MemberID, e.State = "", "" }, Unknown},
	}
	for _, c := range cases {
		f := *s.configured("cp1")
		c.change(f.Etcd)
		if v := HealthyMember(f); v.Is != c.want || (v.Is != Yes) != (v.Why != "") {
			t.Errorf("%s: %+v", c.name, v)
		}
		if SeenWell(f, RoleControlPlane, false) != (c.want == Yes) {
			t.Errorf("%s: SeenWell", c.name)
		}
	}
	if v := HealthyMember(MachineFacts{}); v.Is != Unknown {
		t.Errorf("not read: %+v", v)
	}
}

func TestMinor(t *testing.T) {
	for v, want := range map[string]int{"v1.13.5": 13, "1.14.0-rc.1": 14, "v1.9": 9, "": -1, "v2.0.0": -1, "v1": -1, "vx.y": -1} {
		if got := minor(v); got != want {
			t.Errorf("%q: %d", v, got)
		}
	}
}

func TestEndpointHint(t *testing.T) {
	for _, c := range [][3]string{
		{"10.0.0.1:50000", "10.0.0.2", "spec.endpoint may need updating to 10.0.0.2:50000"},
		{"10.0.0.1", "10.0.0.2", "spec.endpoint may need updating to 10.0.0.2:50000"},
		{"10.0.0.1:50001", "10.0.0.2", "spec.endpoint may need updating to 10.0.0.2:50001"},
		{"10.0.0.1:50000", "fd00::2", "spec.endpoint may need updating to [fd00::2]:50000"},
		{"10.0.0.1:50000", "10.0.0.1", ""},
		{"10.0.0.1:50000", "", ""},
		{"[fd00::1]:50000", "fd00::1", ""},
	} {
		if got := endpointHint(c[0], c[1]); got != c[2] {
			t.Errorf("%s, %s: %q", c[0], c[1], got)
		}
	}
}

// TestReachability: exact reasons and times of SPEC section 4.
func TestReachability(t *testing.T) {
	s := newScenario()
	s.fleet(3, 1)
	start := s.in.Now
	for _, c := range []struct {
		after  time.Duration
		reason string
		look   time.Duration
	}{
		{0, state.ReasonCurrentConfigUnavailable, 10 * time.Second},
		{59 * time.Second, state.ReasonCurrentConfigUnavailable, time.Second},
		{60 * time.Second, state.ReasonNodeUnreachable, 10 * time.Second},
		{2 * time.Hour, state.ReasonNodeUnreachable, 2 * time.Minute},
	} {
		s.seen("w1", words{"unreachable": c.after.String()})
		d := s.next()
		m := d.Machines[3]
		var reach, ready state.Condition
		for _, x := range m.Conditions {
			switch x.Type {
			case state.CondNodeReachable:
				reach = x
			case state.CondReady:
				ready = x
			}
		}
		if reach.Status != state.False || !reach.LastTransitionTime.Equal(start.Add(-c.after)) {
			t.Errorf("after %s: %+v", c.after, reach)
		}
		if ready.Status != state.False || ready.Reason != c.reason || reach.Reason != c.reason || !strings.Contains(ready.Message, "connection refused") {
			t.Errorf("after %s: %+v", c.after, ready)
		}
		if d.LookAgain != c.look {
			t.Errorf("after %s: look again in %s", c.after, d.LookAgain)
		}
	}
	s.seen("w1", words{"equal": ""})
	for _, x := range s.next().Machines[3].Conditions {
		if x.Type == state.CondNodeReachable {
			t.Error("the first good read removes NodeReachable")
		}
	}
}

func (s *scenario) next() Decision {
	s.in.Observed = map[string]MachineFacts{}
	for name, f := range s.facts {
		s.in.Observed[name] = *f
	}
	return Next(s.in)
}

// TestNextOnNothing: empty and nil inputs are inputs.
func TestNextOnNothing(t *testing.T) {
	for _, in := range []Input{{}, {Inventory: &state.ClusterInventory{}}, {Desired: Desired{CheckPassed: true}, Inventory: &state.ClusterInventory{Adopted: true}}} {
		if d := Next(in); len(d.Actions) > 0 || d.LookAgain <= 0 {
			t.Errorf("%+v", d)
		}
	}
}

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		name string
		c    StepCluster
		ms   []StepMachine
		want string
	}{
		{"a new cluster", StepCluster{New: true}, []StepMachine{
			{Name: "w1", Role: RoleWorker, Change: "new"}, {Name: "cp2", Role: RoleControlPlane, Change: "new"}, {Name: "cp1", Role: RoleControlPlane, Change: "new"},
		}, "cp1 install, cp2 install, cp1 bootstrap, cp1 join, cp2 join, w1 install, w1 join"},
		{"one more", StepCluster{ControlPlanes: 3}, []StepMachine{
			{Name: "cp5", Role: RoleControlPlane, Change: "new"}, {Name: "cp4", Role: RoleControlPlane, Change: "new"},
		}, "cp4 install, cp4 join, cp5 install, cp5 join"},
		{"configuration", StepCluster{ControlPlanes: 3}, []StepMachine{
			{Name: "w1", Role: RoleWorker, Change: "update", Effect: "reboot"},
			{Name: "cp1", Role: RoleControlPlane, Change: "update", Effect: "restart", Services: []string{"kube-apiserver"}},
			{Name: "cp2", Role: RoleControlPlane, Change: "update", Effect: "live"},
			{Name: "cp3", Role: RoleControlPlane, Change: "none"},
		}, "cp1 configure [kube-apiserver restarts], cp2 configure, w1 configure, w1 reboot [the worker and its pods are down until it is back]"},
		{
			"one control plane",
			StepCluster{ControlPlanes: 1},
			[]StepMachine{{Name: "cp1", Role: RoleControlPlane, Change: "update", Effect: "reboot"}},
			"cp1 configure, cp1 reboot [etcd and the Kubernetes API of the whole cluster are down until it is back]",
		},
		{"two control planes", StepCluster{ControlPlanes: 2}, []StepMachine{
			{Name: "cp1", Role: RoleControlPlane, Change: "update", Effect: "restart", Services: []string{"kubelet"}},
			{Name: "cp2", Role: RoleControlPlane, Change: "update", Effect: "restart"},
		}, "cp1 configure, cp2 configure [a service of the control plane restarts] (" + evenRefusal(2) + ")"},
		{
			"a removal",
			StepCluster{ControlPlanes: 3},
			[]StepMachine{{Name: "cp1", Role: RoleControlPlane, Change: "remove", Refusal: "delete refused: x"}},
			"cp1 drain (delete refused: x), cp1 remove-member [one etcd member leaves] (delete refused: x), cp1 reset [the machine is wiped] (delete refused: x), cp1 delete-node (delete refused: x)",
		},
		{"held", StepCluster{ControlPlanes: 3, Refusal: "version change"}, []StepMachine{{Name: "w1", Role: RoleWorker, Change: "update", Effect: "live"}}, "w1 configure (version change)"},
		{
			"manual reboot",
			StepCluster{ControlPlanes: 3, Reboot: "manual"},
			[]StepMachine{{Name: "w1", Role: RoleWorker, Change: "update", Effect: "reboot"}},
			"w1 configure, w1 reboot [the worker and its pods are down until it is back] (rollout.reboot is manual: a person reboots it)",
		},
	} {
		var got []string
		for _, s := range Steps(c.c, c.ms) {
			text := s.Machine + " " + s.Action
			if s.Disrupts != "" {
				text += " [" + s.Disrupts + "]"
			}
			if s.Refusal != "" {
				text += " (" + s.Refusal + ")"
			}
			got = append(got, text)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %s", c.name, strings.Join(got, ", "))
		}
	}
}

// BenchmarkNext is one decision over a cluster at rest, and one in the middle of a rollout.
func BenchmarkNext(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		for _, change := range []bool{false, true} {
			b.Run(fmt.Sprintf("machines=%d/change=%v", n, change), func(b *testing.B) {
				s := newScenario()
				s.fleet(3, n-3)
				if change {
					s.change([]string{"all=d2", "effect=live"})
				}
				s.next()
				b.ReportAllocs()
				for b.Loop() {
					Next(s.in)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/machine")
			})
		}
	}
}
