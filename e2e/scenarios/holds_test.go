package scenarios

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
)

// TestVersionChangesAreHeld: upgrades are not built yet, and a version leaks into no configuration.
func TestVersionChangesAreHeld(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.19", ControlPlanes: 1, Workers: 1})
	before := r.writes()
	for _, c := range []struct {
		name    string
		version *string
		to      string
	}{{"Kubernetes", &r.fleet.KubernetesVersion, "v1.36.2"}, {"Talos", &r.fleet.TalosVersion, "v1.13.6"}} {
		was := *c.version
		*c.version = c.to
		commit := r.push("Upgrade " + c.name)
		r.wait(commit, checkStatus, "success")
		if m := r.held(commit, state.ReasonVersionChange); !strings.Contains(m, "not supported yet") || !strings.Contains(m, c.name) {
			t.Errorf("it says %q", m)
		}
		r.waitSaying(commit, applyStatus, "failure", "not supported yet")
		r.looks(4)
		r.unwritten(before)
		*c.version = was
		r.wait(r.push("Not yet"), applyStatus, "success")
		r.unwritten(before)
	}
}

// TestChangedSecretsAreHeld: the commit that changes the bundle fails its check; what comes on top of it passes, and is
// held all the same.
func TestChangedSecretsAreHeld(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.20", ControlPlanes: 1, Workers: 1, Somaxconn: "1024"})
	before := r.writes()
	path := filepath.Join(r.fleet.Dir, cluster, "secrets.sops.yaml")
	old, err := os.ReadFile(path)
	r.must(err)
	r.must(os.WriteFile(path, r.anotherBundle(), 0o644))
	commit := r.push("Other secrets")
	r.wait(commit, checkStatus, "failure")
	r.wait(commit, applyStatus, "failure")

	r.fleet.Somaxconn = "2048"
	commit = r.push("Something else on top")
	r.wait(commit, checkStatus, "success")
	r.held(commit, state.ReasonSecretsChanged)
	r.wait(commit, applyStatus, "failure")
	r.looks(4)
	r.unwritten(before)

	r.must(os.WriteFile(path, old, 0o644))
	r.push("The old secrets")
	r.fleet.Somaxconn = "4096"
	commit = r.push("Go on")
	r.wait(commit, applyStatus, "success")
	for name, now := range r.writes() {
		if now.configurations == before[name].configurations {
			t.Errorf("%s took nothing after the old secrets were back", name)
		}
	}
}

// anotherBundle makes a bundle for the lab's age identity, which the canary then knows too.
func (r *rig) anotherBundle() []byte {
	r.Helper()
	b, plain, err := bundle.Generate("v1.13", secrets.NewFixedClock(time.Now().Add(-time.Hour)))
	r.must(err)
	r.must(r.canary.AddBundle("other", b))
	text, err := os.ReadFile(r.lab.Value("SOPS_AGE_KEY_FILE"))
	r.must(err)
	keys, err := bundle.ParseKeys(text)
	r.must(err)
	sealed, err := bundle.Encrypt(plain, "secrets.sops.yaml", keys.Recipients(), "")
	r.must(err)
	return sealed
}

// TestForcePushIsHeld until a person acknowledges that very commit.
func TestForcePushIsHeld(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.21", ControlPlanes: 1, Workers: 1, Somaxconn: "1024"})
	r.fleet.Somaxconn = "2048"
	r.wait(r.push("Raise it"), applyStatus, "success")
	before := r.writes()

	r.fleet.Somaxconn = "4096"
	r.write()
	b, err := r.lab.Push(r.ctx, forge.PushOptions{Branch: "main", Message: "Rewritten", Author: "you", Force: true})
	r.must(err)
	r.wait(b.SHA, checkStatus, "success")
	if m := r.held(b.SHA, state.ReasonForcePush); !strings.Contains(m, b.SHA) {
		t.Errorf("it does not name the commit to acknowledge: %q", m)
	}
	r.wait(b.SHA, applyStatus, "failure")
	r.looks(4)
	r.unwritten(before)

	// What is applied last is acknowledged, which is not what is asked for.
	commit := r.acknowledge(strings.Repeat("a", 40))
	r.held(commit, state.ReasonForcePush)
	r.looks(4)
	r.unwritten(before)

	r.wait(r.acknowledge(b.SHA), applyStatus, "success")
	for name, now := range r.writes() {
		if now.configurations == before[name].configurations {
			t.Errorf("%s took nothing after the acknowledgement", name)
		}
	}

	// The acknowledgement is used up: the next rewind is held again.
	before = r.writes()
	r.fleet.Somaxconn = "8192"
	r.write()
	b, err = r.lab.Push(r.ctx, forge.PushOptions{Branch: "main", Message: "Rewritten again", Author: "you", Force: true})
	r.must(err)
	r.held(b.SHA, state.ReasonForcePush)
	r.looks(4)
	r.unwritten(before)
}

