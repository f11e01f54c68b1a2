package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"io"
	"regexp"
	"strings"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func configuredCases() []Case {
	cp := NeedControlPlane
	return []Case{
		{IDs: "13-T13 14-O10", Needs: cp, run: bootstrapAgain},
		{IDs: "13-C12 13-X18", Needs: cp, Max: 13, run: dryRunModes13},
		{IDs: "14-A01", Needs: cp, Min: 14, run: rebootModeGone},
		{IDs: "14-A24", Needs: cp, Min: 14, run: dryRunModes14},
		{IDs: "13-C13 13-C14 13-C15 13-C16", Needs: cp, run: cosiErrors},
		{IDs: "13-C17", Needs: cp, Mode: "container", run: containerHardware},
		{IDs: "13-C20", Needs: cp | NeedSecond, run: routingToOne},
		{IDs: "13-C18 13-C19", Needs: cp | NeedSecond, run: routingToMany},
		{IDs: "13-C21", Needs: cp | NeedAbsent, run: routingToNone},
		{IDs: "13-C22", Needs: cp | NeedBench, run: foreignCluster},
		{IDs: "13-C24", Needs: cp, run: foreignClient},
		{IDs: "13-C26", Needs: cp, run: serviceStop},
		{IDs: "13-C27 13-T16 13-X12", Needs: cp, run: readerRole},
		{IDs: "13-T15 13-X11 14-X04", Needs: NeedWorker, run: workerCalls},
		{IDs: "13-X01", Needs: cp, run: clientConfiguration},
		{IDs: "13-X02", Needs: cp, Mode: "metal", run: rollbackToNothing},
		{IDs: "13-X03 13-X04", Needs: cp, run: files},
		{IDs: "13-X05 13-X06 13-X07 13-X19", Needs: cp, run: func(r *R) { r.readerCalls(r.admin(r.s.ControlPlane)) }},
		{IDs: "13-X08", Needs: cp, run: eventsBegin},
		{IDs: "13-X10", Needs: cp, run: rootSecrets},
		{IDs: "13-X14", Needs: cp, run: kubeconfig},
		{IDs: "13-X15", Needs: cp, Max: 13, run: func(r *R) { etcdVersions(r, "3.6.0", "3.6.") }},
		{IDs: "14-X01", Needs: cp, Min: 14, run: func(r *R) { etcdVersions(r, "3.7.0", "3.7.") }},
		{IDs: "13-X16", Needs: cp, run: alarms},
		{IDs: "13-X17", Needs: cp, Mode: "metal", run: systemDisk},
		{IDs: "14-X02", Needs: cp, Min: 14, run: imageCalls},
		{IDs: "14-O21", Needs: cp, Min: 14, Mode: "container", run: containerLifecycle},
		{IDs: "14-O22", Needs: cp, Min: 14, Mode: "metal", run: metalLifecycle},
		{IDs: "14-O25", Needs: cp, Min: 14, run: pullMissing},
		{IDs: "13-R01 14-O26", Needs: cp, Mode: "container", run: containerRefusals},
		{IDs: "14-A16", Needs: cp, Min: 14, Mode: "metal", run: bootID},
		{IDs: "14-O31", Needs: cp | NeedSecond, Min: 14, run: deprecationLogged},
		{IDs: "14-B03", Needs: cp, Min: 14, Mode: "container", run: hostDNSByContract},
		{IDs: "14-B06", Needs: cp, Min: 14, run: rc1Conflicts},
	}
}

// mayBootstrap makes sure that Bootstrap will be refused, because it would act on a control plane
// without etcd's data.
func (r *R) mayBootstrap(addrs ...string) {
	for _, a := range addrs {
		c := r.admin(a)
		if s := r.services(c)["etcd"]; s.GetState() != "Running" {
			r.Skip("etcd of %s is %q: Bootstrap might act on it", a, s.GetState())
		}
		members, err := r.members(c, true)
		if err != nil || len(members) == 0 {
			r.Skip("etcd of %s does not list its members (%v): Bootstrap might act on it", a, err)
		}
	}
}

func bootstrapAgain(r *R) {
	r.mayBootstrap(r.s.ControlPlane)
	_, err := r.admin(r.s.ControlPlane).MachineClient.Bootstrap(r.ctx, &machine.BootstrapRequest{})
	r.is("Bootstrap", err, codes.AlreadyExists, "etcd data directory is not empty")
}

