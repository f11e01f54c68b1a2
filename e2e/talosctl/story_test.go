package talosctl

import (
	"os"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/machine"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/node"
)

const (
	cp1 = "127.0.90.1"
	cp2 = "127.0.90.2"
	w1  = "127.0.90.9"
	// absent is an address where nothing is.
	absent = "127.0.90.99"
)

func at(addr string, args ...string) []string { return append(args, "-n", addr, "-e", addr) }

// TestStory is a day with talosctl: two control planes and a worker from blank disks to a cluster.
// The patterns are the texts of the captures of real v1.13.5 nodes, with what varies left open.
func TestStory(t *testing.T) {
	s := newStory(t)
	for _, spec := range []node.Spec{
		{Name: "cp1", Address: lab.Addr(cp1), UUID: "00000000-0000-4000-8000-000000000015", Hostname: "vm1"},
		{Name: "cp2", Address: lab.Addr(cp2)},
		{Name: "w1", Address: lab.Addr(w1)},
	} {
		_, err := s.lab.AddNode(spec)
		s.must(err)
		s.must(s.lab.WaitMaintenance(s.ctx, spec.Name))
	}
	cpFile := s.config(machine.TypeControlPlane, "cp1")
	maintenance(s, cpFile)
	s.expect(0, `^Applied configuration without a reboot\n$`, "apply-config", "-i", "-n", cp1, "-f", cpFile)
	beforeBootstrap(s, cpFile)
	bootstrap(s)
	configured(s, cpFile)
	applying(s)
	members(s)
	rebooting(s)
	if got := s.lab.Node("cp1").Counters().Bootstrap; got != 1 {
		t.Errorf("cp1 was bootstrapped %d times, want 1", got)
	}
}

// maintenance is what an insecure and a secure client see before there is a configuration.
func maintenance(s *story, cpFile string) {
	s.t.Helper()
	s.expect(0, `Tag: v1.13.5.*Server:\n NODE: 127.0.90.1\n Tag: v1.13.5\n.*Enabled: \n$`, "version", "-i", "-n", cp1)
	s.expect(1, `error getting version: rpc error: code = Unavailable desc = connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`,
		at(cp1, "version")...)
	s.expect(0, `^node: \nmetadata:\n namespace: runtime\n type: MachineStatuses.runtime.talos.dev\n id: machine\n.*owner: runtime.MachineStatusController\n phase: running\n.*spec:\n stage: maintenance\n status:\n ready: true\n unmetConditions: \[\]\n$`,
		"get", "machinestatus", "-i", "-n", cp1, "-o", "yaml")
	s.expect(0, `id: hostname\n.*owner: network.HostnameSpecController\n.*spec:\n hostname: vm1\n domainname: ""\n$`,
		"get", "hostnamestatus", "-i", "-n", cp1, "-o", "yaml")
	s.expect(0, `type: SystemInformations.hardware.talos.dev\n id: systeminformation\n.*owner: hardware.SystemInfoController\n.*uuid: 00000000-0000-4000-8000-000000000015\n`,
		"get", "systeminformation", "-i", "-n", cp1, "-o", "yaml")
	s.expect(1, `^1 error occurred:\n \* rpc error: code = PermissionDenied desc = not authorized\n\n\n$`,
		"get", "machineconfig", "-i", "-n", cp1, "-o", "yaml")
	s.expect(0, `^NODE NAMESPACE TYPE ID VERSION DISK\n$`, "get", "systemdisk", "-i", "-n", cp1)
	s.expect(0, `runtime Disk vda 1 11 GB false virtio true cp1`, "get", "disks", "-i", "-n", cp1)
	s.expect(0, `^$`, "get", "members", "-i", "-n", cp1, "-o", "yaml")
	s.expect(1, `rpc error: code = NotFound desc = resource "osversion,version" is not registered\n$`, "get", "osversion,version", "-i", "-n", cp1)
	s.expect(1, `^error executing bootstrap: rpc error: code = Unavailable desc = connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"\n$`,
		at(cp1, "bootstrap")...)
	s.expect(1, `^error applying new configuration: rpc error: code = Unavailable desc = connection error: desc = "transport: authentication handshake failed: leaf peer certificate doesn't match the provided fingerprints: \[AAAA\]"\n$`,
		"apply-config", "-i", "-n", cp1, "--cert-fingerprint", "AAAA", "--dry-run", "-f", cpFile)
	dry := s.expect(0, `^Dry run summary:\nApplied configuration without a reboot \(skipped in dry-run\).\nConfig diff:\n\n--- a\n\+\+\+ b\n@@ -0,0 \+1,\d+ @@\n\+version: v1alpha1\n`,
		"apply-config", "-i", "-n", cp1, "--cert-fingerprint", s.lab.Node("cp1").MaintenanceFingerprint(), "--dry-run", "-f", cpFile)
	if !strings.Contains(dry, s.bundle.TrustdInfo.Token) {
		s.t.Error("the dry run hides the machine token; a real node shows it")
	}
	if s.lab.Node("cp1").Counters().ApplyConfiguration != 0 {
		s.t.Error("a dry run was counted as a write")
	}
}

