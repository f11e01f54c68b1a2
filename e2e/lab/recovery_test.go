package lab_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// put writes a key through whatever control plane answers.
func (r *rig) put(key string) error {
	cl, err := r.lab.EtcdClient(r.ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(r.ctx, 3*time.Second)
	defer cancel()
	_, err = cl.Put(ctx, key, "x")
	return err
}

// keys counts what etcd has under a prefix; -1 when it does not answer.
func (r *rig) keys(prefix string) int {
	cl, err := r.lab.EtcdClient(r.ctx)
	if err != nil {
		return -1
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(r.ctx, 3*time.Second)
	defer cancel()
	resp, err := cl.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return -1
	}
	return int(resp.Count)
}

func (r *rig) snapshot(name string) ([]byte, error) { return r.snapshotWithin(30*time.Second, name) }

// snapshotWithin returns what came before the deadline, too.
func (r *rig) snapshotWithin(d time.Duration, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.ctx, d)
	defer cancel()
	rd, err := r.secure(name).EtcdSnapshot(ctx, &machine.EtcdSnapshotRequest{})
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	return io.ReadAll(rd)
}

// talosctl is the real one, as an administrator of the rig's cluster.
func (r *rig) talosctl() func(node string, args ...string) (string, error) {
	r.t.Helper()
	out, err := exec.Command("../../hack/tools.sh", "talosctl").Output()
	if err != nil {
		r.t.Fatalf("build talosctl: %v", err)
	}
	bin := strings.TrimSpace(string(out))
	cert, err := r.bundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(role.Admin), time.Hour)
	must(r.t, err)
	file := filepath.Join(r.t.TempDir(), "talosconfig")
	must(r.t, clientconfig.NewConfig("lab", []string{r.addr(1).String()}, r.bundle.Certs.OS.Crt, cert).Save(file))
	return func(node string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(r.ctx, 60*time.Second)
		defer cancel()
		addr := r.lab.Node(node).Spec().Address.String()
		cmd := exec.CommandContext(ctx, bin, append([]string{"--talosconfig", file, "-n", addr, "-e", addr}, args...)...)
		var b bytes.Buffer
		cmd.Stdout, cmd.Stderr = &b, &b
		err := cmd.Run()
		r.t.Logf("talosctl %s: %v\n%s", strings.Join(args, " "), err, b.String())
		return b.String(), err
	}
}

// TestLosesAll: one control plane of three lost is no matter; with two gone there is no leader and
// calls answer or hang as on real nodes; all back with their disks are what they were; and all
// without their etcd data are recovered from a snapshot, by talosctl alone.
func TestLosesAll(t *testing.T) {
	r := newRig(t)
	ctl := r.talosctl()
	r.bringUp(3, false)
	must(t, r.put("before/1"))
	file := filepath.Join(t.TempDir(), "db.snapshot")
	if out, err := ctl("cp1", "etcd", "snapshot", file); err != nil || !strings.Contains(out, "snapshot info") {
		t.Fatal("no snapshot")
	}
	info, err := os.Stat(file)
	if err != nil || info.Size()%512 != 32 {
		t.Fatalf("the snapshot has no trailer: %v %v", info, err)
	}

	must(t, r.lab.Kill("cp3"))
	must(t, r.lab.Wait(r.ctx, "a write with one of three lost", func() bool { return r.put("one-lost/1") == nil }))
	must(t, r.lab.Kill("cp2"))
	c := r.secure("cp1")
	must(t, r.lab.Wait(r.ctx, "cp1 to have no leader", func() bool {
		st, err := c.EtcdStatus(r.ctx)
		return err == nil && st.Messages[0].MemberStatus.Leader == 0 && strings.Contains(strings.Join(st.Messages[0].MemberStatus.Errors, " "), "no leader")
	}))
	if r.put("two-lost/1") == nil {
		t.Error("a write without a quorum was taken")
	}
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
	defer cancel()
	_, err = c.EtcdAlarmList(ctx)
	r.wantCode(err, codes.DeadlineExceeded, "")
	_, err = c.EtcdMemberList(r.ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
	r.wantCode(err, codes.Unknown, "etcdserver: no leader")

	must(t, r.lab.Kill("cp1"))
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		must(t, r.lab.Start(n))
	}
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		must(t, r.lab.WaitReady(r.ctx, n))
	}
	must(t, r.lab.Wait(r.ctx, "all that was acknowledged", func() bool { return r.keys("before/") == 1 && r.keys("one-lost/") == 1 }))

	// all without their data: EPHEMERAL goes, the configuration stays
	ids := map[uint64]bool{r.memberID("cp1"): true, r.memberID("cp2"): true, r.memberID("cp3"): true}
	must(t, r.put("after/1"))
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		boot := r.lab.Node(n).BootID()
		if _, err := ctl(n, "reset", "--graceful=false", "--reboot", "--system-labels-to-wipe=EPHEMERAL", "--wait=false"); err != nil {
			t.Fatal(err)
		}
		must(t, r.lab.Wait(r.ctx, n+" to reboot", func() bool { b := r.lab.Node(n).BootID(); return b != boot && b != "" }))
	}
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		must(t, r.lab.Wait(r.ctx, n+" to wait with its etcd", func() bool {
			out, err := ctl(n, "service", "etcd")
			return err == nil && strings.Contains(out, "Preparing")
		}))
		if len(r.lab.Node(n).ConfigBytes()) == 0 {
			t.Errorf("%s lost its configuration", n)
		}
	}
	if _, err := ctl("cp2", "bootstrap", "--recover-from="+file); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		must(t, r.lab.WaitReady(r.ctx, n))
	}
	must(t, r.lab.Wait(r.ctx, "three voters", func() bool { return r.voters() == 3 }))
	if b, a := r.keys("before/"), r.keys("after/"); b != 1 || a != 0 {
		t.Errorf("after the recovery there are %d keys of before the snapshot and %d of after it", b, a)
	}
	for _, n := range []string{"cp1", "cp2", "cp3"} {
		if ids[r.memberID(n)] {
			t.Errorf("%s is the member that it was", n)
		}
	}
	if out, err := ctl("cp2", "bootstrap"); err == nil || !strings.Contains(out, "etcd data directory is not empty") {
		t.Errorf("a second bootstrap: %s", out)
	}
}

