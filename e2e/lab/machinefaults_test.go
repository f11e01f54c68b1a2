package lab_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"ichor.maesh.dev/ichor/e2e/lab"
)

// labelled is the control plane's configuration with a node label.
func (r *rig) labelled(label string) []byte {
	return []byte(strings.Replace(string(r.config(mtype.TypeControlPlane, "cp1")), "nodeLabels:\n", "nodeLabels:\n        "+label+": x\n", 1))
}

func (r *rig) hasLabel(label string) bool {
	return strings.Contains(string(r.lab.Node("cp1").ConfigBytes()), label+": x")
}

// applyWithin applies with a deadline of its own.
func (r *rig) applyWithin(d time.Duration, data []byte) error {
	c := r.secure("cp1")
	ctx, cancel := context.WithTimeout(r.ctx, d)
	defer cancel()
	_, err := c.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{Data: data, Mode: auto})
	return err
}

// TestFreezeAndMute: a frozen machine does later what it was asked; a mute one at once, unheard.
func TestFreezeAndMute(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	must(t, r.applyWithin(10*time.Second, r.labelled("control")))
	if !r.hasLabel("control") {
		t.Fatal("without a fault the configuration does not arrive")
	}

	// a step of its own freezes the machine between the call's arrival and its effect
	remove, err := r.lab.At(lab.Step{Node: "cp1", Point: "ApplyConfiguration.before", Do: "freeze"})
	must(t, err)
	defer remove()
	r.wantCode(r.applyWithin(time.Second, r.labelled("frozen")), codes.DeadlineExceeded, "")
	if r.hasLabel("frozen") {
		t.Error("a frozen machine took a configuration")
	}
	if _, err := r.dial("cp1"); !isTimeout(err) {
		t.Errorf("a dial of a frozen machine: %v, want a timeout", err)
	}
	must(t, r.lab.Heal("cp1"))
	must(t, r.lab.Wait(r.ctx, "the call to take effect after the thaw", func() bool { return r.hasLabel("frozen") }))
	r.answers("cp1")

	held := r.secure("cp1")
	_, err = held.Version(r.ctx)
	must(t, err)
	must(t, r.lab.Mute("cp1"))
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	_, err = held.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{Data: r.labelled("unheard"), Mode: auto})
	r.wantCode(err, codes.DeadlineExceeded, "")
	must(t, r.lab.Wait(r.ctx, "the call to take effect", func() bool { return r.hasLabel("unheard") }))
	must(t, r.lab.Heal("cp1"))
	r.answers("cp1")
}

// TestSteps: each thing that can happen at a point of a call, and that nothing happens without.
func TestSteps(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	n := r.lab.Node("cp1")
	step := func(s lab.Step) func() {
		t.Helper()
		s.Node = "cp1"
		remove, err := r.lab.At(s)
		must(t, err)
		return remove
	}
	start := time.Now()
	must(t, r.applyWithin(10*time.Second, r.labelled("a")))
	plain := time.Since(start)

	remove := step(lab.Step{Point: "ApplyConfiguration.after", Do: "wait", Arg: "700ms"})
	start = time.Now()
	must(t, r.applyWithin(10*time.Second, r.labelled("b")))
	if took := time.Since(start); took < 700*time.Millisecond {
		t.Errorf("the call took %s, %s without the step", took, plain)
	}
	remove()
	remove = step(lab.Step{Point: "ApplyConfiguration.before", Do: "fail", Arg: "ResourceExhausted: try later"})
	r.wantCode(r.applyWithin(10*time.Second, r.labelled("c")), codes.ResourceExhausted, "try later")
	must(t, r.applyWithin(10*time.Second, r.labelled("d"))) // once
	remove()
	remove = step(lab.Step{Point: "ApplyConfiguration.after", Do: "hang"})
	r.wantCode(r.applyWithin(500*time.Millisecond, r.labelled("e")), codes.DeadlineExceeded, "")
	if !r.hasLabel("e") || r.hasLabel("c") {
		t.Error("a call that hangs after its effect has none, or one that failed before has")
	}
	remove()
	remove = step(lab.Step{Point: "ApplyConfiguration.after", Do: "kill"})
	r.wantCode(r.applyWithin(10*time.Second, r.labelled("f")), codes.Unavailable, "")
	must(t, r.lab.WaitStage(r.ctx, "cp1", "off"))
	must(t, r.lab.Start("cp1"))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if !r.hasLabel("f") {
		t.Error("what took effect before the power went is gone")
	}
	remove()

	// half a stream; and without the step the whole
	whole, err := r.snapshot("cp1")
	must(t, err)
	remove = step(lab.Step{Point: "EtcdSnapshot.during", Do: "hang"})
	part, err := r.snapshotWithin(time.Second, "cp1")
	if err == nil || len(part) == 0 || len(part) >= len(whole) {
		t.Errorf("half a snapshot has %d bytes of %d, %v", len(part), len(whole), err)
	}
	remove()

	// an event of the node
	boot := n.BootID()
	remove = step(lab.Step{Point: "stage=rebooting", Do: "kill"})
	// the power goes as the sequence begins, which may be before the reply is out
	if err := r.secure("cp1").Reboot(r.ctx); err != nil && status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	must(t, r.lab.WaitStage(r.ctx, "cp1", "off"))
	must(t, r.lab.Start("cp1"))
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	remove()
}

