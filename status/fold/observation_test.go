package fold_test

import (
	"reflect"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
)

// TestObserved: what a status says of nodes and members comes out as a check needs it.
func TestObserved(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	since := at.Add(-time.Hour)
	got := fold.Observed(fold.Cluster{
		Members:    []fold.Member{{ID: "1"}, {ID: "2"}, {ID: "3", Learner: true}},
		Conditions: []state.Condition{{Type: state.CondHeld, Status: state.True, Reason: "AdoptionPending", Message: "differs"}},
		Machines: []fold.Machine{
			{Name: "cp1", TalosVersion: "v1.13.5", Conditions: []state.Condition{{Type: state.CondReady, Status: state.True}}},
			{Name: "cp2", Conditions: []state.Condition{
				{Type: state.CondNodeReachable, Status: state.False, LastTransitionTime: since},
				{Type: state.CondReady, Status: state.False, Reason: "NodeUnreachable", Message: "no answer"},
			}},
		},
	}, at)
	want := state.ObservedCluster{
		At: at, Voters: 2, Learners: 1, Held: "AdoptionPending: differs",
		Machines: map[string]state.ObservedMachine{
			"cp1": {TalosVersion: "v1.13.5"}, "cp2": {SilentSince: since, Reason: "NodeUnreachable", Message: "no answer"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
