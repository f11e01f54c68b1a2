package lab_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

const (
	auto     = machine.ApplyConfigurationRequest_AUTO
	noReboot = machine.ApplyConfigurationRequest_NO_REBOOT
	staged   = machine.ApplyConfigurationRequest_STAGED
	try      = machine.ApplyConfigurationRequest_TRY
	reboot   = machine.ApplyConfigurationRequest_REBOOT
)

// withEnv is a configuration with a change that needs a reboot on 1.13.
func (r *rig) withEnv(hostname string) []byte {
	s := string(r.config(mtype.TypeControlPlane, hostname))
	return []byte(strings.Replace(s, "    install:\n", "    env:\n        FOO: bar\n    install:\n", 1))
}

func (r *rig) wantCode(err error, code codes.Code, text string) {
	r.t.Helper()
	if client.StatusCode(err) != code || !strings.Contains(err.Error(), text) {
		r.t.Errorf("got %v, want code %s and %q", err, code, text)
	}
}

func (r *rig) applyErr(c *client.Client, data []byte, mode machine.ApplyConfigurationRequest_Mode) error {
	_, err := c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: data, Mode: mode})
	return err
}

func TestApplyRebootsOn113(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	n, c := r.lab.Node("cp1"), r.secure("cp1")
	r.wantCode(r.applyErr(c, r.withEnv("cp1"), noReboot), codes.InvalidArgument, "this config change can't be applied in immediate mode\ndiff:\n--- a")
	r.wantCode(r.applyErr(c, r.withEnv("cp1"), try), codes.InvalidArgument, "this config change can't be applied in immediate mode")
	boot := n.BootID()
	got := r.apply(c, r.withEnv("cp1"), auto)
	if got.Mode != reboot || !strings.HasPrefix(got.ModeDetails, "Applied configuration with a reboot: this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n") {
		t.Errorf("AUTO answered %s %q", got.Mode, got.ModeDetails)
	}
	r.wantCode(r.applyErr(c, r.withEnv("cp1"), auto), codes.FailedPrecondition, "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot")
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if string(n.ConfigBytes()) != string(r.withEnv("cp1")) {
		t.Error("the configuration after the reboot is not, byte for byte, what was applied")
	}
}

func TestApplyNeverRebootsOn114(t *testing.T) {
	r := newRig(t)
	_, err := r.lab.AddNode(node.Spec{Name: "cp1", Address: r.addr(1), TalosVersion: "v1.14.0-rc.1"})
	must(t, err)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	r.apply(r.insecure("cp1"), r.config(mtype.TypeControlPlane, "cp1"), reboot) // means NO_REBOOT in maintenance
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	n, c := r.lab.Node("cp1"), r.secure("cp1")
	boot := n.BootID()
	r.wantCode(r.applyErr(c, r.withEnv("cp1"), reboot), codes.Unimplemented, "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead")
	if got := r.apply(c, r.withEnv("cp1"), auto); got.Mode != noReboot || got.ModeDetails != "Applied configuration without a reboot" {
		t.Errorf("AUTO answered %s %q", got.Mode, got.ModeDetails)
	}
	if n.BootID() != boot || n.Stage() != "running" {
		t.Errorf("the node is %s in boot %s", n.Stage(), n.BootID())
	}
}

func TestTryAndStaged(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	n, c := r.lab.Node("cp1"), r.secure("cp1")
	plain := r.config(mtype.TypeControlPlane, "cp1")
	other := []byte(strings.Replace(string(plain), "nodeLabels:\n", "nodeLabels:\n        try: it\n", 1))
	trial := func(d time.Duration) {
		_, err := c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: other, Mode: try, TryModeTimeout: durationpb.New(d)})
		must(t, err)
	}
	trial(300 * time.Millisecond)
	if string(n.ConfigBytes()) != string(other) {
		t.Fatal("the trial is not active")
	}
	must(t, r.lab.Wait(r.ctx, "the trial to end", func() bool { return string(n.ConfigBytes()) == string(plain) }))

	// Any other call confirms it, a dry run that is refused too.
	const length = 2 * time.Second
	var began time.Time
	must(t, r.lab.Wait(r.ctx, "a call to arrive within the trial", func() bool {
		began = time.Now()
		trial(length)
		_, err := c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: []byte("}"), Mode: auto, DryRun: true})
		r.wantCode(err, codes.InvalidArgument, "")
		return time.Since(began) < length*3/4 // a host that is too slow gets another try
	}))
	must(t, r.lab.Wait(r.ctx, "the time of the trial", func() bool { return time.Since(began) > length+200*time.Millisecond }))
	if string(n.ConfigBytes()) != string(other) {
		t.Error("the trial was reverted though another call came in between")
	}

	// A reboot finds what is persistent: a trial is gone after it, a staged configuration is in force.
	boot := n.BootID()
	must(t, c.Reboot(r.ctx))
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if string(n.ConfigBytes()) != string(plain) {
		t.Error("the trial survived a reboot")
	}
	c = r.secure("cp1")
	r.apply(c, other, staged)
	if string(n.ConfigBytes()) != string(plain) {
		t.Error("a staged configuration is active at once")
	}
	boot = n.BootID()
	must(t, c.Reboot(r.ctx))
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if string(n.ConfigBytes()) != string(other) {
		t.Error("the staged configuration is not in force after the reboot")
	}
}