func TestBadSteps(t *testing.T) {
	r := newRig(t)
	r.add("cp1", 1)
	for _, s := range []lab.Step{
		{Node: "none", Point: "Reboot.after", Do: "kill"},
		{Node: "cp1", Point: "Rebot.after", Do: "kill"},
		{Node: "cp1", Point: "Reboot.later", Do: "kill"},
		{Node: "cp1", Point: "Reboot.during", Do: "kill"},
		{Node: "cp1", Point: "Reboot.after", Do: "explode"},
		{Node: "cp1", Point: "stage=rebooting", Do: "lose-reply"},
		{Node: "cp1", Point: "Reboot.after", Do: "wait", Arg: "soon"},
		{Node: "cp1", Point: "Reboot.after", Do: "fail", Arg: "Nonsense: x"},
		{Node: "cp1", Point: "Reboot.after", Do: "fail", Arg: "OK: x"},
	} {
		if _, err := r.lab.At(s); err == nil {
			t.Errorf("%v was taken", s)
		}
	}
}

// TestFullDisk: what is applied while STATE is full does not last; etcd dies of a full EPHEMERAL.
func TestFullDisk(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	reboot := func() {
		t.Helper()
		must(t, r.lab.Reboot("cp1"))
		must(t, r.lab.WaitReady(r.ctx, "cp1"))
	}
	must(t, r.applyWithin(10*time.Second, r.labelled("kept")))
	reboot()
	if !r.hasLabel("kept") {
		t.Fatal("with room on STATE a configuration does not last")
	}
	must(t, r.lab.FillDisk("cp1", "STATE"))
	must(t, r.applyWithin(10*time.Second, r.labelled("lost"))) // the node says that all is well
	if !r.hasLabel("lost") {
		t.Error("it is not active")
	}
	reboot()
	if r.hasLabel("lost") || !r.hasLabel("kept") {
		t.Error("a configuration lasted on a full disk")
	}
	must(t, r.applyWithin(10*time.Second, r.labelled("later")))
	must(t, r.lab.Heal("cp1"))
	time.Sleep(time.Second) // the node tries again by itself
	reboot()
	if !r.hasLabel("later") {
		t.Error("it was not written when there was room again")
	}

	must(t, r.lab.FillDisk("cp1", "EPHEMERAL"))
	must(t, r.lab.Wait(r.ctx, "etcd to die", func() bool { return strings.Contains(r.lab.Node("cp1").Unmet(), "etcd") }))
	if err := r.put("k"); err == nil {
		t.Error("etcd took a write on a full disk")
	}
	must(t, r.lab.Heal("cp1"))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	must(t, r.put("k"))
	if err := r.lab.FillDisk("cp1", "HOME"); err == nil {
		t.Error("an unknown partition was filled")
	}
}

// TestClock: a node ahead shows certificates that are not yet valid and takes the client's for
// expired; one that knows that it has no time says so and is not ready.
func TestClock(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	must(t, r.calls("cp1"))
	if d := r.clockOf("cp1"); d.Abs() > time.Minute {
		t.Fatalf("the clock is %s off before the fault", d)
	}
	must(t, r.lab.SetClock("cp1", 10*time.Minute, true))
	if d := r.clockOf("cp1"); d < 9*time.Minute {
		t.Errorf("the certificate is %s ahead", d)
	}
	if err := r.calls("cp1"); err == nil || !strings.Contains(err.Error(), "not yet valid") {
		t.Errorf("a call to a node ahead: %v", err)
	}
	must(t, r.lab.SetClock("cp1", -48*time.Hour, true))
	err := r.calls("cp1")
	if err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a call to a node behind: %v", err)
	}
	if !r.lab.Node("cp1").Ready() {
		t.Errorf("a node that believes its clock is not ready: %s", r.lab.Node("cp1").Unmet())
	}
	must(t, r.lab.Heal("cp1"))
	r.answers("cp1")

	must(t, r.lab.SetClock("cp1", 2*time.Minute, false))
	if u := r.lab.Node("cp1").Unmet(); !strings.Contains(u, "time is not synced") {
		t.Errorf("unmet: %s", u)
	}
	must(t, r.lab.Heal("cp1"))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
}

