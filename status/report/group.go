package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/validate/check"
)

// group is machines of one cluster and role that change in the same way.
type group struct {
	cluster, role string
	change        check.Change
	effect        string
	paths         []check.PathChange
	machines      []string
}

// groups folds equal changes: by cluster, then the most disruptive first, control planes before workers.
func groups(r *check.Report) []*group {
	index := map[string]*group{}
	var out []*group
	for _, m := range r.Machines {
		paths, err := json.Marshal(m.Paths)
		if err != nil {
			paths = []byte(m.Name)
		}
		key := strings.Join([]string{m.Cluster, m.Role, string(m.Change), m.Effect, string(paths)}, "\x00")
		g := index[key]
		if g == nil {
			g = &group{cluster: m.Cluster, role: m.Role, change: m.Change, effect: m.Effect, paths: m.Paths}
			index[key] = g
			out = append(out, g)
		}
		g.machines = append(g.machines, m.Name)
	}
	slices.SortStableFunc(out, func(a, b *group) int {
		return cmp.Or(
			strings.Compare(a.cluster, b.cluster),
			cmp.Compare(changeRank(a.change), changeRank(b.change)),
			cmp.Compare(effectRank(b.effect), effectRank(a.effect)),
			strings.Compare(a.role, b.role),
			strings.Compare(a.machines[0], b.machines[0]),
		)
	})
	return out
}

// changeRank puts first what a reviewer must not overlook.
func changeRank(c check.Change) int {
	switch c {
	case check.ChangeRemove:
		return 0
	case check.ChangeUpdate:
		return 1
	case check.ChangeNew:
		return 2
	case check.ChangeNone:
	}
	return 3
}

// names lists the machines, at most n by name: "47 workers: w1, w2 and 45 more".
func (g *group) names(n int) string {
	if len(g.machines) == 1 {
		return g.machines[0]
	}
	label := map[string]string{"controlplane": "control planes", "worker": "workers"}[g.role]
	if label == "" {
		label = "machines"
	}
	shown, more := g.machines, ""
	if len(shown) > n {
		more = fmt.Sprintf(" and %d more", len(shown)-n)
		shown = shown[:n]
	}
	return fmt.Sprintf("%d %s: %s%s", len(g.machines), label, strings.Join(shown, ", "), more)
}

// services that restart, sorted.
func (g *group) services() []string {
	var out []string
	for _, p := range g.paths {
		if p.Service != "" && !slices.Contains(out, p.Service) {
			out = append(out, p.Service)
		}
	}
	slices.Sort(out)
	return out
}
