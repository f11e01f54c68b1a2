package apply_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"

	"ichor.maesh.dev/ichor/apply/act"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// TestBringUp installs three control planes and a worker over the real protocol and reads what becomes of them.
func TestBringUp(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"cp1", "cp2", "cp3"} {
		r.add(name, plan.RoleControlPlane)
	}
	r.add("w1", plan.RoleWorker)

	f := r.look("cp1")["cp1"]
	if f.Mode != plan.ModeMaintenance || f.Reach != plan.ReachOK || f.Fingerprint != r.lab.Node("cp1").MaintenanceFingerprint() ||
		f.Identity.UUID != r.lab.Node("cp1").Spec().UUID || f.Stage != "maintenance" || f.SystemDisk == nil || *f.SystemDisk || f.TalosVersion != "v1.13.5" || f.Config != nil || f.Etcd != nil {
		t.Fatalf("in maintenance mode: %+v", f)
	}
	r.bringUp()
	facts := r.look()
	for name, f := range facts {
		if f.Mode != plan.ModeConfigured || f.Identity.UUID == "" || f.Identity.NodeID == "" || f.Identity.NodeName != name || f.Hostname != name || f.BootID == "" ||
			f.SystemDisk == nil || !*f.SystemDisk || f.Config == nil || !f.Config.Equal || !f.Config.PersistentEqual || f.Config.TryPending || f.Config.Effect != "none" || f.WellSince.IsZero() {
			t.Errorf("%s: %+v, configuration %+v", name, f, f.Config)
		}
	}
	for _, name := range []string{"cp1", "cp2", "cp3"} {
		f := facts[name]
		e := f.Etcd
		if len(e.Members) != 3 || e.MemberID == "" || e.Leader != facts["cp1"].Etcd.Leader || e.LinearizableRead == nil || !*e.LinearizableRead ||
			e.CaughtUp == nil || !*e.CaughtUp || e.LeaderIndex == 0 || e.Disagrees != "" || f.Identity.MemberID != e.MemberID || f.APIServerReady == nil || !*f.APIServerReady {
			t.Errorf("%s: etcd %+v, API server %v", name, e, f.APIServerReady)
		}
	}
	if facts["w1"].Etcd != nil {
		t.Error("a worker has etcd facts")
	}
	for _, n := range r.lab.Nodes() {
		if c := n.Counters(); c.ApplyConfiguration != 1 {
			t.Errorf("%s was written %d times", n.Name(), c.ApplyConfiguration)
		}
	}
	if inv := r.inventory(); inv.BootstrapMachine != "cp1" || inv.BootstrapUUID != r.lab.Node("cp1").Spec().UUID || inv.Machines["cp1"].SentCommit != "c1" {
		t.Errorf("inventory %+v", inv)
	}
	// Bootstrap again, on a member and on another: the precondition stops both.
	for _, name := range []string{"cp1", "cp2"} {
		r.wantOutcome(r.do(plan.Action{Kind: plan.DoBootstrap, Machine: name, Expect: plan.Expect{EtcdEmptyOn: []string{"cp1", "cp2", "cp3"}}}), act.NotDone, act.KindPrecondition)
	}

	// Leadership, and the others' health just before the call.
	leader := ""
	for name, f := range facts {
		if f.Etcd != nil && f.Etcd.MemberID == f.Etcd.Leader {
			leader = name
		}
	}
	r.done(plan.Action{Kind: plan.DoForfeit, Machine: leader})
	r.until(leader, "no leader any more", func(f plan.MachineFacts) bool {
		return f.Etcd != nil && f.Etcd.Leader != "" && f.Etcd.Leader != f.Etcd.MemberID
	})
	must(t, r.lab.Kill("cp2"))
	res := r.do(plan.Action{Kind: plan.DoReboot, Machine: "cp1", Expect: plan.Expect{OthersHealthy: []string{"cp2", "cp3"}}})
	r.wantOutcome(res, act.NotDone, act.KindPrecondition)
	if !strings.Contains(res.Message, "cp2 is not healthy") {
		t.Errorf("message %q", res.Message)
	}
	if f := r.look("cp2")["cp2"]; f.Reach != plan.ReachUnreachable || f.Error == "" || f.Identity.UUID != "" || !f.WellSince.IsZero() {
		t.Errorf("a dead machine: %+v", f)
	}
	must(t, r.lab.Start("cp2"))
	r.until("cp2", "well", well("cp2", plan.RoleControlPlane))
	boot := r.until("cp1", "well", well("cp1", plan.RoleControlPlane)).BootID
	r.until("cp3", "well", well("cp3", plan.RoleControlPlane))
	r.done(plan.Action{Kind: plan.DoReboot, Machine: "cp1", Expect: plan.Expect{OthersHealthy: []string{"cp2", "cp3"}, BootID: boot}})
	in := r.inventory().Intents
	if len(in) != 1 || !in[0].Sent || in[0].BootID != boot {
		t.Errorf("intents %+v", in)
	}
	r.until("cp1", "back with another boot", func(f plan.MachineFacts) bool { return f.BootID != "" && f.BootID != boot })
	r.wantOutcome(r.do(plan.Action{Kind: plan.DoReboot, Machine: "cp1", Expect: plan.Expect{BootID: boot}}), act.NotDone, act.KindPrecondition)
}

