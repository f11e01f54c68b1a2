package talosctl

import (
	"os"
	"path/filepath"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
)

// file writes a file of the story and returns its path.
func (s *story) file(name, content string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	s.must(os.WriteFile(path, []byte(content), 0o600))
	return path
}

// exists wants a file of the story to be there.
func (s *story) exists(name string) {
	s.t.Helper()
	if st, err := os.Stat(filepath.Join(s.dir, name)); err != nil || st.Size() == 0 {
		s.t.Errorf("%s was not written: %v", name, err)
	}
}

// looking is what one looks at on a day: nothing of it changes the cluster.
func looking(s *story) {
	s.t.Helper()
	path := func(name string) string { return filepath.Join(s.dir, name) }
	s.expect(0, `^127.0.90.1: kern: notice: \[\d{4}.*\]: Linux version \S+-talos .*127.0.90.1: user: warning: \[.*\]: \[talos\] service\[etcd\]\(Running\): `, at(cp1, "dmesg")...)
	s.expect(0, `^NODE NAME\n127.0.90.1 \.\n127.0.90.1 bin\n.*127.0.90.1 var\n$`, at(cp1, "list", "/")...)
	s.expect(0, ` /etc/hosts|hosts\n.*os-release\n`, at(cp1, "list", "-l", "/etc")...)
	s.expect(1, `lstat /nosuch: no such file or directory`, at(cp1, "list", "/nosuch")...)
	s.expect(0, `127.0.90.1 [1-9]\d+ etcd\n.*127.0.90.1 [1-9]\d+ \.\n$`, at(cp1, "usage", "/var/lib")...)
	s.expect(0, `^NAME="Talos"\nID=talos\nVERSION_ID=v1.13.5\n`, at(cp1, "read", "/etc/os-release")...)
	s.expect(0, `127.0.90.1 cp1\n`, at(cp1, "read", "/etc/hosts")...)
	s.expect(1, `^error reading: rpc error: code = NotFound desc = stat /nosuch: no such file or directory\n$`, at(cp1, "read", "/nosuch")...)
	s.expect(1, `path must be a regular file`, at(cp1, "read", "/etc")...)
	s.expect(0, `^$`, at(cp1, "copy", "/var/lib/etcd/member/snap/db", s.dir)...)
	s.exists("db")
	s.expect(0, `127.0.90.1 /dev/vda6 .* /var\n`, at(cp1, "mounts")...)
	s.expect(0, `^NODE TOTAL USED FREE SHARED BUFFERS CACHE AVAILABLE\n127.0.90.1 4096 `, at(cp1, "memory")...)
	s.expect(0, ` /sbin/init\n.*/usr/local/bin/kubelet --config`, at(cp1, "processes")...)
	s.expect(0, `^NODE NAMESPACE ID MEMORY\(MB\) CPU\n127.0.90.1 system apid .*trustd`, at(cp1, "stats")...)
	s.expect(0, `^NODE NAMESPACE ID IMAGE PID STATUS\n127.0.90.1 system apid talos/apid \d+ RUNNING\n127.0.90.1 system trustd talos/trustd \d+ RUNNING\n$`, at(cp1, "containers")...)
	s.expect(0, `kube-system/kube-apiserver-cp1 registry.k8s.io/pause:\S+ \d+ SANDBOX_READY\n.*└─ kube-system/kube-apiserver-cp1:kube-apiserver:[0-9a-f]{12} registry.k8s.io/kube-apiserver:v1.36.0 \d+ CONTAINER_RUNNING\n`, at(cp1, "containers", "-k")...)
	s.expect(0, `^127.0.90.1: \{"level":"\w+","ts":"\d{4}-.*"caller":"`, at(cp1, "logs", "etcd", "--tail", "3")...)
	s.expect(0, `service\[kubelet\]\(Running\): Health check successful`, at(cp1, "logs", "machined")...)
	s.expect(1, `^ERROR: rpc error: code = Unknown desc = log "nosuch" was not registered\n$`, at(cp1, "logs", "nosuch")...)
	s.expect(0, `tcp6 0 0 :::50000 :::\* LISTEN \d+/apid\n`, at(cp1, "netstat", "-a", "-p")...)
	s.expect(0, `ESTABLISHED\n`, at(cp1, "netstat")...)
	s.expect(1, `NotFound desc = interface "nosuch" not found`, at(cp1, "pcap", "-i", "nosuch", "--duration", "1s")...)
	s.expect(0, `^NODE NTP-SERVER NODE-TIME NTP-SERVER-TIME\n127.0.90.1 \S+ 20`, at(cp1, "time")...)
	s.expect(0, `podruntime .*etcd +`, at(cp1, "cgroups", "--preset", "memory")...)
	s.expect(0, `└──system`, at(cp1, "cgroups", "--preset", "cpu")...)
	s.expect(0, `^digraph .*"MachineStatuses.runtime.talos.dev".*"runtime.MachineStatusController"`, at(cp1, "inspect", "dependencies")...)
	s.expect(0, `^discovered nodes: \["127.0.90.1" "127.0.90.2" "127.0.90.9"\]\nwaiting for etcd to be healthy: \.\.\.\nwaiting for etcd to be healthy: OK\n.*waiting for all nodes to finish boot sequence: OK\n`, at(cp1, "health", "--wait-timeout", "20s")...)
	s.expect(1, `Unimplemented desc = cluster health check is only available on control plane nodes`, at(w1, "health", "--wait-timeout", "5s")...)
	s.expect(0, `^$`, at(cp1, "kubeconfig", path("kubeconfig"))...)
	s.exists("kubeconfig")
	s.expect(1, `Unimplemented desc = kubeconfig is only available on control plane nodes`, at(w1, "kubeconfig", path("none"))...)
	s.same("container-extra/config-new-reader", at(cp1, "config", "new", path("made"), "--roles", "os:reader")...)
	out, rc := s.runAs("made", at(cp1, "get", "machinestatus")...)
	s.check(0, rc, ` running true\n`, out, []string{"get with the made reader"})
	out, rc = s.runAs("made", at(cp1, "reboot", "--wait=false")...)
	s.check(1, rc, `PermissionDenied desc = not authorized`, out, []string{"reboot as the made reader"})
	s.watch(`^NODE ID EVENT ACTOR SOURCE MESSAGE\n127.0.90.1 [0-9a-v]{20} talos/runtime/machine\.\w+\n`, at(cp1, "events", "--tail", "5")...)
	s.watch(`127.0.90.1 \+ runtime MachineStatus machine \d+ running true\n`, at(cp1, "get", "machinestatus", "--watch")...)
	s.expect(0, `^$`, at(cp1, "etcd", "alarm", "list")...)
	foreign(s)
}

