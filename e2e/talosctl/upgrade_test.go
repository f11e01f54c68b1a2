package talosctl

import (
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/machine"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// TestUpgradeStory is a control plane's way from 1.13 to 1.14 and back, and its resets, with real
// talosctl alone. The texts are those of captures-114/metal-lifecycle and of talosctl's own source.
func TestUpgradeStory(t *testing.T) {
	s := newStory(t)
	_, err := s.lab.AddNode(node.Spec{Name: "cp1", Address: lab.Addr(cp1)})
	s.must(err)
	s.must(s.lab.WaitMaintenance(s.ctx, "cp1"))
	s.expect(0, `^Applied configuration without a reboot\n$`, "apply-config", "-i", "-n", cp1, "-f", s.config(machine.TypeControlPlane, "cp1"))
	s.eventually(at(cp1, "bootstrap")...)
	s.must(s.lab.WaitReady(s.ctx, "cp1"))

	const next = "ghcr.io/siderolabs/installer:v1.14.0"
	s.expect(1, `cannot rollback to "", label does not exist`, at(cp1, "rollback")...)
	s.expect(1, `error pulling upgrade image: error from node 127.0.90.1: rpc error: code = Unknown desc = failed to pull image "registry.invalid/no/such:tag": failed to resolve reference`,
		at(cp1, "upgrade", "--image", "registry.invalid/no/such:tag")...)
	s.expect(0, `pulled image ghcr.io/siderolabs/installer@sha256:`, at(cp1, "image", "pull", "--namespace", "system", next)...)
	s.expect(0, `ghcr.io/siderolabs/installer:v1.14.0 `, at(cp1, "image", "list", "--namespace", "system")...)

	s.expect(0, `pulled image ghcr.io/siderolabs/installer@sha256:.*all pre-flight checks successful.*Exit code: 0\n.*upgrade completed\n`,
		at(cp1, "upgrade", "--image", next, "--drain=false")...)
	s.must(s.lab.WaitReady(s.ctx, "cp1"))
	s.expect(0, `Server:\n NODE: 127.0.90.1\n Tag: v1.14.0\n`, at(cp1, "version")...)
	s.expect(1, `the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead`,
		at(cp1, "apply-config", "--mode", "reboot", "-f", s.config(machine.TypeControlPlane, "cp1"))...)

	boot := s.lab.Node("cp1").BootID()
	s.expect(0, `^$`, at(cp1, "rollback")...)
	s.must(s.lab.Wait(s.ctx, "the rollback's boot", func() bool { id := s.lab.Node("cp1").BootID(); return id != boot && id != "" }))
	s.eventually(at(cp1, "version")...)
	s.expect(0, `Tag: v1.13.5\n.*Server:\n NODE: 127.0.90.1\n Tag: v1.13.5\n`, at(cp1, "version")...)
	// Its etcd is one of 3.7 now: a node of 1.13 can't run it any more.
	s.expect(0, `etcd Waiting (Fail|\?)`, at(cp1, "services")...)

	// The deprecated call, tracked by its events, brings it forward again.
	s.expect(0, ``, at(cp1, "upgrade", "--legacy", "--preserve", "--image", next, "--wait", "--timeout", "50s")...)
	s.must(s.lab.WaitReady(s.ctx, "cp1"))
	s.expect(0, `Server:\n NODE: 127.0.90.1\n Tag: v1.14.0\n`, at(cp1, "version")...)
	s.expect(0, ``, at(cp1, "reboot", "--wait", "--timeout", "50s")...)
	s.must(s.lab.WaitReady(s.ctx, "cp1"))
	s.expect(0, ``, at(cp1, "reset", "--graceful=false", "--reboot", "--wait", "--timeout", "50s",
		"--system-labels-to-wipe", "STATE", "--system-labels-to-wipe", "EPHEMERAL")...)
	s.must(s.lab.WaitMaintenance(s.ctx, "cp1"))
	s.expect(0, `Tag: v1.14.0\n`, "version", "-i", "-n", cp1) // META and the system stay
	s.expect(0, `runtime SystemDisk system-disk 1 vda`, "get", "systemdisk", "-i", "-n", cp1)
}
