package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/git"
)

// t0 is when tests begin that don't run in a bubble.
var t0 = time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC)

// sha makes a full commit hash out of a short name: c1 -> c1c1c1….
func sha(name string) string {
	return strings.Repeat(fmt.Sprintf("%x", name), 40)[:40]
}

// sealed is a real secrets bundle with the age identity that opens it, made once: it has an RSA key of 4096 bits.
// A child of TestACrashPrintsNoSecret takes its parent's.
var sealed = sync.OnceValues(func() ([]byte, bundle.Keys) {
	if dir := os.Getenv(crashDirEnv); dir != "" {
		data, err := os.ReadFile(filepath.Join(dir, "secrets.sops.yaml"))
		must(err)
		text, err := os.ReadFile(filepath.Join(dir, "key.txt"))
		must(err)
		keys, err := bundle.ParseKeys(text)
		must(err)
		return data, keys
	}
	id, err := age.GenerateX25519Identity()
	must(err)
	_, plain, err := bundle.Generate("v1.13", secrets.NewClock())
	must(err)
	data, err := bundle.Encrypt(plain, "secrets.sops.yaml", []string{id.Recipient().String()}, "")
	must(err)
	identity = id.String()
	keys, err := bundle.ParseKeys([]byte(identity))
	must(err)
	return data, keys
})

// identity is the text of the age identity that sealed made.
var identity string

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// tree is a repository with one cluster, prod: a file per machine, whose role is that of its name (cp…, w…). The
// bundle is the example's, which opens for nobody; openable puts in one that does.
func tree(machines ...string) fstest.MapFS {
	out := fstest.MapFS{}
	put := func(path, text string) { out[path] = &fstest.MapFile{Data: []byte(text)} }
	cps := 0
	for i, name := range machines {
		role := "worker"
		if strings.HasPrefix(name, "cp") {
			role = "controlplane"
			cps++
		}
		put("machines/"+name+".yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: %s
spec:
  clusterRef: {name: prod}
  role: %s
  approvalState: approved
  endpoint: 192.0.2.%d
  hostname: %s
`, name, role, 10+i, name))
	}
	put("cluster.yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: prod
  annotations: {}
spec:
  talosVersion: v1.13.5
  kubernetesVersion: v1.36.1
  endpoint: {type: loadBalancer, address: 192.0.2.100}
  controlPlane: {count: %d}
  secretsRef: {path: secrets.sops.yaml}
  install: {disk: /dev/sda}
`, max(cps, 1)))
	data, err := os.ReadFile("../../../examples/minimal/secrets.sops.yaml")
	must(err)
	put("secrets.sops.yaml", string(data))
	return out
}

// edit gives the tree with replacements in a file.
func edit(files fstest.MapFS, path string, pairs ...string) fstest.MapFS {
	out := maps.Clone(files)
	text := string(files[path].Data)
	changed := strings.NewReplacer(pairs...).Replace(text)
	if changed == text {
		panic("the edit of " + path + " changes nothing")
	}
	out[path] = &fstest.MapFile{Data: []byte(changed)}
	return out
}

// acking gives the tree with acknowledgements on its cluster.
func acking(files fstest.MapFS, acks ...string) fstest.MapFS {
	return edit(files, "cluster.yaml", "annotations: {}", fmt.Sprintf("annotations: {ichor.maesh.dev/ack: %q}", strings.Join(acks, ",")))
}

// broken gives the tree with a patch that does not render.
func broken(files fstest.MapFS) fstest.MapFS {
	out := maps.Clone(files)
	out["patch.yaml"] = &fstest.MapFile{Data: []byte(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata: {name: bad}
spec:
  clusterRef: {name: prod}
  documents:
    - machine: {sysctlz: {a: "1"}}
`)}
	return out
}

// fakeHistory is a history of first parents in memory, in place of the mirror.
type fakeHistory struct {
	mu      sync.Mutex
	trees   map[string]fs.FS
	parents map[string]string
	// slow is how long it takes to get a commit's tree.
	slow time.Duration
	// reads counts how often a tree was asked for.
	reads map[string]int
	// down fails every read of a tree.
	down error
}

func newHistory() *fakeHistory {
	return &fakeHistory{trees: map[string]fs.FS{}, parents: map[string]string{}, reads: map[string]int{}}
}

// commit adds a commit on a parent ("" none) and gives its hash.
func (h *fakeHistory) commit(name, parent string, files fs.FS) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trees[sha(name)], h.parents[sha(name)] = files, parent
	return sha(name)
}

func (h *fakeHistory) FS(commit string) (fs.FS, error) {
	time.Sleep(h.slow)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads[commit]++
	if h.down != nil {
		return nil, h.down
	}
	if files := h.trees[commit]; files != nil {
		return files, nil
	}
	return nil, errors.New("no such commit")
}

func (h *fakeHistory) Parent(commit string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	parent, ok := h.parents[commit]
	if !ok {
		return "", errors.New("no such commit")
	}
	return parent, nil
}

func (h *fakeHistory) IsAncestor(old, now string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := now; at != ""; at = h.parents[at] {
		if at == old {
			return true, nil
		}
	}
	return false, nil
}

func (h *fakeHistory) CommitInfo(commit string) (git.CommitInfo, error) {
	return git.CommitInfo{Hash: commit, Author: state.Person{Name: "Ada", Email: "ada@example.com"}}, nil
}

func newCommits(h History) *commits {
	return &commits{history: h, timeout: time.Minute, now: time.Now}
}

// inventory of the cluster prod that knows the named machines and applied a commit.
func inventory(applied string, machines ...string) *state.Inventory {
	c := &state.ClusterInventory{Adopted: true, AppliedCommit: applied, AttemptedCommit: applied, Machines: map[string]*state.MachineInventory{}}
	for _, name := range machines {
		c.Machines[name] = &state.MachineInventory{Role: "worker", Endpoint: "192.0.2.1"}
	}
	return &state.Inventory{Clusters: map[string]*state.ClusterInventory{"prod": c}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
