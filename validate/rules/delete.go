package rules

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func deleteRule() Rule {
	return Rule{
		ID: "delete",
		Doc: "A machine that base has and this commit lacks (or rejects) may leave only when that is allowed, and " +
			"when the control plane keeps its quorum and its declared count.",
		AgainstBase: true,
		Check:       checkDelete,
	}
}

// The sentences of SPEC section 4, Removal.
const (
	refusedNoMark = `delete refused: set the annotation ` + v1alpha1.AnnotationAllowDelete + `="true" to allow it`
	refusedLast   = "delete refused: last control plane (1 -> 0); delete the TalosCluster instead"
	refusedQuorum = "delete refused: control planes %d -> %d, below etcd quorum of %d for %d members"
	refusedCount  = "delete refused: control planes %d -> %d, below the declared count of %d; either approve a " +
		"replacement control plane first (then remove this one), or lower spec.controlPlane.count first"
	refusedPending = "delete refused: an approved machine can't go back to pending; keep it approved, or remove it by " +
		"deleting its file"
)

// hintOnBase says where the place of a problem about a deleted file is.
const hintOnBase = "the place is on base: this commit no longer has the manifest"

// removal is one machine that leaves.
type removal struct {
	// old is the machine on base; now the one of head where it was rejected, nil where it is gone.
	old, now *fleet.Machine
	marked   bool
}

func checkDelete(c *Context) []fleet.Problem {
	if c.Base == nil {
		return nil
	}
	var problems []fleet.Problem
	for _, old := range c.Base.Clusters {
		if old.Manifest == nil || renamedCluster(c, old) != nil {
			continue
		}
		now := c.Head.Cluster(old.Name)
		if now == nil || now.Manifest == nil {
			if mayBe(c.Head, old.Object) {
				continue
			}
			problems = append(problems, releaseProblems(old)...)
			continue
		}
		problems = append(problems, backToPending(c, old)...)
		problems = append(problems, removalProblems(c, old, now)...)
		problems = append(problems, resetProblems(c, old, now)...)
	}
	return problems
}

// releaseProblems guards the deletion of a TalosCluster: with the annotation Ichor forgets it and touches no node.
func releaseProblems(old *fleet.Cluster) []fleet.Problem {
	if old.Manifest.Metadata.Annotations[v1alpha1.AnnotationAllowDelete] == "true" {
		return nil
	}
	p := problemAt(old.Object, "", refusedNoMark)
	p.Hint = "the TalosCluster of base is gone; " + hintOnBase
	return []fleet.Problem{p}
}

// backToPending refuses what would leave a configured machine without an owner.
func backToPending(c *Context, old *fleet.Cluster) []fleet.Problem {
	var problems []fleet.Problem
	for _, m := range old.Machines {
		if !isApproved(m) {
			continue
		}
		now := successor(c, m)
		if now != nil && now.Manifest.Spec.ApprovalState == v1alpha1.ApprovalPending {
			p := problemAt(now.Object, "spec.approvalState", refusedPending)
			p.Hint = "set approvalState back to approved"
			problems = append(problems, p)
		}
	}
	return problems
}

// removals lists the approved machines of base that leave the cluster, sorted by name.
func removals(c *Context, old *fleet.Cluster) []removal {
	var out []removal
	for _, m := range old.Machines {
		if !isApproved(m) || (c.Removed != nil && c.Removed(m.Cluster, m.Name)) {
			continue
		}
		now := successor(c, m)
		switch {
		case now != nil && !isRejected(now):
			continue
		case now == nil && (mayBe(c.Head, m.Object) || movedTo(c, m) != nil):
			// Unknown, or the immutable rule speaks about it.
			continue
		}
		out = append(out, removal{old: m, now: now, marked: marked(c, m)})
	}
	slices.SortStableFunc(out, func(a, b removal) int { return strings.Compare(a.old.Name, b.old.Name) })
	return out
}

// marked tells whether a machine's removal is allowed: by the annotation on its last version, which base has, or by a
// removeMachine operation that this commit brings. An operation that base has already was about an earlier machine.
func marked(c *Context, m *fleet.Machine) bool {
	if m.Manifest.Metadata.Annotations[v1alpha1.AnnotationAllowDelete] == "true" {
		return true
	}
	cl := c.Head.Cluster(m.Cluster)
	if cl == nil {
		return false
	}
	for _, op := range cl.Operations {
		r := op.Manifest.Spec.RemoveMachine
		if r != nil && r.Machine == m.Name && !operationOn(c.Base, op) {
			return true
		}
	}
	return false
}

