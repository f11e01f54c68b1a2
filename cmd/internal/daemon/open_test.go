package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/cmd/internal/config"
)

// noEnv is an environment without an age identity.
func noEnv(string) string { return "" }

// local is a configuration that Open accepts: a Git server that is never asked, no forge.
func local(t *testing.T) config.Config {
	c := config.Default()
	c.Repo, c.StateDir, c.Forge.Kind = "http://127.0.0.1:1/you/fleet.git", t.TempDir(), "none"
	return c
}

// TestOpenSaysWhatIsWrong has what can be known at the start. Credential files are read at each use, so that they can be
// rotated: ichor doctor tries them.
func TestOpenSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*config.Config)
		env    func(string) string
		// want are words that the error must have: the key and what is the matter.
		want []string
	}{
		"a state folder that is a file": {
			change: func(c *config.Config) { c.StateDir = file }, want: []string{"stateDir", file},
		},
		"an age identity that is none": {
			env: func(k string) string {
				if k == "SOPS_AGE_KEY" {
					return "AGE-SECRET-KEY-1NONE"
				}
				return ""
			},
			want: []string{"age", "SOPS_AGE_KEY"},
		},
		"an identity file that is missing": {
			env: func(k string) string {
				if k == "SOPS_AGE_KEY_FILE" {
					return file + ".missing"
				}
				return ""
			},
			want: []string{"SOPS_AGE_KEY_FILE", file + ".missing"},
		},
		"a URL that is none": {
			change: func(c *config.Config) { c.Repo = "ftp://example.com/fleet" }, want: []string{"ftp"},
		},
		"an authority that is none": {
			change: func(c *config.Config) { c.Repo, c.CAFile = "https://127.0.0.1:1/fleet.git", file }, want: []string{file},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := local(t)
			if tc.change != nil {
				tc.change(&c)
			}
			env := noEnv
			if tc.env != nil {
				env = tc.env
			}
			p, err := Open(t.Context(), c, quiet(), env)
			if err == nil {
				p.Close()
				t.Fatal("it opened")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not say %q: %v", w, err)
				}
			}
			if strings.Contains(err.Error(), "NONE") || strings.Contains(err.Error(), "not a key") {
				t.Errorf("the error quotes a secret: %v", err)
			}
		})
	}
}

func TestOpenWithoutAnIdentityChecksAndAppliesNothing(t *testing.T) {
	p, err := Open(t.Context(), local(t), quiet(), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Journal.Holding(t0); !errors.Is(err, errNoIdentity) {
		t.Errorf("holds: %v", err)
	}
	if st := p.Journal.Status(); st.State != journal.Refused || !strings.Contains(st.Message, "SOPS_AGE_KEY") {
		t.Errorf("status %+v", st)
	}
	if p.removed("prod", "w1") {
		t.Error("a machine has left that nobody knows")
	}
}

func TestAStateFolderIsUsedOnce(t *testing.T) {
	made, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	id := made.String()
	env := func(k string) string {
		if k == "SOPS_AGE_KEY" {
			return id
		}
		return ""
	}
	c := local(t)
	p, err := Open(t.Context(), c, quiet(), env)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), c, quiet(), env); err == nil {
		t.Fatal("two Ichors use one state folder")
	} else if !errors.Is(err, journal.ErrLocked) && !strings.Contains(err.Error(), "use") {
		t.Errorf("the error does not say that it is in use: %v", err)
	}
	p.Close()
	// What was taken is free again.
	p, err = Open(t.Context(), c, quiet(), env)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

func TestHealthAndReadiness(t *testing.T) {
	p, err := Open(t.Context(), local(t), quiet(), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := p.repository(func(map[string]*target) {})
	d := &daemon{p: p}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveHTTP(ctx, l, p.Metrics.Handler(), d.readiness(r)) }()
	get := func(path string) (int, string) {
		t.Helper()
		res, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz %d", code)
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "repository") {
		t.Errorf("/readyz before the first look: %d %s", code, body)
	}
	r.looked.Store(true)
	if code, _ := get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz after it: %d", code)
	}
	if code, body := get("/metrics"); code != http.StatusOK || !strings.Contains(body, "ichor_build_info") {
		t.Errorf("/metrics %d", code)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTheExampleConfigurationsLoad holds the configurations that people copy to the keys that there are.
func TestTheExampleConfigurationsLoad(t *testing.T) {
	deploy := "../../../examples/deploy/"
	data, err := os.ReadFile(deploy + "kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct{ Data map[string]string }
	if err := yaml.Unmarshal(data, &m); err != nil || m.Data["config.yaml"] == "" {
		t.Fatalf("no configuration in the ConfigMap: %v", err)
	}
	inMap := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(inMap, []byte(m.Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{deploy + "config.yaml", inMap} {
		c, err := config.Load(pflag.NewFlagSet("", pflag.ContinueOnError), []string{"ICHOR_CONFIG=" + path})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if c.Forge.Kind != "github" || c.Forge.Repository != "you/fleet" || c.Mode != "observe" || c.Metrics.Listen == "" {
			t.Errorf("%s: %+v", path, c)
		}
	}
}
