package lab_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

const installer = "ghcr.io/siderolabs/installer:"

var cri = &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: common.ContainerdNamespace_NS_SYSTEM}

// single brings up one control plane of a Talos version.
func (r *rig) single(version string) (*node.Node, *client.Client) {
	r.t.Helper()
	r.addOf("cp1", 1, version)
	must(r.t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	r.apply(r.insecure("cp1"), r.config(mtype.TypeControlPlane, "cp1"), auto)
	r.bootstrap("cp1")
	must(r.t, r.lab.WaitReady(r.ctx, "cp1"))
	return r.lab.Node("cp1"), r.secure("cp1")
}

func (r *rig) addOf(name string, i int, version string) {
	r.t.Helper()
	_, err := r.lab.AddNode(node.Spec{Name: name, Address: r.addr(i), TalosVersion: version})
	must(r.t, err)
}

// again waits for another boot of a node and for it to be ready.
func (r *rig) again(n *node.Node, boot string) {
	r.t.Helper()
	must(r.t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	must(r.t, r.lab.WaitReady(r.ctx, n.Name()))
}

func (r *rig) tag(c *client.Client) string {
	r.t.Helper()
	v, err := c.Version(r.ctx)
	must(r.t, err)
	return v.Messages[0].Version.Tag
}

func (r *rig) pull(c *client.Client, ref string) (string, error) {
	stream, err := c.ImageClient.Pull(r.ctx, &machine.ImageServicePullRequest{Containerd: cri, ImageRef: ref})
	if err != nil {
		return "", err
	}
	name := ""
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		if m.GetName() != "" {
			name = m.GetName()
		}
	}
}

// lifecycleUpgrade returns what the installer printed and its exit code.
func (r *rig) lifecycleUpgrade(c *client.Client, ref string) (string, int32, error) {
	stream, err := c.LifecycleClient.Upgrade(r.ctx, &machine.LifecycleServiceUpgradeRequest{
		Containerd: cri, Source: &machine.InstallArtifactsSource{ImageName: ref},
	})
	if err != nil {
		return "", -1, err
	}
	var out strings.Builder
	code := int32(-1)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), code, nil
		}
		if err != nil {
			return out.String(), code, err
		}
		if msg, ok := m.GetProgress().GetResponse().(*machine.LifecycleServiceInstallProgress_Message); ok {
			out.WriteString(msg.Message)
		} else {
			code = m.GetProgress().GetExitCode()
		}
	}
}

// TestUpgradeAndRollback: the installer writes the next version, the reboot brings it, a rollback
// takes it back; and below its documents the node never opens its API.
func TestUpgradeAndRollback(t *testing.T) {
	r := newRig(t)
	n, c := r.single("v1.13.5")
	_, _, err := r.lifecycleUpgrade(c, installer+"v1.14.0")
	r.wantCode(err, codes.Internal, `upgrade failed: installer image "ghcr.io/siderolabs/installer:v1.14.0" not found in containerd store`)
	_, err = c.MachineClient.Rollback(r.ctx, &machine.RollbackRequest{})
	r.wantCode(err, codes.Unknown, `cannot rollback to "", label does not exist`)
	_, err = r.pull(c, "registry.invalid:5000/no/such:tag")
	r.wantCode(err, codes.Unknown, `failed to pull image "registry.invalid:5000/no/such:tag": failed to resolve reference`)
	_, err = r.pull(c, installer+"v1.99.0")
	r.wantCode(err, codes.NotFound, "error pulling image:")

	name, err := r.pull(c, installer+"v1.14.0")
	must(t, err)
	if !strings.HasPrefix(name, "ghcr.io/siderolabs/installer@sha256:") {
		t.Errorf("the pulled image is %q", name)
	}
	boot := n.BootID()
	out, code, err := r.lifecycleUpgrade(c, name) // as pull returned it; talosctl sends the tag
	if err != nil || code != 0 || !strings.Contains(out, "all pre-flight checks successful") {
		t.Fatalf("upgrade: %v, exit code %d\n%s", err, code, out)
	}
	if r.tag(c) != "v1.13.5" || n.BootID() != boot {
		t.Error("the node upgraded without a reboot")
	}
	must(t, c.Reboot(r.ctx))
	r.again(n, boot)
	c = r.secure("cp1")
	if r.tag(c) != "v1.14.0" {
		t.Errorf("after the reboot the node runs %s", r.tag(c))
	}
	r.wantCode(r.applyErr(c, r.withEnv("cp1"), reboot), codes.Unimplemented, "the REBOOT mode is not supported")
	if st := n.Counters(); st.Upgrade != 1 {
		t.Errorf("counters %+v", st)
	}

	// A document that only 1.14 knows, then back to 1.13.
	r.apply(c, append(r.config(mtype.TypeControlPlane, "cp1"), "---\napiVersion: v1alpha1\nkind: UdevRulesConfig\nrules: []\n"...), auto)
	boot = n.BootID()
	_, err = c.MachineClient.Rollback(r.ctx, &machine.RollbackRequest{})
	must(t, err)
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	must(t, r.lab.Wait(r.ctx, "the configuration to be refused", func() bool {
		return r.saw("cp1", "error", `failed to load "config.yaml" from STATE: error decoding document v1alpha1/UdevRulesConfig/`)
	}))
	if n.Spec().TalosVersion != "v1.13.5" {
		t.Errorf("after the rollback the node runs %s", n.Spec().TalosVersion)
	}
	boot = n.BootID()
	time.Sleep(time.Second)
	conn, err := net.DialTimeout("tcp", r.addr(1).String()+":50000", time.Second)
	if err == nil {
		conn.Close()
		t.Error("port 50000 is open on a node that can't read its configuration")
	}
	if n.BootID() != boot || n.Stage() != "booting" {
		t.Errorf("the node is %s, in another boot: %v", n.Stage(), n.BootID() != boot)
	}
}