// TestInstallGuards: what must hold before a blank machine is written.
func TestInstallGuards(t *testing.T) {
	r := newRig(t)
	r.add("cp1", plan.RoleControlPlane)
	good := r.machine("cp1").Wish.Reveal()
	install := func(e plan.Expect) act.Result {
		e.Mode = plan.ModeMaintenance
		return r.do(plan.Action{Kind: plan.DoInstall, Machine: "cp1", Expect: e})
	}
	failure := func() string {
		if m := r.inventory().Machines["cp1"]; m != nil {
			return m.Failure
		}
		return ""
	}
	r.wantOutcome(install(plan.Expect{UUID: "11111111-1111-1111-1111-111111111111"}), act.NotDone, act.KindPrecondition)
	r.wantOutcome(install(plan.Expect{Fingerprint: "AAAA"}), act.NotDone, act.KindPrecondition)
	r.wantOutcome(r.do(plan.Action{Kind: plan.DoInstall, Machine: "cp1", Digest: "sha256:other"}), act.NotDone, act.KindPrecondition)
	r.wantOutcome(r.do(plan.Action{Kind: plan.DoConfigure, Send: plan.SendNoReboot, Machine: "cp1", Expect: plan.Expect{Mode: plan.ModeConfigured}}), act.NotDone, act.KindPrecondition)
	if failure() != "" {
		t.Fatalf("a precondition is no failure: %s", failure())
	}

	r.wish("cp1", []byte(strings.Replace(string(good), "/dev/vda", "/dev/sdx", 1)))
	r.wantOutcome(install(plan.Expect{}), act.NotDone, act.KindRefused)
	if !strings.Contains(failure(), "/dev/sdx matches 0") {
		t.Errorf("failure %q", failure())
	}
	r.wish("cp1", []byte(strings.Replace(string(good), "disk: /dev/vda", "disk: /dev/vda\n        nosuchfield: canary-env-value", 1)))
	r.wantOutcome(install(plan.Expect{}), act.NotDone, act.KindRefused)

	r.wish("cp1", good)
	must(t, r.lab.RefuseConfig("cp1", "the machine says no to "+r.bundle.Secrets().TrustdInfo.Token))
	res := install(plan.Expect{})
	r.wantOutcome(res, act.NotDone, act.KindRefused)
	must(t, r.lab.Heal("cp1"))

	// No push, no call.
	r.branch.down.Store(true)
	r.wantOutcome(install(plan.Expect{}), act.NotDone, act.KindJournal)
	r.branch.down.Store(false)
	if c := r.lab.Node("cp1").Counters(); c.ApplyConfiguration != 0 {
		t.Fatalf("it was written %d times", c.ApplyConfiguration)
	}
	if n := len(r.inventory().Intents); n != 0 {
		t.Fatalf("%d intents are left", n)
	}
	r.done(plan.Action{Kind: plan.DoInstall, Machine: "cp1", Expect: plan.Expect{Mode: plan.ModeMaintenance, UUID: strings.ToUpper(r.lab.Node("cp1").Spec().UUID), Fingerprint: r.lab.Node("cp1").MaintenanceFingerprint()}})
	audit, err := os.ReadFile(filepath.Join(r.dir, act.AuditFile))
	must(t, err)
	for _, want := range []string{`"phase":"begin"`, `"outcome":"done"`, `"mergedBy":"alice"`, `"commit":"c1"`, `"act":"install"`, `"kind":"refused"`} {
		if !strings.Contains(string(audit), want) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
}

// Test114: a node of 1.14 takes everything without a reboot and says nothing; its boot ID is a resource.
func Test114(t *testing.T) {
	r := newRig(t)
	_, err := r.lab.AddNode(node.Spec{Name: "cp1", Address: r.addr(1), TalosVersion: "v1.14.0"})
	must(t, err)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	r.spec.Machines = append(r.spec.Machines, observeMachine("cp1", r.addr(1).String()))
	r.wish("cp1", r.config(r.bundle, mtype.TypeControlPlane, "cp1"))
	d, err := r.observer.Dialer(r.spec)
	must(t, err)
	p, err := d.Probe(r.ctx, r.machine("cp1").Endpoint)
	must(t, err)
	c, err := d.Maintenance(r.machine("cp1").Endpoint, p.Fingerprint)
	must(t, err)
	links, err := c.Links(r.ctx)
	must(t, err)
	addrs, err := c.Addresses(r.ctx)
	must(t, err)
	disks, err := c.Disks(r.ctx)
	must(t, err)
	if len(links) == 0 || links[0].HardwareAddr == "" || len(addrs) == 0 || !slices.ContainsFunc(disks, func(d talos.Disk) bool { return d.DevPath == "/dev/vda" }) {
		t.Errorf("discovery: %+v %+v %+v", links, addrs, disks)
	}
	if _, err := c.MachineConfig(r.ctx); !talos.Is(err, talos.PermissionDenied) {
		t.Errorf("the configuration in maintenance mode: %v", err)
	}
	c.Close()
	r.bringUp()
	if f := r.look("cp1")["cp1"]; f.BootID != r.lab.Node("cp1").BootID() || f.TalosVersion != "v1.14.0" {
		t.Errorf("facts %+v", f)
	}
	digest := r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["env"] = map[string]any{"A": "canary-env-value"}
	})
	if f := r.look("cp1")["cp1"]; f.Config.Effect != "reboot" {
		t.Errorf("the table says %s", f.Config.Effect)
	}
	r.done(plan.Action{Kind: plan.DoConfigure, Send: plan.SendNoReboot, Machine: "cp1"})
	if f := r.look("cp1")["cp1"]; !f.Config.Equal || f.Config.ForDigest != digest || r.inventory().Machines["cp1"].AnsweredEffect != "" {
		t.Errorf("after it: %+v", f.Config)
	}
	// Staged is staged there too, and nothing is asked first.
	r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["sysctls"] = map[string]any{"net.core.somaxconn": "1024"}
	})
	r.done(plan.Action{Kind: plan.DoConfigure, Send: plan.SendStaged, Machine: "cp1"})
	if f := r.look("cp1")["cp1"]; !f.Config.Staged {
		t.Errorf("staged: %+v", f.Config)
	}
}

