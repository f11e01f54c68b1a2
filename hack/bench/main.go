// Command bench measures the figures of the specification that need no nodes, each in a process of its own: ichor check
// as people run it, cold, on repositories of the sizes that the specification names; the check of a commit that changes
// one machine, as the daemon does it; and the calls of Talos's library that a check consists of. hack/bench.sh runs it,
// and lets it print the table of all figures at the end.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// size of a repository: machines in clusters, with patches in each cluster.
type size struct {
	clusters, machines, patches int
	// labelled: each machine has node labels of its own, so that no two share anything of their render.
	labelled bool
	// row of the figures that it is of; 0 is none. wall and memory are to be reached.
	row    int
	wall   time.Duration
	memory int64 // MiB
}

var (
	small    = size{clusters: 1, machines: 100, patches: 20}
	thousand = size{clusters: 1, machines: 1_000, patches: 20, row: 1, wall: time.Second, memory: 300}
	labelled = size{clusters: 1, machines: 1_000, patches: 20, labelled: true, row: 1, wall: time.Second, memory: 300}
	large    = size{clusters: 1, machines: 10_000, patches: 20}
	many     = size{clusters: 100, machines: 10_000, patches: 20, row: 2, wall: 6 * time.Second, memory: 1024}

	sizes = []size{small, thousand, labelled, large, many}
)

// oneChangeWall is how long the check of a commit may take that changes one machine of 10,000.
const oneChangeWall = 100 * time.Millisecond

func main() {
	bin := flag.String("bin", "bin/ichor", "the ichor that is measured")
	runs := flag.Int("runs", 3, "how often each is measured; the best counts")
	figures := flag.String("figures", "", "add a line for each figure to this file")
	table := flag.String("table", "", "print the figures in this file, and measure nothing")
	change := flag.String("one-change", "", "measure commits that change one machine on the repository in this folder (for itself)")
	library := flag.Int("library", 0, "measure the library's calls for so many machines (for itself)")
	flag.Parse()
	var err error
	switch {
	case *table != "":
		err = printTable(*table)
	case *change != "":
		err = measureOneChange(*change)
	case *library > 0:
		err = size{machines: *library, patches: 20}.measureLibrary()
	default:
		err = (&bench{bin: *bin, runs: *runs, figures: *figures, checks: map[size]result{}}).run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	bin, root, figures string
	runs               int
	checks             map[size]result
}

func (b *bench) run() error {
	var err error
	if b.root, err = os.MkdirTemp("", "ichor-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.root) //nolint:errcheck // a temporary folder
	sealed, err := sealedBundle()
	if err != nil {
		return err
	}
	for _, s := range sizes {
		if err := s.write(b.dir(s), sealed); err != nil {
			return err
		}
	}
	for _, measure := range []func() error{b.cold, b.oneChange, b.flat, b.library} {
		if err := measure(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) dir(s size) string { return filepath.Join(b.root, s.String()) }

// String names the size as benchmarks do: clusters x machines of each.
func (s size) String() string {
	name := fmt.Sprintf("%dx%d", s.clusters, s.machines/s.clusters)
	if s.labelled {
		name += "-labelled"
	}
	return name
}

// cold measures ichor check.
func (b *bench) cold() error {
	for _, s := range sizes {
		r, err := best(b.runs, b.bin, "check", b.dir(s))
		if err != nil {
			return err
		}
		b.checks[s] = r
		what := fmt.Sprintf("cold check, %d machines, %d patches", s.machines, s.patches)
		if s.clusters > 1 {
			what = fmt.Sprintf("cold check, %d machines in %d clusters", s.machines, s.clusters)
		}
		if s.labelled {
			what += ", no two alike"
		}
		f := figure{row: s.row, what: what, measured: fmt.Sprintf("%s, %s of CPU", ms(r.wall), ms(r.cpu)), memory: fmt.Sprintf("%d MiB", r.memory)}
		if s.row != 0 {
			f.wanted = fmt.Sprintf("%s, %d MiB", s.wall, s.memory)
			if f.mark = timeMark(r.wall, r.cpu, s.wall); r.memory > s.memory {
				f.mark = markOf(false)
			}
		}
		if err := b.say(f); err != nil {
			return err
		}
	}
	return nil
}

// oneChange measures commits that change one machine of 10,000.
func (b *bench) oneChange() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, s := range []size{large, many} {
		r, err := best(1, self, "-one-change", b.dir(s))
		if err != nil {
			return err
		}
		times, err := durations(r.out)
		if err != nil {
			return err
		}
		times, cpu := times[:len(times)-1], times[len(times)-1]
		low, mid := spread(times)
		err = b.say(figure{
			row: 3, what: fmt.Sprintf("one change of %d machines (%s), after the fetch", s.machines, s),
			wanted:   oneChangeWall.String(),
			measured: fmt.Sprintf("%s (middle %s), %s of CPU", ms(low), ms(mid), ms(cpu/time.Duration(len(times)))),
			memory:   fmt.Sprintf("%d MiB", r.memory), mark: timeMark(low, cpu/time.Duration(len(times)), oneChangeWall),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// flat compares what a machine costs in small and large repositories.
func (b *bench) flat() error {
	per := func(s size) time.Duration { return b.checks[s].cpu / time.Duration(s.machines) }
	a, m, z := per(small), per(thousand), per(large)
	return b.say(figure{
		row: 6, what: "cost per machine, of 100, 1,000 and 10,000 (CPU, start included)", wanted: "flat",
		measured: fmt.Sprintf("%d µs, %d µs, %d µs", a.Microseconds(), m.Microseconds(), z.Microseconds()),
		memory:   fmt.Sprintf("%d, %d, %d MiB", b.checks[small].memory, b.checks[thousand].memory, b.checks[large].memory),
		// The start is in each, so that a machine of few costs more; more of them must never make one dearer.
		mark: markOf(float64(m) <= 1.25*float64(a) && float64(z) <= 1.25*float64(m)),
	})
}

// library compares checks with the calls of Talos's library that machines need which share nothing.
func (b *bench) library() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r, err := best(b.runs, self, "-library", fmt.Sprint(labelled.machines))
	if err != nil {
		return err
	}
	shared, alone := b.checks[thousand], b.checks[labelled]
	return b.say(figure{
		what:     fmt.Sprintf("Talos's library calls for %d machines that share nothing", labelled.machines),
		measured: firstLine(r.out) + fmt.Sprintf("; ichor check takes %s of CPU, %s where machines are alike", ms(alone.cpu), ms(shared.cpu)),
		memory:   fmt.Sprintf("%d MiB", r.memory),
	})
}
