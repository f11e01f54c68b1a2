package conformance

import (
	"errors"
	"io"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
)

func imageCalls(r *R) {
	c := r.admin(r.s.ControlPlane)
	r.ok("List", first(c.ImageClient.List(r.ctx, &machine.ImageServiceListRequest{Containerd: system()})))
	v, err := c.ImageClient.Verify(r.ctx, &machine.ImageServiceVerifyRequest{ImageRef: "x/y:z"})
	r.ok("Verify", err)
	if err == nil && v.GetMessage() == "" {
		r.Errorf("Verify answers %v", v)
	}
	s, err := c.MachineClient.EtcdSnapshot(r.brief(30*time.Second), &machine.EtcdSnapshotRequest{})
	r.must(err)
	size := 0
	for {
		d, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		r.must(err)
		size += len(d.GetBytes())
	}
	if size < 4096 || size%512 != 32 { // pages of the database and the SHA-256 at the end
		r.Errorf("the snapshot has %d bytes", size)
	}
}

const inContainer = "method is not supported in container mode"

func upgradeTo(image string) *machine.LifecycleServiceUpgradeRequest {
	return &machine.LifecycleServiceUpgradeRequest{Containerd: system(), Source: &machine.InstallArtifactsSource{ImageName: image}}
}

func containerLifecycle(r *R) {
	c := r.admin(r.s.ControlPlane)
	r.is("Install", first(c.LifecycleClient.Install(r.ctx, &machine.LifecycleServiceInstallRequest{})), codes.FailedPrecondition, inContainer)
	r.is("Upgrade", first(c.LifecycleClient.Upgrade(r.ctx, upgradeTo("x/y:z"))), codes.FailedPrecondition, inContainer)
}

func metalLifecycle(r *R) {
	c := r.admin(r.s.ControlPlane)
	r.is("Install", first(c.LifecycleClient.Install(r.ctx, &machine.LifecycleServiceInstallRequest{
		Containerd: system(), Source: &machine.InstallArtifactsSource{ImageName: "x/y:z"}, Destination: &machine.InstallDestination{Disk: "/dev/vda"},
	})), codes.AlreadyExists, "machine is already installed")
	r.is("Upgrade", first(c.LifecycleClient.Upgrade(r.ctx, upgradeTo("x/y:z"))), codes.Internal,
		`upgrade failed: installer image "x/y:z" not found in containerd store: image "x/y:z": not found`)
}

func pullMissing(r *R) {
	// Nothing serves images on the discard port, whatever else may be out there.
	const image = "127.0.0.1:9/no/such:tag"
	err := drain(r.admin(r.s.ControlPlane).ImageClient.Pull(r.brief(20*time.Second), &machine.ImageServicePullRequest{Containerd: system(), ImageRef: image}))
	r.has("Pull", err, codes.Unknown, `failed to pull image "`+image+`": `)
}

// drain receives a stream to its end.
func drain[M any](s interface{ Recv() (M, error) }, err error) error {
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func containerRefusals(r *R) {
	mc := r.admin(r.s.ControlPlane).MachineClient
	_, err := mc.Reboot(r.ctx, &machine.RebootRequest{})
	r.is("Reboot", err, codes.FailedPrecondition, inContainer)
	_, err = mc.Rollback(r.ctx, &machine.RollbackRequest{})
	r.is("Rollback", err, codes.FailedPrecondition, inContainer)
	if r.s.minor >= 14 {
		_, err = mc.Upgrade(r.ctx, &machine.UpgradeRequest{Image: "x/y:z"}) //nolint:staticcheck // asked
		r.is("Upgrade", err, codes.FailedPrecondition, inContainer)
		_, err = mc.MetaWrite(r.ctx, &machine.MetaWriteRequest{Key: 10, Value: []byte("x")})
		r.is("MetaWrite", err, codes.FailedPrecondition, inContainer)
	}
}

func bootID(r *R) {
	c := r.admin(r.s.ControlPlane)
	got, err := r.list(c, "runtime", "BootIDs.runtime.talos.dev")
	r.must(err)
	want(r, "BootIDs", strings.Join(got, " "), "boot-id")
	text, err := r.read(c, "/proc/sys/kernel/random/boot_id")
	r.must(err)
	y, err := r.yamlOf(c, "runtime", "BootIDs.runtime.talos.dev", "boot-id")
	r.must(err)
	if id := strings.TrimSpace(text); len(id) != 36 || !strings.Contains(y, id) {
		r.Errorf("boot-id says %q, the kernel %q", y, text)
	}
}

func deprecationLogged(r *R) {
	c := r.admin(r.s.ControlPlane)
	_, err := c.MachineClient.Version(r.nodes(r.s.Second), empty())
	r.must(err)
	r.waitFor(5*time.Second, "apid's log", func() error {
		s, err := c.MachineClient.Logs(r.brief(5*time.Second), &machine.LogsRequest{Namespace: "system", Id: "apid", TailLines: 50})
		r.must(err)
		var all strings.Builder
		for {
			d, err := s.Recv()
			if err != nil {
				break
			}
			all.Write(d.GetBytes())
		}
		if !strings.Contains(all.String(), "using deprecated nodes proxying") {
			return errors.New("it does not say that a request used deprecated nodes proxying")
		}
		return nil
	})
}

func hostDNSByContract(r *R) {
	text := string(r.running(r.admin(r.s.ControlPlane)))
	if !strings.Contains(text, "hostDNS") {
		r.Errorf("a container's configuration that runs has no hostDNS")
	}
}

// conflicts are v1alpha1 patches that rc.1's documents don't bear, and what the node says of each.
var conflicts = []struct{ document, section, text string }{
	{"UnattendedInstallConfig", "machine:\n  install:\n    disk: /dev/vda\n", "UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)"},
	{"KubeletConfig", "machine:\n  kubelet:\n    extraArgs:\n      v: \"2\"\n", "kubelet config is already set in v1alpha1 config (.machine.kubelet)"},
	{"KubeNodeConfig", "machine:\n  nodeLabels:\n    a: b\n", ".machine.nodeLabels is already set in v1alpha1 config"},
	{"KubeClusterConfig", "cluster:\n  clusterName: other\n", "cluster name is already set in the v1alpha1 config (.cluster.clusterName). Please remove it and use only the new KubeClusterConfig document to avoid conflicts"},
	{"DiscoveryIdentityConfig", "cluster:\n  id: a\n  secret: b\n", "cluster identity is already configured in .cluster.id/.cluster.secret of the v1alpha1 config"},
	{"KubeAPIServerConfig", apiServerArgs, "kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)"},
}

func rc1Conflicts(r *R) {
	c := r.admin(r.s.ControlPlane)
	data := string(r.running(c))
	asked := 0
	for _, conflict := range conflicts {
		if !strings.Contains(data, "\nkind: "+conflict.document+"\n") {
			continue
		}
		asked++
		merged, err := mergeText(data, conflict.section)
		r.must(err)
		_, err = r.dry(c, merged, auto)
		r.has(conflict.document, err, codes.InvalidArgument, conflict.text)
	}
	if asked == 0 {
		r.Skip("the node's configuration holds none of rc.1's own documents")
	}
}