// TestInstall112: maintenance mode of Talos 1.12 knows no NO_REBOOT.
func TestInstall112(t *testing.T) {
	r := newRig(t)
	_, err := r.lab.AddNode(node.Spec{Name: "cp1", Address: r.addr(1), TalosVersion: "v1.12.5"})
	must(t, err)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	r.spec.Machines = append(r.spec.Machines, observeMachine("cp1", r.addr(1).String()))
	r.wish("cp1", r.config(r.bundle, mtype.TypeControlPlane, "cp1"))
	r.done(plan.Action{Kind: plan.DoInstall, Machine: "cp1", Expect: plan.Expect{Mode: plan.ModeMaintenance}})
}

// TestLostReplies: the call took effect, the answer did not arrive: unknown, and the intent stays.
func TestLostReplies(t *testing.T) {
	r := newRig(t)
	r.add("cp1", plan.RoleControlPlane)
	r.lab.LoseReply("cp1", "ApplyConfiguration")
	res := r.do(plan.Action{Kind: plan.DoInstall, Machine: "cp1", Expect: plan.Expect{Mode: plan.ModeMaintenance}})
	r.wantOutcome(res, act.Unknown, "unreachable")
	if in := r.inventory().Intents; len(in) != 1 || in[0].Sent {
		t.Fatalf("intents %+v", in)
	}
	r.until("cp1", "configured", func(f plan.MachineFacts) bool {
		return f.Mode == plan.ModeConfigured && f.Etcd != nil && f.Etcd.State == "Preparing"
	})
	r.closeIntents(plan.OutcomeDone)

	r.lab.LoseReply("cp1", "Bootstrap")
	for {
		res = r.do(plan.Action{Kind: plan.DoBootstrap, Machine: "cp1", Expect: plan.Expect{EtcdEmptyOn: []string{"cp1"}}})
		if res.Kind != "not-available-yet" {
			break
		}
		if inv := r.inventory(); len(inv.Intents) != 0 || inv.BootstrapMachine != "" {
			t.Fatalf("a bootstrap that was refused left %+v", inv)
		}
	}
	r.wantOutcome(res, act.Unknown, "unreachable")
	if inv := r.inventory(); len(inv.Intents) != 1 || inv.BootstrapMachine != "cp1" {
		t.Fatalf("inventory %+v", inv)
	}
	boot := r.until("cp1", "well", well("cp1", plan.RoleControlPlane)).BootID
	r.closeIntents(plan.OutcomeDone)

	r.lab.LoseReply("cp1", "Reboot")
	r.wantOutcome(r.do(plan.Action{Kind: plan.DoReboot, Machine: "cp1"}), act.Unknown, "unreachable")
	if in := r.inventory().Intents; len(in) != 1 || in[0].Sent {
		t.Fatalf("intents %+v", in)
	}
	// The same act is not announced twice.
	r.until("cp1", "back", func(f plan.MachineFacts) bool { return f.BootID != "" && f.BootID != boot })
	r.wantOutcome(r.do(plan.Action{Kind: plan.DoReboot, Machine: "cp1"}), act.NotDone, act.KindJournal)
	r.closeIntents(plan.OutcomeDone)
	if c := r.lab.Node("cp1").Counters(); c.ApplyConfiguration != 1 || c.Bootstrap != 1 || c.Reboot != 1 {
		t.Fatalf("written %+v", c)
	}
}

