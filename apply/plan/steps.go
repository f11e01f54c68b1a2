package plan

import "sort"

// Step is one step that a merge would cause.
type Step struct {
	Machine string
	// Action: install bootstrap join configure reboot drain uncordon snapshot remove-member reset delete-node upgrade.
	Action string
	// Disrupts says what it disrupts, Refusal what would refuse it right now; "" nothing.
	Disrupts, Refusal string
}

// StepMachine is what a check knows of one machine, without any observation.
type StepMachine struct {
	Name, Role string
	// Change: new (it would be brought up), update, remove, none.
	Change string
	// Effect of an update, the most disruptive: live, restart, reboot, install, none.
	Effect string
	// Upgrade: the installer image changes.
	Upgrade bool
	// Services that restart, for effect restart, in any order. Empty counts as disruptive.
	Services []string
	// Refusal is what the rules of the check say against it, "" nothing.
	Refusal string
}

// StepCluster is what a check knows of the cluster.
type StepCluster struct {
	// New: base has no approved control plane of it, so that etcd has to be bootstrapped.
	New bool
	// ControlPlanes that are approved at base (live ones).
	ControlPlanes int
	// Reboot policy: auto, window, manual.
	Reboot string
	// Refusal holds every step of the cluster (a version change, changed secrets …), "" none.
	Refusal string
}

// Steps predicts, from static data alone, the ordered steps that a merge would cause: bring-up of control planes,
// then workers, configuration of control planes one at a time, then workers, removals. Which member leads etcd is not
// known to it, so control planes come by name; at run time the leader goes last.
func Steps(c StepCluster, machines []StepMachine) []Step {
	ms := append([]StepMachine(nil), machines...)
	sort.SliceStable(ms, func(i, j int) bool { return ms[i].Name < ms[j].Name })
	var out []Step
	add := func(m StepMachine, action, disrupts, refusal string) {
		out = append(out, Step{
			Machine: m.Name, Action: action, Disrupts: disrupts, Refusal: firstText(c.Refusal, m.Refusal, refusal),
		})
	}
	bringUpSteps(c, ms, add)
	for _, role := range []string{RoleControlPlane, RoleWorker} {
		for _, m := range ms {
			if m.Role == role && m.Change == "update" {
				configureSteps(c, m, add)
			}
		}
	}
	for _, role := range []string{RoleWorker, RoleControlPlane} {
		for _, m := range ms {
			if m.Role == role && m.Change == "remove" {
				removeSteps(m, add)
			}
		}
	}
	return out
}

type addStep func(m StepMachine, action, disrupts, refusal string)

func bringUpSteps(c StepCluster, ms []StepMachine, add addStep) {
	var cps, workers []StepMachine
	for _, m := range ms {
		switch {
		case m.Change != "new":
		case m.Role == RoleControlPlane:
			cps = append(cps, m)
		default:
			workers = append(workers, m)
		}
	}
	if c.New {
		for _, m := range cps {
			add(m, "install", "", "")
		}
		if len(cps) > 0 {
			add(cps[0], "bootstrap", "", "")
		}
		for _, m := range cps {
			add(m, "join", "", "")
		}
		cps = nil
	}
	for _, m := range append(cps, workers...) {
		add(m, "install", "", "")
		add(m, "join", "", "")
	}
}

func configureSteps(c StepCluster, m StepMachine, add addStep) {
	refusal := ""
	if m.Role == RoleControlPlane && c.ControlPlanes > 0 && c.ControlPlanes%2 == 0 {
		refusal = evenRefusal(c.ControlPlanes)
	}
	if m.Upgrade {
		add(m, "upgrade", rebootDisrupts(m.Role, c.ControlPlanes), "upgrades are not supported yet")
		return
	}
	switch m.Effect {
	case "none", "":
	case "reboot":
		add(m, "configure", "", "")
		if c.Reboot == "manual" {
			refusal = firstText(refusal, "rollout.reboot is manual: a person reboots it")
		}
		add(m, "reboot", rebootDisrupts(m.Role, c.ControlPlanes), refusal)
	case "restart":
		disrupts := restartDisrupts(m.Role, m.Services)
		if disrupts == "" {
			refusal = ""
		}
		add(m, "configure", disrupts, refusal)
	default:
		add(m, "configure", "", "")
	}
}

func removeSteps(m StepMachine, add addStep) {
	const later = "removal is not supported yet"
	add(m, "drain", "", later)
	if m.Role == RoleControlPlane {
		add(m, "remove-member", "one etcd member leaves", later)
	}
	add(m, "reset", "the machine is wiped", later)
	add(m, "delete-node", "", later)
}

func firstText(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