// beforeBootstrap is a control plane that waits.
func beforeBootstrap(s *story, cpFile string) {
	s.t.Helper()
	s.must(s.lab.WaitStage(s.ctx, "cp1", "booting"))
	s.eventually(at(cp1, "version")...)
	s.expect(1, `^rpc error: code = Unavailable desc = (connection error: desc = "error reading server preface: remote error: tls: certificate required"|write tcp .*: (broken pipe|connection reset by peer)|.*connection reset by peer"?)\n$`,
		"get", "machinestatus", "-i", "-n", cp1)
	s.expect(1, `error applying new configuration: rpc error: code = Unavailable desc = `, "apply-config", "-i", "-n", cp1, "-f", cpFile)
	s.must(s.lab.Wait(s.ctx, "cp1 to wait for etcd only", func() bool {
		out, _ := s.run(at(cp1, "get", "machinestatus", "-o", "yaml")...)
		return strings.Contains(out, "reason: etcd not running\n")
	}))
	s.expect(0, `spec:\n stage: booting\n status:\n ready: false\n unmetConditions:\n - name: services\n reason: etcd not running\n - name: (staticPods|nodeReady)\n`,
		at(cp1, "get", "machinestatus", "-o", "yaml")...)
	s.expect(0, `127.0.90.1 apid Running OK .*127.0.90.1 etcd Preparing \? \S+ ago Running pre state\n.*127.0.90.1 trustd Running OK`, at(cp1, "services")...)
}

// bootstrap is too early at a machine in maintenance (above) and while CRI isn't up, then right, then refused.
func bootstrap(s *story) {
	s.t.Helper()
	// The second control plane is asked in its first moments: no container runtime yet.
	file := s.config(machine.TypeControlPlane, "cp2")
	s.expect(0, `^Applied configuration without a reboot\n$`, "apply-config", "-i", "-n", cp2, "-f", file)
	var early string
	for i := 0; early == "" && i < 200; i++ {
		out, rc := s.run(at(cp2, "bootstrap")...)
		if rc == 0 {
			s.t.Fatal("bootstrap was accepted at once by a node that just installs")
		}
		if strings.Contains(out, "FailedPrecondition") {
			early = out
		}
	}
	s.check(1, 1, `^error executing bootstrap: 1 error occurred:\n \* 127.0.90.2: rpc error: code = FailedPrecondition desc = bootstrap is not available yet\n\n\n$`, early, []string{"bootstrap", "early"})
	s.expect(0, `^$`, at(cp1, "bootstrap")...)
	s.must(s.lab.WaitReady(s.ctx, "cp1"))
	s.expect(1, `^error executing bootstrap: 1 error occurred:\n \* 127.0.90.1: rpc error: code = AlreadyExists desc = etcd data directory is not empty\n\n\n$`,
		at(cp1, "bootstrap")...)
	out, rc := s.runAs("reader", at(cp1, "bootstrap")...)
	s.check(1, rc, `^error executing bootstrap: 1 error occurred:\n \* 127.0.90.1: rpc error: code = PermissionDenied desc = not authorized\n\n\n$`, out, []string{"bootstrap", "reader"})
}

