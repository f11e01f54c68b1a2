package conformance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// TestOtherVersionFails: a node of 1.13 does not pass for one of 1.14. It is what shows that the
// cases which tell the versions apart can fail.
func TestOtherVersionFails(t *testing.T) {
	t.Parallel()
	s := &site{Target: Target{
		Version: version113, Patience: time.Minute,
		NewBench: func(t *testing.T, _ string) Bench { return newLabBench(t) },
	}}
	s.prepareBench(t)
	s.minor = 14
	want := map[string]bool{"14-A26": true, "14-O05": true, "13-C25": true, "14-B01": true, "14-B05": true, "14-B07": true}
	for _, c := range maintenanceCases() {
		id := c.ids()[0]
		if !want[id] {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		r := &R{t: t, ctx: ctx, s: s}
		r.do(c.run)
		cancel()
		delete(want, id)
		if len(r.failures) == 0 {
			t.Errorf("case %s passes on a node of the other version", id)
		}
	}
	if len(want) > 0 {
		t.Errorf("cases %v were not asked", want)
	}
}

// self runs the test binary as somebody with real nodes does.
func self(t *testing.T, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"-test.v", "-test.run", "^TestConformance$", "-test.timeout", "3m", "-patience", "1m"}, args...)
	out, err := exec.CommandContext(t.Context(), os.Args[0], args...).CombinedOutput()
	return string(out), err
}

// TestAsRealNodes points the suite at nodes by its flags: it reads from them and writes nothing, and
// with -destructive it takes the one in maintenance through its first boot.
func TestAsRealNodes(t *testing.T) {
	t.Parallel()
	b := newLabBench(t, func(timings *node.Timings) { timings.BootstrapWait, timings.CRI = time.Second, 3*time.Second })
	cp := b.configured(firstName, mtype.TypeControlPlane)
	w := b.configured(workerName, mtype.TypeWorker)
	if err := b.lab.Node(firstName).Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := b.Add("m1", version113)
	for _, name := range []string{firstName, workerName} {
		if err := b.lab.WaitReady(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.lab.WaitMaintenance(t.Context(), "m1"); err != nil {
		t.Fatal(err)
	}
	creds := filepath.Join(t.TempDir(), "talosconfig")
	if err := b.Talosconfig().Save(creds); err != nil {
		t.Fatal(err)
	}
	out, err := self(t, "-endpoint", cp, "-worker", w, "-absent", b.Absent(), "-insecure-endpoint", m, "-talosconfig", creds)
	if err != nil {
		t.Errorf("the suite on named nodes: %v\n%s", err, out)
	}
	for _, line := range []string{
		"--- PASS: TestConformance/configured/13-C27", "--- PASS: TestConformance/maintenance/13-M01",
		`skipped: the node says it is v1.13.5; this is about 1.14 and later`, `skipped: the node's platform mode is "metal"; this is about "container"`,
		"skipped: it needs leave to change nodes (-destructive)", "skipped: it needs a second control plane (-second)",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("it does not say %q", line)
		}
	}
	for _, n := range b.lab.Nodes() {
		if c := n.Counters(); c != (node.Counters{}) {
			t.Errorf("without -destructive node %s was written to: %+v", n.Name(), c)
		}
	}
	if out, err := self(t, "-endpoint", cp, "-talosconfig", creds, "-deny", "127.0.0.0/8"); err == nil || !strings.Contains(out, "is on the deny list: nothing was asked") {
		t.Errorf("a denied node: %v\n%s", err, out)
	}

	// The blank machine becomes a cluster of its own: it takes the place of the endpoint.
	own := filepath.Join(t.TempDir(), "controlplane.yaml")
	data := strings.ReplaceAll(string(b.Config(mtype.TypeControlPlane, "m1", 13)), "https://"+cp+":", "https://"+m+":")
	for _, n := range []string{firstName, workerName} {
		b.Kill(n)
	}
	if err := os.WriteFile(own, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = self(t, "-insecure-endpoint", m, "-talosconfig", creds, "-config", own, "-destructive")
	if err != nil {
		t.Errorf("the suite with -destructive: %v\n%s", err, out)
	}
	for _, id := range []string{"first-boot/13-T01", "first-boot/13-T10", "first-boot/13-T11", "configured/13-T13", "apply/13-C03", "lifecycle/13-C07", "lifecycle/13-R06"} {
		if !strings.Contains(out, "--- PASS: TestConformance/"+id) {
			t.Errorf("case %s did not pass\n", id)
		}
	}
	if c := b.lab.Node("m1").Counters(); c.ApplyConfiguration == 0 || c.Bootstrap != 1 {
		t.Errorf("with -destructive node m1 was written to: %+v", c)
	}
	for _, secret := range []string{b.own.TrustdInfo.Token, b.own.Cluster.Secret} {
		if strings.Contains(out, secret) {
			t.Error("the output has a secret of the cluster")
		}
	}
}
