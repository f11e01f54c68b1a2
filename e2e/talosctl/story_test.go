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
	// spare is a machine that is never configured.
	spare = "127.0.90.8"
	// absent is an address where nothing is.
	absent = "127.0.90.99"
)

func at(addr string, args ...string) []string { return append(args, "-n", addr, "-e", addr) }

// TestStory is a day with talosctl: two control planes and a worker from blank disks to a cluster.
// The patterns are the texts of the captures of real v1.13.5 nodes, with what varies left open.
func TestStory(t *testing.T) {
	s := newStory(t)
	for _, spec := range []node.Spec{
		{
			Name: "cp1", Address: lab.Addr(cp1), UUID: "00000000-0000-4000-8000-000000000015", Hostname: "vm1",
			Disks: []node.Disk{{Name: "vda", Size: 10 << 30, Serial: "rt-vm1", Transport: "virtio"}},
		},
		{Name: "cp2", Address: lab.Addr(cp2)},
		{Name: "w1", Address: lab.Addr(w1)},
	} {
		_, err := s.lab.AddNode(spec)
		s.must(err)
		s.must(s.lab.WaitMaintenance(s.ctx, spec.Name))
	}
	cpFile := s.config(machine.TypeControlPlane, "cp1")
	maintenance(s, cpFile)
	partial(s)
	s.same("metal-install/maint-apply", "apply-config", "-i", "-n", cp1, "-f", cpFile)
	beforeBootstrap(s, cpFile)
	bootstrap(s)
	configured(s, cpFile)
	applying(s)
	members(s)
	looking(s)
	working(s)
	rebooting(s)
	ending(s)
	s.checkTable()
	if got := s.lab.Node("cp1").Counters().Bootstrap; got != 1 {
		t.Errorf("cp1 was bootstrapped %d times, want 1", got)
	}
}

// maintenance is what an insecure and a secure client see before there is a configuration.
func maintenance(s *story, cpFile string) {
	s.t.Helper()
	insecure := func(name string, args ...string) { s.same(name, append(args, "-i", "-n", cp1)...) }
	insecure("metal-maintenance/version", "version")
	s.same("container-maintenance/secure-version", at(cp1, "version")...)
	s.same("container-maintenance/secure-get-machinestatus", at(cp1, "get", "machinestatus")...)
	s.same("container-maintenance/secure-bootstrap", at(cp1, "bootstrap")...)
	for name, kind := range map[string]string{
		"get-addresses-yaml": "addresses", "get-hostnamestatus": "hostnamestatus", "get-machineconfig-yaml": "machineconfig",
		"get-machinestatus": "machinestatus", "get-members-yaml": "members", "get-metakeys-yaml": "metakeys", "get-nodeaddress": "nodeaddress",
		"get-platformmetadata-yaml": "platformmetadata", "get-securitystate-yaml": "securitystate", "get-services-yaml": "services",
		"get-systeminformation": "systeminformation",
	} {
		insecure("metal-maintenance/"+name, "get", kind, "-o", "yaml")
	}
	insecure("metal-install/maint-disks", "get", "disks")
	insecure("metal-install/maint-systemdisk", "get", "systemdisk")
	insecure("metal-install/maint-volumestatus", "get", "volumestatus")
	insecure("container-maintenance/get-rd", "get", "rd")
	insecure("container-maintenance/insecure-get-etcdmember", "get", "etcdmember")
	insecure("container-maintenance/insecure-get-version", "get", "osversion,version")
	insecure("container-maintenance/insecure-reboot", "reboot")
	insecure("container-maintenance/insecure-services", "services")
	s.same("container-maintenance/insecure-wrongnode", "get", "machinestatus", "-i", "-n", cp1+","+cp2, "-e", cp1)
	s.same("container-maintenance/insecure-apply-bad-fp", "apply-config", "-i", "-n", cp1, "--cert-fingerprint", "AAAA", "--dry-run", "-f", cpFile)
	s.expect(0, `^$`, "wipe", "disk", "vda", "-i", "-n", cp1)
	s.expect(1, `NotFound desc = blockdevice "vdz" not found`, "wipe", "disk", "vdz", "-i", "-n", cp1)
	dry := s.expect(0, `^Dry run summary:\nApplied configuration without a reboot \(skipped in dry-run\).\nConfig diff:\n\n--- a\n\+\+\+ b\n@@ -0,0 \+1,\d+ @@\n\+version: v1alpha1\n`,
		"apply-config", "-i", "-n", cp1, "--cert-fingerprint", s.lab.Node("cp1").MaintenanceFingerprint(), "--dry-run", "-f", cpFile)
	if !strings.Contains(dry, s.bundle.TrustdInfo.Token) {
		s.t.Error("the dry run hides the machine token; a real node shows it")
	}
	if s.lab.Node("cp1").Counters().ApplyConfiguration != 0 {
		s.t.Error("a dry run was counted as a write")
	}
}