func TestMaintenanceRules(t *testing.T) {
	r := newRig(t)
	r.add("cp1", 1)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	c, n := r.insecure("cp1"), r.lab.Node("cp1")
	r.wantCode(c.Bootstrap(r.ctx, &machine.BootstrapRequest{}), codes.PermissionDenied, "not authorized")
	r.wantCode(c.Reboot(r.ctx), codes.PermissionDenied, "not authorized")
	_, err := c.EtcdMemberList(r.ctx, &machine.EtcdMemberListRequest{})
	r.wantCode(err, codes.Unimplemented, "member list is only available on control plane nodes")
	r.wantCode(r.applyErr(c, nil, auto), codes.InvalidArgument, "config not found")
	r.wantCode(r.applyErr(c, []byte("machine:\n  nosuchkey: 1\n"), auto), codes.InvalidArgument,
		"error decoding document /v1alpha1/ (line 1): unknown keys found during decoding:\nmachine:\n    nosuchkey: 1\n")
	r.wantCode(r.applyErr(c, []byte("apiVersion: v1alpha1\nkind: KubeAPIServerConfig\n"), auto), codes.InvalidArgument,
		`error decoding document v1alpha1/KubeAPIServerConfig/ (line 1): "KubeAPIServerConfig" "v1alpha1": not registered`)
	v, err := c.Version(r.ctx)
	must(t, err)
	if v.Messages[0].Features != nil || v.Messages[0].Platform.Mode != "metal" {
		t.Errorf("version in maintenance is %v", v.Messages[0])
	}
	// A part of a configuration is taken and keeps the node in maintenance, with another certificate.
	before := n.MaintenanceFingerprint()
	r.apply(c, []byte("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: early\n"), auto)
	if n.Stage() != "maintenance" || n.Hostname() != "early" || n.MaintenanceFingerprint() == before {
		t.Errorf("after a partial document the node is %s, called %q, with fingerprint changed: %v", n.Stage(), n.Hostname(), n.MaintenanceFingerprint() != before)
	}
}

func TestRoles(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	reader, operator := r.secure("cp1", role.Reader), r.secure("cp1", role.Operator)
	r.wantCode(r.applyErr(reader, r.config(mtype.TypeControlPlane, "cp1"), auto), codes.PermissionDenied, "not authorized")
	_, err := reader.EtcdMemberList(r.ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
	must(t, err)
	_, err = reader.EtcdSnapshot(r.ctx, &machine.EtcdSnapshotRequest{})
	if err == nil {
		_, err = drain(r.ctx, reader)
	}
	r.wantCode(err, codes.PermissionDenied, "not authorized")
	r.wantCode(reader.Reboot(r.ctx), codes.PermissionDenied, "not authorized")
	must(t, operator.Reboot(r.ctx))
	_, err = r.secure("cp1", role.EtcdBackup).Version(r.ctx)
	if err == nil {
		t.Error("os:etcd:backup may call Version")
	}
}

func drain(ctx context.Context, c *client.Client) (int64, error) {
	rd, err := c.EtcdSnapshot(ctx, &machine.EtcdSnapshotRequest{})
	if err != nil {
		return 0, err
	}
	defer rd.Close()
	f, err := os.CreateTemp("", "snap")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return f.ReadFrom(rd)
}

// TestReset: graceful on the only member fails inside and comes back configured; not graceful it
// comes back blank; EPHEMERAL alone keeps the identity and configuration.
func TestReset(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	n := r.lab.Node("cp1")
	boot := n.BootID()
	must(t, r.secure("cp1").ResetGeneric(r.ctx, &machine.ResetRequest{Graceful: true, Reboot: true}))
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))

	must(t, r.secure("cp1").ResetGeneric(r.ctx, &machine.ResetRequest{
		Reboot:                 true,
		SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}},
	}))
	must(t, r.lab.WaitStage(r.ctx, "cp1", "down"))
	must(t, r.lab.WaitStage(r.ctx, "cp1", "booting"))
	r.bootstrap("cp1") // its etcd is empty again
	must(t, r.lab.WaitReady(r.ctx, "cp1"))

	must(t, r.secure("cp1").ResetGeneric(r.ctx, &machine.ResetRequest{
		Reboot:                 true,
		SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "STATE", Wipe: true}, {Label: "EPHEMERAL", Wipe: true}},
	}))
	must(t, r.lab.WaitStage(r.ctx, "cp1", "maintenance"))
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	// Talos is still on the disk: no install and no reboot this time.
	boot = n.BootID()
	r.apply(r.insecure("cp1"), r.config(mtype.TypeControlPlane, "cp1"), auto)
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if n.BootID() != boot {
		t.Error("an installed node rebooted when it got its configuration")
	}
}

