package plan

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ichor.maesh.dev/ichor/schemas/state"
)

// drawInput makes an input that is mostly a running cluster, with a few things changed at random: enough for every rule
// and every gate to have something to say.
func drawInput(t *rapid.T) Input {
	s := newScenario()
	cps := rapid.IntRange(1, 5).Draw(t, "cps")
	workers := rapid.IntRange(0, 3).Draw(t, "workers")
	if rapid.IntRange(0, 4).Draw(t, "bare") == 0 {
		s.bare(cps, workers)
		s.in.Inventory.Adopted = rapid.Bool().Draw(t, "adopted")
		if s.in.Inventory.Adopted && rapid.Bool().Draw(t, "waiting") {
			for i := range cps {
				name := fmt.Sprintf("cp%d", i+1)
				s.known(name, words{"sent": "d1", "sent-ago": "1m", "node": "node-" + name})
				s.seen(name, words{"configured": "", "waiting": ""})
			}
		}
	} else {
		s.fleet(cps, workers)
	}
	for _, m := range append([]DesiredMachine(nil), s.in.Desired.Machines...) {
		drawMachine(t, s, m.Name)
	}
	drawCluster(t, s)
	in := s.in
	in.Observed = map[string]MachineFacts{}
	for name, f := range s.facts {
		in.Observed[name] = *f
	}
	if rapid.IntRange(0, 30).Draw(t, "no-inventory") == 0 {
		in.Inventory = nil
	}
	return in
}

func pick(t *rapid.T, label string, xs ...string) string { return rapid.SampledFrom(xs).Draw(t, label) }

func drawMachine(t *rapid.T, s *scenario, name string) {
	if rapid.Bool().Draw(t, name+"-changes") {
		s.change([]string{name + "=d2", "effect=" + pick(t, name+"-effect", "live", "restart:etcd", "restart:kubelet", "restart", "reboot", "install", "live+reboot")})
	}
	if f := s.facts[name]; f != nil && f.Mode == ModeConfigured && rapid.IntRange(0, 3).Draw(t, name+"-story") == 0 {
		story(s, name, pick(t, name+"-which", "try", "staged", "pending", "sent", "alone"))
	}
	for range rapid.IntRange(0, 2).Draw(t, name+"-what") {
		switch pick(t, name+"-kind", "seen", "seen", "seen", "known", "known", "machine", "intent") {
		case "seen":
			if s.facts[name] == nil {
				continue
			}
			w := pick(t, name+"-seen", "maintenance", "unreachable=20s", "unreachable=10m", "foreign", "uuid=uuid-x", "node=node-x", "age=15s", "age=5m",
				"well-for=5s", "kubelet=Failed", "equal", "boot=boot2", "nothing", "talos=v1.14.1", "boot=", "etcd", "trying", "staged", "configured")
			if w == "etcd" && (roleOf(name) != RoleControlPlane || s.facts[name].Etcd == nil) {
				continue
			}
			if w == "etcd" {
				w = pick(t, name+"-etcd", "waiting", "etcd-down", "leader=cp2", "api=down", "api=unknown", "learner", "read=fails", "listed=00000000000000a1", "member=00000000000000b1")
			}
			if (w == "trying" || w == "staged" || w == "kubelet=Failed") && s.facts[name].Config == nil {
				continue
			}
			s.seen(name, parseWords([]string{w}))
		case "known":
			s.known(name, parseWords([]string{pick(t, name+"-known", "sent=d2", "sent-ago=5s", "sent-ago=40s", "mode=try", "mode=staged", "failed=d2", "failed=d1",
				"inforce=d2", "pending=p", "pending-boot=boot1", "answered=reboot", "answered-for=d2", "node-ready-seen", "node=")}))
		case "machine":
			s.machine(name, parseWords([]string{pick(t, name+"-machine", "approval=pending", "approval=rejected", "checked=d0", "problem=p", "baseline=x", "uuid=uuid-y")}))
		case "intent":
			s.intent(pick(t, name+"-act", "install", "reboot", "bootstrap"), name, parseWords([]string{"ago=" + pick(t, name+"-ago", "5s", "1m", "1h"), pick(t, name+"-sent", "sent", "x")}))
		}
	}
}

