package check

import (
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// sameProblem is what makes two problems the same (SPEC section 2): rule, object, path and message; for a secret its
// value, wherever it lies. Where there is no object the file stands for it.
type sameProblem struct{ rule, severity, cluster, object, path, message, fingerprint string }

func sameKey(p fleet.Problem) sameProblem {
	k := sameProblem{rule: p.Rule, severity: string(p.Severity), fingerprint: p.Fingerprint}
	if p.Fingerprint != "" {
		return k
	}
	k.cluster, k.object, k.path, k.message = p.Cluster, p.Object, p.Path, p.Message
	if k.object == "" {
		k.object = "file " + p.File
	}
	return k
}

// markOnBase marks the problems that base has too. Each of base's stands for one: a second one of the same kind is new.
func markOnBase(problems, base []fleet.Problem) {
	if len(base) == 0 {
		return
	}
	left := make(map[sameProblem]int, len(base))
	for _, p := range base {
		left[sameKey(p)]++
	}
	for i := range problems {
		k := sameKey(problems[i])
		if left[k] > 0 {
			left[k]--
			problems[i].OnBase = true
		}
	}
}

// holds lists the clusters that errors stop. A problem of a cluster holds that one; one of a file holds those whose
// objects base has in it, never all. What is of the whole fleet (a policy without a cluster, files that were not read
// because there are too many) holds all, under the name "".
func holds(problems []fleet.Problem, excuseBase bool, head, base *fleet.Fleet) map[string]bool {
	held := map[string]bool{}
	if slices.Contains(head.Unknown, fleet.Unknown{}) {
		held[""] = true
	}
	var files map[string][]string
	for _, p := range problems {
		if !counts(p, excuseBase) {
			continue
		}
		if p.Cluster != "" {
			held[p.Cluster] = true
			continue
		}
		if p.File == "" || strings.HasPrefix(p.Object, v1alpha1.KindTalosPolicy+"/") {
			held[""] = true
			continue
		}
		if files == nil {
			files = clusterFiles(base)
		}
		for _, c := range files[p.File] {
			held[c] = true
		}
	}
	return held
}

// clusterFiles gives the clusters that have objects in a file.
func clusterFiles(f *fleet.Fleet) map[string][]string {
	out := map[string][]string{}
	if f == nil {
		return out
	}
	for _, cl := range f.Clusters {
		add := func(o fleet.Object) { out[o.Pos.File] = append(out[o.Pos.File], cl.Name) }
		if cl.Manifest != nil {
			add(cl.Object)
		}
		for _, m := range cl.Machines {
			add(m.Object)
		}
		for _, p := range cl.Patches {
			add(p.Object)
		}
		for _, b := range cl.Backups {
			add(b.Object)
		}
		for _, p := range cl.Policies {
			add(p.Object)
		}
		for _, o := range cl.Operations {
			add(o.Object)
		}
	}
	return out
}

// ClusterPassed tells whether the part of the check that belongs to a cluster passed: only then is the commit applied
// to it. It is false for every cluster where the verdict is not known.
func (r *Report) ClusterPassed(name string) bool {
	if r.Verdict == Errored {
		return false
	}
	if r.holds == nil {
		// A report that was read back: what is held is not in it, so that only a pass is sure.
		return r.Verdict == Passed
	}
	return !r.holds[name] && !r.holds[""]
}
