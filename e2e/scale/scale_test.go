package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/emptypb"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/render/bundle"
)

// long runs the size of the specification: make bench.
var long = flag.Bool("long", false, "run 1,000 workers and 30 control planes instead of 100 and 3")

// figures is a file that make bench makes its table of.
var figures = flag.String("figures", "", "add a line for each figure to this file")

// labBin and ichorBin are the binaries that are measured.
var labBin, ichorBin string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "ichor-scale-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	labBin, ichorBin = filepath.Join(dir, "ichor-lab"), filepath.Join(dir, "ichor")
	out, err := exec.Command("go", "build", "-o", dir, "ichor.maesh.dev/ichor/cmd/ichor-lab", "ichor.maesh.dev/ichor/cmd/ichor").CombinedOutput()
	if err != nil {
		return 1, fmt.Errorf("build ichor-lab and ichor: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// Each cluster has three control planes, as Talos's users have: an etcd of thirty members is nobody's.
const (
	planes  = 3
	workers = 100
)

// size of the lab in clusters, and what it may take. The limits of the long run are the specification's.
type size struct {
	clusters int
	seconds  time.Duration
	mebi     int
}

func chosen() size {
	if *long {
		return size{10, 60 * time.Second, 4096}
	}
	return size{1, 60 * time.Second, 700}
}

// rig is a repository and an age key.
type rig struct {
	*testing.T
	bin, repo, key string
	size           size
	names          []string // clusters
}

func newRig(t *testing.T) *rig { return newRigOf(t, chosen()) }

func newRigOf(t *testing.T, s size) *rig {
	r := &rig{T: t, bin: labBin, size: s, repo: t.TempDir()}
	id, err := age.GenerateX25519Identity()
	r.must(err)
	r.key = id.String()
	keys, err := bundle.ParseKeys([]byte(r.key))
	r.must(err)
	for i := range r.size.clusters {
		name := fmt.Sprintf("c%d", i)
		r.names = append(r.names, name)
		r.must(r.fleet(i).Write())
		r.must(harness.WriteStandInSecrets(filepath.Join(r.repo, name, "secrets.sops.yaml"), name, keys))
	}
	return r
}

// fleet is the cluster of a number.
func (r *rig) fleet(i int) harness.Fleet {
	return harness.Fleet{Dir: r.repo, Name: fmt.Sprintf("c%d", i), Net: fmt.Sprintf("127.40.%d", i), ControlPlanes: planes, Workers: workers}
}

func (r *rig) nodes() int { return r.size.clusters * (planes + workers) }

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// up starts a lab and gives its process when it says that it is ready.
func (r *rig) up(state string, args ...string) *exec.Cmd {
	r.Helper()
	cmd := exec.Command(r.bin, append([]string{"up", "--repo", r.repo, "--state", state}, args...)...)
	cmd.Env = append(os.Environ(), bundle.EnvKey+"="+r.key, "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = &strings.Builder{}
	out, err := cmd.StdoutPipe()
	r.must(err)
	r.must(cmd.Start())
	r.Cleanup(func() { _ = cmd.Process.Kill() })
	ready := make(chan bool, 1)
	go func() {
		said := false
		for s := bufio.NewScanner(out); s.Scan(); { // reads on: a full pipe would stop the lab
			var ev struct{ Event string }
			if !said && json.Unmarshal(s.Bytes(), &ev) == nil && ev.Event == "lab.ready" {
				said = true
				ready <- true
			}
		}
		ready <- false
	}()
	select {
	case ok := <-ready:
		if !ok {
			_ = cmd.Wait()
			r.Fatalf("the lab ended: %s", cmd.Stderr)
		}
	case <-time.After(3 * time.Minute):
		r.Fatal("the lab is not ready after 3 minutes")
	}
	return cmd
}

func (r *rig) down(cmd *exec.Cmd) {
	r.Helper()
	r.must(cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		r.Fatalf("the lab ended badly: %v: %s", err, cmd.Stderr)
	}
}

// usage of a process: memory now and at most, in MiB, and processor time.
type usage struct {
	rss, peak int
	cpu       time.Duration
}

func (r *rig) usage(pid int) usage {
	r.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	r.must(err)
	var u usage
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "VmRSS:":
			u.rss, _ = strconv.Atoi(f[1])
		case f[0] == "VmHWM:":
			u.peak, _ = strconv.Atoi(f[1])
		}
	}
	u.rss, u.peak = u.rss/1024, u.peak/1024
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	r.must(err)
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	u.cpu = time.Duration(user+system) * 10 * time.Millisecond // in ticks of 1/100 s
	return u
}

// report says a result for people and for make bench.
func (r *rig) report(what string, took time.Duration, u usage) {
	r.Logf("scale: %s: %d nodes (%d clusters of %d + %d): %.1f s, %.1f s of CPU, %d MiB at most, %d MiB now",
		what, r.nodes(), r.size.clusters, planes, workers, took.Seconds(), u.cpu.Seconds(), u.peak, u.rss)
	if took > r.size.seconds {
		r.Errorf("%s took %s, want at most %s", what, took, r.size.seconds)
	}
	if u.peak > r.size.mebi {
		r.Errorf("%s took %d MiB, want at most %d", what, u.peak, r.size.mebi)
	}
}

// TestConfigured: all clusters run from the start; each node is asked by the real client who it is.
func TestConfigured(t *testing.T) {
	r := newRig(t)
	state := t.TempDir()
	begun := time.Now()
	cmd := r.up(state, "--configured")
	r.report("up --configured", time.Since(begun), r.usage(cmd.Process.Pid))
	r.stages(state, "running")
	begun = time.Now()
	r.askAll(filepath.Join(state, "talosconfig"))
	t.Logf("scale: each node asked once, with a connection of its own: %.1f s", time.Since(begun).Seconds())
	before := r.usage(cmd.Process.Pid)
	time.Sleep(3 * time.Second)
	after := r.usage(cmd.Process.Pid)
	t.Logf("scale: at rest: %.0f%% of a core, %d MiB", (after.cpu-before.cpu).Seconds()/3*100, after.rss)
	r.down(cmd)

	// Again on its state, as after a crash.
	begun = time.Now()
	cmd = r.up(state)
	r.stagesIn(state, "running", r.size.seconds)
	r.report("up again", time.Since(begun), r.usage(cmd.Process.Pid))
	r.down(cmd)
}

// TestMaintenance: blank machines wait for their configuration.
func TestMaintenance(t *testing.T) {
	r := newRig(t)
	state := t.TempDir()
	begun := time.Now()
	cmd := r.up(state)
	r.stagesIn(state, "maintenance", r.size.seconds)
	r.report("up", time.Since(begun), r.usage(cmd.Process.Pid))
	r.down(cmd)
}

// stages wants every node in a stage now.
func (r *rig) stages(state, want string) {
	r.Helper()
	if bad := r.elsewhere(state, want); len(bad) > 0 {
		r.Fatalf("%d nodes are not %s: %v", len(bad), want, bad[:min(5, len(bad))])
	}
}

// stagesIn waits for it.
func (r *rig) stagesIn(state, want string, d time.Duration) {
	r.Helper()
	for end := time.Now().Add(d); time.Now().Before(end) && len(r.elsewhere(state, want)) > 0; {
		time.Sleep(100 * time.Millisecond)
	}
	r.stages(state, want)
}

func (r *rig) elsewhere(state, want string) []string {
	r.Helper()
	list, err := cli.NewClient(state).Nodes(r.Context())
	r.must(err)
	if len(list) != r.nodes() {
		r.Fatalf("the lab has %d nodes, want %d", len(list), r.nodes())
	}
	var bad []string
	for _, n := range list {
		if n.Stage != want {
			bad = append(bad, n.Name+" "+n.Stage)
		}
	}
	return bad
}

// askAll asks every node for its hostname over a connection of its own.
func (r *rig) askAll(talosconfig string) {
	r.Helper()
	cfg, err := clientconfig.Open(talosconfig)
	r.must(err)
	g, ctx := errgroup.WithContext(r.Context())
	g.SetLimit(16)
	var mu sync.Mutex
	seen := map[string]bool{}
	for _, name := range r.names {
		for _, addr := range cfg.Contexts[name].Nodes {
			g.Go(func() error {
				host, err := ask(ctx, cfg, name, addr)
				mu.Lock()
				defer mu.Unlock()
				seen[host] = true
				return err
			})
		}
	}
	r.must(g.Wait())
	if len(seen) != r.nodes() {
		r.Errorf("%d different hosts answered, want %d", len(seen), r.nodes())
	}
}

func ask(ctx context.Context, cfg *clientconfig.Config, name, addr string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	c, err := client.New(ctx, client.WithConfig(cfg), client.WithContextName(name), client.WithEndpoints(addr))
	if err != nil {
		return "", err
	}
	defer c.Close()
	list, err := c.MachineClient.Hostname(ctx, &emptypb.Empty{})
	if err != nil {
		return "", fmt.Errorf("ask %s of cluster %s: %w", addr, name, err)
	}
	return list.Messages[0].Hostname, nil
}
