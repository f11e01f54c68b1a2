package plan

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

var update = flag.Bool("update", false, "write the decisions of testdata/*.txt anew")

// scenario is a cluster that a text file tells the story of. Each line is a command; after "decide" and a line of
// dashes stands what Next decides, up to an empty line. See testdata/README.md for the commands.
type scenario struct {
	in     Input
	facts  map[string]*MachineFacts
	member map[string]string
	off    string
}

func newScenario() *scenario {
	s := &scenario{facts: map[string]*MachineFacts{}, member: map[string]string{}}
	s.in = Input{
		Now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), Policy: DefaultPolicy(),
		Inventory: &state.ClusterInventory{Machines: map[string]*state.MachineInventory{}},
		Desired: Desired{
			Name: "c1", Commit: "commit1", CheckPassed: true, TalosVersion: "v1.13.5", KubernetesVersion: "v1.36.0", Contract: "v1.13",
			SecretsFingerprint: "s1", EncryptedFingerprint: "e1", WorkerMaxUnavailable: 1, Settle: 30 * time.Second, Grace: time.Minute,
			Interval: 2 * time.Minute, Reboot: "auto", InWindow: true, Try: true,
		},
	}
	return s
}

// words of a command: flags and key=value.
type words map[string]string

func parseWords(fields []string) words {
	w := words{}
	for _, f := range fields {
		k, v, _ := strings.Cut(f, "=")
		w[k] = strings.ReplaceAll(v, "_", " ")
	}
	return w
}

func (w words) has(k string) bool { _, ok := w[k]; return ok }

func (w words) set(k string, to *string) {
	if w.has(k) {
		*to = w[k]
	}
}

func (w words) duration(k string) time.Duration {
	d, err := time.ParseDuration(w[k])
	if err != nil {
		panic(fmt.Sprintf("%s=%s: %v", k, w[k], err))
	}
	return d
}

func (s *scenario) run(line string) string {
	f := strings.Fields(line)
	if len(f) == 0 {
		return ""
	}
	name := ""
	if len(f) > 1 {
		name = f[1]
	}
	switch f[0] {
	case "decide":
		return s.decide()
	case "fleet":
		s.reset()
		cps, _ := strconv.Atoi(f[1])
		workers, _ := strconv.Atoi(f[2])
		s.fleet(cps, workers)
	case "bare":
		s.reset()
		cps, _ := strconv.Atoi(f[1])
		workers, _ := strconv.Atoi(f[2])
		s.bare(cps, workers)
	case "head":
		s.in.Desired.Commit = name
		s.change(f[2:])
	case "cluster":
		s.cluster(parseWords(f[1:]))
	case "inventory":
		s.inventory(parseWords(f[1:]))
	case "machine":
		s.machine(name, parseWords(f[2:]))
	case "known":
		s.known(name, parseWords(f[2:]))
	case "seen":
		s.seen(name, parseWords(f[2:]))
	case "intent":
		s.intent(f[1], f[2], parseWords(f[3:]))
	case "forget":
		delete(s.in.Inventory.Machines, name)
	case "no":
		s.in.Inventory.Intents = nil
	case "wait":
		d, err := time.ParseDuration(name)
		if err != nil {
			panic(err)
		}
		s.in.Now = s.in.Now.Add(d)
		for _, m := range s.facts {
			s.stamp(m, s.in.Now)
		}
	default:
		panic("unknown command: " + line)
	}
	return ""
}

// reset begins another story.
func (s *scenario) reset() {
	off := s.off
	*s = *newScenario()
	s.off = off
}

func (s *scenario) stamp(m *MachineFacts, at time.Time) {
	m.At = at
	if m.Config != nil {
		m.Config.At = at
	}
	if m.Etcd != nil {
		m.Etcd.At = at
	}
}

func roleOf(name string) string {
	if strings.HasPrefix(name, "cp") {
		return RoleControlPlane
	}
	return RoleWorker
}

func (s *scenario) desired(name string) *DesiredMachine {
	for i := range s.in.Desired.Machines {
		if s.in.Desired.Machines[i].Name == name {
			return &s.in.Desired.Machines[i]
		}
	}
	return nil
}

