package sim

import (
	"flag"
	"runtime"
	"sync"
	"testing"
)

var (
	seeds = flag.Int("seeds", 25, "how many seeds to run")
	first = flag.Uint64("seed", 1, "the first seed")
)

// TestFleets runs seeds and prints each failing one. `go test ./apply/plan/sim -run Fleets -seed N -seeds 1 -v` finds it
// again.
func TestFleets(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 20)
	}
	var wg sync.WaitGroup
	next := make(chan uint64)
	var sent, commits int
	var mu sync.Mutex
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range next {
				r := Run(seed, Options{})
				if r.Failed() {
					t.Errorf("%s", r)
				}
				mu.Lock()
				sent, commits = sent+r.Sent, commits+r.Commits
				mu.Unlock()
			}
		})
	}
	for s := range uint64(n) {
		next <- *first + s
	}
	close(next)
	wg.Wait()
	t.Logf("%d seeds: %d commits, %d configurations sent", n, commits, sent)
	if sent < n || commits < n {
		t.Errorf("the simulation did next to nothing: %d commits, %d configurations sent in %d seeds", commits, sent, n)
	}
}
