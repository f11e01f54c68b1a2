package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// targets says, for each cluster of the head or of the inventory, what it is to be brought to. Git alone is looked at
// here: force pushes, mass deletions, clusters that are gone, checks that did not pass. unsettled are the clusters whose
// last good commit could not be judged now: they keep the target that they have.
func targets(ctx context.Context, c *commits, head *checked, inv *state.Inventory, only []string,
) (out map[string]*target, unsettled map[string]error, err error) {
	out, unsettled = map[string]*target{}, map[string]error{}
	acks := head.acks()
	mass := massDeletion(head.detail.Head, inv, head.commit)
	merged := author(c.history, head.commit)
	for _, name := range clusterNames(head.detail.Head, inv) {
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		var known *state.ClusterInventory
		if inv != nil {
			known = inv.Clusters[name]
		}
		t, err := one(ctx, c, head, name, known)
		if err != nil {
			unsettled[name] = err
			continue
		}
		if t == nil {
			continue
		}
		t.acks, t.mergedBy = acks, merged
		if why := rewound(c.history, known, head.commit, acks); why != "" {
			t.holds = append(t.holds, plan.Hold{Reason: state.ReasonForcePush, Message: why})
		}
		if why := mass[name]; why != "" && !acknowledged(c.history, head.commit, lastApplied(known), acks) {
			t.holds = append(t.holds, plan.Hold{Reason: state.ReasonMassDeletion, Message: why})
		}
		out[name] = t
	}
	// A commit that could not be read because Ichor stops makes no cluster one that is gone.
	return out, unsettled, ctx.Err()
}

// one finds the commit that is in force for a cluster: the head where its part passed, else the last one that did.
func one(ctx context.Context, c *commits, head *checked, name string, known *state.ClusterInventory) (*target, error) {
	cluster := head.detail.Head.Cluster(name)
	present := cluster != nil && cluster.Manifest != nil
	if present && head.report.ClusterPassed(name) {
		return targetOf(head, cluster, head.commit, true, ""), nil
	}
	note := "the check of the head did not pass for this cluster"
	gone := cluster == nil && !unknown(head.detail.Head, name)
	if gone {
		note = "the head no longer has this cluster"
	}
	last, err := lastGood(ctx, c, name, known, head.commit)
	if err != nil {
		return nil, err
	}
	if last != nil {
		t := targetOf(last, last.detail.Head.Cluster(name), head.commit, true,
			fmt.Sprintf("%s; commit %s stays in force", note, short(last.commit)))
		if present {
			s := cluster.Manifest.Spec.Defaulted()
			t.suspend, t.observe = s.Suspend, s.Rollout.Mode == v1alpha1.ModeObserve
		}
		if gone {
			t.holds = append(t.holds, plan.Hold{
				Reason:  state.ReasonNotSupported,
				Message: "the head no longer has this cluster; releasing a cluster is not supported yet, so nothing is written",
			})
		}
		return t, nil
	}
	if !present {
		return nil, nil
	}
	return targetOf(head, cluster, head.commit, false, note), nil
}

func targetOf(r *checked, cluster *fleet.Cluster, head string, passed bool, note string) *target {
	return &target{
		commit: r.commit, cluster: cluster, fleet: r.detail.Head, passed: passed, digests: r.detail.Digests[cluster.Name],
		head: head, headNote: note, skipUsed: skipUsed(r, cluster),
	}
}

// skipUsed tells whether a commit has the annotation that skips the Kubernetes gates from its parent (SPEC section 3: for
// that commit only).
func skipUsed(r *checked, cluster *fleet.Cluster) bool {
	if r.detail.Base == nil || cluster.Manifest == nil {
		return false
	}
	was := r.detail.Base.Cluster(cluster.Name)
	if was == nil || was.Manifest == nil {
		return false
	}
	reason := func(c *fleet.Cluster) string {
		return c.Manifest.Metadata.Annotations[v1alpha1.AnnotationSkipKubernetesGates]
	}
	return reason(was) != "" && reason(was) == reason(cluster)
}

