package node

import "testing"

// BenchmarkNewState is the cost of a boot's resource state: a lab of many nodes pays it for each.
func BenchmarkNewState(b *testing.B) {
	for b.Loop() {
		if _, err := newState(b.Context(), &boot{node: &Node{}, release: releases[13]}); err != nil {
			b.Fatal(err)
		}
	}
}
