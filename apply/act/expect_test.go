package act

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// TestAMemberThatCameBackIsNotTouchedAsOneThatIsDown: a control plane that runs no member may be touched whatever the
// others are, so the act looks again whether it still runs none.
func TestAMemberThatCameBackIsNotTouchedAsOneThatIsDown(t *testing.T) {
	facts := func(e *plan.EtcdFact) plan.MachineFacts {
		return plan.MachineFacts{Reach: plan.ReachOK, Mode: plan.ModeConfigured, Etcd: e}
	}
	for _, c := range []struct {
		name string
		etcd *plan.EtcdFact
		ok   bool
	}{
		{"it waits", &plan.EtcdFact{State: "Preparing"}, true},
		{"it failed", &plan.EtcdFact{State: "Failed"}, true},
		{"it runs again", &plan.EtcdFact{State: "Running", MemberID: "a1"}, false},
		{"it runs and its member is not known", &plan.EtcdFact{State: "Running"}, false},
		{"its etcd could not be read", nil, false},
	} {
		if err := itself(plan.Expect{EtcdDown: true}, facts(c.etcd)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := itself(plan.Expect{}, facts(c.etcd)); err != nil {
			t.Errorf("%s, not asked: %v", c.name, err)
		}
	}
}

var errPush = errors.New("no route to host")

// cutOff is a journal whose branch can't be reached: notes stay in the state folder, pushes fail.
type cutOff struct{ inv state.Inventory }

func (c *cutOff) Note(_ context.Context, _ time.Time, edit func(*state.Inventory) error) error {
	return edit(&c.inv)
}

func (*cutOff) Update(context.Context, time.Time, func(*state.Inventory) error) error { return errPush }
func (*cutOff) Holding(time.Time) error                                               { return nil }
func (c *cutOff) Cluster(name string) *state.ClusterInventory                         { return c.inv.Clusters[name] }

func (*cutOff) Intend(context.Context, time.Time, string, state.Intent, func(*state.ClusterInventory)) (state.Intent, error) {
	return state.Intent{}, errPush
}

// TestAPendingRebootIsPushedOrNotKept: a node from 1.14 on never says that it waits for a reboot, so what is sent next
// must not be sent on the strength of a note that only this folder has.
func TestAPendingRebootIsPushedOrNotKept(t *testing.T) {
	j := &cutOff{}
	a := &Actor{Journal: j, Now: func() time.Time { return t0 }}
	c := &Cluster{Nodes: &observe.Cluster{Name: "prod"}, Desired: desired()}
	pending := plan.Action{Kind: plan.RecordRebootPending, Machine: "cp1", Paths: []string{"v1alpha1 machine.env"}, Expect: plan.Expect{BootID: "b"}}
	if err := a.record(t.Context(), c, []plan.Action{pending}); !errors.Is(err, errPush) {
		t.Errorf("recorded without a push: %v", err)
	}
	if j.Cluster("prod") != nil {
		t.Errorf("kept: %+v", j.Cluster("prod"))
	}
	ready := plan.Action{Kind: plan.RecordNodeReady, Machine: "cp1"}
	if err := a.record(t.Context(), c, []plan.Action{ready}); err != nil || !j.Cluster("prod").Machines["cp1"].NodeReadySeen {
		t.Errorf("what may be lost was not noted: %v", err)
	}
}

// TestTheAuditLogComesBackAfterItCouldNotBePutAside: no act without its line, and acts again when there is one.
func TestTheAuditLogComesBackAfterItCouldNotBePutAside(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenAudit(dir, slog.New(slog.DiscardHandler), func() time.Time { return t0 })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	path := filepath.Join(dir, AuditFile)
	if err := os.Truncate(path, maxAudit+1); err != nil { // sparse
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := a.begin(entry{Machine: "cp1"}); err == nil {
		t.Fatal("an act is announced though the log could not be put aside")
	}
	if err := os.RemoveAll(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if err := a.begin(entry{Machine: "cp1"}); err != nil {
		t.Fatalf("the log stays closed: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() == 0 || st.Size() > maxAudit {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Error(err)
	}
}