// TestConfigure sends in all ways, with the node's own answers.
func TestConfigure(t *testing.T) {
	r := newRig(t)
	r.add("cp1", plan.RoleControlPlane)
	r.bringUp()
	configure := func(send plan.Send) act.Result {
		return r.do(plan.Action{Kind: plan.DoConfigure, Machine: "cp1", Send: send, TryTimeout: 30 * time.Second, Expect: plan.Expect{Mode: plan.ModeConfigured, UUID: r.lab.Node("cp1").Spec().UUID}})
	}
	inv := func() (digest, mode, effect, answered, failure string) {
		m := r.inventory().Machines["cp1"]
		return m.SentDigest, m.SentMode, m.AnsweredEffect, m.AnsweredDigest, m.Failure
	}

	// A live change.
	live := r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["sysctls"] = map[string]any{"net.core.somaxconn": "1024"}
	})
	if f := r.look("cp1")["cp1"]; f.Config.Equal || f.Config.Effect != "live" || len(f.Config.Paths) != 1 || f.Config.Paths[0].Path != `machine.sysctls["net.core.somaxconn"]` {
		t.Fatalf("a wish that differs: %+v", f.Config)
	}
	r.wantOutcome(configure(plan.SendNoReboot), act.Done, "")
	if f := r.look("cp1")["cp1"]; !f.Config.Equal || !f.Config.PersistentEqual || f.Config.ForDigest != live {
		t.Fatalf("after it: %+v", f.Config)
	}

	// One that needs a reboot: the node says so in the dry run, and nothing is sent.
	before := r.lab.Node("cp1").Counters().ApplyConfiguration
	env := r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["env"] = map[string]any{"A": "canary-env-value"}
	})
	for _, send := range []plan.Send{plan.SendNoReboot, plan.SendTry} {
		r.wantOutcome(configure(send), act.NotDone, "needs-reboot")
	}
	if digest, _, effect, answered, failure := inv(); digest != live || effect != "reboot" || answered != env || failure != "" {
		t.Fatalf("inventory: sent %s, answered %s %s, failure %q", digest, effect, answered, failure)
	}
	if n := r.lab.Node("cp1").Counters().ApplyConfiguration; n != before {
		t.Fatal("it was sent all the same")
	}
	r.wantOutcome(configure(plan.SendStaged), act.Done, "")
	if f := r.look("cp1")["cp1"]; f.Config.Equal || !f.Config.Staged || f.Config.TryPending {
		t.Fatalf("staged: %+v", f.Config)
	}
	if digest, mode, _, _, _ := inv(); digest != env || mode != "staged" {
		t.Fatalf("sent %s %s", digest, mode)
	}
	r.done(plan.Action{Kind: plan.DoReboot, Machine: "cp1"})
	r.until("cp1", "well with it", func(f plan.MachineFacts) bool {
		return f.Config != nil && f.Config.Equal && plan.SeenWell(f, plan.RoleControlPlane, false)
	})
	r.closeIntents(plan.OutcomeDone)

	// Staged though the node takes it at once: its answer wins, once.
	r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["sysctls"] = map[string]any{"net.core.somaxconn": "2048"}
	})
	r.wantOutcome(configure(plan.SendStaged), act.NotDone, act.KindPrecondition)
	if _, _, effect, _, _ := inv(); effect != "immediate" {
		t.Fatalf("answered %s", effect)
	}

	r.wantOutcome(configure(plan.SendNoReboot), act.Done, "")
	r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["sysctls"] = map[string]any{"net.core.somaxconn": "3072"}
	})

	// A try, which nothing but its confirmation may follow.
	r.wantOutcome(configure(plan.SendTry), act.Done, "")
	if f := r.look("cp1")["cp1"]; !f.Config.TryPending || !f.Config.Equal || f.Config.PersistentEqual {
		t.Fatalf("under a try: %+v", f.Config)
	}
	r.wantOutcome(configure(plan.SendNoReboot), act.NotDone, act.KindPrecondition)
	r.done(plan.Action{Kind: plan.DoConfirm, Machine: "cp1"})
	if f := r.look("cp1")["cp1"]; f.Config.TryPending || !f.Config.PersistentEqual {
		t.Fatalf("confirmed: %+v", f.Config)
	}
	if _, mode, _, _, _ := inv(); mode != "no-reboot" {
		t.Fatalf("sent as %s", mode)
	}

	// What the node refuses is a failure of that digest, with its reason and without a secret.
	bad := r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["sysctls"] = map[string]any{"net.core.somaxconn": "4096"}
	})
	must(t, r.lab.RefuseConfig("cp1", "no room for it"))
	r.wantOutcome(configure(plan.SendNoReboot), act.NotDone, act.KindRefused)
	if m := r.inventory().Machines["cp1"]; m.FailedDigest != bad || !strings.Contains(m.Failure, "no room for it") || m.SentDigest == bad {
		t.Fatalf("inventory %+v", m)
	}
	must(t, r.lab.Heal("cp1"))

	// Refused in the call itself, after a dry run that passed: what was noted is put back.
	refuse := r.lab.On("ApplyConfiguration.before", func(_ context.Context, c node.Call) error {
		if c.Dry {
			return nil
		}
		return errInvalid
	})
	sent, _, _, _, _ := inv()
	r.wantOutcome(configure(plan.SendNoReboot), act.NotDone, act.KindRefused)
	if digest, _, _, _, _ := inv(); digest != sent {
		t.Fatalf("sent %s, was %s", digest, sent)
	}
	refuse()

	// Without the branch what is idempotent goes on; a reboot does not.
	r.branch.down.Store(true)
	r.wantOutcome(configure(plan.SendNoReboot), act.Done, "")
	r.wantOutcome(r.do(plan.Action{Kind: plan.DoReboot, Machine: "cp1"}), act.NotDone, act.KindJournal)
	// Nor does what disrupts or is on trial: whoever takes over has to know of it.
	r.wantOutcome(r.do(plan.Action{Kind: plan.DoConfigure, Send: plan.SendNoReboot, Disrupts: "etcd restarts", Machine: "cp1"}), act.NotDone, act.KindJournal)
	r.wantOutcome(configure(plan.SendTry), act.NotDone, act.KindJournal)
	r.branch.down.Store(false)

	// A lost reply of an idempotent send: unknown, seen by the next look.
	r.edit("cp1", func(d map[string]any) { d["machine"].(map[string]any)["sysctls"] = map[string]any{} })
	r.lab.LoseReply("cp1", "ApplyConfiguration")
	r.wantOutcome(configure(plan.SendNoReboot), act.Unknown, "unreachable")
	if f := r.look("cp1")["cp1"]; !f.Config.Equal {
		t.Fatalf("after the lost reply: %+v", f.Config)
	}
}