// configured is a control plane that runs.
func configured(s *story, cpFile string) {
	s.t.Helper()
	s.expect(0, `Server:\n NODE: 127.0.90.1\n Tag: v1.13.5\n.*Enabled: RBAC\n$`, at(cp1, "version")...)
	s.expect(0, `^NODE NAMESPACE TYPE ID VERSION STAGE READY\n127.0.90.1 runtime MachineStatus machine \d+ running true\n$`, at(cp1, "get", "machinestatus")...)
	// The install rebooted the node: only the active configuration is a resource, until the next apply.
	s.expect(0, `^NODE NAMESPACE TYPE ID VERSION\n127.0.90.1 config MachineConfig v1alpha1 1\n$`, at(cp1, "get", "machineconfig")...)
	got := s.expect(0, `annotations:\n talos.dev/yaml-spec: "?1"?\nspec: \|`, at(cp1, "get", "machineconfig", "v1alpha1", "-o", "yaml")...)
	want, err := os.ReadFile(cpFile)
	s.must(err)
	if !strings.Contains(strings.ReplaceAll(got, "    ", ""), strings.ReplaceAll(string(want), "    ", "")) {
		s.t.Error("the machine configuration is not the text that was applied")
	}
	out, rc := s.runAs("reader", at(cp1, "get", "machineconfig")...)
	s.check(1, rc, `1 error occurred:\n \* rpc error: code = PermissionDenied desc = not authorized\n`, out, []string{"get", "machineconfig", "reader"})
	s.expect(0, `hostname: cp1\n domainname: ""\n$`, at(cp1, "get", "hostnamestatus", "-o", "yaml")...)
	s.expect(0, `uuid: 00000000-0000-4000-8000-000000000015\n`, at(cp1, "get", "systeminformation", "-o", "yaml")...)
	s.expect(0, `127.0.90.1 runtime SystemDisk system-disk 1 vda\n$`, at(cp1, "get", "systemdisk")...)
	s.expect(0, `^node: 127.0.90.1\n.*spec: controlplane\n$`, at(cp1, "get", "machinetype", "-o", "yaml")...)
	s.expect(0, `memberID: [0-9a-f]{16}\n$`, at(cp1, "get", "etcdmember", "-o", "yaml")...)
	s.expect(0, `^NODE MEMBER DB SIZE IN USE LEADER RAFT INDEX RAFT TERM RAFT APPLIED INDEX LEARNER PROTOCOL STORAGE ERRORS\n127.0.90.1 ([0-9a-f]{16}) `, at(cp1, "etcd", "status")...)
	s.expect(1, `rpc error: code = Unknown desc = service "kubelet" doesn't support stop operation via API`, at(cp1, "service", "kubelet", "stop")...)
}

// applying is apply-config on a configured node, in its modes.
func applying(s *story) {
	s.t.Helper()
	same := s.config(machine.TypeControlPlane, "cp1")
	label := s.config(machine.TypeControlPlane, "cp1", "nodeLabels:\n", "nodeLabels:\n        a: b\n")
	env := s.config(machine.TypeControlPlane, "cp1", "    install:\n", "    env:\n        FOO: bar\n    install:\n", "machine:", "machine:")
	s.expect(0, `^Dry run summary:\nApplied configuration without a reboot \(skipped in dry-run\).\nConfig diff:\n\nNo changes.\n$`,
		at(cp1, "apply-config", "--dry-run", "-f", same)...)
	s.expect(0, `^Dry run summary:\nApplied configuration without a reboot \(skipped in dry-run\).\nConfig diff:\n\n--- a\n\+\+\+ b\n@@ .*\n\+ a: b\n`,
		at(cp1, "apply-config", "--dry-run", "-f", label)...)
	s.expect(0, `^Dry run summary:\nApplied configuration with a reboot \(skipped in dry-run\).\nConfig diff:\n\n--- a\n.*\+ FOO: bar\n`,
		at(cp1, "apply-config", "--dry-run", "-f", env)...)
	s.expect(1, `^error applying new configuration: 1 error occurred:\n \* 127.0.90.1: rpc error: code = InvalidArgument desc = this config change can't be applied in immediate mode\ndiff:\n--- a\n\+\+\+ b\n.*\+ FOO: bar\n`,
		at(cp1, "apply-config", "--mode", "no-reboot", "-f", env)...)
	s.expect(0, `^Staged configuration to be applied after the next reboot\n$`, at(cp1, "apply-config", "--mode", "staged", "-f", label)...)
	s.expect(0, `MachineConfig persistent 1\n127.0.90.1 config MachineConfig v1alpha1 1\n$`, at(cp1, "get", "machineconfig")...)
	s.expect(0, `^Applied configuration without a reboot\n$`, at(cp1, "apply-config", "-f", label)...)
	s.expect(0, `MachineConfig persistent 2\n127.0.90.1 config MachineConfig v1alpha1 2\n$`, at(cp1, "get", "machineconfig")...)
	s.expect(0, `^Applied configuration without a reboot\nThe config is applied in 'try' mode and will be automatically reverted back in 1s\n$`,
		at(cp1, "apply-config", "--mode", "try", "--timeout", "1s", "-f", same)...)
	s.expect(0, `MachineConfig persistent 2\n127.0.90.1 config MachineConfig v1alpha1 3\n$`, at(cp1, "get", "machineconfig")...)
	s.must(s.lab.Wait(s.ctx, "the trial to be reverted", func() bool {
		return strings.Contains(string(s.lab.Node("cp1").ConfigBytes()), "a: b\n")
	}))
	s.expect(0, `MachineConfig persistent 2\n127.0.90.1 config MachineConfig v1alpha1 4\n$`, at(cp1, "get", "machineconfig")...)
}