const allowDelete = "ichor.maesh.dev/allow-delete"

// TestDeletions: without the mark the check refuses, with it the machine is held and said, as removal is not built yet,
// and the rest of the cluster goes on; many at once are held as a probable mistake.
func TestDeletions(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.22", ControlPlanes: 1, Workers: 5, Somaxconn: "1024"})
	before := r.writes()
	r.fleet.Without = []string{"w5"}
	commit := r.push("Remove w5")
	r.wait(commit, checkStatus, "failure")
	page, err := r.lab.StatusFile(r.ctx, "checks/"+commit+".md")
	r.must(err)
	text, err := r.lab.StatusFile(r.ctx, "checks/"+commit+".json")
	r.must(err)
	const want = `delete refused: set the annotation ichor.maesh.dev/allow-delete="true" to allow it`
	if !strings.Contains(strings.ReplaceAll(text, `\"`, `"`), want) {
		t.Errorf("the report does not say %q:\n%s", want, page)
	}
	r.wait(commit, applyStatus, "failure")
	r.looks(4)
	r.unwritten(before)

	r.fleet.Without = nil
	r.fleet.MachineAnnotations = map[string]map[string]string{}
	for _, name := range []string{"w1", "w2", "w3", "w4", "w5"} {
		r.fleet.MachineAnnotations[name] = map[string]string{allowDelete: "true"}
	}
	r.wait(r.push("Allow it"), applyStatus, "success")
	r.unwritten(before)

	r.fleet.Without = []string{"w5"}
	r.fleet.Somaxconn = "2048"
	commit = r.push("Remove w5, raise it")
	r.wait(commit, checkStatus, "success")
	r.clusterWhere("w5 held and the others done", func(c fold.Cluster) (bool, string) {
		done, held := 0, false
		for _, m := range c.Machines {
			if m.Name == "w5" {
				held = m.Reason == state.ReasonDeleteRefused && strings.Contains(m.Message, "not supported yet")
			} else if m.Converged {
				done++
			}
		}
		return held && done == 5 && c.Commit == commit, c.Progress.Message
	})
	r.wait(commit, applyStatus, "failure")
	r.unwritten(before, "w5")

	r.fleet.Without = nil
	r.wait(r.push("Keep w5"), applyStatus, "success")
	before = r.writes()
	r.fleet.Without = []string{"w1", "w2", "w3", "w4"}
	r.fleet.Somaxconn = "4096"
	commit = r.push("Remove all but one")
	r.wait(commit, checkStatus, "success")
	if m := r.held(commit, state.ReasonMassDeletion); !strings.Contains(m, "4 of 6 machines") {
		t.Errorf("it says %q", m)
	}
	r.wait(commit, applyStatus, "failure")
	r.looks(4)
	r.unwritten(before)
}

