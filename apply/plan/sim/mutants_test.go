package sim

import (
	"testing"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// TestFindsMutants: the simulation is worth something only when it finds a core that is wrong. Each mutant must fall
// within a few seeds.
func TestFindsMutants(t *testing.T) {
	change := func(d plan.Decision, f func(*plan.Action)) plan.Decision {
		for k := range d.Actions {
			f(&d.Actions[k])
		}
		return d
	}
	mutants := map[string]func(plan.Input) plan.Decision{
		"disrupts the leader": func(in plan.Input) plan.Decision {
			return change(plan.Next(in), func(a *plan.Action) {
				if a.Kind == plan.DoForfeit {
					a.Kind = plan.DoReboot
				}
			})
		},
		"ignores observe mode and holds": func(in plan.Input) plan.Decision {
			in.Desired.Observe, in.Desired.CheckPassed, in.Desired.Holds = false, true, nil
			return plan.Next(in)
		},
		"forgets what was started": func(in plan.Input) plan.Decision {
			inv := *in.Inventory
			inv.Intents = nil
			in.Inventory = &inv
			return plan.Next(in)
		},
		"forgets the trial": func(in plan.Input) plan.Decision {
			in.Inventory = edit(in.Inventory, func(m *state.MachineInventory) { m.SentMode = "" })
			return plan.Next(in)
		},
		"trusts any box": func(in plan.Input) plan.Decision {
			in.Inventory = edit(in.Inventory, func(m *state.MachineInventory) { m.Identity = state.Identity{} })
			for k := range in.Desired.Machines {
				in.Desired.Machines[k].UUID, in.Desired.Machines[k].Hostname = "", ""
			}
			return change(plan.Next(in), func(a *plan.Action) { a.Expect.UUID, a.Expect.NodeID = "", "" })
		},
		"never records what is in force": func(in plan.Input) plan.Decision {
			d := plan.Next(in)
			var kept []plan.Action
			for _, a := range d.Actions {
				if a.Kind != plan.RecordInForce {
					kept = append(kept, a)
				}
			}
			d.Actions = kept
			return d
		},
		"answers by the hour": func(in plan.Input) plan.Decision {
			hour++
			d := plan.Next(in)
			d.Progress.Converged += hour
			return d
		},
	}
	for name, next := range mutants {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(60) {
				if r := Run(seed+1, Options{Next: next}); r.Failed() {
					t.Logf("found by seed %d: %s", seed+1, r.Problems[0])
					return
				}
			}
			t.Error("no seed finds it")
		})
	}
}

var hour int

func edit(c *state.ClusterInventory, f func(*state.MachineInventory)) *state.ClusterInventory {
	out := clone(c)
	for _, m := range out.Machines {
		f(m)
	}
	return out
}