// story puts a machine into the middle of a rollout.
func story(s *scenario, name, which string) {
	d := s.desired(name).Digest
	known := func(line string) {
		s.known(name, parseWords(append([]string{"sent=" + d, "inforce=d0"}, strings.Fields(line)...)))
	}
	switch which {
	case "try":
		known("mode=try sent-ago=40s")
		s.seen(name, words{"equal": "", "trying": ""})
	case "staged":
		known("mode=staged sent-ago=5s")
		s.seen(name, words{"equal": "", "differs": "reboot", "staged": ""})
	case "pending":
		known("mode=no-reboot sent-ago=40s pending=p pending-boot=boot1")
		s.seen(name, words{"equal": "", "talos": "v1.14.0"})
	case "sent":
		known("mode=no-reboot sent-ago=40s")
		s.seen(name, words{"equal": "", "differs": "live"})
	case "alone": // the only one that the head changes
		for _, m := range s.in.Desired.Machines {
			if f := s.facts[m.Name]; m.Name != name && f != nil && f.Config != nil {
				f.Config.Equal, f.Config.PersistentEqual = true, true
			}
		}
		s.change([]string{name + "=d3", "effect=restart:etcd"})
	}
}

func drawCluster(t *rapid.T, s *scenario) {
	for range rapid.IntRange(0, 1).Draw(t, "cluster-what") {
		s.cluster(parseWords([]string{pick(t, "cluster", "observe", "suspend", "check=failed", "hold=ForcePushHeld", "destructive-hold=InventoryUnknown",
			"secrets=s2", "talos=v1.14.0", "contract=v1.14", "encrypted=e2", "skip-kubernetes=x", "reboot=manual", "reboot=window", "window=closed", "try=off", "drift=report", "max=3")}))
	}
}

// TestProperties holds decisions over random inputs against a slow and obvious twin of the rules.
func TestProperties(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("4000"); err != nil {
			t.Fatal(err)
		}
	}
	acts := map[ActionKind]int{}
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		before := fmt.Sprintf("%+v", in.Inventory)
		d := Next(in)
		if again := Next(in); !reflect.DeepEqual(d, again) {
			t.Fatal("the same input gave another decision")
		}
		if fmt.Sprintf("%+v", in.Inventory) != before {
			t.Fatal("the inventory was changed")
		}
		tw := &twin{t: t, in: in, d: d}
		tw.check()
		for _, a := range d.Actions {
			acts[a.Kind]++
		}
	})
	for _, kind := range []ActionKind{DoInstall, DoBootstrap, DoConfigure, DoConfirm, DoForfeit, DoReboot, CloseIntent, RecordAdopt, RecordInForce, RecordFailure, RecordIdentity, RecordRebootPending} {
		if acts[kind] == 0 {
			t.Errorf("the random inputs never lead to %s: they prove nothing about it", kind)
		}
	}
}

// twin says what must hold of a decision, in the plainest words and without any of the code under test.
type twin struct {
	t  *rapid.T
	in Input
	d  Decision
}

func (w *twin) fail(a Action, format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s %s: %s\n%s", a.Kind, a.Machine, fmt.Sprintf(format, args...), render(w.d))
}

func (w *twin) want(name string) *DesiredMachine {
	for i := range w.in.Desired.Machines {
		if w.in.Desired.Machines[i].Name == name {
			return &w.in.Desired.Machines[i]
		}
	}
	return nil
}

func (w *twin) check() {
	touched, workers := "", 0
	seen := map[string]int{}
	for _, a := range w.d.Actions {
		if !onNode(a.Kind) {
			continue
		}
		if seen[a.Machine]++; seen[a.Machine] > 1 {
			w.fail(a, "two acts on one node in one decision")
		}
		w.checkHeld(a)
		w.checkMachine(a)
		m := w.want(a.Machine)
		if a.Kind == DoInstall || m == nil {
			continue
		}
		if m.Role == RoleControlPlane {
			if touched != "" && a.Kind != DoConfirm {
				w.fail(a, "control plane %s is touched in the same decision", touched)
			}
			if a.Kind != DoConfirm {
				touched = a.Machine
			}
			w.checkControlPlane(a)
		} else if a.Kind == DoReboot {
			workers++
		}
		if workers > w.in.Desired.WorkerMaxUnavailable {
			w.fail(a, "more workers than may be unavailable")
		}
	}
	w.checkWords()
}

func onNode(k ActionKind) bool {
	return k == DoInstall || k == DoBootstrap || k == DoConfigure || k == DoConfirm || k == DoForfeit || k == DoReboot
}