const alone = "the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?"

func (r *R) badOnConfigured(c *client.Client) {
	_, err := r.dry(c, nil, auto)
	r.is("empty", err, codes.InvalidArgument, "config not found")
	_, err = r.dry(c, []byte("version: v1alpha1\nmachine:\n  nosuchkey: 1\n"), auto)
	r.is("unknown key", err, codes.InvalidArgument, unknownKey)
	_, err = r.dry(c, []byte(hostnameOnly), auto)
	r.is("HostnameConfig alone", err, codes.InvalidArgument, alone)
}

func dryRunModes13(r *R) {
	c := r.admin(r.s.ControlPlane)
	r.badOnConfigured(c)
	data := r.running(c)
	for mode, text := range map[machine.ApplyConfigurationRequest_Mode]string{
		auto: textNoReboot, reboot: textReboot, noReboot: textNoReboot, staged: textStaged, try: textNoReboot,
	} {
		m, err := r.dry(c, data, mode)
		r.must(err)
		wanted := mode
		if mode == auto {
			wanted = noReboot
		}
		want(r, "mode of "+mode.String(), m.GetMode(), wanted)
		want(r, "text of "+mode.String(), m.GetModeDetails(), "Dry run summary:\n"+text+noChanges)
	}
}

const noRebootMode = "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead"

func rebootModeGone(r *R) {
	c := r.admin(r.s.ControlPlane)
	data := r.running(c)
	_, err := r.dry(c, data, reboot)
	r.is("REBOOT in a dry run", err, codes.Unimplemented, noRebootMode)
	_, err = r.send(c, &machine.ApplyConfigurationRequest{Data: data, DryRun: true})
	r.is("no mode", err, codes.Unimplemented, noRebootMode)
	_, err = r.dry(c, []byte(minimal), reboot)
	r.is("an invalid one", err, codes.Unimplemented, noRebootMode)
}

func dryRunModes14(r *R) {
	c := r.admin(r.s.ControlPlane)
	r.badOnConfigured(c)
	data := r.running(c)
	for mode, text := range map[machine.ApplyConfigurationRequest_Mode]string{
		auto: textNoReboot, noReboot: textNoReboot, staged: textStaged, try: textNoReboot,
	} {
		m, err := r.dry(c, data, mode)
		r.must(err)
		want(r, "text of "+mode.String(), m.GetModeDetails(), "Dry run summary:\n"+text+noChanges)
	}
}

func cosiErrors(r *R) {
	c := r.admin(r.s.ControlPlane)
	r.is("unknown type", r.rawList(c, r.ctx, "runtime", "NoSuch.runtime.talos.dev"), codes.PermissionDenied, `resource type "NoSuch.runtime.talos.dev" is not supported`)
	r.is("unknown namespace", r.rawList(c, r.ctx, "nosuchns", "MachineStatuses.runtime.talos.dev"), codes.PermissionDenied, `namespace "nosuchns" is not supported`)
	const missing = "resource MachineStatuses.runtime.talos.dev(runtime/nosuch@undefined) doesn't exist"
	_, err := rawCOSI(c).Get(r.ctx, &cosi.GetRequest{Namespace: "runtime", Type: "MachineStatuses.runtime.talos.dev", Id: "nosuch", Options: &cosi.GetOptions{}})
	r.is("missing", err, codes.NotFound, missing)
	_, err = c.COSI.Get(r.ctx, resource.NewMetadata("runtime", "MachineStatuses.runtime.talos.dev", "nosuch", resource.VersionUndefined))
	if !state.IsNotFoundError(err) || status.Code(err) != codes.Unknown || !strings.Contains(msgOf(err), missing) {
		r.Errorf("missing, as the client says it: %v (%s)", err, status.Code(err))
	}
	_, err = rawCOSI(c).Destroy(r.ctx, &cosi.DestroyRequest{Namespace: "runtime", Type: "MachineStatuses.runtime.talos.dev", Id: "nosuch", Options: &cosi.DestroyOptions{}})
	r.is("a write", err, codes.PermissionDenied, "write access is not allowed")
}