// TestUpgradeRefusals: what Talos refuses, and when it says so.
func TestUpgradeRefusals(t *testing.T) {
	r := newRig(t)
	n, c := r.single("v1.14.0-rc.1")
	name, err := r.pull(c, installer+"v1.12.5")
	must(t, err)
	out, code, err := r.lifecycleUpgrade(c, name)
	if err != nil || code != 1 || !strings.Contains(out, "pre-flight checks failed: host version 1.14.0-rc.1 is too new to downgrade to Talos 1.12.5") {
		t.Errorf("a downgrade too far: %v, exit code %d\n%s", err, code, out)
	}
	if _, _, err = r.lifecycleUpgrade(c, ""); err == nil {
		t.Error("an upgrade to nothing is taken")
	}
	r.wantCode(err, codes.InvalidArgument, "installer image name is required")
	stream, err := c.LifecycleClient.Install(r.ctx, &machine.LifecycleServiceInstallRequest{Containerd: cri})
	if err == nil {
		_, err = stream.Recv()
	}
	r.wantCode(err, codes.AlreadyExists, "machine is already installed")
	_, err = r.pullFrom(c, common.ContainerDriver_CONTAINERD, common.ContainerdNamespace_NS_CRI)
	r.wantCode(err, codes.InvalidArgument, "cannot use CRI namespace with containerd driver")

	// The deprecated call looks at the image before it answers, and at nothing else on force.
	_, err = c.MachineClient.Upgrade(r.ctx, &machine.UpgradeRequest{Image: "registry.invalid/x:v1"}) //nolint:staticcheck // nodes still have it
	r.wantCode(err, codes.Unknown, `error validating installer image "registry.invalid/x:v1": failed to pull image`)
	if n.Stage() != "running" {
		t.Errorf("a refused upgrade left the node %s", n.Stage())
	}
	// A downgrade too far by it fails inside: the node reboots and comes back as it was.
	boot := n.BootID()
	_, err = c.MachineClient.Upgrade(r.ctx, &machine.UpgradeRequest{Image: installer + "v1.12.5"}) //nolint:staticcheck // nodes still have it
	must(t, err)
	r.again(n, boot)
	if !r.saw("cp1", "sequence-failed", `upgrade: error running phase 9 in upgrade sequence: task 1/1: failed, task "upgrade" failed: exit code 1`) {
		t.Error("the sequence did not fail")
	}
	if got := r.tag(r.secure("cp1")); got != "v1.14.0-rc.1" {
		t.Errorf("the node runs %s", got)
	}
}

func (r *rig) pullFrom(c *client.Client, d common.ContainerDriver, ns common.ContainerdNamespace) (string, error) {
	stream, err := c.ImageClient.Pull(r.ctx, &machine.ImageServicePullRequest{
		Containerd: &common.ContainerdInstance{Driver: d, Namespace: ns}, ImageRef: installer + "v1.13.5",
	})
	if err != nil {
		return "", err
	}
	m, err := stream.Recv()
	return m.GetName(), err
}

// TestLegacyUpgrade: the deprecated call upgrades in one sequence; it refuses two members, and staged
// it installs with the next boot.
func TestLegacyUpgrade(t *testing.T) {
	r := newRig(t)
	r.addOf("cp1", 1, "v1.12.5")
	r.addOf("cp2", 2, "v1.12.5")
	for _, name := range []string{"cp1", "cp2"} {
		must(t, r.lab.WaitMaintenance(r.ctx, name))
		r.apply(r.insecure(name), r.config(mtype.TypeControlPlane, name), auto)
	}
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	must(t, r.lab.WaitReady(r.ctx, "cp2"))
	must(t, r.lab.Wait(r.ctx, "two voters", func() bool { return r.voters() == 2 }))
	n, c := r.lab.Node("cp2"), r.secure("cp2")
	up := func(in *machine.UpgradeRequest) error {
		in.Image = installer + "v1.13.5"
		_, err := c.MachineClient.Upgrade(r.ctx, in) //nolint:staticcheck // nodes still have it
		return err
	}
	r.wantCode(up(&machine.UpgradeRequest{}), codes.Unknown, "error validating etcd for upgrade: etcd member count(2) is insufficient to maintain quorum if upgrade commences")
	_, _, err := r.lifecycleUpgrade(c, installer+"v1.13.5")
	r.wantCode(err, codes.Unimplemented, "unknown service machine.LifecycleService")

	boot := n.BootID()
	must(t, up(&machine.UpgradeRequest{Preserve: true}))
	must(t, r.lab.WaitStage(r.ctx, "cp2", "upgrading"))
	r.again(n, boot)
	c = r.secure("cp2")
	if r.tag(c) != "v1.13.5" {
		t.Errorf("upgraded, the node runs %s", r.tag(c))
	}
	// Staged: a reboot into the installation, and another into the new version.
	n, c = r.lab.Node("cp1"), r.secure("cp1")
	boot = n.BootID()
	must(t, up(&machine.UpgradeRequest{Force: true, Stage: true}))
	must(t, r.lab.Wait(r.ctx, "the boot that installs", func() bool { return n.BootID() != boot && n.BootID() != "" }))
	must(t, r.lab.WaitStage(r.ctx, "cp1", "installing"))
	boot = n.BootID()
	r.again(n, boot)
	if got := r.tag(r.secure("cp1")); got != "v1.13.5" {
		t.Errorf("upgraded in two steps, the node runs %s", got)
	}
}

