package scenarios

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/apply/talos"
	"ichor.maesh.dev/ichor/e2e/harness"
	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/status/fold"
)

// onNode calls a node as somebody with talosctl would.
func (r *rig) onNode(b *bundle.Bundle, endpoint string, do func(c *talos.Client)) {
	r.Helper()
	d, err := talos.NewDialer(b, talos.Options{})
	r.must(err)
	defer d.Close()
	c, err := d.Secure(endpoint, talos.Admin)
	r.must(err)
	do(c)
}

// configOf reads the configuration that is in force on a node.
func (r *rig) configOf(b *bundle.Bundle, endpoint string) string {
	r.Helper()
	var text string
	r.onNode(b, endpoint, func(c *talos.Client) {
		cfg, err := c.MachineConfig(r.ctx)
		r.must(err)
		text = string(cfg.Running.Reveal())
	})
	return text
}

// somaxconn reads or, with a value, sets the sysctl on a node.
func (r *rig) somaxconn(endpoint, set string) string {
	r.Helper()
	b, err := r.lab.Bundle(cluster)
	r.must(err)
	text := r.configOf(b, endpoint)
	was := sysctl(r, text)
	if set == "" {
		return was
	}
	changed := strings.Replace(text, fmt.Sprintf("net.core.somaxconn: %q", was), fmt.Sprintf("net.core.somaxconn: %q", set), 1)
	if changed == text {
		r.Fatalf("the configuration has no net.core.somaxconn: %q", was)
	}
	r.onNode(b, endpoint, func(c *talos.Client) {
		_, err := c.Apply(r.ctx, talos.Apply{Config: secret.FromString(changed), Mode: talos.NoReboot})
		r.must(err)
	})
	return was
}

func sysctl(r *rig, config string) string {
	r.Helper()
	dec := yaml.NewDecoder(strings.NewReader(config))
	for {
		var doc struct {
			Machine struct{ Sysctls map[string]string }
		}
		if err := dec.Decode(&doc); err != nil {
			r.Fatalf("the configuration has no sysctl: %v", err)
		}
		if v := doc.Machine.Sysctls["net.core.somaxconn"]; v != "" {
			return v
		}
	}
}

// TestDrift: what somebody changed with talosctl is set right, or, with onDrift: report, said and left.
func TestDrift(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.16", ControlPlanes: 1, Workers: 1, Somaxconn: "1024", Interval: "1s"})
	before := r.writes()
	w1 := r.fleet.Net + ".21"
	r.somaxconn(w1, "99")
	r.until("w1 is set right", func() (bool, string) {
		v := r.somaxconn(w1, "")
		return v == "1024", v
	})
	r.wait("main", applyStatus, "success")
	if got := r.writes()["w1"].configurations - before["w1"].configurations; got < 2 {
		t.Errorf("w1 took %d configurations, want somebody's and Ichor's", got)
	}
	r.unwritten(before, "cp1")

	r.fleet.OnDrift = "report"
	r.wait(r.push("Report drift only"), applyStatus, "success")
	r.somaxconn(w1, "99")
	drifted := r.writes()
	r.clusterWhere("the drift of w1", func(c fold.Cluster) (bool, string) {
		for _, m := range c.Machines {
			if m.Name == "w1" {
				return m.Reason == "Drift" && strings.Contains(m.Message, "somaxconn"), m.Reason + " " + m.Message
			}
		}
		return false, "no w1"
	})
	r.looks(6)
	r.unwritten(drifted)
	if v := r.somaxconn(w1, ""); v != "99" {
		t.Errorf("w1 has %s, want what somebody set", v)
	}
}

// TestNodeRefusesItsConfiguration: the rollout stops with that machine and says why; the next control plane is not
// touched; the commit that puts it right goes on.
func TestNodeRefusesItsConfiguration(t *testing.T) {
	r := adopted(t, harness.Fleet{Net: "127.20.17", ControlPlanes: 3, Workers: 1, Somaxconn: "1024"})
	leader := r.leader()
	first := "cp1"
	if leader == first {
		first = "cp2"
	}
	before := r.writes()
	r.node(cli.NodeAct{Act: "refuse", Name: first})
	r.fleet.Somaxconn = "2048"
	commit := r.push("Raise it")
	s := r.waitSaying(commit, applyStatus, "failure", first)
	if !strings.Contains(s.Description, "refused") {
		t.Errorf("the status does not say why: %q", s.Description)
	}
	r.looks(8)
	r.unwritten(before)

	r.node(cli.NodeAct{Act: "heal", Name: first})
	r.fleet.Somaxconn = "4096"
	commit = r.push("Raise it otherwise")
	r.wait(commit, applyStatus, "success")
	for name, now := range r.writes() {
		if got := now.configurations - before[name].configurations; got < 1 {
			t.Errorf("%s took %d configurations", name, got)
		}
	}
}