func containerHardware(r *R) {
	c := r.admin(r.s.ControlPlane)
	for _, typ := range []string{"Disks.block.talos.dev", "SystemInformations.hardware.talos.dev"} {
		ns := map[bool]string{true: "runtime", false: "hardware"}[strings.HasPrefix(typ, "Disks")]
		got, err := r.list(c, ns, typ)
		r.ok(typ, err)
		want(r, typ, len(got), 0)
	}
}

func routingToOne(r *R) {
	r.mayBootstrap(r.s.ControlPlane, r.s.Second)
	c := r.admin(r.s.ControlPlane)
	for _, target := range []string{r.s.ControlPlane, r.s.Second} {
		ctx := r.node(target)
		v, err := c.MachineClient.Version(ctx, empty())
		r.ok("Version", err)
		if err == nil && v.GetMessages()[0].GetMetadata() != nil {
			r.Errorf("Version of one node has metadata %v", v.GetMessages()[0].GetMetadata())
		}
		_, err = c.MachineClient.Bootstrap(ctx, &machine.BootstrapRequest{})
		r.is("Bootstrap", err, codes.AlreadyExists, "etcd data directory is not empty")
		r.ok("COSI", r.rawList(c, ctx, "runtime", "MachineStatuses.runtime.talos.dev"))
	}
}

func routingToMany(r *R) {
	r.mayBootstrap(r.s.ControlPlane, r.s.Second)
	c := r.admin(r.s.ControlPlane)
	for _, targets := range [][]string{{r.s.Second}, {r.s.ControlPlane, r.s.Second}} {
		ctx := r.nodes(targets...)
		resp, err := c.MachineClient.Bootstrap(ctx, &machine.BootstrapRequest{})
		r.ok("Bootstrap", err)
		want(r, "messages", len(resp.GetMessages()), len(targets))
		for _, m := range resp.GetMessages() {
			md := m.GetMetadata()
			want(r, "error in the metadata", md.GetError(), "rpc error: code = AlreadyExists desc = etcd data directory is not empty")
			want(r, "status in the metadata", codes.Code(md.GetStatus().GetCode()), codes.AlreadyExists)
			want(r, "its text", md.GetStatus().GetMessage(), "etcd data directory is not empty")
		}
		v, err := c.MachineClient.Version(ctx, empty())
		r.ok("Version", err)
		for _, m := range v.GetMessages() {
			if m.GetMetadata().GetHostname() == "" || m.GetVersion().GetTag() == "" {
				r.Errorf("Version is %v", m)
			}
		}
		r.is("COSI", r.rawList(c, ctx, "runtime", "MachineStatuses.runtime.talos.dev"), codes.InvalidArgument,
			"one-2-many proxying is not supported for method /cosi.resource.State/List")
	}
}

// notThere is what an address without a node gives; a host in reach says so, a network may take 3 s to.
func routingToNone(r *R) {
	c := r.admin(r.s.ControlPlane)
	text := "connection error: desc = \"transport: Error while dialing: dial tcp "
	_, err := c.MachineClient.Version(r.node(r.s.Absent), empty())
	r.has("Version", err, codes.Unavailable, text, ":50000: connect: ")
	resp, err := c.MachineClient.Version(r.nodes(r.s.Absent), empty())
	r.ok("Version with nodes", err)
	if err == nil {
		md := resp.GetMessages()[0].GetMetadata()
		want(r, "status in the metadata", codes.Code(md.GetStatus().GetCode()), codes.Unavailable)
		want(r, "node in the metadata", md.GetHostname(), r.s.Absent)
	}
}

