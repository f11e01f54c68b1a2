package check

import (
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// plan predicts the steps that a merge would cause, from the commit alone.
func (s *session) plan() {
	for _, cl := range s.head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		machines := s.stepMachines(cl)
		f := newForecast(s, cl, machines)
		for _, st := range plan.Steps(s.stepCluster(cl), machines) {
			step := Step{
				Step: len(s.report.Plan) + 1, Cluster: cl.Name, Machine: st.Machine, Action: st.Action,
				Disrupts: st.Disrupts, Refusal: st.Refusal,
			}
			step.Quorum, step.RefusedNow = f.quorum(st), f.refusedNow(st)
			s.report.Plan = append(s.report.Plan, step)
		}
	}
}

func (s *session) stepCluster(cl *fleet.Cluster) plan.StepCluster {
	was := s.baseCluster(cl.Name)
	live := 0
	if was != nil {
		for _, m := range was.Machines {
			if approved(m) && m.Manifest.Spec.Role == v1alpha1.RoleControlPlane {
				live++
			}
		}
	}
	return plan.StepCluster{
		New: live == 0, ControlPlanes: live, Reboot: cl.Manifest.Spec.Rollout.Reboot, Refusal: s.clusterRefusal(cl, was),
	}
}

// clusterRefusal says what of the commit itself would hold every step of a cluster, "" nothing.
func (s *session) clusterRefusal(cl, was *fleet.Cluster) string {
	spec := cl.Manifest.Spec
	switch {
	case !s.report.ClusterPassed(cl.Name):
		return "the check of this cluster failed: nothing is applied"
	case spec.Suspend:
		return "the cluster is suspended"
	case spec.Rollout.Mode == "observe":
		return "rollout.mode is observe: nothing is written"
	case was == nil:
		return ""
	case fullVersion(spec.TalosVersion) != fullVersion(was.Manifest.Spec.TalosVersion):
		return fmt.Sprintf("a change of talosVersion (%s to %s) is not supported yet", was.Manifest.Spec.TalosVersion, spec.TalosVersion)
	case fullVersion(spec.KubernetesVersion) != fullVersion(was.Manifest.Spec.KubernetesVersion):
		return fmt.Sprintf("a change of kubernetesVersion (%s to %s) is not supported yet",
			was.Manifest.Spec.KubernetesVersion, spec.KubernetesVersion)
	case newSecretChanges(was, cl).bundle != nil:
		return "the secrets bundle changed (SecretsChanged)"
	}
	return ""
}

// fullVersion makes v1.13.5 and 1.13.5 the same.
func fullVersion(v string) string {
	if len(v) > 0 && v[0] == 'v' {
		return v[1:]
	}
	return v
}

// reported are the report's machines of a cluster: they are sorted.
func (s *session) reported(cluster string) []Machine {
	from, _ := slices.BinarySearchFunc(s.report.Machines, cluster, func(m Machine, cluster string) int {
		return strings.Compare(m.Cluster, cluster)
	})
	to := from
	for to < len(s.report.Machines) && s.report.Machines[to].Cluster == cluster {
		to++
	}
	return s.report.Machines[from:to]
}

func approvedNames(cl *fleet.Cluster) map[string]bool {
	live := make(map[string]bool, len(cl.Machines))
	for _, m := range cl.Machines {
		live[m.Name] = live[m.Name] || approved(m)
	}
	return live
}

// stepMachines lists what happens to those of a cluster's approved machines that change.
func (s *session) stepMachines(cl *fleet.Cluster) []plan.StepMachine {
	refused := map[string]string{}
	for _, p := range s.report.Problems {
		if p.Rule == "delete" && p.Cluster == cl.Name && p.Machine != "" && refused[p.Machine] == "" {
			refused[p.Machine] = p.Message
		}
	}
	var live map[string]bool
	var out []plan.StepMachine
	for _, m := range s.reported(cl.Name) {
		if m.Change == ChangeNone {
			continue // no step is about it
		}
		if live == nil {
			live = approvedNames(cl)
		}
		if m.Change != ChangeRemove && !live[m.Name] {
			continue
		}
		st := plan.StepMachine{
			Name: m.Name, Role: m.Role, Change: string(m.Change), Effect: m.Effect, Refusal: refused[m.Name],
		}
		for _, p := range m.Paths {
			st.Upgrade = st.Upgrade || p.Document == "v1alpha1" && p.Path == "machine.install.image"
			if p.Service != "" {
				st.Services = append(st.Services, p.Service)
			}
		}
		out = append(out, st)
	}
	return out
}