// lastGood is the newest commit that was applied to the cluster, checked again; nil where there is none or its files
// can't be had any more. An error: its check could not be done now (it took too long, say), which says nothing of it.
func lastGood(ctx context.Context, c *commits, name string, known *state.ClusterInventory, head string) (*checked, error) {
	if known == nil {
		return nil, nil
	}
	for _, commit := range []string{known.AttemptedCommit, known.AppliedCommit} { // the attempted one passed its check too
		if commit == "" || commit == head {
			continue
		}
		r, err := c.head(ctx, commit)
		if errors.As(err, &errNoTree{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("judge the last good commit %s: %w", short(commit), err)
		}
		if cl := r.detail.Head.Cluster(name); cl != nil && cl.Manifest != nil && r.report.ClusterPassed(name) {
			return r, nil
		}
	}
	return nil, nil
}

func unknown(f *fleet.Fleet, cluster string) bool {
	return f.IsUnknown("TalosCluster", cluster, cluster)
}

func clusterNames(f *fleet.Fleet, inv *state.Inventory) []string {
	var names []string
	for _, c := range f.Clusters {
		names = append(names, c.Name)
	}
	if inv != nil {
		for name := range inv.Clusters {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// allAcks are the acknowledgements of every cluster of the head: those of commits concern the whole fleet.
func allAcks(f *fleet.Fleet) []string {
	var acks []string
	for _, c := range f.Clusters {
		if c.Manifest != nil {
			acks = append(acks, ackList(c.Manifest.Metadata.Annotations)...)
		}
	}
	slices.Sort(acks)
	return slices.Compact(acks)
}

// rewound says that the head does not descend from what was last applied to the cluster; "" where it does or a person
// acknowledged it.
func rewound(h History, known *state.ClusterInventory, head string, acks []string) string {
	last := lastApplied(known)
	if last == "" || last == head {
		return ""
	}
	if ok, err := h.IsAncestor(last, head); err == nil && ok {
		return ""
	}
	if acknowledged(h, head, last, acks) {
		return ""
	}
	return fmt.Sprintf("the head %s does not descend from %s, which was applied last (a force push?); to allow it, commit the "+
		`annotation ichor.maesh.dev/ack: "%s" on a cluster (ichor ack)`, short(head), short(last), head)
}

// acknowledged tells whether an acknowledgement names a commit that the head brings and that was not applied before. A
// commit can't hold its own hash, so the acknowledging one comes on top of it. One that lies behind what was applied
// last was used up by it: it must not excuse the next rewind.
func acknowledged(h History, head, last string, acks []string) bool {
	for _, a := range acks {
		if len(a) < 40 || strings.HasPrefix(a, "sha256:") {
			continue
		}
		if ok, err := h.IsAncestor(a, head); err != nil || !ok {
			continue
		}
		if used, err := h.IsAncestor(a, last); last == "" || (err == nil && !used) {
			return true
		}
	}
	return false
}

// lastApplied is the newest commit that Ichor began to apply to a cluster, "" none.
func lastApplied(known *state.ClusterInventory) string {
	switch {
	case known == nil:
		return ""
	case known.AttemptedCommit != "":
		return known.AttemptedCommit
	}
	return known.AppliedCommit
}

// massDeletion says, per cluster, why its part of the head is probably a mistake: every machine of a cluster, every
// cluster, or more than three machines and a third of the fleet are gone. head names the commit that is to be
// acknowledged.
func massDeletion(f *fleet.Fleet, inv *state.Inventory, head string) map[string]string {
	if inv == nil {
		return nil
	}
	out := map[string]string{}
	var total, gone, clusters, clustersGone int
	losers := map[string]int{}
	for name, c := range inv.Clusters {
		had, lost := 0, 0
		cl := f.Cluster(name)
		for machine, m := range c.Machines {
			if !m.RemovedAt.IsZero() {
				continue
			}
			had++
			if (cl == nil || cl.Machine(machine) == nil) && !f.IsUnknown("TalosMachine", name, machine) {
				lost++
			}
		}
		if had == 0 {
			continue
		}
		clusters++
		total, gone = total+had, gone+lost
		if lost > 0 {
			losers[name] = lost
		}
		if lost == had {
			out[name] = fmt.Sprintf("the head removes every machine of cluster %s", name)
		}
		if cl == nil && !unknown(f, name) {
			clustersGone++
		}
	}
	for name := range losers {
		switch {
		case clusters > 0 && clustersGone == clusters:
			out[name] = "the head removes every cluster"
		case gone > 3 && gone*3 > total:
			out[name] = fmt.Sprintf("the head removes %d of %d machines", gone, total)
		}
	}
	for name, why := range out {
		out[name] = fmt.Sprintf(`%s, probably by mistake; to allow it, commit the annotation ichor.maesh.dev/ack: "%s" on a cluster (ichor ack)`,
			why, head)
	}
	return out
}

func author(h History, commit string) string {
	info, err := h.CommitInfo(commit)
	if err != nil {
		return ""
	}
	// A merge made by a forge is committed by the forge and authored by who pressed the button.
	return info.Author.Name + " <" + info.Author.Email + ">"
}

func short(commit string) string {
	if len(commit) > 12 {
		return commit[:12]
	}
	return commit
}