// TestBadSnapshot: a broken upload shows in the service, not in the call, and can be tried again.
func TestBadSnapshot(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	must(t, r.put("k/1"))
	good, err := r.snapshot("cp1")
	must(t, err)
	bad := append([]byte(nil), good...)
	bad[len(bad)-1] ^= 1 // of the hash at its end: a byte of a page may already fail the look before anything is written
	service := func(words ...string) bool {
		info, err := r.secure("cp1").ServiceInfo(r.ctx, "etcd")
		if err != nil || len(info) == 0 {
			return false
		}
		s := info[0].Service
		text := s.State + " " + s.Events.Events[len(s.Events.Events)-1].Msg
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	}
	try := func(data []byte) {
		t.Helper()
		_, err := r.secure("cp1").EtcdRecover(r.ctx, bytes.NewReader(data))
		must(t, err)
		must(t, r.secure("cp1").Bootstrap(r.ctx, &machine.BootstrapRequest{RecoverEtcd: true}))
	}
	wipe := func() {
		t.Helper()
		boot := r.lab.Node("cp1").BootID()
		must(t, r.secure("cp1").ResetGeneric(r.ctx, &machine.ResetRequest{Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}}}))
		must(t, r.lab.Wait(r.ctx, "cp1 to reboot", func() bool { b := r.lab.Node("cp1").BootID(); return b != boot && b != "" }))
		must(t, r.lab.Wait(r.ctx, "etcd to wait", func() bool { return service("Preparing", "Running pre state") }))
	}
	wipe()
	try(bad)
	must(t, r.lab.Wait(r.ctx, "the service to fail", func() bool { return service("Failed", "Failed to run pre stage: error ", "snapshot") }))
	// as on a node: what the failed recovery left behind has to go first
	r.wantCode(r.secure("cp1").Bootstrap(r.ctx, &machine.BootstrapRequest{RecoverEtcd: true}), codes.AlreadyExists, "etcd data directory is not empty")
	wipe()
	try(good)
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if n := r.keys("k/"); n != 1 {
		t.Errorf("%d keys came back", n)
	}
}

// TestAlarm: a member over its quota raises NOSPACE for real; a disarm alone does not last.
func TestAlarm(t *testing.T) {
	r := newRig(t)
	r.add("cp1", 1)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	quota := strings.Replace(string(r.config(mtype.TypeControlPlane, "cp1")), "    etcd:\n", "    etcd:\n        extraArgs:\n            quota-backend-bytes: \"16777216\"\n", 1)
	r.apply(r.insecure("cp1"), []byte(quota), auto)
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	c := r.secure("cp1")
	alarms := func() []*machine.EtcdMemberAlarm {
		list, err := c.EtcdAlarmList(r.ctx)
		must(t, err)
		return list.Messages[0].MemberAlarms
	}
	must(t, r.put("k"))
	if a := alarms(); len(a) != 0 {
		t.Fatalf("alarms before: %v", a)
	}
	cl, err := r.lab.EtcdClient(r.ctx)
	must(t, err)
	defer cl.Close()
	blob := strings.Repeat("x", 1<<20)
	// etcd weighs the database by its last committed batch (every 100 ms): a fast machine gets far past the quota first
	for over := time.Now().Add(30 * time.Second); err == nil && time.Now().Before(over); {
		_, err = cl.Put(r.ctx, "blob", blob)
		time.Sleep(10 * time.Millisecond)
	}
	if err == nil || !strings.Contains(err.Error(), "database space exceeded") {
		t.Fatalf("puts of 1 MiB for 30 s in a quota of 16: %v", err)
	}
	a := alarms()
	if len(a) != 1 || a[0].Alarm != machine.EtcdMemberAlarm_NOSPACE || a[0].MemberId == 0 {
		t.Fatalf("alarms: %v", a)
	}
	if r.put("k") == nil {
		t.Error("a write was taken under the alarm")
	}
	// compact, defragment, disarm
	status, err := cl.Get(r.ctx, "k")
	must(t, err)
	_, err = cl.Compact(r.ctx, status.Header.Revision, clientv3.WithCompactPhysical())
	must(t, err)
	before, err := c.EtcdStatus(r.ctx)
	must(t, err)
	_, err = c.EtcdDefragment(r.ctx)
	must(t, err)
	after, err := c.EtcdStatus(r.ctx)
	must(t, err)
	if b, a := before.Messages[0].MemberStatus.DbSize, after.Messages[0].MemberStatus.DbSize; a >= b/2 {
		t.Errorf("defragmented from %d to %d bytes", b, a)
	}
	_, err = c.EtcdAlarmDisarm(r.ctx)
	must(t, err)
	if a := alarms(); len(a) != 0 {
		t.Errorf("alarms after: %v", a)
	}
	must(t, r.put("k"))
}