// members is a cluster that grew: a second control plane and a worker.
func members(s *story) {
	s.t.Helper()
	s.must(s.lab.WaitReady(s.ctx, "cp2"))
	s.expect(0, `Applied configuration without a reboot`, "apply-config", "-i", "-n", w1, "-f", s.config(machine.TypeWorker, "w1"))
	s.must(s.lab.WaitReady(s.ctx, "w1"))
	s.expect(0, `^NODE ID HOSTNAME PEER URLS CLIENT URLS LEARNER\n(127.0.90.1 [0-9a-f]{16} cp[12] https://127.0.90.[12]:2380 https://127.0.90.[12]:2379 false\n){2}$`,
		at(cp1, "etcd", "members")...)
	s.expect(1, `127.0.90.2: rpc error: code = AlreadyExists desc = etcd data directory is not empty\n`, at(cp2, "bootstrap")...)
	s.expect(1, `rpc error: code = Unimplemented desc = bootstrap is only available on control plane nodes\n`, at(w1, "bootstrap")...)
	s.expect(1, `rpc error: code = Unimplemented desc = member list is only available on control plane nodes\n`, at(w1, "etcd", "members")...)
	// One endpoint speaks for the others; a worker forwards nothing.
	s.expect(0, `^NODE NAMESPACE TYPE ID VERSION STAGE READY\n127.0.90.2 runtime MachineStatus machine \d+ running true\n$`,
		"get", "machinestatus", "-e", cp1, "-n", cp2)
	s.expect(0, `^NODE NAMESPACE TYPE ID VERSION STAGE READY\n127.0.90.1 .* running true\n127.0.90.2 .* running true\n127.0.90.9 .* running true\n$`,
		"get", "machinestatus", "-e", cp1, "-n", strings.Join([]string{cp1, cp2, w1}, ","))
	s.expect(0, `^WARNING: 2 errors occurred:\n.* \* 127.0.90.9: rpc error: code = Unimplemented desc = member list is only available on control plane nodes\n.*NODE ID HOSTNAME PEER URLS CLIENT URLS LEARNER\n(127.0.90.1 [0-9a-f]{16} cp[12] .* false\n){2}$`,
		"etcd", "members", "-e", cp1, "-n", strings.Join([]string{cp1, w1, absent}, ","))
	s.expect(1, `PermissionDenied desc = no request forwarding`, "get", "machinestatus", "-e", w1, "-n", cp2)
	s.expect(0, `Members? cp1 \d+ cp1 controlplane.*cp2.*w1 \d+ w1 worker`, at(cp1, "get", "members")...)
}

// rebooting is talosctl reboot, which waits until the node is back and its boot ID changed.
func rebooting(s *story) {
	s.t.Helper()
	before := s.lab.Node("w1").BootID()
	s.expect(0, ``, at(w1, "reboot", "--wait", "--timeout", "40s")...)
	if s.lab.Node("w1").BootID() == before {
		s.t.Error("the boot ID did not change")
	}
	s.must(s.lab.WaitReady(s.ctx, "w1"))
	s.expect(0, ``, "reboot", "--wait=false", "-e", cp1, "-n", cp2)
	s.must(s.lab.WaitStage(s.ctx, "cp2", "rebooting", "down", "booting"))
	s.must(s.lab.WaitReady(s.ctx, "cp2"))
	s.expect(0, `cp1 .*false\n`, at(cp1, "etcd", "members")...)
}