func TestSurvivesRestartOfTheLab(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, true)
	cl, err := r.lab.EtcdClient(r.ctx)
	must(t, err)
	_, err = cl.Put(r.ctx, "kept", "yes")
	must(t, err)
	cl.Close()
	must(t, r.lab.Kill("w1"))
	want := r.lab.Node("cp1").Counters()
	must(t, r.lab.Close())
	r.open()
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if r.lab.Node("w1").Stage() != "off" {
		t.Errorf("a machine that was off is %s", r.lab.Node("w1").Stage())
	}
	if got := r.lab.Node("cp1").Counters(); got != want {
		t.Errorf("counters are %+v, were %+v", got, want)
	}
	cl, err = r.lab.EtcdClient(r.ctx)
	must(t, err)
	defer cl.Close()
	resp, err := cl.Get(r.ctx, "kept")
	must(t, err)
	if len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "yes" {
		t.Errorf("etcd lost its data: %v", resp.Kvs)
	}
	must(t, r.lab.Start("w1"))
	must(t, r.lab.WaitReady(r.ctx, "w1"))
}

func TestSnapshotAndRecovery(t *testing.T) {
	r := newRig(t)
	r.bringUp(1, false)
	cl, err := r.lab.EtcdClient(r.ctx)
	must(t, err)
	_, err = cl.Put(r.ctx, "kept", "yes")
	must(t, err)
	cl.Close()
	c := r.secure("cp1")
	rd, err := c.EtcdSnapshot(r.ctx, &machine.EtcdSnapshotRequest{})
	must(t, err)
	path := filepath.Join(t.TempDir(), "snapshot")
	f, err := os.Create(path)
	must(t, err)
	size, err := f.ReadFrom(rd)
	must(t, err)
	rd.Close()
	must(t, f.Close())
	if size%512 != 32 {
		t.Errorf("the snapshot has %d bytes: no SHA-256 trailer", size)
	}
	must(t, c.ResetGeneric(r.ctx, &machine.ResetRequest{
		Reboot:                 true,
		SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}},
	}))
	must(t, r.lab.WaitStage(r.ctx, "cp1", "down"))
	must(t, r.lab.WaitStage(r.ctx, "cp1", "booting"))
	c = r.secure("cp1")
	must(t, r.lab.Wait(r.ctx, "the upload to be taken", func() bool {
		in, err := os.Open(path)
		must(t, err)
		defer in.Close()
		_, err = c.EtcdRecover(r.ctx, in)
		return err == nil
	}))
	must(t, r.lab.Wait(r.ctx, "the recovery to be accepted", func() bool {
		return c.Bootstrap(r.ctx, &machine.BootstrapRequest{RecoverEtcd: true}) == nil
	}))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	cl, err = r.lab.EtcdClient(r.ctx)
	must(t, err)
	defer cl.Close()
	resp, err := cl.Get(r.ctx, "kept")
	must(t, err)
	if len(resp.Kvs) != 1 {
		t.Error("the recovered etcd has not the data of the snapshot")
	}
}