// clockOf is how far ahead the certificate was made that a node shows.
func (r *rig) clockOf(name string) time.Duration {
	r.t.Helper()
	conn, err := tls.Dial("tcp", r.lab.Node(name).Spec().Address.String()+":50000", &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	must(r.t, err)
	defer conn.Close()
	return time.Until(conn.ConnectionState().PeerCertificates[0].NotBefore)
}

// TestOtherMachineAnswers: addresses that are swapped, or that lead to another machine.
func TestOtherMachineAnswers(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, true)
	hostname := func(at string) (string, error) {
		ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
		defer cancel()
		resp, err := r.secure(at).MachineClient.Hostname(ctx, &emptypb.Empty{})
		if err != nil {
			return "", err
		}
		return resp.Messages[0].Hostname, nil
	}
	if h, err := hostname("w1"); err != nil || h != "w1" {
		t.Fatalf("before: %q %v", h, err)
	}
	must(t, r.lab.Misroute("w1", "cp1"))
	if _, err := hostname("w1"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "certificate is valid for") {
		t.Errorf("another node at the address: %v", err)
	}
	must(t, r.lab.Heal("w1"))
	r.answers("w1")

	cp, w := r.lab.Node("cp1").Spec().Address, r.lab.Node("w1").Spec().Address
	must(t, r.lab.Swap("cp1", "w1"))
	if r.lab.Node("cp1").Spec().Address != w || r.lab.Node("w1").Spec().Address != cp {
		t.Error("the addresses are not swapped")
	}
	must(t, r.lab.Wait(r.ctx, "cp1 to answer at w1's address", func() bool {
		h, err := hostname("cp1") // dials where cp1 is now
		return err == nil && h == "cp1"
	}))
}

// TestTwin: a second machine of the same name takes the first one's place in etcd.
func TestTwin(t *testing.T) {
	r := newRig(t)
	r.bringUp(2, false)
	before := r.memberID("cp2")
	must(t, r.lab.Wait(r.ctx, "cp2 to be ready", r.lab.Node("cp2").Ready))
	if before == 0 {
		t.Fatal("cp2 is no member")
	}
	_, err := r.lab.Twin("cp2", "cp2-twin", r.addr(7))
	must(t, err)
	must(t, r.lab.Wait(r.ctx, "the twin to be the member", func() bool { id := r.memberID("cp2"); return id != 0 && id != before }))
	if a, b := r.lab.Node("cp2").Spec().UUID, r.lab.Node("cp2-twin").Spec().UUID; a == b {
		t.Error("the twin has the UUID too")
	}
	must(t, r.lab.Wait(r.ctx, "the first one to be out of etcd", func() bool { return strings.Contains(r.lab.Node("cp2").Unmet(), "etcd") }))
}

// TestSlowAndHangBetween: between two nodes only.
func TestSlowAndHangBetween(t *testing.T) {
	r := newRig(t)
	r.bringUp(2, false)
	patience := 1500 * time.Millisecond
	via := func() (time.Duration, error) {
		ctx, cancel := context.WithTimeout(withNode(r.ctx, r.addr(2).String()), patience)
		defer cancel()
		start := time.Now()
		_, err := r.secure("cp1").Version(ctx)
		return time.Since(start), err
	}
	must(t, r.lab.Wait(r.ctx, "cp1 to reach cp2", func() bool { _, err := via(); return err == nil }))
	must(t, r.lab.SlowBetween("cp1", "cp2", 300*time.Millisecond))
	patience = 20 * time.Second // it answers, and late: a call that fails is no slow one
	if took, err := via(); err != nil || took < 300*time.Millisecond {
		t.Errorf("cp1 reached cp2 in %s: %v", took, err)
	}
	patience = 1500 * time.Millisecond
	must(t, r.calls("cp2"))
	must(t, r.lab.Heal("cp2"))
	must(t, r.lab.HangBetween("cp1", "cp2"))
	if _, err := via(); err == nil {
		t.Error("cp1 got an answer of cp2")
	}
	must(t, r.calls("cp2"))
	must(t, r.lab.Heal("cp2"))
	must(t, r.lab.Wait(r.ctx, "cp1 to reach cp2 again", func() bool { _, err := via(); return err == nil }))
	for _, err := range []error{r.lab.CutBetween("cp1", "none"), r.lab.SlowBetween("cp1", "cp1", time.Second), r.lab.Misroute("cp1", "cp1")} {
		if err == nil {
			t.Error("ends that make no sense were taken")
		}
	}
	var ne net.Error
	if _, err := r.dial("cp1"); errors.As(err, &ne) {
		t.Errorf("cp1 is hit too: %v", err)
	}
}
