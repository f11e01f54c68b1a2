package lab_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// dial tries a TCP connection to a node's port 50000 for a short while.
func (r *rig) dial(name string) (net.Conn, error) {
	return net.DialTimeout("tcp", r.lab.Node(name).Spec().Address.String()+":50000", 300*time.Millisecond)
}

// calls says how a call of Version ends within a short while.
func (r *rig) calls(name string) error {
	ctx, cancel := context.WithTimeout(r.ctx, 700*time.Millisecond)
	defer cancel()
	_, err := r.secure(name).Version(ctx)
	return err
}

// answers waits until a node answers a secure call.
func (r *rig) answers(name string) {
	r.t.Helper()
	must(r.t, r.lab.Wait(r.ctx, "node "+name+" to answer", func() bool { return r.calls(name) == nil }))
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestFaultsOfTheNetwork(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	r.answers("cp1")

	held := r.secure("cp1") // a connection that exists when the fault begins
	_, err := held.Version(r.ctx)
	must(t, err)
	must(t, r.lab.Cut("cp1"))
	ctx, cancel := context.WithTimeout(r.ctx, 500*time.Millisecond)
	if _, err := held.Version(ctx); err == nil {
		t.Error("a connection survived the cut")
	}
	cancel()
	if c, err := r.dial("cp1"); !isTimeout(err) {
		t.Errorf("a dial of a node that is cut off ends with %v %v, want a timeout", c, err)
	}
	must(t, r.lab.Heal("cp1"))
	r.answers("cp1")

	must(t, r.lab.Refuse("cp1"))
	if _, err := r.dial("cp1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a dial of a node that refuses ends with %v", err)
	}
	must(t, r.lab.Heal("cp1"))
	r.answers("cp1")

	must(t, r.lab.Hang("cp1"))
	c, err := r.dial("cp1")
	must(t, err)
	c.Close()
	if err := r.calls("cp1"); err == nil {
		t.Error("a node that hangs answered")
	}
	must(t, r.lab.Heal("cp1"))
	r.answers("cp1")

	must(t, r.lab.Slow("cp1", 200*time.Millisecond))
	// It answers, and late: a call that fails is no slow one.
	patient, cancel := context.WithTimeout(r.ctx, 20*time.Second)
	defer cancel()
	start := time.Now()
	_, err = r.secure("cp1").Version(patient)
	if took := time.Since(start); err != nil || took < 200*time.Millisecond {
		t.Errorf("a slow node answered after %s: %v", took, err)
	}
	must(t, r.lab.Heal("cp1"))
}

// TestCutReachesEtcd: a member that is cut off loses its leader and the rest goes on; healed it follows again.
func TestCutReachesEtcd(t *testing.T) {
	r := newRig(t)
	r.bringUp(3, false)
	cl, err := r.lab.EtcdClientOf(r.ctx, "cp1", "cp2")
	must(t, err)
	defer cl.Close()
	put := func(key string) error {
		ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
		defer cancel()
		_, err := cl.Put(ctx, key, "x")
		return err
	}
	must(t, put("a"))
	must(t, r.lab.Cut("cp3"))
	must(t, r.lab.Wait(r.ctx, "a write without cp3", func() bool { return put("b") == nil }))
	must(t, r.lab.Wait(r.ctx, "cp3's etcd to be unhealthy", func() bool { return strings.Contains(r.lab.Node("cp3").Unmet(), "etcd not healthy") }))
	must(t, r.lab.Cut("cp2"))
	if err := put("c"); err == nil {
		t.Error("etcd took a write with one of three members left")
	}
	must(t, r.lab.Heal("cp2"))
	must(t, r.lab.Heal("cp3"))
	must(t, r.lab.Wait(r.ctx, "etcd to take writes again", func() bool { return put("d") == nil }))
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		must(t, r.lab.WaitReady(r.ctx, n))
	}
}

// TestOneWayCut: cp1 can't reach cp2 for proxying, everybody else can.
func TestOneWayCut(t *testing.T) {
	r := newRig(t)
	r.bringUp(2, false)
	must(t, r.lab.CutBetween("cp1", "cp2"))
	r.answers("cp2")
	ctx, cancel := context.WithTimeout(withNode(r.ctx, r.addr(2).String()), time.Second)
	defer cancel()
	if _, err := r.secure("cp1").Version(ctx); err == nil {
		t.Error("cp1 reached cp2 through the cut")
	}
	must(t, r.lab.Heal("cp2"))
	must(t, r.lab.Wait(r.ctx, "cp1 to reach cp2 again", func() bool {
		ctx, cancel := context.WithTimeout(withNode(r.ctx, r.addr(2).String()), time.Second)
		defer cancel()
		_, err := r.secure("cp1").Version(ctx)
		return err == nil
	}))
}