func (w *twin) checkHeld(a Action) {
	d, inv := w.in.Desired, w.in.Inventory
	switch {
	case d.Suspend, d.Observe, !d.CheckPassed, inv == nil:
		w.fail(a, "the cluster is held")
	case !inv.Adopted:
		w.fail(a, "the cluster is not adopted")
	case inv.SecretsFingerprint != "" && inv.SecretsFingerprint != d.SecretsFingerprint:
		w.fail(a, "the secrets changed")
	case inv.TalosVersion != "" && inv.TalosVersion != d.TalosVersion:
		w.fail(a, "the version changed")
	}
	for _, h := range d.Holds {
		if !h.Destructive || a.Kind == DoInstall || a.Kind == DoBootstrap || a.Kind == DoReboot {
			w.fail(a, "held: %s", h.Reason)
		}
	}
}

func (w *twin) checkMachine(a Action) {
	m, f, e := w.want(a.Machine), w.in.Observed[a.Machine], w.in.Inventory.Machines[a.Machine]
	switch {
	case m == nil || m.Approval != "approved" || m.Problem != "":
		w.fail(a, "it is not approved, or has a problem")
	case m.Digest != m.CheckedDigest:
		w.fail(a, "what was checked is not what is applied")
	case f.Reach != ReachOK || w.in.Now.Sub(f.At) > 10*time.Second:
		w.fail(a, "its facts are missing or old")
	case m.UUID != "" && f.Identity.UUID != m.UUID:
		w.fail(a, "its UUID is another")
	case (a.Kind == DoInstall) != (f.Mode == ModeMaintenance):
		w.fail(a, "its API is in mode %s", f.Mode)
	case f.Mode != ModeMaintenance && f.Mode != ModeConfigured:
		w.fail(a, "its API is in mode %s", f.Mode)
	case e != nil && e.Identity.NodeID != "" && f.Identity.NodeID != e.Identity.NodeID:
		w.fail(a, "its node ID is another")
	case e != nil && f.At.Before(e.SentAt):
		w.fail(a, "its facts are older than what was sent")
	case e != nil && e.FailedDigest == m.Digest && (a.Kind == DoInstall || a.Kind == DoConfigure):
		w.fail(a, "its wish has failed")
	case e != nil && e.SentMode == "try" && w.in.Now.Before(e.SentAt.Add(90*time.Second)) && a.Kind != DoConfirm:
		w.fail(a, "a try may be pending on it")
	}
	for _, it := range w.in.Inventory.Intents {
		if it.Machine == a.Machine {
			w.fail(a, "the outcome of its %s is not seen", it.Act)
		}
	}
	if a.Kind == DoBootstrap {
		w.checkBootstrap(a)
	}
	if a.Kind == DoReboot && f.BootID == "" {
		w.fail(a, "its boot ID is not known")
	}
	if a.Kind == DoInstall || a.Kind == DoConfigure {
		w.checkRender(a, m, f, e)
	}
	if a.Kind == DoReboot && (w.in.Desired.Reboot == "manual" || (w.in.Desired.Reboot == "window" && !w.in.Desired.InWindow)) {
		w.fail(a, "reboots are held")
	}
}

// checkRender: the contract is one that the node knows, and no render goes out that the tool has changed.
func (w *twin) checkRender(a Action, m *DesiredMachine, f MachineFacts, e *state.MachineInventory) {
	if w.in.Desired.Contract == "v1.14" && strings.HasPrefix(f.TalosVersion, "v1.13") {
		w.fail(a, "its contract is above what it runs")
	}
	if e != nil && e.InForceDigest != "" && e.InForceDigest != m.Digest && m.BaselineDigest != e.InForceDigest {
		w.fail(a, "the tool changed the render")
	}
	if e == nil && f.Mode == ModeConfigured && !(f.Config.Equal && f.Config.PersistentEqual) {
		w.fail(a, "nobody knows it")
	}
	for _, o := range w.in.Desired.Machines {
		oe := w.in.Inventory.Machines[o.Name]
		if a.Kind == DoConfigure && o.Name != a.Machine && o.Approval == "approved" && oe != nil && oe.FailedDigest == o.Digest && !w.broken(a.Machine) {
			w.fail(a, "the rollout stopped at %s", o.Name)
		}
	}
}

func (w *twin) checkBootstrap(a Action) {
	if w.in.Inventory.BootstrapUUID != "" {
		w.fail(a, "it was bootstrapped before")
	}
	for _, m := range w.in.Desired.Machines {
		if m.Approval != "approved" || m.Role != RoleControlPlane {
			continue
		}
		f := w.in.Observed[m.Name]
		if f.Reach != ReachOK || f.Mode != ModeConfigured || f.Etcd == nil || f.Etcd.State != "Preparing" || f.Etcd.MemberID != "" || w.in.Now.Sub(f.At) > 10*time.Second {
			w.fail(a, "%s is not seen waiting without data", m.Name)
		}
	}
}

