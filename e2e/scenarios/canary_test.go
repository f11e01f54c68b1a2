package scenarios

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/render/bundle"
)

const registryPatch = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosConfigPatch
metadata:
  name: registry
spec:
  clusterRef:
    name: prod
  order: 30
  documents:
    - machine:
        registries:
          config:
            registry.example.org:
              auth:
                username: puller
                password: `

// TestSecretsStayIn runs a life with everything that may show a secret: a bring-up, an encrypted value of a patch, dry
// runs, a refusal that quotes whole configurations, all that the debug log says, and a dump of every goroutine in the middle of it. What was written
// anywhere is then looked through (as in every test of this package, see rig.lookForCanaries).
func TestSecretsStayIn(t *testing.T) {
	r := newRig(t, harness.Fleet{Net: "127.20.27", ControlPlanes: 1, Workers: 1, Somaxconn: "1024"}, false)
	r.start("--log-level", "debug")
	r.wait("main", applyStatus, "success")

	const password = "canary-of-the-registry-7c1f0a"
	r.canary.Add("the encrypted value of a patch", password)
	r.seal("prod/registry.yaml", registryPatch+password+"\n", "^password$")
	// A real node's refusal may quote the configurations, the old one and the one that was sent, on any line of its text.
	b, err := r.lab.Bundle(cluster)
	r.must(err)
	whole := r.configOf(b, r.fleet.Net+".21")
	quoted := "1 error occurred:\n\t* this one does not fit:\n" + whole + "\n\t* nor does password: " + password + "\n" +
		strings.ReplaceAll(whole, "\n", " ")
	r.node(cli.NodeAct{Act: "refuse", Name: "w1", Text: quoted})
	commit := r.push("Use the registry")
	r.wait(commit, checkStatus, "success")
	r.waitSaying(commit, applyStatus, "failure", "w1")
	r.node(cli.NodeAct{Act: "heal", Name: "w1"})

	r.fleet.Somaxconn = "2048"
	commit = r.push("Raise it")
	r.wait(commit, applyStatus, "pending", "success")
	r.must(r.ichor.Signal(syscall.SIGQUIT))
	<-r.ichor.Done()
	if dump := r.ichor.Output(); !strings.Contains(dump, "goroutine ") {
		t.Error("no goroutines were dumped")
	}
	r.start("--log-level", "debug")
	r.wait(commit, applyStatus, "success")
	if _, err := r.scrape(); err != nil {
		t.Errorf("read the metrics: %v", err)
	}
	for _, endpoint := range []string{r.fleet.Net + ".11", r.fleet.Net + ".21"} {
		if !strings.Contains(r.configOf(b, endpoint), password) {
			t.Errorf("%s did not get the decrypted value", endpoint)
		}
	}
}

// seal writes a SOPS-encrypted file into the fleet.
func (r *rig) seal(name, text, regex string) {
	r.Helper()
	identity, err := os.ReadFile(r.lab.Value("SOPS_AGE_KEY_FILE"))
	r.must(err)
	keys, err := bundle.ParseKeys(identity)
	r.must(err)
	sealed, err := bundle.Encrypt([]byte(text), name, keys.Recipients(), regex)
	r.must(err)
	r.must(os.WriteFile(filepath.Join(r.fleet.Dir, name), sealed, 0o644))
}