// TestLosesMembers: one of three killed is no matter, two are, and they come back with their data.
func TestLosesMembers(t *testing.T) {
	r := newRig(t)
	r.bringUp(3, false)
	must(t, r.lab.Kill("cp2"))
	cl, err := r.lab.EtcdClient(r.ctx)
	must(t, err)
	defer cl.Close()
	must(t, r.lab.Wait(r.ctx, "a write with two members", func() bool {
		ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
		defer cancel()
		_, err := cl.Put(ctx, "k", "v")
		return err == nil
	}))
	must(t, r.lab.Kill("cp3"))
	c := r.secure("cp1")
	must(t, r.lab.Wait(r.ctx, "cp1 to see no leader", func() bool {
		st, err := c.EtcdStatus(r.ctx)
		return err == nil && st.Messages[0].MemberStatus.Leader == 0
	}))
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	_, err = c.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
	if err == nil {
		t.Error("the member list was answered without a leader")
	}
	must(t, r.lab.Start("cp2"))
	must(t, r.lab.Start("cp3"))
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		must(t, r.lab.WaitReady(r.ctx, n))
	}
	must(t, r.lab.Wait(r.ctx, "three voters", func() bool { return r.voters() == 3 }))
}

// TestWipedMemberIsReplaced: a control plane that lost its disk comes back as a new machine, and
// joins under its name in the old member's place.
func TestWipedMemberIsReplaced(t *testing.T) {
	r := newRig(t)
	r.bringUp(3, false)
	before := r.memberID("cp3")
	must(t, r.lab.Wipe("cp3"))
	must(t, r.lab.WaitMaintenance(r.ctx, "cp3"))
	r.apply(r.insecure("cp3"), r.config(mtype.TypeControlPlane, "cp3"), auto)
	must(t, r.lab.WaitReady(r.ctx, "cp3"))
	must(t, r.lab.Wait(r.ctx, "three voters", func() bool { return r.voters() == 3 }))
	if after := r.memberID("cp3"); after == before || after == 0 {
		t.Errorf("member cp3 has ID %x, had %x", after, before)
	}
}

func (r *rig) memberID(name string) uint64 {
	r.t.Helper()
	cl, err := r.lab.EtcdClient(r.ctx)
	must(r.t, err)
	defer cl.Close()
	list, err := cl.MemberList(r.ctx)
	must(r.t, err)
	for _, m := range list.Members {
		if m.Name == name {
			return m.ID
		}
	}
	return 0
}

// TestSecondBootstrapSplits: nothing on a node keeps a second cluster from being made.
func TestSecondBootstrapSplits(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	must(t, r.lab.Cut("cp1")) // so that cp2 can't join first
	r.add("cp2", 2)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp2"))
	r.apply(r.insecure("cp2"), r.config(mtype.TypeControlPlane, "cp2"), auto)
	r.bootstrap("cp2")
	must(t, r.lab.WaitReady(r.ctx, "cp2"))
	must(t, r.lab.Heal("cp1"))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	for _, name := range []string{"cp1", "cp2"} {
		list, err := r.secure(name).EtcdMemberList(r.ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
		must(t, err)
		if m := list.Messages[0].Members; len(m) != 1 || m[0].Hostname != name {
			t.Errorf("%s has members %v, want itself alone", name, m)
		}
	}
}

// TestHangBeforeBootstrap: etcd calls to a control plane without etcd hang until the deadline.
func TestHangBeforeBootstrap(t *testing.T) {
	r := newRig(t)
	r.add("cp1", 1)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	r.apply(r.insecure("cp1"), r.config(mtype.TypeControlPlane, "cp1"), auto)
	must(t, r.lab.Wait(r.ctx, "cp1 to wait for its etcd alone", func() bool {
		return strings.Contains(r.lab.Node("cp1").Unmet(), "{services etcd not running}")
	}))
	ctx, cancel := context.WithTimeout(r.ctx, 800*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := r.secure("cp1").EtcdMemberList(ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
	r.wantCode(err, codes.DeadlineExceeded, "")
	if time.Since(start) < 700*time.Millisecond {
		t.Errorf("the call ended after %s", time.Since(start))
	}
}

// TestWorkerWaitsForTrustd: a worker's port stays closed until a control plane of its cluster signs.
func TestWorkerWaitsForTrustd(t *testing.T) {
	r := newRig(t)
	r.add("w1", 9)
	must(t, r.lab.WaitMaintenance(r.ctx, "w1"))
	r.apply(r.insecure("w1"), r.config(mtype.TypeWorker, "w1"), auto)
	must(t, r.lab.WaitStage(r.ctx, "w1", "running", "booting"))
	must(t, r.lab.WaitStage(r.ctx, "w1", "running"))
	if _, err := r.dial("w1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the worker's port answers with %v before there is a control plane", err)
	}
	r.add("cp1", 1)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	r.apply(r.insecure("cp1"), r.config(mtype.TypeControlPlane, "cp1"), auto)
	r.answers("w1")
	if !strings.Contains(r.lab.Node("w1").Unmet(), `node "w1" status is not available yet`) {
		t.Errorf("without an API server the worker's conditions are %s", r.lab.Node("w1").Unmet())
	}
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "w1"))
	r.answers("w1")
}

