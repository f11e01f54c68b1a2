package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// figure is a line of the table. e2e/scale writes such lines too.
type figure struct {
	// row of the specification's table, 0 for what it has no figure of.
	row                            int
	what, wanted, measured, memory string
	// mark says whether it is reached, "" where nothing is wanted.
	mark string
}

func markOf(ok bool) string {
	if ok {
		return "✔"
	}
	return "✘"
}

// timeMark is markOf a time; where the clock missed what the processor time fits in, others used the machine.
func timeMark(wall, cpu, wanted time.Duration) string {
	if wall > wanted && cpu <= wanted {
		return "✘ (its CPU time fits: is the machine busy?)"
	}
	return markOf(wall <= wanted)
}

// say prints a figure and adds it to the file.
func (b *bench) say(f figure) error {
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%s %s: %s; %s", f.mark, f.what, f.measured, f.memory)))
	if b.figures == "" {
		return nil
	}
	out, err := os.OpenFile(b.figures, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d\t%s\t%s\t%s\t%s\t%s\n", f.row, f.what, f.wanted, f.measured, f.memory, f.mark)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

// rows are what the specification wants; a row that nothing was measured of is said to be missing.
var rows = []string{
	"cold check, 1,000 machines", "cold check, 10,000 machines", "one change of 10,000", "push to final status",
	"one idle pass over 1,000 nodes", "cost per machine",
}

// printTable prints all figures, those of the specification in its order first.
func printTable(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var lines [][]string
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(cells) != 6 {
			return fmt.Errorf("%s: a figure has 6 cells, not %d: %q", file, len(cells), line)
		}
		lines, seen[cells[0]] = append(lines, cells), true
	}
	for i, what := range rows {
		if n := strconv.Itoa(i + 1); !seen[n] {
			lines = append(lines, []string{n, what, "", "not measured", "", markOf(false)})
		}
	}
	order := func(cells []string) string { return strings.Replace(cells[0], "0", "9", 1) }
	slices.SortStableFunc(lines, func(a, b []string) int { return strings.Compare(order(a), order(b)) })
	for _, cells := range lines {
		if cells[0] == "0" {
			cells[0] = ""
		}
	}
	lines = append([][]string{{"row", "what", "wanted", "measured", "memory, at most", ""}}, lines...)
	printAligned(lines)
	return nil
}

func printAligned(lines [][]string) {
	widths := make([]int, 6)
	for _, cells := range lines {
		for i, c := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for n, cells := range lines {
		for i, c := range cells {
			fmt.Print("| ", c, strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)), " ")
		}
		fmt.Println("|")
		if n == 0 {
			for _, w := range widths {
				fmt.Print("| ", strings.Repeat("-", max(w, 3)), strings.Repeat(" ", max(0, w-max(w, 3))), " ")
			}
			fmt.Println("|")
		}
	}
}

// result of one process.
type result struct {
	wall, cpu time.Duration
	memory    int64 // MiB, the most that it ever had
	out       []byte
}

// best runs a process some times and gives the quickest.
func best(runs int, bin string, args ...string) (quickest result, err error) {
	for i := range runs {
		cmd := exec.Command(bin, args...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		start := time.Now()
		err := cmd.Run()
		took := time.Since(start)
		if err != nil {
			return result{}, fmt.Errorf("%s %s: %w\n%s%s", bin, strings.Join(args, " "), err, tail(out.Bytes()), tail(said.Bytes()))
		}
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return result{}, fmt.Errorf("this system does not tell a process's memory")
		}
		r := result{took, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), usage.Maxrss / 1024, out.Bytes()}
		if i == 0 || r.wall < quickest.wall {
			quickest = r
		}
	}
	return quickest, nil
}

func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

func ms(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// spread gives the lowest and the middle.
func spread(times []time.Duration) (low, mid time.Duration) {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[0], sorted[len(sorted)/2]
}

// durations reads nanoseconds, one a line.
func durations(out []byte) (times []time.Duration, err error) {
	for _, f := range strings.Fields(string(out)) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read a time: %w", err)
		}
		times = append(times, time.Duration(n))
	}
	if len(times) < 2 {
		return nil, fmt.Errorf("no times in %q", out)
	}
	return times, nil
}
