// Command bench measures ichor check as people run it: a process of its own on a folder, cold. It writes repositories
// of the sizes that the specification names, and prints wall time, processor time and peak memory beside the figures
// to reach. hack/bench.sh runs it.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/render/bundle"
)

// size of a repository: machines in clusters, with patches in each cluster.
type size struct {
	clusters, machines, patches int
	// labelled: each machine has node labels of its own, so that no two share anything of their render.
	labelled bool
	// wall and memory to reach; zero is no figure.
	wall   time.Duration
	memory int64 // MiB
}

var sizes = []size{
	{clusters: 1, machines: 100, patches: 20},
	{clusters: 1, machines: 1_000, patches: 20, wall: time.Second, memory: 300},
	{clusters: 1, machines: 1_000, patches: 20, labelled: true, wall: time.Second, memory: 300},
	{clusters: 1, machines: 10_000, patches: 20},
	{clusters: 100, machines: 10_000, patches: 20, wall: 6 * time.Second, memory: 1024},
}

func main() {
	bin := flag.String("bin", "bin/ichor", "the ichor that is measured")
	runs := flag.Int("runs", 3, "how often each is measured; the best counts")
	flag.Parse()
	if err := run(*bin, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(bin string, runs int) error {
	root, err := os.MkdirTemp("", "ichor-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root) //nolint:errcheck // a temporary folder
	sealed, err := sealedBundle()
	if err != nil {
		return err
	}
	fmt.Println("| ichor check, cold | wall | to reach | processor | per machine | peak memory | to reach |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, s := range sizes {
		dir := filepath.Join(root, s.String())
		if err := s.write(dir, sealed); err != nil {
			return err
		}
		best, err := s.measure(bin, dir, runs)
		if err != nil {
			return err
		}
		s.print(best)
	}
	return nil
}

// result of one process.
type result struct {
	wall, cpu time.Duration
	memory    int64 // MiB
}

func (s size) measure(bin, dir string, runs int) (best result, err error) {
	for i := range runs {
		cmd := exec.Command(bin, "check", dir)
		start := time.Now()
		out, err := cmd.CombinedOutput()
		took := time.Since(start)
		if err != nil {
			return best, fmt.Errorf("ichor check %s: %w\n%s", dir, err, tail(out))
		}
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return best, fmt.Errorf("this system does not tell a process's memory")
		}
		r := result{took, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), int64(usage.Maxrss) / 1024}
		if i == 0 || r.wall < best.wall {
			best = r
		}
	}
	return best, nil
}

func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }

func (s size) print(r result) {
	wall, memory := "–", "–"
	if s.wall != 0 {
		wall, memory = fmt.Sprintf("%s %s", s.wall, mark(r.wall <= s.wall)), fmt.Sprintf("%d MiB %s", s.memory, mark(r.memory <= s.memory))
	}
	what := ""
	if s.labelled {
		what = ", each machine with labels of its own"
	}
	fmt.Printf("| %d machines in %d clusters, %d patches each%s | %s | %s | %s | %s | %d MiB | %s |\n", s.machines, s.clusters, s.patches,
		what, r.wall.Round(time.Millisecond), wall, r.cpu.Round(time.Millisecond), (r.wall / time.Duration(s.machines)).Round(time.Microsecond),
		r.memory, memory)
}

func mark(ok bool) string {
	if ok {
		return "✔"
	}
	return "✘"
}

// sealedBundle is one bundle for all clusters: stand-ins are made per cluster, whatever the file holds.
func sealedBundle() ([]byte, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make an age identity: %w", err)
	}
	_, plain, err := bundle.Generate("v1.13", secrets.NewClock())
	if err != nil {
		return nil, err
	}
	return bundle.Encrypt(plain, "secrets.sops.yaml", []string{id.Recipient().String()}, "")
}

// String names the size as benchmarks do: clusters x machines of each.
func (s size) String() string {
	name := fmt.Sprintf("%dx%d", s.clusters, s.machines/s.clusters)
	if s.labelled {
		name += "-labelled"
	}
	return name
}

// write makes the repository: a folder per cluster, a file per machine and per patch.
func (s size) write(dir string, sealed []byte) error {
	per := s.machines / s.clusters
	for c := range s.clusters {
		files := map[string]string{
			"cluster.yaml":      fmt.Sprintf(clusterText, c, c/250, c%250),
			"secrets.sops.yaml": string(sealed),
		}
		for i := range per {
			n := c*per + i
			role := "worker"
			if i < 3 {
				role = "controlplane"
			}
			labels := ""
			if s.labelled {
				labels = fmt.Sprintf("  nodeLabels:\n    example.com/serial: \"%d\"\n", n)
			}
			files[fmt.Sprintf("machines/m%05d.yaml", i)] = fmt.Sprintf(machineText, i, i%40, c, role, n/65536, n/256%256, n%256, c, i) + labels
		}
		for i := range s.patches {
			selector := fmt.Sprintf("{matchLabels: {rack: r%d}}", i)
			if i < 2 {
				selector = "{}" // for all
			}
			files[fmt.Sprintf("patches/p%02d.yaml", i)] = fmt.Sprintf(patchText, i, c, i, selector, i)
		}
		for name, text := range files {
			path := filepath.Join(dir, fmt.Sprintf("c%03d", c), name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	clusterText = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: c%03d
spec:
  talosVersion: v1.13.5
  contract: v1.13
  kubernetesVersion: v1.36.1
  endpoint:
    type: loadBalancer
    address: 172.31.%d.%d
  controlPlane:
    count: 3
  secretsRef:
    path: ./secrets.sops.yaml
  install:
    disk: /dev/sda
`
	machineText = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: m%05d
  labels:
    rack: r%d
spec:
  clusterRef:
    name: c%03d
  role: %s
  approvalState: approved
  endpoint: 192.%d.%d.%d
  hostname: c%03d-m%05d
`
	patchText = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: p%02d
spec:
  clusterRef:
    name: c%03d
  order: %d
  selector: %s
  documents:
    - machine:
        sysctls:
          net.example.p%d: "1"
`
)
