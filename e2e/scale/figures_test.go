package scale

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// figure says a result beside what the specification wants, for make bench: row, what, wanted, measured, memory.
func (r *rig) figure(row int, what, wanted, measured, memory string, ok bool) {
	r.Helper()
	mark := "✔"
	if !ok {
		mark = "✘"
	}
	r.Logf("%s: %s (wanted %s), %s", what, measured, wanted, memory)
	if *figures == "" {
		return
	}
	f, err := os.OpenFile(*figures, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	r.must(err)
	_, err = fmt.Fprintf(f, "%d\t%s\t%s\t%s\t%s\t%s\n", row, what, wanted, measured, memory, mark)
	r.must(err)
	r.must(f.Close())
}

// spread of some times: the lowest, the middle and the highest.
type spread struct{ low, mid, high time.Duration }

func spreadOf(times []time.Duration) spread {
	times = slices.Sorted(slices.Values(times))
	return spread{times[0], times[len(times)/2], times[len(times)-1]}
}

func (s spread) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	return fmt.Sprintf("%s (middle %s, highest %s)", round(s.low), round(s.mid), round(s.high))
}

// TestPush: from the end of a real git push to the final ichor/check of the commit, with the webhook and, but for that,
// Ichor's defaults: it looks at the repository by itself once in a minute only, and a status a second is posted at most.
// Each push changes a patch of all machines.
func TestPush(t *testing.T) {
	r := newRigOf(t, size{1, 60 * time.Second, 700})
	state := t.TempDir()
	labProcess := r.up(state, "--configured")
	defer r.down(labProcess)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	l, err := harness.AttachLab(ctx, r.repo, state)
	r.must(err)
	daemon := r.daemon(ctx, l)
	defer func() { r.must(daemon.Stop()) }()
	if _, err := l.WaitStatus(ctx, "main", "ichor/check", "success"); err != nil {
		t.Fatalf("%v\n%s", err, daemon.Output())
	}

	clone := filepath.Join(t.TempDir(), "clone")
	r.must(l.Clone(ctx, "main", clone))
	pushes := 2
	if *long {
		pushes = 6
	}
	var branch, pull []time.Duration
	for i := range pushes {
		branch = append(branch, r.push(ctx, l, clone, "main", 4096+i))
	}
	for i := range pushes + 1 {
		took := r.push(ctx, l, clone, "topic", 8192+i)
		if i > 0 { // the first had no pull request yet
			pull = append(pull, took)
		}
	}
	u := r.usage(daemon.Pid())
	for what, times := range map[string][]time.Duration{"to the branch": branch, "to a pull request": pull} {
		s := spreadOf(times)
		r.figure(4, fmt.Sprintf("push %s to final status, %d machines, webhook", what, r.nodes()), "2 s", s.String(),
			fmt.Sprintf("%d MiB", u.peak), s.low <= 2*time.Second)
	}
}

// daemon starts Ichor as it comes, with the forge's webhook; it observes.
func (r *rig) daemon(ctx context.Context, l *harness.Lab) *harness.Process {
	r.Helper()
	dir := r.TempDir()
	listener, err := net.Listen("tcp", "127.40.0.1:0")
	r.must(err)
	addr := listener.Addr().String()
	r.must(listener.Close())
	secret := filepath.Join(dir, "webhook")
	r.must(os.WriteFile(secret, []byte("a webhook's secret\n"), 0o600))
	p, err := harness.Start(ichorBin, l.Env, nil, "run", "--state-dir", filepath.Join(dir, "state"), "--mode", "observe",
		"--webhook-listen", addr, "--webhook-secret-file", secret)
	r.must(err)
	r.must(l.Webhook(ctx, cli.Webhook{URL: "http://" + addr + "/webhook", Secret: "a webhook's secret"}))
	return p
}

