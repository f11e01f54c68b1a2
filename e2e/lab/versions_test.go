package lab_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	yaml "go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// rc1 is a control plane's configuration in the shape of v1.14.0-rc.1 (talos-observed-114.md 3).
func (r *rig) rc1(hostname string, more ...string) []byte {
	r.t.Helper()
	b := r.bundle
	indent := func(s []byte) string { return strings.ReplaceAll(strings.TrimSpace(string(s)), "\n", "\n        ") }
	doc := `version: v1alpha1
machine:
    type: controlplane
    token: %s
    ca: {crt: %s, key: %s}
    certSANs: []
cluster:
    token: %s
    etcd:
        ca: {crt: %s, key: %s}
---
apiVersion: v1alpha1
kind: DiscoveryIdentityConfig
clusterID: %s
clusterSecret: %s
---
apiVersion: v1alpha1
kind: UnattendedInstallConfig
installer:
    image: ghcr.io/siderolabs/installer:v1.14.0-rc.1
provisioning:
    diskSelector:
        match: disk.dev_path == "/dev/vda"
---
apiVersion: v1alpha1
kind: SecurityProfileConfig
workloadIsolation: true
---
apiVersion: v1alpha1
kind: HostnameConfig
hostname: %s
---
apiVersion: v1alpha1
kind: KubeClusterConfig
clusterName: lab
endpoint: https://%s:6443
---
apiVersion: v1alpha1
kind: KubeNodeConfig
labels:
    node-role.kubernetes.io/control-plane: ""
---
apiVersion: v1alpha1
kind: KubeletConfig
image: ghcr.io/siderolabs/kubelet:v1.37.0-rc.0
---
apiVersion: v1alpha1
kind: KubeAPIServerCAConfig
issuingCA:
    cert: |
        %s
    key: |
        %s
---
apiVersion: v1alpha1
kind: KubeEtcdEncryptionConfig
config:
    resources:
        - providers:
            - secretbox:
                keys:
                    - name: key2
                      secret: %s
          resources:
            - secrets
`
	text := fmt.Sprintf(doc, b.TrustdInfo.Token, enc(b.Certs.OS.Crt), enc(b.Certs.OS.Key), b.Secrets.BootstrapToken,
		enc(b.Certs.Etcd.Crt), enc(b.Certs.Etcd.Key), b.Cluster.ID, b.Cluster.Secret, hostname, r.addr(1),
		indent(b.Certs.K8s.Crt), indent(b.Certs.K8s.Key), b.Secrets.SecretboxEncryptionSecret)
	for _, m := range more {
		text += "---\napiVersion: v1alpha1\n" + m
	}
	return []byte(text)
}

