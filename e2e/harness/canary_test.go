package harness_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/render/bundle"
)

// TestCanaryFindsEveryForm: a search that finds nothing proves nothing unless it would have found something.
func TestCanaryFindsEveryForm(t *testing.T) {
	b, _, err := bundle.Generate("v1.13", secrets.NewFixedClock(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	c := harness.NewCanary()
	if err := c.AddBundle("prod", b); err != nil {
		t.Fatal(err)
	}
	key := b.Secrets().Certs.Etcd.Key
	block, _ := pem.Decode(key)
	lines := strings.Split(string(key), "\n")
	token := b.Secrets().Secrets.BootstrapToken
	encoded, err := yaml.Marshal(b.Secrets())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"a token":              token,
		"a token in base64":    base64.StdEncoding.EncodeToString([]byte(token)),
		"a token in hex":       hex.EncodeToString([]byte(token)),
		"a key as PEM":         string(key),
		"a key in base64":      base64.StdEncoding.EncodeToString(key),
		"a key's DER":          string(block.Bytes),
		"a line of a key":      "  " + lines[1] + ",",
		"the bundle":           string(encoded),
		"a cluster's secret":   b.Secrets().Cluster.Secret,
		"a trustd token":       b.Secrets().TrustdInfo.Token,
		"a secretbox":          b.Secrets().Secrets.SecretboxEncryptionSecret,
		"a service account":    string(b.Secrets().Certs.K8sServiceAccount.Key),
		"a Kubernetes CA key":  string(b.Secrets().Certs.K8s.Key),
		"an aggregator CA key": string(b.Secrets().Certs.K8sAggregator.Key),
		"a Talos CA key":       string(b.Secrets().Certs.OS.Key),
	} {
		if found := c.Find("a place", []byte("x "+text+" x")); len(found) == 0 {
			t.Errorf("%s is not found", name)
		} else if strings.Contains(strings.Join(found, " "), token) {
			t.Error("a finding holds the value")
		}
	}
	if found := c.Find("a place", []byte("nothing of the kind")); len(found) > 0 {
		t.Errorf("found in nothing: %v", found)
	}
}

// TestCanaryLooksIntoGit: objects are compressed, so their files alone show nothing.
func TestCanaryLooksIntoGit(t *testing.T) {
	dir := t.TempDir()
	c := harness.NewCanary()
	c.Add("a token", "canary-8d1f3a5577c0")
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@y", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@y")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q", ".")
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("canary-8d1f3a5577c0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	git("add", "f")
	git("commit", "-q", "-m", "x")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	found, err := c.FindInFolder(t.Context(), dir)
	if err != nil || len(found) != 1 || !strings.Contains(found[0], "objects") {
		t.Errorf("found %v, %v", found, err)
	}
}