// bare makes a cluster whose machines wait in maintenance mode and that nothing is known of.
func (s *scenario) bare(cps, workers int) {
	for i := range cps + workers {
		name := fmt.Sprintf("cp%d", i+1)
		if i >= cps {
			name = fmt.Sprintf("w%d", i-cps+1)
		}
		s.machine(name, words{})
		s.seen(name, words{"maintenance": ""})
	}
}

// fleet makes a cluster that runs, is known, and has digest d1 of commit1 in force everywhere; cp1 leads.
func (s *scenario) fleet(cps, workers int) {
	inv := s.in.Inventory
	inv.Adopted, inv.AppliedCommit, inv.BootstrapMachine, inv.BootstrapUUID = true, "commit1", "cp1", "uuid-cp1"
	inv.TalosVersion, inv.KubernetesVersion, inv.Contract = "v1.13.5", "v1.36.0", "v1.13"
	inv.SecretsFingerprint, inv.EncryptedFingerprint = "s1", "e1"
	for i := range cps {
		s.member[fmt.Sprintf("cp%d", i+1)] = fmt.Sprintf("%016x", i+1)
	}
	for i := range cps + workers {
		name := fmt.Sprintf("cp%d", i+1)
		if i >= cps {
			name = fmt.Sprintf("w%d", i-cps+1)
		}
		s.machine(name, words{"digest": "d1"})
		s.known(name, words{"inforce": "d1", "sent": "d1", "joined": "", "node": "node-" + name, "sent-ago": "24h"})
		s.seen(name, words{"equal": ""})
	}
}

// change gives machines another wish: "all=d2" or names, with effect=….
func (s *scenario) change(fields []string) {
	w := parseWords(fields)
	for i := range s.in.Desired.Machines {
		m := &s.in.Desired.Machines[i]
		d := w[m.Name]
		if d == "" {
			d = w["all"]
		}
		if m.BaselineDigest == "" || m.BaselineDigest == m.Digest {
			if e := s.in.Inventory.Machines[m.Name]; e != nil {
				m.BaselineDigest = e.InForceDigest
			}
		}
		if d == "" || d == m.Digest {
			continue
		}
		m.Digest, m.CheckedDigest = d, d
		if f := s.facts[m.Name]; f != nil && f.Config != nil {
			s.differs(f, w["effect"])
			f.Config.ForDigest = d
		}
	}
}

func (s *scenario) cluster(w words) {
	d := &s.in.Desired
	d.Observe, d.Suspend = d.Observe || w.has("observe"), d.Suspend || w.has("suspend")
	if w.has("check") {
		d.CheckPassed = w["check"] == "passed"
	}
	if w.has("hold") {
		d.Holds = []Hold{{Reason: w["hold"], Message: "held from outside"}}
	}
	if w.has("destructive-hold") {
		d.Holds = []Hold{{Reason: w["destructive-hold"], Message: "destructive acts are held from outside", Destructive: true}}
	}
	w.set("talos", &d.TalosVersion)
	w.set("kubernetes", &d.KubernetesVersion)
	w.set("contract", &d.Contract)
	w.set("secrets", &d.SecretsFingerprint)
	w.set("encrypted", &d.EncryptedFingerprint)
	w.set("skip-kubernetes", &d.SkipKubernetesGates)
	w.set("reboot", &d.Reboot)
	if w.has("ack") {
		d.Acks = append(d.Acks, w["ack"])
	}
	if w.has("max") {
		d.WorkerMaxUnavailable, _ = strconv.Atoi(w["max"])
	}
	if w.has("window") {
		d.InWindow = w["window"] == "open"
	}
	if w.has("try") {
		d.Try = w["try"] != "off"
	}
	if w.has("drift") {
		d.ReportDrift = w["drift"] == "report"
	}
	if w.has("unparsed") {
		d.UnknownMachines = append(d.UnknownMachines, w["unparsed"])
		s.remove(w["unparsed"])
	}
}