func enc(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func yamlOf(ctx context.Context, c *client.Client, ns, kind, id string) (string, error) {
	res, err := c.COSI.Get(ctx, resource.NewMetadata(ns, kind, id, resource.VersionUndefined),
		state.WithGetUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if err != nil {
		return "", err
	}
	out, err := yaml.Marshal(res.Spec())
	return string(out), err
}

// TestFinal114: a 1.14 node takes documents that the client's library doesn't know, installs as they
// say, keeps their bytes, and can be read only by who doesn't parse them.
func TestFinal114(t *testing.T) {
	r := newRig(t)
	r.addOf("cp1", 1, "v1.14.0-rc.1")
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	insecure, n := r.insecure("cp1"), r.lab.Node("cp1")
	if got := services(r, insecure)["cri"]; got != "Waiting" {
		t.Errorf("cri in maintenance is %q", got)
	}
	conf := r.rc1("cp1")
	r.wantCode(r.applyErr(insecure, []byte(strings.Replace(string(conf), "cluster:\n", "cluster:\n    clusterName: old\n    id: x\n", 1)), auto), codes.InvalidArgument,
		"cluster name is already set in the v1alpha1 config (.cluster.clusterName). Please remove it and use only the new KubeClusterConfig document to avoid conflicts")
	r.wantCode(r.applyErr(insecure, append(slices.Clone(conf), "---\napiVersion: v1alpha1\nkind: KubeNodeConfig\n"...), auto), codes.InvalidArgument, "duplicate document v1alpha1/KubeNodeConfig/ is not allowed (line ")
	r.wantCode(r.applyErr(insecure, append(slices.Clone(conf), "---\napiVersion: v1alpha1\nkind: NoSuchConfig\n"...), auto), codes.InvalidArgument, `"NoSuchConfig" "v1alpha1": not registered`)

	elsewhere := []byte(strings.Replace(string(conf), `"/dev/vda"`, `"/dev/nosuch"`, 1))
	boot := n.BootID()
	r.apply(insecure, elsewhere, auto)
	c := r.secure("cp1")
	status := func() string {
		s, _ := yamlOf(r.ctx, c, "runtime", "UnattendedInstallStatuses.runtime.talos.dev", "unattended-install")
		return strings.ReplaceAll(s, "\n", " ")
	}
	must(t, r.lab.Wait(r.ctx, "the installation to wait for its disk", func() bool { return strings.Contains(status(), "phase: pending error: no disk matched the selector") }))
	r.wantCode(c.Bootstrap(r.ctx, &machine.BootstrapRequest{}), codes.FailedPrecondition, "bootstrap is not available yet")
	if n.Stage() != "booting" || n.Ready() {
		t.Errorf("the node is %s, ready %v", n.Stage(), n.Ready())
	}
	r.apply(c, conf, auto)
	must(t, r.lab.Wait(r.ctx, "a request to reboot", func() bool {
		_, err := yamlOf(r.ctx, c, "runtime", "RebootRequests.runtime.talos.dev", "reboot-request")
		return err == nil && strings.Contains(status(), "phase: waiting-for-reboot")
	}))
	if r.saw("cp1", "stage", "installing") {
		t.Error("an unattended installation shows stage installing")
	}
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	c = r.secure("cp1")
	if _, err := yamlOf(r.ctx, c, "runtime", "RebootRequests.runtime.talos.dev", "reboot-request"); err == nil || !strings.Contains(status(), "phase: installed") {
		t.Errorf("after the reboot: %v, %s", err, status())
	}
	if got := services(r, c)["sandboxd"]; got != "Running" {
		t.Errorf("sandboxd is %q", got)
	}

	_, err := safe.StateGetByID[*configres.MachineConfig](r.ctx, c.COSI, configres.ActiveID)
	if err == nil || !strings.Contains(err.Error(), `error decoding document v1alpha1/DiscoveryIdentityConfig/ (line 12): "DiscoveryIdentityConfig" "v1alpha1": not registered`) {
		t.Errorf("the library's reading gives %v", err)
	}
	raw, err := yamlOf(r.ctx, c, "config", "MachineConfigs.config.talos.dev", "v1alpha1")
	must(t, err)
	var text string
	must(t, yaml.Unmarshal([]byte(raw), &text))
	if text != string(conf) {
		t.Errorf("what was applied is not what is read:\n%s", text)
	}
	resp, err := c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: []byte(strings.Replace(string(conf), "workloadIsolation: true", "workloadIsolation: false", 1)), Mode: auto, DryRun: true})
	must(t, err)
	if got := resp.Messages[0].ModeDetails; !strings.Contains(got, "-workloadIsolation: true\n+workloadIsolation: false\n") {
		t.Errorf("the difference is\n%s", got)
	}
	resp, err = c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: conf, Mode: auto, DryRun: true})
	must(t, err)
	if got := resp.Messages[0].ModeDetails; !strings.HasSuffix(got, "Config diff:\n\nNo changes.") {
		t.Errorf("no difference is\n%s", got)
	}
}

func services(r *rig, c *client.Client) map[string]string {
	r.t.Helper()
	resp, err := c.ServiceList(r.ctx)
	must(r.t, err)
	out := map[string]string{}
	for _, s := range resp.Messages[0].Services {
		out[s.Id] = s.State
	}
	return out
}