// TestWhoAnswers: another box, another cluster, a wiped machine at the address are seen, and never written.
func TestWhoAnswers(t *testing.T) {
	r := newRig(t)
	r.add("cp1", plan.RoleControlPlane)
	r.bringUp()
	pinned := r.look("cp1")["cp1"].Identity
	before := r.lab.Node("cp1").Counters()
	other, err := made[1]()
	must(t, err)
	r.edit("cp1", func(d map[string]any) {
		d["machine"].(map[string]any)["sysctls"] = map[string]any{"net.core.somaxconn": "1024"}
	})
	for _, c := range []struct {
		name string
		mask node.Mask
		mode plan.Mode
	}{
		{"another box", node.Mask{UUID: "22222222-2222-2222-2222-222222222222"}, plan.ModeConfigured},
		{"blank", node.Mask{Maintenance: true}, plan.ModeMaintenance},
		{"another cluster", node.Mask{UUID: "22222222-2222-2222-2222-222222222222", Config: r.config(other, mtype.TypeControlPlane, "cp1")}, plan.ModeForeign},
	} {
		must(t, r.lab.Impersonate("cp1", c.mask))
		f := r.until("cp1", c.name, func(f plan.MachineFacts) bool {
			return f.Mode == c.mode && (c.mask.UUID == "" || c.mode == plan.ModeForeign || f.Identity.UUID == c.mask.UUID)
		})
		if f.Reach != plan.ReachOK {
			t.Errorf("%s: %+v", c.name, f)
		}
		for _, a := range []plan.Action{
			{Kind: plan.DoConfigure, Send: plan.SendNoReboot, Machine: "cp1"}, {Kind: plan.DoConfirm, Machine: "cp1"}, {Kind: plan.DoReboot, Machine: "cp1"}, {Kind: plan.DoForfeit, Machine: "cp1"},
		} {
			a.Expect = plan.Expect{Mode: plan.ModeConfigured, UUID: pinned.UUID, NodeID: pinned.NodeID}
			r.wantOutcome(r.do(a), act.NotDone, act.KindPrecondition)
		}
		must(t, r.lab.Heal("cp1"))
		r.until("cp1", "itself again", func(f plan.MachineFacts) bool { return f.Identity.UUID == pinned.UUID && f.Mode == plan.ModeConfigured })
	}
	if after := r.lab.Node("cp1").Counters(); after != before {
		t.Errorf("it was written: %+v, before %+v", after, before)
	}
}

// TestUnreachable: cut, hanging, refused: the error is told in the time of one call, and the way back is found at once.
func TestUnreachable(t *testing.T) {
	r := newRig(t)
	r.add("cp1", plan.RoleControlPlane)
	r.bringUp()
	for name, fault := range map[string]func(string) error{"cut": r.lab.Cut, "hang": r.lab.Hang, "refuse": r.lab.Refuse} {
		must(t, fault("cp1"))
		began := time.Now()
		f := r.look("cp1")["cp1"]
		if took := time.Since(began); f.Reach != plan.ReachUnreachable || f.Error == "" || took > 10*time.Second {
			t.Errorf("%s: %+v after %s", name, f, took)
		}
		since := f.Since
		if f = r.look("cp1")["cp1"]; !f.Since.Equal(since) {
			t.Errorf("%s: the transition moved", name)
		}
		r.wantOutcome(r.do(plan.Action{Kind: plan.DoReboot, Machine: "cp1"}), act.NotDone, act.KindPrecondition)
		must(t, r.lab.Heal("cp1"))
		if f = r.look("cp1")["cp1"]; f.Reach != plan.ReachOK {
			t.Errorf("%s: healed, and still %+v", name, f)
		}
	}
}