func (s *scenario) inventory(w words) {
	if w.has("unknown") {
		s.in.Inventory = nil
		return
	}
	if w.has("lost") {
		s.in.Inventory = &state.ClusterInventory{Machines: map[string]*state.MachineInventory{}}
	}
	if w.has("adopted") {
		s.in.Inventory.Adopted = true
	}
	if w.has("bootstrapped") {
		s.in.Inventory.BootstrapMachine, s.in.Inventory.BootstrapUUID = w["bootstrapped"], ""
	}
	w.set("applied", &s.in.Inventory.AppliedCommit)
}

func (s *scenario) remove(name string) {
	for i := range s.in.Desired.Machines {
		if s.in.Desired.Machines[i].Name == name {
			s.in.Desired.Machines = append(s.in.Desired.Machines[:i:i], s.in.Desired.Machines[i+1:]...)
			return
		}
	}
}

func (s *scenario) machine(name string, w words) {
	if w.has("gone") {
		s.remove(name)
		return
	}
	m := s.desired(name)
	if m == nil {
		s.in.Desired.Machines = append(s.in.Desired.Machines, DesiredMachine{
			Name: name, Role: roleOf(name), Approval: "approved", Endpoint: name + ":50000", Hostname: name, UUID: "uuid-" + name,
			Digest: "d1", CheckedDigest: "d1",
		})
		m = s.desired(name)
	}
	w.set("approval", &m.Approval)
	if w.has("digest") {
		m.Digest, m.CheckedDigest = w["digest"], w["digest"]
	}
	w.set("checked", &m.CheckedDigest)
	w.set("baseline", &m.BaselineDigest)
	w.set("uuid", &m.UUID)
	w.set("hostname", &m.Hostname)
	w.set("fingerprint", &m.CertFingerprint)
	w.set("problem", &m.Problem)
}

func (s *scenario) known(name string, w words) {
	m := s.in.Inventory.Machines[name]
	if m == nil {
		m = &state.MachineInventory{Role: roleOf(name), Endpoint: name + ":50000", Hostname: name}
		m.Identity = state.Identity{UUID: "uuid-" + name, NodeName: name, MemberID: s.member[name]}
		s.in.Inventory.Machines[name] = m
	}
	w.set("inforce", &m.InForceDigest)
	w.set("sent", &m.SentDigest)
	w.set("mode", &m.SentMode)
	w.set("failed", &m.FailedDigest)
	w.set("failure", &m.Failure)
	w.set("node", &m.Identity.NodeID)
	w.set("nodename", &m.Identity.NodeName)
	w.set("member", &m.Identity.MemberID)
	w.set("uuid", &m.Identity.UUID)
	w.set("answered", &m.AnsweredEffect)
	w.set("answered-for", &m.AnsweredDigest)
	w.set("pending-boot", &m.RebootPendingBootID)
	if w.has("pending") {
		m.RebootPending = []string{w["pending"]}
	}
	if w.has("sent-ago") {
		m.SentAt = s.in.Now.Add(-w.duration("sent-ago"))
	}
	if w.has("joined") {
		m.JoinedAt = s.in.Now.Add(-48 * time.Hour)
	}
	if w.has("node-ready-seen") {
		m.NodeReadySeen = true
	}
}

func (s *scenario) intent(act, name string, w words) {
	it := state.Intent{
		ID: "1-1-" + act + "-" + name, Act: state.Act(act), Machine: name, UUID: "uuid-" + name, Commit: s.in.Desired.Commit, Epoch: 1,
		At: s.in.Now.Add(-w.duration("ago")), BootID: "boot1", Sent: w.has("sent"), Digest: "d1",
	}
	w.set("digest", &it.Digest)
	s.in.Inventory.Intents = append(s.in.Inventory.Intents, it)
	if act == "bootstrap" {
		s.in.Inventory.BootstrapMachine, s.in.Inventory.BootstrapUUID = name, it.UUID
	}
}

func (s *scenario) decide() string {
	s.in.Observed = map[string]MachineFacts{}
	for name, f := range s.facts {
		s.in.Observed[name] = *f
	}
	return render(next(s.in, s.off))
}