// foreign is a client of another cluster.
func foreign(s *story) {
	s.t.Helper()
	own := s.bundle
	other, err := secrets.NewBundle(secrets.NewClock(), config.TalosVersion1_13)
	s.must(err)
	s.bundle = other
	s.talosconfig("foreign", "os:admin")
	s.bundle = own
	s.sameAs("foreign", "container-extra/wrong-ca-client", at(cp1, "get", "machinestatus")...)
}

// working is what changes a cluster that goes on.
func working(s *story) {
	s.t.Helper()
	path := func(name string) string { return filepath.Join(s.dir, name) }
	s.expect(0, `^$`, at(cp1, "meta", "write", "0x0a", "a value")...)
	s.expect(0, `127.0.90.1 runtime MetaKey 0x0a 1 a value\n$`, at(cp1, "get", "metakeys")...)
	s.expect(0, `^$`, at(cp1, "meta", "delete", "0x0a")...)
	s.expect(1, `NotFound desc = meta key not found`, at(cp1, "meta", "delete", "0x0a")...)
	s.expect(0, `Service "kubelet" restarted\n$`, at(w1, "service", "kubelet", "restart")...)
	s.expect(1, `service "etcd" doesn't support restart operation via API`, at(cp1, "service", "etcd", "restart")...)
	s.expect(1, `service "nosuch" not defined`, at(cp1, "service", "nosuch", "stop")...)
	s.expect(0, `^NODE 127.0.90.1\nID etcd\nSTATE Running\nHEALTH OK\nEVENTS \[Running\]: Health check successful \(`, at(cp1, "service", "etcd")...)
	s.expect(0, `^$`, at(cp1, "restart", "trustd")...)
	s.expect(1, `container "nosuch" not found`, at(cp1, "restart", "nosuch")...)
	s.expect(1, `FailedPrecondition desc = blockdevice "vda" is in use by volume "META"`, at(cp1, "wipe", "disk", "vda")...)
	s.expect(0, ``, at(cp1, "image", "pull", "registry.k8s.io/pause:3.10")...)
	s.expect(0, `registry.k8s.io/pause:3.10`, at(cp1, "image", "list")...)
	s.expect(0, ``, at(cp1, "image", "remove", "registry.k8s.io/pause:3.10")...)
	s.expect(0, `patched MachineConfigs.config.talos.dev/v1alpha1 at the node 127.0.90.9\nApplied configuration without a reboot\n`,
		at(w1, "patch", "mc", "--patch", `{"machine":{"nodeLabels":{"zone":"a"}}}`)...)
	s.expect(0, `zone 1 `, at(w1, "get", "nodelabelspecs")...)
	s.expect(0, `etcd snapshot saved to "`+path("snapshot.db")+`" \(\d+ bytes\)\n`, at(cp1, "etcd", "snapshot", path("snapshot.db"))...)
	s.expect(0, ``, at(cp1, "etcd", "defrag")...)
	s.expect(0, ``, at(cp1, "etcd", "alarm", "disarm")...)
	s.expect(0, ``, at(cp1, "etcd", "forfeit-leadership")...)
	s.expect(1, ``, at(cp1, "etcd", "remove-member", "0000000000000001")...)
	s.expect(1, ``, at(cp1, "etcd", "downgrade", "validate", "9.9")...)
	s.expect(1, ``, at(cp1, "etcd", "downgrade", "enable", "9.9")...)
	s.expect(0, `downgrade cancel success`, at(cp1, "etcd", "downgrade", "cancel")...)
	s.expect(0, ``, at(w1, "support", "-O", path("support.zip"), "-w", "1")...)
	s.exists("support.zip")
	s.expect(1, `^error executing rollback: rpc error: code = Unknown desc = `, at(w1, "rollback")...)
}