// push changes a patch of all machines and gives the time from the end of git push to the check's final status. A new
// topic branch gets a pull request.
func (r *rig) push(ctx context.Context, l *harness.Lab, clone, branch string, somaxconn int) time.Duration {
	r.Helper()
	time.Sleep(2 * time.Second) // what the last push brought is done
	f := r.fleet(0)
	f.Dir, f.Somaxconn = clone, fmt.Sprint(somaxconn)
	r.must(f.Write())
	git := func(args ...string) string {
		out, err := l.Git(ctx, clone, args...)
		r.must(err)
		return out
	}
	git("add", "-A")
	git("commit", "-q", "-m", "Change a patch")
	git("push", "-q", "origin", "HEAD:refs/heads/"+branch)
	begun := time.Now()
	sha := git("rev-parse", "HEAD")
	if branch != "main" && somaxconn == 8192 {
		_, err := l.Pull(ctx, cli.PullRequest{Act: "open", Branch: branch, Title: "A topic"})
		r.must(err)
	}
	for {
		if st, ok := l.StatusOf(ctx, sha, "ichor/check"); ok && st.State != "pending" {
			if st.State != "success" {
				r.Fatalf("ichor/check of %s is %s: %s", sha, st.State, st.Description)
			}
			return time.Since(begun)
		}
		if ctx.Err() != nil {
			r.Fatal(ctx.Err())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestIdlePass: the real observer reads every node of the lab, with the configurations that it would send to compare
// with. Its memory is that of this process; the lab is another.
func TestIdlePass(t *testing.T) {
	r := newRig(t)
	state := t.TempDir()
	labProcess := r.up(state, "--configured")
	defer r.down(labProcess)
	specs := r.specs()
	o := observe.New(observe.Options{})
	defer o.Close()
	for end := time.Now().Add(2 * time.Minute); r.pass(o, specs) < r.nodes(); {
		if time.Now().After(end) {
			t.Fatal("not all nodes are read and as wished after two minutes")
		}
	}
	passes, patience := 6, time.Minute
	if *long {
		passes, patience = 60, 2*time.Minute // an hour's, at one a minute
	}
	incomplete := 0
	var times []time.Duration
	var heaps []float64
	before := r.usage(os.Getpid())
	for end := time.Now().Add(patience); len(times) < passes && time.Now().Before(end); {
		begun := time.Now()
		if ok := r.pass(o, specs); ok < r.nodes() {
			// The lab had no processor for 5 s, so its nodes count as silent: no pass over reachable ones.
			t.Logf("%d of %d nodes were read and as wished after %s: is the machine busy?", ok, r.nodes(), time.Since(begun))
			incomplete++
			continue
		}
		times = append(times, time.Since(begun))
		heaps = append(heaps, heap())
	}
	passes = len(times)
	if passes < 3 || incomplete > passes {
		t.Fatalf("%d passes over all nodes, %d over some", passes, incomplete)
	}
	after := r.usage(os.Getpid())
	s := spreadOf(times)
	first, last := heaps[passes/3], heaps[passes-1]
	cpu := (after.cpu - before.cpu) / time.Duration(passes+incomplete)
	r.figure(5, fmt.Sprintf("one idle pass over %d reachable nodes, the best of %d", r.nodes(), passes), "5 s, memory flat",
		fmt.Sprintf("%s, %s of CPU", s, cpu.Round(10*time.Millisecond)),
		fmt.Sprintf("%d MiB; heap %.1f MiB after pass %d, %.1f after the last", after.peak, first, passes/3+1, last),
		s.low <= 5*time.Second && last <= 1.05*first+1)
	if last > 1.2*first+4 {
		t.Errorf("the heap grows: %.1f", heaps)
	}
}

// heap in use after a collection, in MiB.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// pass reads all clusters once, at the same time as the daemon does, and gives how many nodes answered and run what
// they should.
func (r *rig) pass(o *observe.Observer, specs []*observe.Cluster) int {
	r.Helper()
	counts := make([]int, len(specs))
	var g errgroup.Group
	for i, spec := range specs {
		g.Go(func() error {
			facts, err := o.Observe(r.Context(), spec, nil)
			for _, f := range facts {
				if f.Reach == plan.ReachOK && f.Config != nil && f.Config.Equal {
					counts[i]++
				}
			}
			return err
		})
	}
	r.must(g.Wait())
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}

// specs are the clusters as the daemon prepares them: rendered with their real secrets.
func (r *rig) specs() []*observe.Cluster {
	r.Helper()
	f, problems, err := fleet.Load(r.Context(), os.DirFS(r.repo), fleet.Options{})
	r.must(err)
	if len(problems) > 0 {
		r.Fatal(problems)
	}
	keys, err := bundle.ParseKeys([]byte(strings.TrimSpace(r.key)))
	r.must(err)
	var specs []*observe.Cluster
	for _, cl := range f.Clusters {
		b, err := bundle.Open(cl.Secrets.Data, cl.Secrets.Path, keys)
		r.must(err)
		results, err := render.Cluster(r.Context(), render.Input{Cluster: cl, Bundle: b, Values: keys})
		r.must(err)
		spec := &observe.Cluster{
			Name: cl.Name, Bundle: b, Interval: time.Minute, Grace: time.Minute, Retry: 10 * time.Second, FingerprintKey: []byte("k"),
		}
		for _, res := range results {
			if res.Err != nil {
				r.Fatal(res.Err)
			}
			s := res.Machine.Manifest.Spec
			spec.Machines = append(spec.Machines, observe.Machine{
				Name: res.Machine.Name, Role: s.Role, Endpoint: s.Endpoint, Wish: res.Config, Masked: res.Masked, Digest: res.Digest,
			})
		}
		specs = append(specs, spec)
	}
	return specs
}