// partial is a machine in maintenance that gets a name, and a configuration for later: it stays in maintenance.
func partial(s *story) {
	s.t.Helper()
	_, err := s.lab.AddNode(node.Spec{Name: "spare", Address: lab.Addr(spare)})
	s.must(err)
	s.must(s.lab.WaitMaintenance(s.ctx, "spare"))
	file := s.file("hostname.yaml", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: only-this\n")
	s.same("container-maintenance-extra/apply-hostname-only", "apply-config", "-i", "-n", spare, "-f", file)
	s.must(s.lab.Wait(s.ctx, "the name", func() bool { return s.lab.Node("spare").Hostname() == "only-this" }))
	s.same("container-maintenance-extra/after-hostname", "get", "hostnamestatus", "-i", "-n", spare)
	s.same("container-maintenance-extra/after-machineconfig", "get", "machineconfig", "-i", "-n", spare)
	s.same("container-maintenance-extra/apply-staged", "apply-config", "-i", "--mode", "staged", "-n", spare, "-f", s.config(machine.TypeWorker, "later"))
	s.same("container-maintenance-extra/after-staged-machinestatus", "get", "machinestatus", "-i", "-n", spare)
	s.must(s.lab.Node("spare").Kill())
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
	s.same("container-extra/bootstrap-n1", at(cp1, "bootstrap")...)
	s.must(s.lab.WaitReady(s.ctx, "cp1"))
	s.same("metal-configured/bootstrap-again", at(cp1, "bootstrap")...)
	s.sameAs("reader", "container-extra/reader-bootstrap", at(cp1, "bootstrap")...)
}

// configured is a control plane that runs.
func configured(s *story, cpFile string) {
	s.t.Helper()
	s.same("metal-configured/version", at(cp1, "version")...)
	s.same("metal-configured/services", at(cp1, "services")...)
	s.expect(0, `^NODE NAMESPACE TYPE ID VERSION STAGE READY\n127.0.90.1 runtime MachineStatus machine \d+ running true\n$`, at(cp1, "get", "machinestatus")...)
	// The install rebooted the node: only the active configuration is a resource, until the next apply.
	s.same("metal-install/after-machineconfig-list", at(cp1, "get", "machineconfig")...)
	got := s.expect(0, `annotations:\n talos.dev/yaml-spec: "?1"?\nspec: \|`, at(cp1, "get", "machineconfig", "v1alpha1", "-o", "yaml")...)
	want, err := os.ReadFile(cpFile)
	s.must(err)
	if !strings.Contains(strings.ReplaceAll(got, "    ", ""), strings.ReplaceAll(string(want), "    ", "")) {
		s.t.Error("the machine configuration is not the text that was applied")
	}
	s.sameAs("reader", "container-extra/reader-machineconfig", at(cp1, "get", "machineconfig")...)
	s.sameAs("reader", "container-extra/reader-apply", at(cp1, "apply-config", "--dry-run", "-f", cpFile)...)
	for _, kind := range []string{
		"addresses", "apiserviceconfig", "certsan", "etcdmember", "etcdspec", "hostnamestatus", "identity", "links", "machinetype", "networkstatus",
		"nodeaddress", "nodename", "platformmetadata", "securitystate", "services", "systemdisk", "systeminformation", "timestatus",
	} {
		s.same("metal-configured/get-"+kind, at(cp1, "get", kind, "-o", "yaml")...)
	}
	s.same("metal-configured/get-disks-table", at(cp1, "get", "disks")...)
	s.same("metal-configured/get-volumestatus", at(cp1, "get", "volumestatus")...)
	s.expect(0, `^NODE MEMBER DB SIZE IN USE LEADER RAFT INDEX RAFT TERM RAFT APPLIED INDEX LEARNER PROTOCOL STORAGE ERRORS\n127.0.90.1 ([0-9a-f]{16}) `, at(cp1, "etcd", "status")...)
	s.same("container-configured/kubelet-stop", at(cp1, "service", "kubelet", "stop")...)
	s.same("container-configured/kubelet-start", at(cp1, "service", "kubelet", "start")...)
}

// applying is apply-config on a configured node, in its modes.
func applying(s *story) {
	s.t.Helper()
	same := s.config(machine.TypeControlPlane, "cp1")
	label := s.config(machine.TypeControlPlane, "cp1", "nodeLabels:\n", "nodeLabels:\n        a: b\n")
	env := s.config(machine.TypeControlPlane, "cp1", "    time:\n", "    env:\n        FOO: bar\n    time:\n", "machine:", "machine:")
	sysctl := s.config(machine.TypeControlPlane, "cp1", "    features:\n", "    sysctls:\n        net.core.somaxconn: \"1024\"\n    features:\n", "machine:", "machine:", "machine:", "machine:")
	disk := s.config(machine.TypeControlPlane, "cp1", "disk: /dev/vda", "disk: /dev/vdz", "a", "a", "a", "a", "a", "a")
	dry := func(name, file string, more ...string) {
		s.t.Helper()
		s.same("container-configured/"+name, at(cp1, append([]string{"apply-config", "--dry-run", "-f", file}, more...)...)...)
	}
	dry("dryrun-nochange", same)
	dry("dryrun-env-auto", env)
	for _, mode := range []string{"no-reboot", "reboot", "staged", "try"} {
		dry("dryrun-env-"+mode, env, "--mode", mode)
	}
	dry("dryrun-sysctl", sysctl)
	dry("dryrun-installdisk", disk)
	s.same("metal-install/after-apply-nochange", at(cp1, "apply-config", "-f", same)...)
	s.expect(0, `MachineConfig persistent 1\n127.0.90.1 config MachineConfig v1alpha1 2\n$`, at(cp1, "get", "machineconfig")...)
	s.same("metal-install/after-machineconfig-list2", at(cp1, "get", "machineconfig")...)
	s.expect(0, `^Staged configuration to be applied after the next reboot\n$`, at(cp1, "apply-config", "--mode", "staged", "-f", label)...)
	s.expect(0, `MachineConfig persistent 2\n127.0.90.1 config MachineConfig v1alpha1 2\n$`, at(cp1, "get", "machineconfig")...)
	s.expect(0, `^Applied configuration without a reboot\n$`, at(cp1, "apply-config", "-f", label)...)
	s.expect(0, `MachineConfig persistent 3\n127.0.90.1 config MachineConfig v1alpha1 3\n$`, at(cp1, "get", "machineconfig")...)
	s.expect(0, `^Applied configuration without a reboot\nThe config is applied in 'try' mode and will be automatically reverted back in 1s\n$`,
		at(cp1, "apply-config", "--mode", "try", "--timeout", "1s", "-f", same)...)
	s.expect(0, `MachineConfig persistent 3\n127.0.90.1 config MachineConfig v1alpha1 4\n$`, at(cp1, "get", "machineconfig")...)
	s.must(s.lab.Wait(s.ctx, "the trial to be reverted", func() bool {
		return strings.Contains(string(s.lab.Node("cp1").ConfigBytes()), "a: b\n")
	}))
	s.expect(0, `MachineConfig persistent 3\n127.0.90.1 config MachineConfig v1alpha1 5\n$`, at(cp1, "get", "machineconfig")...)
}

// members is a cluster that grew: a second control plane and a worker.
func members(s *story) {
	s.t.Helper()
	s.must(s.lab.WaitReady(s.ctx, "cp2"))
	s.expect(0, `Applied configuration without a reboot`, "apply-config", "-i", "-n", w1, "-f", s.config(machine.TypeWorker, "w1"))
	s.must(s.lab.WaitReady(s.ctx, "w1"))
	s.expect(0, `^NODE ID HOSTNAME PEER URLS CLIENT URLS LEARNER\n(127.0.90.1 [0-9a-f]{16} cp[12] https://127.0.90.[12]:2380 https://127.0.90.[12]:2379 false\n){2}$`,
		at(cp1, "etcd", "members")...)
	s.same("container-extra/bootstrap-n3-second", at(cp2, "bootstrap")...)
	s.sameAs("reader", "container-extra/reader-etcd-members", at(cp1, "etcd", "members")...)
	s.same("container-configured/etcd-status", at(cp1, "etcd", "status")...)
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