func (w *twin) checkControlPlane(a Action) {
	f := w.in.Observed[a.Machine]
	if a.Kind == DoBootstrap || a.Kind == DoConfirm || f.Etcd == nil || (f.Etcd.MemberID == "" && f.Etcd.State != "Running") {
		return
	}
	approved, healthy, listed := 0, 0, 0
	for _, m := range w.in.Desired.Machines {
		if m.Approval != "approved" || m.Role != RoleControlPlane {
			continue
		}
		approved++
		o := w.in.Observed[m.Name]
		ok := o.Reach == ReachOK && o.Mode == ModeConfigured && o.Etcd != nil && o.Etcd.MemberID != "" && !o.Etcd.Learner &&
			o.Etcd.LinearizableRead != nil && *o.Etcd.LinearizableRead && w.in.Now.Sub(o.At) <= 10*time.Second && o.Identity.UUID == m.UUID
		if ok && m.Name != a.Machine {
			healthy++ // what is left without it
		}
		if o.Etcd != nil && o.Reach == ReachOK && o.Mode == ModeConfigured && len(o.Etcd.Members) > listed {
			listed = len(o.Etcd.Members)
		}
		broken := w.broken(a.Machine) && o.Mode == ModeMaintenance
		if m.Name != a.Machine && !ok && !broken {
			w.fail(a, "%s is not a healthy member", m.Name)
		}
		if m.Name != a.Machine && !broken {
			if w.in.Desired.SkipKubernetesGates == "" && (o.APIServerReady == nil || !*o.APIServerReady) {
				w.fail(a, "the API server of %s is not known to be ready", m.Name)
			}
			if w.in.Desired.SkipKubernetesGates == "" && (o.WellSince.IsZero() || o.At.Sub(o.WellSince) < w.in.Desired.Settle) {
				w.fail(a, "%s was not well for the settle time", m.Name)
			}
			for _, it := range w.in.Inventory.Intents {
				if it.Machine == m.Name && it.Act != state.ActInstall {
					w.fail(a, "%s has an open intent", m.Name)
				}
			}
		}
	}
	if a.Disrupts == "" || max(approved, listed) == 1 {
		return
	}
	n := max(approved, listed)
	if healthy < n/2+1 {
		w.fail(a, "%d of %d voters would be left", healthy, n)
	}
	if approved%2 == 0 {
		w.fail(a, "%d control planes are even", approved)
	}
	if f.Etcd.Leader == f.Etcd.MemberID {
		w.fail(a, "it leads etcd")
	}
}

// broken: a configuration failed on it, or was sent and left it unwell, and the head has another.
func (w *twin) broken(name string) bool {
	e, m := w.in.Inventory.Machines[name], w.want(name)
	return e != nil && ((e.FailedDigest != "" && e.FailedDigest != m.Digest) || (e.SentDigest != "" && e.SentDigest != m.Digest))
}

func (w *twin) checkWords() {
	names := map[string]bool{}
	for _, m := range w.d.Machines {
		if m.Reason == "" || m.Message == "" {
			w.t.Fatalf("machine %s has no reason: %+v", m.Name, m)
		}
		if names[m.Name] {
			w.t.Fatalf("machine %s comes twice", m.Name)
		}
		names[m.Name] = true
	}
	for _, m := range w.in.Desired.Machines {
		if !names[m.Name] {
			w.t.Fatalf("machine %s is missing", m.Name)
		}
	}
	if w.d.LookAgain <= 0 || w.d.LookAgain > w.in.Desired.Interval {
		w.t.Fatalf("look again in %s", w.d.LookAgain)
	}
	if p := w.d.Progress; p.State == "" || p.Message == "" || len([]rune(p.Message)) > 140 {
		w.t.Fatalf("progress %+v", p)
	}
	for i, a := range w.d.Actions {
		if a.Reason == "" || (a.Machine == "" && a.Kind != RecordAdopt && a.Kind != RecordApplied) {
			w.t.Fatalf("action without reason or machine: %+v", a)
		}
		if i > 0 && onNode(w.d.Actions[i-1].Kind) && !onNode(a.Kind) {
			w.t.Fatalf("%s comes after an act on a node", a.Kind)
		}
	}
}