// ending is machines that are reset, shut down, upgraded.
func ending(s *story) {
	s.t.Helper()
	env := s.config(machine.TypeWorker, "w1", "    time:\n", "    env:\n        FOO: bar\n    time:\n", "machine:", "machine:")
	s.watchWhile(` running true\n`, func() {
		s.expect(0, `^Applied configuration with a reboot: this config change can't be applied in immediate mode\ndiff:\n--- a\n\+\+\+ b\n`, at(w1, "apply-config", "-f", env)...)
	}, `machine \d+ rebooting true\n`, at(w1, "get", "machinestatus", "--watch")...)
	s.must(s.lab.WaitStage(s.ctx, "w1", "down", "booting"))
	s.must(s.lab.WaitReady(s.ctx, "w1"))
	s.expect(0, ``, at(w1, "upgrade", "--drain=false", "--image", "ghcr.io/siderolabs/installer:v1.13.6", "--timeout", "60s")...)
	s.expect(0, `Tag: v1.13.6\n`, at(w1, "version")...)
	s.expect(0, ``, at(w1, "shutdown", "--wait=false")...)
	s.expect(0, ``, at(cp2, "etcd", "leave")...)
	s.same("metal-reset/reset-cp", at(cp1, "reset", "--graceful=true", "--reboot", "--wait=false", "--system-labels-to-wipe", "STATE", "--system-labels-to-wipe", "EPHEMERAL")...)
}