// TestWithoutKubernetes: a 1.14 control plane without a cluster runs, and gets Kubernetes later
// without a reboot.
func TestWithoutKubernetes(t *testing.T) {
	r := newRig(t)
	r.addOf("cp1", 1, "v1.14.0")
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	b := r.bundle
	bare := fmt.Sprintf("version: v1alpha1\nmachine:\n    type: controlplane\n    token: %s\n    ca: {crt: %s, key: %s}\n    install: {disk: /dev/vda}\n",
		b.TrustdInfo.Token, enc(b.Certs.OS.Crt), enc(b.Certs.OS.Key))
	r.wantCode(r.applyErr(r.insecure("cp1"), []byte(bare), auto), codes.InvalidArgument, "cluster instructions are required")
	r.apply(r.insecure("cp1"), []byte(bare+"cluster: {}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: cp1\n"), auto)
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	c := r.secure("cp1")
	var names []string
	for id := range services(r, c) {
		names = append(names, id)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "apid auditd containerd cri machined syslogd trustd udevd" {
		t.Errorf("services: %s", got)
	}
	r.wantCode(c.Bootstrap(r.ctx, &machine.BootstrapRequest{}), codes.InvalidArgument, "etcd is not configured, bootstrap is not possible")
	_, err := c.EtcdMemberList(r.ctx, &machine.EtcdMemberListRequest{})
	r.wantCode(err, codes.Unknown, "no controlplane endpoints discovered yet")
	_, err = c.EtcdStatus(r.ctx)
	r.wantCode(err, codes.Unknown, "failed to create etcd client: ")
	boot := r.lab.Node("cp1").BootID()
	r.apply(c, r.config(mtype.TypeControlPlane, "cp1"), auto)
	r.bootstrap("cp1")
	must(t, r.lab.Wait(r.ctx, "etcd", func() bool { return services(r, c)["etcd"] == "Running" && services(r, c)["kubelet"] == "Running" }))
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	if r.lab.Node("cp1").BootID() != boot {
		t.Error("the node rebooted")
	}
}

// TestOnlyWithABoot: what 1.14 takes without a word and does only after a restart, and the change of
// type that never starts etcd.
func TestOnlyWithABoot(t *testing.T) {
	r := newRig(t)
	n, c := r.single("v1.14.0")
	plain := string(r.config(mtype.TypeControlPlane, "cp1"))
	changed := strings.Replace(plain, "    install:\n", "    env: {RT_TEST: \"1\"}\n    files: [{content: hello, permissions: 0o644, path: /var/etc-rt-test, op: create}]\n    udev: {rules: [rule]}\n    install:\n", 1) +
		"---\napiVersion: v1alpha1\nkind: SecurityProfileConfig\nworkloadIsolation: true\n---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {LIVE: \"1\"}\n"
	if got := r.apply(c, []byte(changed), auto); got.ModeDetails != "Applied configuration without a reboot" {
		t.Errorf("the answer is %q", got.ModeDetails)
	}
	env := func() string {
		e, err := safe.StateGetByID[*runtime.Environment](r.ctx, c.COSI, "machined")
		must(t, err)
		return strings.Join(e.TypedSpec().Variables, " ")
	}
	file := func(path string) string {
		rd, err := c.Read(r.ctx, path)
		if err == nil {
			defer rd.Close()
			buf := make([]byte, 100)
			var k int
			k, err = rd.Read(buf)
			if err == nil || k > 0 {
				return string(buf[:k])
			}
		}
		return ""
	}
	state := func() string {
		return fmt.Sprint(strings.Contains(env(), "RT_TEST=1"), strings.Contains(env(), "LIVE=1"), file("/var/etc-rt-test") == "hello",
			services(r, c)["sandboxd"] == "Running", file("/usr/lib/udev/rules.d/99-talos.rules") == "rule\n")
	}
	if got := state(); got != "false true false false true" {
		t.Errorf("before the restart: env, live env, file, sandboxd, udev are %s", got)
	}
	boot := n.BootID()
	must(t, c.Reboot(r.ctx))
	r.again(n, boot)
	c = r.secure("cp1")
	if got := state(); got != "true true true true true" {
		t.Errorf("after the restart: env, live env, file, sandboxd, udev are %s", got)
	}

	// A worker becomes a control plane without etcd.
	r.addOf("w1", 9, "v1.14.0")
	must(t, r.lab.WaitMaintenance(r.ctx, "w1"))
	r.apply(r.insecure("w1"), r.config(mtype.TypeWorker, "w1"), auto)
	must(t, r.lab.WaitReady(r.ctx, "w1"))
	w := r.secure("w1")
	r.apply(w, r.config(mtype.TypeControlPlane, "w1"), auto)
	must(t, r.lab.Wait(r.ctx, "the missing services to be told", func() bool { return strings.Contains(r.lab.Node("w1").Unmet(), "etcd not running, trustd not running") }))
	time.Sleep(time.Second)
	w = r.secure("w1")
	if s := services(r, w); s["etcd"] != "" || s["trustd"] != "" || r.lab.Node("w1").Stage() != "running" {
		t.Errorf("services %v in stage %s", s, r.lab.Node("w1").Stage())
	}
	r.apply(w, r.config(mtype.TypeWorker, "w1"), auto)
	must(t, r.lab.WaitReady(r.ctx, "w1"))
}

// TestWordsByVersion: the same mistakes, in each version's words.
func TestWordsByVersion(t *testing.T) {
	r := newRig(t)
	for i, v := range []struct{ version, yaml, newer string }{
		{"v1.12.5", "decode error: yaml: line 1: did not find expected node content", `"BlackholeRouteConfig" "v1alpha1": not registered`},
		{"v1.13.5", "decode error: yaml: while parsing a block node at line 1, column 4: did not find expected node content", `"SysctlConfig" "v1alpha1": not registered`},
		{"v1.14.0", "decode error: go-yaml load error in parser (while parsing a block node) at L2.C4: did not find expected node content", `"NoSuchConfig" "v1alpha1": not registered`},
	} {
		name := fmt.Sprintf("n%d", i)
		r.addOf(name, 20+i, v.version)
		must(t, r.lab.WaitMaintenance(r.ctx, name))
		c := r.insecure(name)
		code := codes.InvalidArgument
		if i == 0 {
			code = codes.Unknown // the old maintenance server gives none
			r.wantCode(r.applyErr(c, r.config(mtype.TypeWorker, "x"), noReboot), codes.Unimplemented, "apply configuration --mode='no-reboot' is not supported in maintenance mode")
			r.wantCode(r.applyErr(c, []byte("version: v1alpha1\nmachine: {type: worker}\ncluster: {}\n"), auto), codes.InvalidArgument, "configuration validation failed: ")
			_, err := c.Version(r.ctx)
			r.wantCode(err, codes.Unimplemented, "API is not implemented in maintenance mode")
		}
		r.wantCode(r.applyErr(c, []byte("machine:\n  a}: [\n  }"), auto), code, "decode error: ")
		r.wantCode(r.applyErr(c, []byte("\n   }"), auto), code, v.yaml)
		kind, _, _ := strings.Cut(v.newer[1:], `"`)
		r.wantCode(r.applyErr(c, []byte("apiVersion: v1alpha1\nkind: "+kind+"\nname: x\n"), auto), code, "error decoding document v1alpha1/"+kind+"/x (line 1): "+v.newer)
	}
}

// TestTryInMaintenance: after the time of the trial the port stays closed until a restart.
func TestTryInMaintenance(t *testing.T) {
	r := newRig(t)
	n, err := r.lab.AddNode(node.Spec{Name: "cp1", Address: r.addr(1)})
	must(t, err)
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	c := r.insecure("cp1")
	r.apply(c, r.config(mtype.TypeControlPlane, "cp1"), staged)
	if n.Stage() != "maintenance" {
		t.Errorf("a staged configuration made the node %s", n.Stage())
	}
	boot := n.BootID()
	_, err = c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: r.config(mtype.TypeControlPlane, "cp1"), Mode: try, TryModeTimeout: durationpb.New(250 * time.Millisecond)})
	must(t, err)
	must(t, r.lab.Wait(r.ctx, "the trial to end", func() bool { return r.saw("cp1", "config-rollback", "") || n.BootID() != boot }))
	t.Logf("the node is %s", n.Stage())
	// The blank disk is installed by the trial, and the machine boots from it with what was staged: it is on the disk. (On an
	// installed machine, the conformance suite's 13-M26, the port stays refused until a restart.)
	must(t, r.lab.Wait(r.ctx, "the boot from the disk", func() bool { return n.BootID() != boot }))
	r.answers("cp1")
	if n.Stage() == "maintenance" {
		t.Error("what was staged is gone")
	}
}