func TestImpersonation(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, true)
	n := r.lab.Node("w1")
	must(t, r.lab.Impersonate("w1", node.Mask{Maintenance: true}))
	must(t, r.lab.WaitMaintenance(r.ctx, "w1"))
	must(t, r.lab.Heal("w1"))
	must(t, r.lab.WaitReady(r.ctx, "w1"))
	r.answers("w1")

	other := strings.NewReplacer("127.0.", "127.1.").Replace(string(r.config(mtype.TypeWorker, "stranger")))
	must(t, r.lab.Impersonate("w1", node.Mask{Config: []byte(other)}))
	must(t, r.lab.WaitStage(r.ctx, "w1", "running"))
	if n.Hostname() != "stranger" {
		t.Errorf("the other machine calls itself %q", n.Hostname())
	}
	must(t, r.lab.Heal("w1"))
	must(t, r.lab.WaitReady(r.ctx, "w1"))
	if n.Hostname() != "w1" || n.Counters().ApplyConfiguration != 1 {
		t.Errorf("after the impersonation the node is %q with %+v", n.Hostname(), n.Counters())
	}
}

// TestLostReply: the call took effect, the caller sees a broken connection.
func TestLostReply(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	r.lab.LoseReply("cp1", "ApplyConfiguration")
	c := r.secure("cp1")
	data := []byte(strings.Replace(string(r.config(mtype.TypeControlPlane, "cp1")), "nodeLabels:\n", "nodeLabels:\n        a: b\n", 1))
	r.wantCode(r.applyErr(c, data, auto), codes.Unavailable, "")
	if string(r.lab.Node("cp1").ConfigBytes()) != string(data) || r.lab.Node("cp1").Counters().ApplyConfiguration != 2 {
		t.Error("the call did not take effect")
	}
	must(t, r.lab.Wait(r.ctx, "a second call to be answered", func() bool { return r.applyErr(c, data, auto) == nil }))
}

func TestHooksAndRefusal(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	c := r.secure("cp1")
	data := r.config(mtype.TypeControlPlane, "cp1")
	must(t, r.lab.RefuseConfig("cp1", "no room for it"))
	r.wantCode(r.applyErr(c, data, auto), codes.InvalidArgument, "no room for it")
	must(t, r.lab.Heal("cp1"))
	var seen []string
	remove := r.lab.On("ApplyConfiguration.before", func(_ context.Context, call node.Call) error {
		seen = append(seen, call.Node+call.Method)
		return errors.New("not now")
	})
	r.wantCode(r.applyErr(c, data, auto), codes.Unknown, "not now")
	remove()
	must(t, r.applyErr(c, data, auto))
	if len(seen) != 1 || seen[0] != "cp1/machine.MachineService/ApplyConfiguration" {
		t.Errorf("the hook saw %v", seen)
	}
	if n := r.lab.Node("cp1").Counters().ApplyConfiguration; n != 2 {
		t.Errorf("%d writes were counted, want 2: refused ones don't count", n)
	}
}

func TestMove(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, true)
	must(t, r.lab.Move("w1", r.addr(8)))
	must(t, r.lab.WaitReady(r.ctx, "w1"))
	r.answers("w1")
	if r.lab.Node("w1").Spec().Address != r.addr(8) {
		t.Error("the node kept its address")
	}
	if c, err := net.DialTimeout("tcp", r.addr(9).String()+":50000", time.Second); err == nil {
		c.Close()
		t.Error("the old address still answers")
	}
}