// render a decision as text.
func render(d Decision) string {
	var b strings.Builder
	for _, a := range d.Actions {
		fmt.Fprintf(&b, "%s %s", a.Kind, a.Machine)
		for _, x := range []string{string(a.Send), a.Digest, a.Outcome} {
			if x != "" && x != "d1" {
				fmt.Fprintf(&b, " %s", x)
			}
		}
		fmt.Fprintf(&b, ": %s", a.Reason)
		if a.Disrupts != "" {
			fmt.Fprintf(&b, " [%s]", a.Disrupts)
		}
		if len(a.Expect.OthersHealthy) > 0 {
			fmt.Fprintf(&b, " {others healthy: %s}", strings.Join(a.Expect.OthersHealthy, " "))
		}
		b.WriteString("\n")
	}
	for _, m := range d.Machines {
		fmt.Fprintf(&b, "  %s %s: %s\n", m.Name, m.Reason, m.Message)
		for _, c := range m.Conditions {
			if c.Type != state.CondConverged && (c.Type != state.CondReady || c.Status != state.True) {
				fmt.Fprintf(&b, "    %s=%s %s\n", c.Type, c.Status, c.Reason)
			}
		}
	}
	for _, c := range d.Conditions {
		if c.Type == state.CondHeld && c.Status == state.True || c.Type == state.CondTransitioning {
			fmt.Fprintf(&b, "  %s=%s %s\n", c.Type, c.Status, c.Reason)
		}
	}
	fmt.Fprintf(&b, "%s: %s; look again in %s\n", d.Progress.State, d.Progress.Message, d.LookAgain)
	return b.String()
}

// play a file with a gate switched off; it returns the file with the decisions of now.
func play(t *testing.T, path, off string) (was, now string, nodeActs []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := newScenario()
	s.off = off
	var out []string
	skipping := false
	for _, line := range strings.Split(strings.TrimRight(string(data), "\n"), "\n") {
		switch {
		case skipping && strings.TrimSpace(line) == "":
			skipping = false
			out = append(out, "")
		case skipping:
		case strings.HasPrefix(line, "#"), strings.TrimSpace(line) == "":
			out = append(out, line)
		case line == "----":
			skipping = true
		default:
			out = append(out, line)
			if text := s.run(line); text != "" {
				out = append(out, "----", strings.TrimRight(text, "\n"), "")
				nodeActs = append(nodeActs, actsOf(text))
			}
		}
	}
	text := strings.TrimRight(strings.Join(out, "\n"), "\n") + "\n"
	for strings.Contains(text, "\n\n\n") {
		text = strings.ReplaceAll(text, "\n\n\n", "\n\n")
	}
	return string(data), text, nodeActs
}

// actsOf keeps what is done on nodes or to the inventory: what a person would call another decision.
func actsOf(text string) string {
	var out []string
	for _, line := range strings.Split(text, "\n") {
		head, _, _ := strings.Cut(line, ":")
		if line != "" && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "observe ") && !strings.Contains(line, "; look again") {
			out = append(out, head)
		}
	}
	return strings.Join(out, "\n")
}

func scenarioFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	return files
}

func TestScenarios(t *testing.T) {
	for _, path := range scenarioFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			was, now, _ := play(t, path, "")
			if *update {
				if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if was != now {
				t.Errorf("the decision is another; run with -update and read the difference\n--- is\n%s", now)
			}
		})
	}
}

// TestGatesAreNeeded switches each gate off and sees that some scenario then does on a node what it must not.
func TestGatesAreNeeded(t *testing.T) {
	files := scenarioFiles(t)
	with := map[string][]string{}
	for _, path := range files {
		_, _, with[path] = play(t, path, "")
	}
	var all []string
	for _, g := range gateList {
		all = append(all, g.name)
	}
	all = append(all, "leader-hands-on")
	for _, name := range all {
		t.Run(name, func(t *testing.T) {
			for _, path := range files {
				_, _, without := play(t, path, name)
				for i := range without {
					if without[i] != with[path][i] {
						return
					}
				}
			}
			t.Errorf("no scenario acts otherwise when the gate %s is off: it guards nothing that is tested", name)
		})
	}
}