// operationOn tells whether a fleet has an operation of that name with that content: it runs once.
func operationOn(f *fleet.Fleet, op *fleet.Operation) bool {
	cl := f.Cluster(op.Cluster)
	if cl == nil {
		return false
	}
	for _, o := range cl.Operations {
		if o.Name == op.Name && reflect.DeepEqual(o.Manifest.Spec, op.Manifest.Spec) {
			return true
		}
	}
	return false
}

// removalProblems takes a cluster's removals one by one and says which rule each breaks. Machines that join in the
// same commit come first, because a live member leaves only after its replacement has joined; what is refused stays
// and is not counted as gone.
func removalProblems(c *Context, old, now *fleet.Cluster) []fleet.Problem {
	list := removals(c, old)
	var problems []fleet.Problem
	for _, r := range list {
		if !r.marked {
			problems = append(problems, r.problem(refusedNoMark, ""))
		}
	}
	var steps []removal
	for _, r := range list {
		if isControlPlane(r.old) {
			steps = append(steps, r)
		}
	}
	// What is allowed goes first: what is not allowed stays anyway.
	slices.SortStableFunc(steps, func(a, b removal) int {
		switch {
		case a.marked == b.marked:
			return 0
		case a.marked:
			return -1
		}
		return 1
	})
	members := memberCount(c, old, now)
	for i, r := range steps {
		msg := removalStep(members, now.Manifest.Spec.ControlPlane.Count)
		problems = append(problems, seenRemoval(c, r, members, msg)...)
		if msg == "" {
			if r.marked {
				members--
			}
			continue
		}
		if len(steps) > 1 {
			msg += fmt.Sprintf(" (step %d of %d: removing %s)", i+1, len(steps), r.old.Name)
		}
		problems = append(problems, r.problem(msg, countHint(members, now.Manifest.Spec.ControlPlane.Count)))
	}
	return problems
}

// memberCount is how many control planes there are before the first removal: those approved on base, and those that
// head approves anew.
func memberCount(c *Context, old, now *fleet.Cluster) int {
	n := len(approvedControlPlanes(old))
	if c.Removed != nil {
		for _, m := range approvedControlPlanes(old) {
			if c.Removed(m.Cluster, m.Name) {
				n--
			}
		}
	}
	before := NewPredecessors(old, now)
	for _, m := range approvedControlPlanes(now) {
		if was := before.Of(m); was == nil || !isApproved(was) || !isControlPlane(was) {
			n++
		}
	}
	return n
}

// removalStep says why one of n control planes can't be removed, "" where it can: never the last, never below the
// quorum of n, never below the declared count.
func removalStep(n, declared int) string {
	quorum := n/2 + 1
	switch {
	case n <= 1:
		return refusedLast
	case n-1 < quorum:
		return fmt.Sprintf(refusedQuorum, n, n-1, quorum, n)
	case n-1 < declared:
		return fmt.Sprintf(refusedCount, n, n-1, declared)
	}
	return ""
}

// countHint says which lower counts can be reached: 1 can't, because on the way from 2 the quorum is lost.
func countHint(n, declared int) string {
	if n < 2 || n-1 < n/2+1 {
		return ""
	}
	if declared > 3 {
		return "counts that can be reached from here: 3 (1 can't: a cluster of two can lose none)"
	}
	return "no lower count than 3 can be reached (1 can't: a cluster of two can lose none), so approve a replacement"
}

// problem places a refusal: at the rejected manifest, else at the one that base has.
func (r removal) problem(message, hint string) fleet.Problem {
	if r.now != nil {
		p := problemAt(r.now.Object, "spec.approvalState", message)
		p.Hint = cmp.Or(hint, "to keep the machine set approvalState back to approved")
		return p
	}
	p := problemAt(r.old.Object, "", message)
	p.Hint = hintOnBase
	if hint != "" {
		p.Hint = hint + "; " + hintOnBase
	}
	return p
}