func foreignCluster(r *R) {
	_, err := r.dial(r.s.ControlPlane, r.s.bench.Foreign()).MachineClient.Version(r.ctx, empty())
	r.is("a foreign cluster's client", err, codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority (possibly because of \"x509: Ed25519 verification failure\" while trying to verify candidate authority certificate \"talos\")"`)
}

var badClientErrors = regexp.MustCompile(`remote error: tls: (unknown certificate authority|bad certificate)|broken pipe|connection reset by peer|EOF`)

func foreignClient(r *R) {
	stranger := r.strangersCert()
	c := r.with(r.s.ControlPlane, &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &stranger, nil // whatever authorities the server names
	}})
	_, err := c.MachineClient.Version(r.ctx, empty())
	if status.Code(err) != codes.Unavailable || !badClientErrors.MatchString(msgOf(err)) {
		r.Errorf("a client certificate of a stranger: %v", err)
	}
	_, err = r.with(r.s.ControlPlane, &tls.Config{InsecureSkipVerify: true, RootCAs: stdx509.NewCertPool()}).MachineClient.Version(r.ctx, empty())
	if status.Code(err) != codes.Unavailable || !handshakeErrors.MatchString(msgOf(err)) {
		r.Errorf("no client certificate: %v", err)
	}
}

func serviceStop(r *R) {
	mc := r.admin(r.s.ControlPlane).MachineClient
	for _, id := range []string{"kubelet", "apid"} {
		_, err := mc.ServiceStop(r.ctx, &machine.ServiceStopRequest{Id: id})
		r.is(id, err, codes.Unknown, `service "`+id+`" doesn't support stop operation via API`)
	}
	got := ids(r.services(r.admin(r.s.ControlPlane)))
	wanted := "apid containerd cri etcd kubelet machined trustd"
	if r.s.mode == "metal" {
		wanted = "apid auditd containerd cri etcd kubelet machined syslogd trustd udevd"
		if r.s.minor >= 14 && strings.Contains(got, "sandboxd") { // there with a SecurityProfileConfig
			wanted = "apid auditd containerd cri etcd kubelet machined sandboxd syslogd trustd udevd"
		}
	}
	want(r, "services of a control plane", got, wanted)
	if r.s.Worker != "" {
		wanted = strings.NewReplacer("etcd ", "", "trustd ", "", " trustd", "").Replace(wanted)
		want(r, "services of a worker", ids(r.services(r.admin(r.s.Worker))), wanted)
	}
}

func readerRole(r *R) {
	c := r.reading(r.s.ControlPlane)
	r.adminCalls(c)
	r.readerCalls(c)
	for _, data := range [][]byte{nil, []byte("{"), []byte(hostnameOnly)} {
		_, err := r.dry(c, data, auto)
		r.is("apply", err, codes.PermissionDenied, notAuthorized)
	}
	_, err := r.members(c, true)
	r.ok("EtcdMemberList", err)
	_, err = c.MachineClient.EtcdStatus(r.ctx, empty())
	r.ok("EtcdStatus", err)
}

func workerCalls(r *R) {
	c := r.admin(r.s.Worker)
	if y, err := r.yamlOf(c, "config", "MachineTypes.config.talos.dev", "machine-type"); err != nil || strings.TrimSpace(y) != "worker" {
		r.Fatalf("%s was named as a worker and says it is %q (%v): nothing more was asked", r.s.Worker, strings.TrimSpace(y), err)
	}
	mc := c.MachineClient
	_, err := mc.Bootstrap(r.ctx, &machine.BootstrapRequest{})
	r.is("Bootstrap", err, codes.Unimplemented, "bootstrap is only available on control plane nodes")
	r.etcdUnimplemented(c)
	_, err = mc.GenerateClientConfiguration(r.ctx, &machine.GenerateClientConfigurationRequest{})
	r.is("GenerateClientConfiguration", err, codes.Unimplemented, "generate client configuration is only available on control plane nodes")
	r.is("Kubeconfig", first(mc.Kubeconfig(r.ctx, empty())), codes.Unimplemented, "kubeconfig is only available on control plane nodes")
	r.is("EtcdSnapshot", first(mc.EtcdSnapshot(r.ctx, &machine.EtcdSnapshotRequest{})), codes.Unimplemented, "etcd snapshot is only available on control plane nodes")
}

func clientConfiguration(r *R) {
	_, err := r.admin(r.s.ControlPlane).MachineClient.GenerateClientConfiguration(r.ctx, &machine.GenerateClientConfigurationRequest{})
	r.is("without a lifetime", err, codes.InvalidArgument, "crt_ttl should be positive")
}

// rollbackToNothing is asked of a node that was installed once and never upgraded.
func rollbackToNothing(r *R) {
	if r.s.bench == nil && !r.s.Destructive {
		r.Skip("a node that has been upgraded would go back: it needs leave to change nodes (-destructive)")
	}
	_, err := r.admin(r.s.ControlPlane).MachineClient.Rollback(r.ctx, &machine.RollbackRequest{})
	// "file does not exist" was seen where no boot loader had been installed; with one it names the label.
	if msg := status.Convert(err).Message(); status.Code(err) != codes.Unknown || (msg != "file does not exist" && msg != `cannot rollback to "", label does not exist`) {
		r.Errorf("Rollback: %v", err)
	}
}

func files(r *R) {
	c := r.admin(r.s.ControlPlane)
	text, err := r.read(c, "/etc/os-release")
	r.must(err)
	for _, line := range []string{`NAME="Talos"`, "ID=talos", "VERSION_ID=" + r.s.tag} {
		if !strings.Contains(text, line+"\n") {
			r.Errorf("/etc/os-release is %q, want a line %q", text, line)
		}
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	s, err := c.MachineClient.List(ctx, &machine.ListRequest{Root: "/var"})
	r.must(err)
	f, err := s.Recv()
	r.must(err)
	if f.GetName() != "/var" || !f.GetIsDir() || f.GetRelativeName() != "." || f.GetMode() != 2147484141 || f.GetSize() == 0 {
		r.Errorf("/var is %v", f)
	}
}

func eventsBegin(r *R) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	s, err := r.admin(r.s.ControlPlane).MachineClient.Events(ctx, &machine.EventsRequest{})
	r.must(err)
	e, err := s.Recv()
	r.must(err)
	if e.GetId() == "" || e.GetData() == nil || e.GetData().GetTypeUrl() != "" || len(e.GetData().GetValue()) != 0 {
		r.Errorf("the first event is %v, want an id and empty data", e)
	}
}

func rootSecrets(r *R) {
	c := r.admin(r.s.ControlPlane)
	got, err := r.list(c, "secrets", "OSRootSecrets.secrets.talos.dev")
	r.must(err)
	want(r, "OSRootSecrets", strings.Join(got, " "), "os")
	got, err = r.list(c, "config", "MachineConfigs.config.talos.dev")
	r.must(err)
	if l := strings.Join(got, " "); l != "persistent v1alpha1" && l != "v1alpha1" {
		r.Errorf("MachineConfigs are %q", l)
	}
}

func kubeconfig(r *R) {
	s, err := r.admin(r.s.ControlPlane).MachineClient.Kubeconfig(r.brief(20*time.Second), empty())
	r.must(err)
	var all bytes.Buffer
	for {
		d, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		r.must(err)
		all.Write(d.GetBytes())
	}
	z, err := gzip.NewReader(&all)
	r.must(err)
	b, err := io.ReadAll(z)
	r.must(err)
	if !bytes.Contains(b, []byte("kind: Config")) || !bytes.Contains(b, []byte("ustar")) {
		r.Errorf("the archive has no kubeconfig in it")
	}
}

func etcdVersions(r *R, storageVersion, protocol string) {
	resp, err := r.admin(r.s.ControlPlane).MachineClient.EtcdStatus(r.ctx, empty())
	r.must(err)
	st := resp.GetMessages()[0].GetMemberStatus()
	want(r, "storage version", st.GetStorageVersion(), storageVersion)
	if !strings.HasPrefix(st.GetProtocolVersion(), protocol) {
		r.Errorf("protocol version is %s, want %sx", st.GetProtocolVersion(), protocol)
	}
	if st.GetMemberId() == 0 || st.GetLeader() == 0 || st.GetDbSize() < st.GetDbSizeInUse() || st.GetRaftIndex() < st.GetRaftAppliedIndex() {
		r.Errorf("status is %v", st)
	}
}

func alarms(r *R) {
	resp, err := r.admin(r.s.ControlPlane).MachineClient.EtcdAlarmList(r.ctx, empty())
	r.must(err)
	want(r, "messages", len(resp.GetMessages()), 1)
	want(r, "alarms", len(resp.GetMessages()[0].GetMemberAlarms()), 0)
}

func systemDisk(r *R) {
	resp, err := r.admin(r.s.ControlPlane).StorageClient.Disks(r.ctx, empty())
	r.must(err)
	for _, d := range resp.GetMessages()[0].GetDisks() {
		if d.GetSystemDisk() {
			if !strings.HasPrefix(d.GetDeviceName(), "/dev/") || d.GetSize() == 0 || d.GetSubsystem() != "/sys/class/block" {
				r.Errorf("the system disk is %v", d)
			}
			return
		}
	}
	r.Errorf("no disk is the system disk: %v", resp.GetMessages()[0].GetDisks())
}

func system() *common.ContainerdInstance {
	return &common.ContainerdInstance{Namespace: common.ContainerdNamespace_NS_SYSTEM}
}
