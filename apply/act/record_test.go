package act

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func desired() *plan.Desired {
	return &plan.Desired{
		TalosVersion: "v1.13.5", KubernetesVersion: "v1.36.0", Contract: "v1.13", SecretsFingerprint: "s", EncryptedFingerprint: "e",
		Machines: []plan.DesiredMachine{{Name: "cp1", Role: "controlplane", Endpoint: "10.0.0.1", Hostname: "new-name", Digest: "d2"}},
	}
}

// TestRecord has one story for each kind, as the protocol in package plan says it.
func TestRecord(t *testing.T) {
	intent := state.Intent{ID: "i1", Act: state.ActReboot, Machine: "cp1"}
	for _, c := range []struct {
		name   string
		before state.ClusterInventory
		action plan.Action
		want   string
	}{
		{
			"adopt fills what is empty",
			state.ClusterInventory{TalosVersion: "v1.12.0"},
			plan.Action{Kind: plan.RecordAdopt},
			`{"adopted":true,"talosVersion":"v1.12.0","kubernetesVersion":"v1.36.0","contract":"v1.13","secretsFingerprint":"s","encryptedFingerprint":"e"}`,
		},
		{
			"identity of a new machine",
			state.ClusterInventory{},
			plan.Action{Kind: plan.RecordIdentity, Machine: "cp1", Joined: true, Identity: state.Identity{UUID: "u"}},
			`{"adopted":false,"machines":{"cp1":{"role":"controlplane","endpoint":"10.0.0.1","hostname":"new-name","identity":{"uuid":"u"},"joinedAt":"2026-03-01T12:00:00Z"}}}`,
		},
		{
			"identity keeps what it does not bring, the hostname and when it joined",
			state.ClusterInventory{Machines: map[string]*state.MachineInventory{"cp1": {Hostname: "old", Identity: state.Identity{UUID: "u", NodeID: "n"}, JoinedAt: t0.Add(-time.Hour)}}},
			plan.Action{Kind: plan.RecordIdentity, Machine: "cp1", Joined: true, Identity: state.Identity{MemberID: "m"}},
			`{"adopted":false,"machines":{"cp1":{"role":"controlplane","endpoint":"10.0.0.1","hostname":"old","identity":{"uuid":"u","nodeID":"n","memberID":"m"},"joinedAt":"2026-03-01T11:00:00Z"}}}`,
		},
		{
			"in force clears the failure",
			state.ClusterInventory{Machines: map[string]*state.MachineInventory{"cp1": {Failure: "x", FailedDigest: "d2", AnsweredDigest: "d2", AnsweredEffect: "reboot"}}},
			plan.Action{Kind: plan.RecordInForce, Machine: "cp1", Digest: "d2", Commit: "c2"},
			`{"adopted":false,"machines":{"cp1":{"role":"","endpoint":"","hostname":"new-name","identity":{},"inForceDigest":"d2","inForceCommit":"c2"}}}`,
		},
		{
			"applied lifts the commit of those that have the wish",
			state.ClusterInventory{AttemptedCommit: "c1", Machines: map[string]*state.MachineInventory{"cp1": {InForceDigest: "d2", InForceCommit: "c1"}, "gone": {InForceDigest: "d2", InForceCommit: "c1"}}},
			plan.Action{Kind: plan.RecordApplied, Commit: "c2"},
			`{"adopted":false,"appliedCommit":"c2","attemptedCommit":"c2","talosVersion":"v1.13.5","kubernetesVersion":"v1.36.0","contract":"v1.13","secretsFingerprint":"s","encryptedFingerprint":"e","machines":{"cp1":{"role":"","endpoint":"","identity":{},"inForceDigest":"d2","inForceCommit":"c2"},"gone":{"role":"","endpoint":"","identity":{},"inForceDigest":"d2","inForceCommit":"c1"}}}`,
		},
		{
			"failure",
			state.ClusterInventory{},
			plan.Action{Kind: plan.RecordFailure, Machine: "cp1", Digest: "d2", Message: "why"},
			`{"adopted":false,"machines":{"cp1":{"role":"","endpoint":"","identity":{},"failure":"why","failedDigest":"d2"}}}`,
		},
		{
			"reboot pending",
			state.ClusterInventory{},
			plan.Action{Kind: plan.RecordRebootPending, Machine: "cp1", Paths: []string{"machine.env.A"}, Expect: plan.Expect{BootID: "b"}},
			`{"adopted":false,"machines":{"cp1":{"role":"","endpoint":"","identity":{},"rebootPending":["machine.env.A"],"rebootPendingBootID":"b"}}}`,
		},
		{
			"no reboot pending any more",
			state.ClusterInventory{Machines: map[string]*state.MachineInventory{"cp1": {RebootPending: []string{"x"}, RebootPendingBootID: "b"}}},
			plan.Action{Kind: plan.RecordRebootPending, Machine: "cp1", Expect: plan.Expect{BootID: "c"}},
			`{"adopted":false,"machines":{"cp1":{"role":"","endpoint":"","identity":{}}}}`,
		},
		{
			"node ready",
			state.ClusterInventory{},
			plan.Action{Kind: plan.RecordNodeReady, Machine: "cp1"},
			`{"adopted":false,"machines":{"cp1":{"role":"","endpoint":"","identity":{},"nodeReadySeen":true}}}`,
		},
		{
			"a reboot is done",
			state.ClusterInventory{Intents: []state.Intent{intent}, Machines: map[string]*state.MachineInventory{"cp1": {RebootPending: []string{"x"}, RebootPendingBootID: "b"}}},
			plan.Action{Kind: plan.CloseIntent, Machine: "cp1", IntentID: "i1", Outcome: plan.OutcomeDone},
			`{"adopted":false,"machines":{"cp1":{"role":"","endpoint":"","identity":{}}}}`,
		},
		{
			"a bootstrap was not done",
			state.ClusterInventory{BootstrapMachine: "cp1", BootstrapUUID: "u", Intents: []state.Intent{{ID: "i2", Act: state.ActBootstrap, Machine: "cp1"}}},
			plan.Action{Kind: plan.CloseIntent, Machine: "cp1", IntentID: "i2", Outcome: plan.OutcomeNotDone},
			`{"adopted":false}`,
		},
		{
			"a bootstrap was done",
			state.ClusterInventory{BootstrapMachine: "cp1", BootstrapUUID: "u", Intents: []state.Intent{{ID: "i2", Act: state.ActBootstrap, Machine: "cp1"}}},
			plan.Action{Kind: plan.CloseIntent, Machine: "cp1", IntentID: "i2", Outcome: plan.OutcomeDone},
			`{"adopted":false,"bootstrapMachine":"cp1","bootstrapUUID":"u"}`,
		},
		{
			"an act failed",
			state.ClusterInventory{Intents: []state.Intent{intent}},
			plan.Action{Kind: plan.CloseIntent, Machine: "cp1", IntentID: "i1", Outcome: plan.OutcomeFailed, Digest: "d2", Message: "why"},
			`{"adopted":false,"machines":{"cp1":{"role":"","endpoint":"","identity":{},"failure":"why","failedDigest":"d2"}}}`,
		},
		{"an intent that is closed already", state.ClusterInventory{BootstrapMachine: "cp1"}, plan.Action{Kind: plan.CloseIntent, Machine: "cp1", IntentID: "i2", Outcome: plan.OutcomeNotDone}, `{"adopted":false,"bootstrapMachine":"cp1"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := recordOne(&c.before, desired(), c.action, t0); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(c.before)
			if err != nil {
				t.Fatal(err)
			}
			// An empty list of intents is none.
			if s := strings.Replace(string(got), `,"intents":[]`, "", 1); s != c.want {
				t.Errorf("got  %s\nwant %s", s, c.want)
			}
		})
	}
	if err := recordOne(&state.ClusterInventory{}, desired(), plan.Action{Kind: "record-something-new"}, t0); err == nil {
		t.Error("a kind that is not known is recorded")
	}
}

func TestNotEmpty(t *testing.T) {
	empty := plan.MachineFacts{Reach: plan.ReachOK, Mode: plan.ModeConfigured, Etcd: &plan.EtcdFact{State: "Preparing"}}
	if why := notEmpty(empty); why != "" {
		t.Fatalf("waiting without data: %s", why)
	}
	for name, f := range map[string]plan.MachineFacts{
		"unreachable":    {Reach: plan.ReachUnreachable, Mode: plan.ModeConfigured, Etcd: empty.Etcd},
		"maintenance":    {Reach: plan.ReachOK, Mode: plan.ModeMaintenance, Etcd: empty.Etcd},
		"no etcd facts":  {Reach: plan.ReachOK, Mode: plan.ModeConfigured},
		"running":        {Reach: plan.ReachOK, Mode: plan.ModeConfigured, Etcd: &plan.EtcdFact{State: "Running"}},
		"not started":    {Reach: plan.ReachOK, Mode: plan.ModeConfigured, Etcd: &plan.EtcdFact{}},
		"has a member":   {Reach: plan.ReachOK, Mode: plan.ModeConfigured, Etcd: &plan.EtcdFact{State: "Preparing", MemberID: "m"}},
		"lists a member": {Reach: plan.ReachOK, Mode: plan.ModeConfigured, Etcd: &plan.EtcdFact{State: "Preparing", Members: []plan.Member{{ID: "m"}}}},
	} {
		if notEmpty(f) == "" {
			t.Errorf("%s counts as empty", name)
		}
	}
}

func TestItself(t *testing.T) {
	f := plan.MachineFacts{Reach: plan.ReachOK, Mode: plan.ModeConfigured, Fingerprint: "f", BootID: "b", Identity: state.Identity{UUID: "ABC", NodeID: "n", NodeName: "cp1", MemberID: "m"}}
	good := plan.Expect{Mode: plan.ModeConfigured, UUID: "abc", NodeID: "n", NodeName: "cp1", MemberID: "m", Fingerprint: "f", BootID: "b"}
	if err := itself(good, f); err != nil {
		t.Fatal(err)
	}
	if err := itself(plan.Expect{}, f); err != nil {
		t.Fatalf("nothing expected: %v", err)
	}
	for name, edit := range map[string]func(*plan.Expect){
		"mode": func(e *plan.Expect) { e.Mode = plan.ModeMaintenance }, "UUID": func(e *plan.Expect) { e.UUID = "x" }, "node ID": func(e *plan.Expect) { e.NodeID = "x" },
		"node name": func(e *plan.Expect) { e.NodeName = "x" }, "member": func(e *plan.Expect) { e.MemberID = "x" }, "fingerprint": func(e *plan.Expect) { e.Fingerprint = "x" }, "boot": func(e *plan.Expect) { e.BootID = "x" },
	} {
		e := good
		edit(&e)
		if itself(e, f) == nil {
			t.Errorf("another %s passes", name)
		}
	}
	if err := itself(good, plan.MachineFacts{Reach: plan.ReachOK, Mode: plan.ModeConfigured}); err == nil {
		t.Error("an identity that could not be read passes")
	}
	if err := itself(plan.Expect{}, plan.MachineFacts{Reach: plan.ReachUnreachable}); err == nil {
		t.Error("a machine that does not answer passes")
	}
}

func TestAuditAppendsAndFails(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	for range 2 {
		a, err := OpenAudit(dir, slog.New(slog.NewJSONHandler(&log, nil)), func() time.Time { return t0 })
		if err != nil {
			t.Fatal(err)
		}
		if err := a.begin(entry{Machine: "cp1", Act: "reboot"}); err != nil {
			t.Fatal(err)
		}
		a.end(entry{Machine: "cp1", Act: "reboot"}, Result{Outcome: Unknown, Kind: "timeout", Message: "late"})
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.begin(entry{}); err == nil {
			t.Fatal("an act is announced in a log that can't be written")
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, AuditFile))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines", len(lines))
	}
	var e entry
	if err := json.Unmarshal([]byte(lines[3]), &e); err != nil || e.Phase != "end" || e.Outcome != Unknown || !e.At.Equal(t0) {
		t.Fatalf("last line %+v, %v", e, err)
	}
	if !strings.Contains(log.String(), `"outcome":"unknown"`) {
		t.Errorf("log %s", log.String())
	}
}

func TestDecides(t *testing.T) {
	for v, want := range map[string]bool{"v1.12.5": true, "v1.13.5": true, "v1.14.0-rc.1": false, "": false, "v2.0.0": false, "dev": false} {
		if decides(v) != want {
			t.Errorf("%s: %t", v, !want)
		}
	}
}
