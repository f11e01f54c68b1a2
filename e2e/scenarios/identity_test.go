package scenarios

import (
	"encoding/base64"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/schemas/state"
)

const strangerUUID = "11111111-2222-4333-8444-555555555555"

// TestAnotherMachineAnswers: at the address of a machine answers another cluster's, one with another UUID, or one in
// maintenance mode where it was configured. It is said and never written, however much the head wants to change it.
func TestAnotherMachineAnswers(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.13", ControlPlanes: 1, Workers: 2, Somaxconn: "1024"})
	for _, name := range []string{"w1", "cp1"} {
		for _, mask := range []struct {
			name string
			act  cli.NodeAct
			says string
		}{
			{"another cluster's certificate", cli.NodeAct{}, "of another authority, not of this cluster"},
			{"another UUID", cli.NodeAct{UUID: strangerUUID}, strangerUUID},
			{"maintenance mode", cli.NodeAct{Maintenance: true}, "it is in maintenance mode, where the configured machine"},
		} {
			if name == "cp1" && mask.act.UUID == "" && !*long {
				continue // one of them shows that a control plane is no exception
			}
			before := r.writes()
			mask.act.Act, mask.act.Name = "impersonate", name
			r.node(mask.act)
			message := r.machineSays(name, state.CondReady, state.ReasonEndpointIdentityMismatch)
			if !strings.Contains(message, mask.says) {
				t.Errorf("%s as %s: it says %q, not %q", name, mask.name, message, mask.says)
			}
			r.waitSaying("main", nodesStatus, "failure", name+" has another identity")

			r.fleet.Somaxconn += "0"
			if len(r.fleet.Somaxconn) > 6 {
				r.fleet.Somaxconn = "1024"
			}
			commit := r.push("Raise it while another answers as " + name)
			r.wait(commit, checkStatus, "success")
			r.waitSaying(commit, nodesStatus, "failure", name+" has another identity")
			r.looks(6)
			r.unwritten(before, name)

			r.node(cli.NodeAct{Act: "heal", Name: name})
			r.wait(commit, applyStatus, "success")
			r.wait(commit, nodesStatus, "success")
			if now := r.writes()[name]; now.configurations == before[name].configurations || now.bootstraps != before[name].bootstraps {
				t.Errorf("%s after it was itself again: %+v, before %+v", name, now, before[name])
			}
		}
	}
}

// TestAnotherMachineWaits: at the bring-up a box with another fingerprint or UUID than the manifest's gets nothing.
func TestAnotherMachineWaits(t *testing.T) {
	r := newRig(t, harness.Fleet{
		Net: "127.20.14", ControlPlanes: 1, Workers: 2,
		MachineSpec: map[string]string{
			"w1": `certFingerprint: "` + base64.StdEncoding.EncodeToString(make([]byte, 32)) + `"`,
			"w2": "uuid: " + strangerUUID,
		},
	}, false)
	// The lab gives w2 the UUID of the manifest; the box that is there is another.
	r.node(cli.NodeAct{Act: "impersonate", Name: "w2", UUID: "99999999-2222-4333-8444-555555555555"})
	r.start()
	if m := r.machineSays("w1", state.CondReady, state.ReasonEndpointIdentityMismatch); !strings.Contains(m, "fingerprint") {
		t.Errorf("w1 says %q", m)
	}
	if m := r.machineSays("w2", state.CondReady, state.ReasonEndpointIdentityMismatch); !strings.Contains(m, strangerUUID) {
		t.Errorf("w2 says %q", m)
	}
	r.wait("main", nodesStatus, "failure")
	r.until("cp1 is brought up", func() (bool, string) {
		n := r.writes()["cp1"]
		return n.bootstraps == 1, "not bootstrapped"
	})
	r.looks(6)
	for _, name := range []string{"w1", "w2"} {
		if n := r.writes()[name]; n != (writes{}) {
			t.Errorf("%s took %+v", name, n)
		}
	}

	// The manifests are put right: w1 gets its real fingerprint, w2 is the box that is meant.
	nodes, err := r.lab.Nodes(r.ctx)
	r.must(err)
	for _, n := range nodes {
		if n.Name == "w1" {
			r.fleet.MachineSpec["w1"] = `certFingerprint: "` + n.Fingerprint + `"`
		}
	}
	r.node(cli.NodeAct{Act: "heal", Name: "w2"})
	r.wait(r.push("The right fingerprint"), applyStatus, "success")
}
