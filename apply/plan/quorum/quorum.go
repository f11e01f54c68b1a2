// Package quorum holds the safety arithmetic of the decision core: small pure functions whose sums can be checked with
// a finger. Sources: https://etcd.io/docs/v3.6/faq/ (failure tolerance), SPEC section 3.
package quorum

import (
	"fmt"
	"sort"
	"strings"
)

// Of n voters is the least number that must agree.
func Of(n int) int { return n/2 + 1 }

// Even tells whether n voters are an even number, at which one more failure is not survived by one more voter.
func Even(n int) bool { return n > 0 && n%2 == 0 }

// Touch is what is known when one control plane is about to be disrupted.
type Touch struct {
	// Approved control planes of the repository, dead or not.
	Approved int
	// Listed voters of etcd.
	Listed int
	// Healthy voters now, the target included where it is one.
	Healthy int
	// TargetHealthy: the one that is touched is a healthy voter, so its vote is lost for a while.
	TargetHealthy bool
}

// Sum is the arithmetic of one Touch.
type Sum struct {
	Voters, Need, Before, After int
	// Keeps: quorum after, or nothing is lost that was there before.
	Keeps bool
}

// Keeps does the sum for a Touch. The worse of Approved and Listed counts.
func Keeps(t Touch) Sum {
	s := Sum{Voters: max(t.Approved, t.Listed), Before: t.Healthy, After: t.Healthy}
	s.Need = Of(s.Voters)
	if t.TargetHealthy {
		s.After--
	}
	s.Keeps = s.After >= s.Need || s.After == s.Before
	return s
}

// String shows the sum.
func (s Sum) String() string {
	return fmt.Sprintf("quorum is %d of %d voters: %d healthy before, %d after", s.Need, s.Voters, s.Before, s.After)
}

// OneLeader tells whether all members that were asked see the same leader; an empty answer is one that sees none.
func OneLeader(leaders []string) bool {
	for _, l := range leaders {
		if l == "" || l != leaders[0] {
			return false
		}
	}
	return len(leaders) > 0
}

// SameMembers tells whether all lists hold the same IDs; lists are of IDs in any order, and there is at least one.
func SameMembers(lists [][]string) bool {
	if len(lists) == 0 {
		return false
	}
	first := key(lists[0])
	for _, l := range lists[1:] {
		if key(l) != first {
			return false
		}
	}
	return true
}

func key(ids []string) string {
	s := append([]string(nil), ids...)
	sort.Strings(s)
	return strings.Join(s, "\x00")
}

// WorkerSlots is how many more workers may be made unavailable, at least 0.
func WorkerSlots(maxUnavailable, unavailable int) int {
	return max(0, max(1, maxUnavailable)-unavailable)
}