// TestMixedEtcd: members tell their own versions; a 1.13 control plane can't join an etcd of 1.14,
// and what was added for it stays in the way.
func TestMixedEtcd(t *testing.T) {
	r := newRig(t)
	r.addOf("cp1", 1, "v1.13.5")
	r.addOf("cp2", 2, "v1.14.0")
	r.addOf("cp3", 3, "v1.13.5")
	apply := func(name string) {
		must(t, r.lab.WaitMaintenance(r.ctx, name))
		r.apply(r.insecure(name), r.config(mtype.TypeControlPlane, name), auto)
	}
	apply("cp1")
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	apply("cp2")
	must(t, r.lab.WaitReady(r.ctx, "cp2"))
	must(t, r.lab.Wait(r.ctx, "two voters", func() bool { return r.voters() == 2 }))
	versions := func(name string) string {
		resp, err := r.secure(name).EtcdStatus(r.ctx)
		must(t, err)
		m := resp.Messages[0].MemberStatus
		return m.ProtocolVersion + " " + m.StorageVersion
	}
	if a, b := versions("cp1"), versions("cp2"); a != "3.6.12 3.6.0" || b != "3.7.1 3.6.0" {
		t.Errorf("etcd of the mixed cluster: %s and %s", a, b)
	}

	// cp1 moves on: now it is a cluster of 3.7, and there is no way back.
	n, c := r.lab.Node("cp1"), r.secure("cp1")
	name, err := r.pull(c, installer+"v1.14.0")
	must(t, err)
	_, code, err := r.lifecycleUpgrade(c, name)
	if err != nil || code != 0 {
		t.Fatalf("upgrade: %v, exit code %d", err, code)
	}
	boot := n.BootID()
	must(t, c.Reboot(r.ctx))
	r.again(n, boot)
	must(t, r.lab.Wait(r.ctx, "a cluster of 3.7", func() bool { return versions("cp1") == "3.7.1 3.7.0" && versions("cp2") == "3.7.1 3.7.0" }))

	apply("cp3")
	must(t, r.lab.Wait(r.ctx, "cp3's etcd to fail", func() bool { return r.saw("cp3", "etcd", "cluster version of remote member is not compatible") }))
	list, err := r.secure("cp1").EtcdMemberList(r.ctx, &machine.EtcdMemberListRequest{})
	must(t, err)
	left := 0
	for _, m := range list.Messages[0].Members {
		if m.Hostname == "" && m.IsLearner {
			left++
		}
	}
	if left != 1 {
		t.Errorf("the members are %v", list.Messages[0].Members)
	}
	svcs, err := r.secure("cp3").ServiceInfo(r.ctx, "etcd")
	must(t, err)
	svc := svcs[0].Service
	last := svc.Events.Events[len(svc.Events.Events)-1].Msg
	if svc.State != "Waiting" || svc.Health.Unknown || svc.Health.Healthy || !strings.HasPrefix(last, `Error running Containerd(etcd), going to restart forever: task "etcd" failed: exit code 1`) {
		t.Errorf("cp3's etcd is %s, %v: %s", svc.State, svc.Health, last)
	}

	// A rollback of cp1 finds data that its etcd can't read.
	_, err = r.secure("cp1").MachineClient.Rollback(r.ctx, &machine.RollbackRequest{})
	must(t, err)
	must(t, r.lab.Wait(r.ctx, "cp1's etcd to fail", func() bool { return r.saw("cp1", "etcd", "invalid downgrade") }))
}

// events are those of the nodes, for tests that wait for one.
type events struct {
	mu   sync.Mutex
	list []node.Event
}

func (e *events) add(ev node.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
}

func (r *rig) saw(name, kind, text string) bool {
	r.events.mu.Lock()
	defer r.events.mu.Unlock()
	for _, e := range r.events.list {
		if e.Node == name && e.Kind == kind && strings.Contains(e.Detail, text) {
			return true
		}
	}
	return false
}
