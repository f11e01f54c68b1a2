package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/kube"
	"ichor.maesh.dev/ichor/render/bundle"
)

// TestUpSaysWhatKubernetesNeeds: without the programs nothing is started, and the error says how to get them.
func TestUpSaysWhatKubernetesNeeds(t *testing.T) {
	t.Setenv(kube.EnvTools, t.TempDir())
	state := filepath.Join(t.TempDir(), "state")
	err := Up(t.Context(), UpOptions{Repo: t.TempDir(), State: state, Kubernetes: true})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver") || !strings.Contains(err.Error(), "hack/tools.sh kubernetes") {
		t.Errorf("up --with-kubernetes without its programs: %v", err)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("a state folder was made")
	}
}

// TestAdminKubeconfig has a context for each cluster whose secrets were opened, at an address that the lab answers at.
func TestAdminKubeconfig(t *testing.T) {
	t.Setenv(bundle.EnvKey, "")
	t.Setenv(bundle.EnvKeyFile, "")
	fl, dir := fleetOf(t, "a", "b")
	state := t.TempDir()
	if data, err := adminKubeconfig(fl, nil, nil); data != nil || err != nil {
		t.Errorf("without secrets: %q, %v", data, err)
	}
	if _, err := makeSecrets(fl, dir, state, time.Now()); err != nil {
		t.Fatal(err)
	}
	fl, _, err := readFleet(t.Context(), dir, state)
	if err != nil {
		t.Fatal(err)
	}
	keys, _, err := findKeys(state)
	if err != nil {
		t.Fatal(err)
	}
	bundles, _ := openBundles(fl, keys)
	ms, err := machines(fl)
	if err != nil {
		t.Fatal(err)
	}
	fl.Cluster("b").Manifest.Spec.Endpoint.Address = "api.example.com"
	data, err := adminKubeconfig(fl, ms, bundles)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"current-context: admin@a", "admin@b", "server: https://127.9.0.1:6443", "server: https://127.9.1.2:6443", "client-key-data"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the kubeconfig has no %q", want)
		}
	}
}
