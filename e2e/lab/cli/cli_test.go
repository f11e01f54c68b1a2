package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// TestEnvFileIsReadByAShell holds the quoting against a real shell.
func TestEnvFileIsReadByAShell(t *testing.T) {
	want := "a b'c\"$(touch x)`y`\\ \n;z"
	path := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(path, envFile([]variable{{"PLAIN", "http://127.0.0.1:1/x"}, {"NONE", ""}, {"ODD", want}}), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-c", `. "$0"; printf '%s|%s|%s' "$PLAIN" "${NONE-unset}" "$ODD"`, path).Output()
	if err != nil || string(out) != "http://127.0.0.1:1/x|unset|"+want {
		t.Fatalf("got %q %v", out, err)
	}
}

func TestStateIn(t *testing.T) {
	for _, c := range [][3]string{{"/r", "/r/lab", "lab"}, {"/r", "/r/a/b", "a/b"}, {"/r", "/r", ""}, {"/r", "/rx", ""}, {"/r/a", "/r", ""}, {"/r", "/r/..x", "..x"}} {
		if got := stateIn(c[0], c[1]); got != c[2] {
			t.Errorf("state %s in %s: %q, want %q", c[1], c[0], got, c[2])
		}
	}
}

const twoClusters = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: NAME}
spec:
  talosVersion: v1.13.5
  kubernetesVersion: v1.36.1
  endpoint: {type: loadBalancer, address: 127.9.0.1}
  controlPlane: {count: 1}
  secretsRef: {path: SECRETS}
  install: {disk: /dev/nvme0n1}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: cp1}
spec: {clusterRef: {name: NAME}, role: controlplane, approvalState: pending, endpoint: ADDR}
`

func fleetOf(t *testing.T, names ...string) (*fleet.Fleet, string) {
	t.Helper()
	dir := t.TempDir()
	for i, n := range names {
		text := strings.NewReplacer("NAME", n, "ADDR", netip.AddrFrom4([4]byte{127, 9, 1, byte(i + 1)}).String(), "SECRETS", "./secrets/bundle.yaml").Replace(twoClusters)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, n), 0o755), os.WriteFile(filepath.Join(dir, n, "all.yaml"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	fl, _, err := readFleet(context.Background(), dir, filepath.Join(dir, ".ichor-lab"))
	if err != nil {
		t.Fatal(err)
	}
	return fl, dir
}

func TestMachinesOfTwoClusters(t *testing.T) {
	fl, _ := fleetOf(t, "a", "b")
	ms, err := machines(fl)
	if err != nil || len(ms) != 2 || ms[0].Node != "a.cp1" || ms[1].Node != "b.cp1" || ms[1].TalosVersion != "v1.13.5" {
		t.Fatalf("machines: %+v %v", ms, err)
	}
	if s := ms[0].spec(); len(s.Disks) != 1 || s.Disks[0].Name != "nvme0n1" {
		t.Errorf("disks: %+v", s.Disks)
	}
}

func TestMakeSecrets(t *testing.T) {
	t.Setenv(bundle.EnvKey, "")
	t.Setenv(bundle.EnvKeyFile, "")
	fl, dir := fleetOf(t, "a", "b")
	state := t.TempDir()
	if _, said := openBundles(fl, bundle.Keys{}); len(said) != 2 {
		t.Fatalf("said: %v", said)
	}
	wrote, err := makeSecrets(fl, dir, state, time.Now())
	if err != nil || strings.Join(wrote, " ") != "a/secrets/bundle.yaml b/secrets/bundle.yaml" {
		t.Fatalf("wrote %v: %v", wrote, err)
	}
	if st, err := os.Stat(ageKeyFile(state)); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("age key: %v %v", st, err)
	}
	fl, _, err = readFleet(t.Context(), dir, state)
	if err != nil {
		t.Fatal(err)
	}
	keys, file, err := findKeys(state)
	if err != nil || file != ageKeyFile(state) {
		t.Fatalf("keys: %q %v", file, err)
	}
	bundles, said := openBundles(fl, keys)
	if len(bundles) != 2 || len(said) != 0 {
		t.Fatalf("opened %d, said %v", len(bundles), said)
	}
	ms, err := machines(fl)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := talosconfig(fl, ms, bundles)
	if err != nil || !strings.Contains(string(cfg), "127.9.1.1") || !strings.Contains(string(cfg), "context: a") {
		t.Fatalf("talosconfig: %v", err)
	}
	// what is there is never written again
	if wrote, err := makeSecrets(fl, dir, state, time.Now()); err != nil || len(wrote) != 0 {
		t.Fatalf("again: %v %v", wrote, err)
	}
}

func TestSecretsStayInTheRepository(t *testing.T) {
	fl, _ := fleetOf(t, "a")
	for _, p := range []string{"/etc/x", "../../x", "..", "../x/../../y"} {
		fl.Clusters[0].Manifest.Spec.SecretsRef.Path = p
		if got, err := secretsPath(fl.Clusters[0]); err == nil {
			t.Errorf("path %q became %q", p, got)
		}
	}
}

func TestHiddenFolder(t *testing.T) {
	w := without{fstest.MapFS{"a/b/c": {}, "a/d": {}, "b/x": {}}, "a/b"}
	entries, err := w.ReadDir("a")
	if err != nil || len(entries) != 1 || entries[0].Name() != "d" {
		t.Fatalf("entries: %v %v", entries, err)
	}
}

// TestLongStatePath: a socket's path is limited; the state folder's is not.
func TestLongStatePath(t *testing.T) {
	_, dir := fleetOf(t, "long")
	state := filepath.Join(t.TempDir(), strings.Repeat("long-folder-name/", 8), "state")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- Up(ctx, UpOptions{Repo: dir, State: state, ForgeRepo: "lab/fleet", Events: io.Discard, Said: io.Discard, Log: slog.New(slog.DiscardHandler), Nodes: NewNodes})
	}()
	c := NewClient(state)
	var info Info
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if info, err = c.Info(ctx); err == nil {
			break
		}
	}
	if err != nil || info.Repo != dir {
		t.Fatalf("info: %+v %v", info, err)
	}
	if err := c.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := c.Info(ctx); !errors.Is(err, ErrNoLab) {
		t.Fatalf("after the end: %v", err)
	}
}

// TestNamesStay: a node keeps its name when a second cluster comes with a machine of the same name.
func TestNamesStay(t *testing.T) {
	dir := t.TempDir()
	start := func(clusters ...string) []NodeInfo {
		t.Helper()
		fl, _ := fleetOf(t, clusters...)
		ms, err := machines(fl)
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := NewNodes(t.Context(), NodesOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), OnEvent: func(string, map[string]any) {}})
		if err != nil {
			t.Fatal(err)
		}
		defer nodes.Close()
		if err := nodes.Start(t.Context(), ms, nil); err != nil {
			t.Fatal(err)
		}
		return nodes.List()
	}
	if got := start("a"); len(got) != 1 || got[0].Name != "cp1" {
		t.Fatalf("first: %+v", got)
	}
	if got := start("a", "b"); len(got) != 2 || got[0].Name != "b.cp1" || got[1].Name != "cp1" || got[1].Cluster != "a" {
		t.Fatalf("second: %+v", got)
	}
}