// TestModes: observe writes nothing and says how many differ, suspend does not even read.
func TestModes(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.23", ControlPlanes: 1, Workers: 2, Somaxconn: "1024"})
	before := r.writes()
	r.fleet.Mode, r.fleet.Somaxconn = "observe", "2048"
	commit := r.push("Observe")
	r.waitSaying(commit, applyStatus, "success", "observe mode: 3 of 3 machines differ")
	r.wait(commit, nodesStatus, "success")
	r.looks(4)
	r.unwritten(before)

	r.fleet.Mode, r.fleet.Suspend = "apply", true
	commit = r.push("Suspend")
	r.held(commit, state.ReasonSuspended)
	r.node(cli.NodeAct{Act: "cut", Name: "w1"})
	r.looks(20) // the grace, twice
	if s, ok := r.lab.StatusOf(r.ctx, commit, nodesStatus); ok && s.State == "failure" {
		t.Errorf("a suspended cluster is read: %s", s.Description)
	}
	r.node(cli.NodeAct{Act: "heal", Name: "w1"})
	r.unwritten(before)

	// The whole instance observes, whatever the repository says.
	r.fleet.Suspend = false
	r.stop()
	r.start("--mode", "observe")
	commit = r.push("Go on")
	r.waitSaying(commit, applyStatus, "success", "observe mode: 3 of 3 machines differ")
	r.looks(4)
	r.unwritten(before)

	r.stop()
	r.start()
	r.waitSaying(commit, applyStatus, "success", "3 of 3 machines converged")
	for name, now := range r.writes() {
		if now.configurations == before[name].configurations {
			t.Errorf("%s took nothing in the end", name)
		}
	}
}

// TestNewerHeadSupersedes: the pending status of a head that is not applied to its end does not stay.
func TestNewerHeadSupersedes(t *testing.T) {
	// A change that restarts something is sent for good: no trial has to end before the newer head can go on.
	r := adopted(t, harness.Fleet{Net: "127.20.24", ControlPlanes: 1, Workers: 1, APIServerVerbosity: "1", Settle: "5s"})
	r.fleet.APIServerVerbosity = "2"
	older := r.push("Raise it")
	r.wait(older, applyStatus, "pending")
	r.fleet.APIServerVerbosity = "3"
	newer := r.push("Raise it more")
	r.waitSaying(older, applyStatus, "error", "superseded by "+newer[:12])
	r.wait(newer, applyStatus, "success")
	r.looks(4)
	for _, e := range r.posted(0, older, applyStatus) {
		if s := harness.Field(e, "state"); s == "success" {
			t.Errorf("the older head was said to be applied")
		}
	}
	if s, _ := r.lab.StatusOf(r.ctx, older, applyStatus); s.State != "error" {
		t.Errorf("in the end %s of the older head is %q: %s", applyStatus, s.State, s.Description)
	}
}

// TestAgeIdentityIsMissingOrWrong: checks go on, nothing is applied, and it is said as Ichor's own trouble. The
// inventory is left as it was.
func TestAgeIdentityIsMissingOrWrong(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.25", ControlPlanes: 1, Workers: 1, Somaxconn: "1024"})
	before := r.writes()
	id, err := age.GenerateX25519Identity()
	r.must(err)
	r.canary.Add("another age identity", id.String())
	wrong := filepath.Join(r.dir, "wrong.key")
	r.must(os.WriteFile(wrong, []byte(id.String()+"\n"), 0o600))
	for _, c := range []struct{ name, file string }{{"missing", ""}, {"wrong", wrong}} {
		r.stop()
		inventory, err := r.lab.File(r.ctx, harness.StatusBranch, "inventory.yaml")
		r.must(err)
		r.ichor = r.run(r.stateDir(), []string{bundle.EnvKeyFile + "=" + c.file})
		r.fleet.Somaxconn += "0"
		commit := r.push("Raise it with the identity " + c.name)
		r.wait(commit, checkStatus, "success")
		r.wait(commit, applyStatus, "error")
		r.held(commit, state.ReasonSecretsBundleUnavailable)
		r.looks(4)
		r.unwritten(before)
		if now, err := r.lab.File(r.ctx, harness.StatusBranch, "inventory.yaml"); err != nil || now != inventory {
			t.Errorf("with the identity %s the inventory was changed (%v)", c.name, err)
		}
	}
	r.stop()
	r.start()
	r.wait("main", applyStatus, "success")
	for name, now := range r.writes() {
		if now.configurations == before[name].configurations {
			t.Errorf("%s took nothing in the end", name)
		}
	}
}
