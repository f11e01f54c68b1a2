package conformance

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"google.golang.org/grpc/codes"
)

func maintenanceCases() []Case {
	return []Case{
		{IDs: "13-M01", Needs: NeedMaintenance, Min: 12, run: maintenanceCertificate},
		{IDs: "13-M02 13-M03 13-C23", Needs: NeedMaintenance, run: maintenanceClients},
		{IDs: "13-M04", Needs: NeedMaintenance, Min: 12, run: wrongFingerprint},
		{IDs: "13-M05", Needs: NeedMaintenance, run: maintenanceReads},
		{IDs: "13-M06 14-X03", Needs: NeedMaintenance, run: maintenanceRefusals},
		{IDs: "13-M07", Needs: NeedMaintenance, run: maintenanceSecrets},
		{IDs: "13-M08", Needs: NeedMaintenance, run: maintenanceEtcd},
		{IDs: "13-M09", Needs: NeedMaintenance, run: maintenanceVersion},
		{IDs: "13-M10 13-M11 13-M12 13-M13", Needs: NeedMaintenance, run: maintenanceResources},
		{IDs: "13-M15", Needs: NeedMaintenance, Mode: "metal", run: maintenanceDisks},
		{IDs: "13-M16", Needs: NeedMaintenance, run: maintenanceRouting},
		{IDs: "13-M17 13-M19 14-A27", Needs: NeedMaintenance, run: maintenanceBadConfig},
		{IDs: "13-M18", Needs: NeedMaintenance, Max: 13, run: badYAML13},
		{IDs: "14-A26", Needs: NeedMaintenance, Min: 14, run: badYAML14},
		{IDs: "13-M20", Needs: NeedMaintenance, Max: 13, run: incomplete13},
		{IDs: "14-O05", Needs: NeedMaintenance, Min: 14, run: incomplete14},
		{IDs: "13-M21 13-M22 13-M23 14-A02", Needs: NeedMaintenance | NeedConfig, run: maintenanceDryRun},
		{IDs: "13-C25 14-O03", Needs: NeedMaintenance, run: maintenanceServices},
		{IDs: "14-O20", Needs: NeedMaintenance, Min: 14, run: maintenanceLifecycle},
		{IDs: "14-O29", Needs: NeedMaintenance, Min: 14, run: newTypes},
		{IDs: "14-O04", Needs: NeedMaintenance, Min: 14, Mode: "container", run: partialNeedsHostDNS},
		{IDs: "14-B01", Needs: NeedMaintenance | NeedBench, Min: 14, Mode: "metal", run: bothContracts},
		{IDs: "14-B05", Needs: NeedMaintenance | NeedBench, Min: 14, Mode: "metal", run: conflictP2},
		{IDs: "14-B07", Needs: NeedMaintenance | NeedBench, Min: 14, Mode: "metal", run: controlPlaneDocsOnWorker},
		{IDs: "12-S01", Needs: NeedMaintenance, Min: 12, Max: 12, run: old12Modes},
		{IDs: "12-S02 12-S03 12-S04", Needs: NeedMaintenance | NeedConfig, Min: 12, Max: 12, run: old12Config},
		{IDs: "12-S05 12-S06", Needs: NeedMaintenance, Min: 12, Max: 12, run: old12Calls},
		{IDs: "13-M24", Needs: NeedMaintenance | NeedChange, Mode: "metal", run: partialDocument},
		{IDs: "13-M25", Needs: NeedMaintenance | NeedConfig | NeedChange | NeedBench, run: stagedInMaintenance},
	}
}

// serverCert is the certificate that a node shows to a client without one of its own.
func (r *R) serverCert(addr string) *stdx509.Certificate {
	d := &net.Dialer{Timeout: 10 * time.Second}
	conn, err := tls.DialWithDialer(d, "tcp", net.JoinHostPort(addr, "50000"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	r.must(err)
	defer conn.Close() //nolint:errcheck // nothing was written
	want(r, "TLS version", conn.ConnectionState().Version, uint16(tls.VersionTLS13))
	return conn.ConnectionState().PeerCertificates[0]
}

func hasIP(cert *stdx509.Certificate, ip string) bool {
	return slices.ContainsFunc(cert.IPAddresses, func(a net.IP) bool { return a.String() == ip })
}

func maintenanceCertificate(r *R) {
	cert := r.serverCert(r.s.Maintenance)
	want(r, "issuer", cert.Issuer.String(), "")
	want(r, "common name", cert.Subject.CommonName, "maintenance-service.talos.dev")
	want(r, "algorithm", cert.PublicKeyAlgorithm, stdx509.Ed25519)
	want(r, "lifetime", cert.NotAfter.Sub(cert.NotBefore), 24*time.Hour)
	for _, ip := range []string{r.s.Maintenance, "127.0.0.1", "::1"} {
		if !hasIP(cert, ip) {
			r.Errorf("address %s is not among the names %v", ip, cert.IPAddresses)
		}
	}
	if len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != stdx509.ExtKeyUsageServerAuth {
		r.Errorf("extended key usage %v, want server authentication alone", cert.ExtKeyUsage)
	}
}

// strangersCert is a client certificate that no cluster signed.
func (r *R) strangersCert() tls.Certificate {
	ca, err := x509.NewSelfSignedCertificateAuthority(x509.NotAfter(time.Now().Add(time.Hour)))
	r.must(err)
	pair, err := x509.NewKeyPair(ca, x509.CommonName("stranger"), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	r.must(err)
	return *pair.Certificate
}

// with is a client with TLS settings of its own.
func (r *R) with(addr string, cfg *tls.Config) *client.Client {
	if _, err := r.s.dial(r.ctx, addr, nil); err != nil {
		r.Fatalf("%v", err)
	}
	c, err := client.New(r.ctx, client.WithTLSConfig(cfg), client.WithEndpoints(addr))
	r.must(err)
	r.closers = append(r.closers, c.Close)
	return c
}

func maintenanceClients(r *R) {
	a := r.s.Maintenance
	_, err := r.insecure(a).MachineClient.Version(r.ctx, empty())
	r.ok("without a certificate", err)
	_, err = r.with(a, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{r.strangersCert()}}).MachineClient.Version(r.ctx, empty())
	r.ok("with a stranger's certificate", err)
	// What tells it from a configured node of another cluster: no candidate authority is named.
	_, err = r.with(a, &tls.Config{RootCAs: stdx509.NewCertPool()}).MachineClient.Version(r.ctx, empty())
	r.is("a client that verifies", err, codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"`)
}

func wrongFingerprint(r *R) {
	bad, err := x509.ParseFingerprint("AAAA")
	r.must(err)
	c := r.with(r.s.Maintenance, &tls.Config{InsecureSkipVerify: true, VerifyConnection: x509.MatchSPKIFingerprints(bad)})
	_, err = c.MachineClient.Version(r.ctx, empty())
	r.is("wrong fingerprint", err, codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: leaf peer certificate doesn't match the provided fingerprints: [AAAA]"`)
}

// first receives the first message of a stream.
func first[M any](s interface{ Recv() (M, error) }, err error) error {
	if err != nil {
		return err
	}
	_, err = s.Recv()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// readerCalls are what a reader may call in any state.
func (r *R) readerCalls(c *client.Client) {
	mc := c.MachineClient
	unary := func(name string, err error) { r.ok(name, err) }
	_, err := mc.Hostname(r.ctx, empty())
	unary("Hostname", err)
	_, err = mc.ServiceList(r.ctx, empty())
	unary("ServiceList", err)
	_, err = mc.Memory(r.ctx, empty())
	unary("Memory", err)
	_, err = mc.SystemStat(r.ctx, empty())
	unary("SystemStat", err)
	_, err = mc.LoadAvg(r.ctx, empty())
	unary("LoadAvg", err)
	_, err = mc.Mounts(r.ctx, empty())
	unary("Mounts", err)
	_, err = c.StorageClient.Disks(r.ctx, empty())
	unary("Disks", err)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	unary("List", first(mc.List(ctx, &machine.ListRequest{Root: "/var"})))
	unary("Logs", first(mc.Logs(ctx, &machine.LogsRequest{Namespace: "system", Id: "machined"})))
	unary("Events", first(mc.Events(ctx, &machine.EventsRequest{})))
	r.has("logs of nothing", first(mc.Logs(ctx, &machine.LogsRequest{Namespace: "system", Id: "nosuch"})), codes.Unknown, `log "nosuch" was not registered`)
	err = first(mc.Dmesg(ctx, &machine.DmesgRequest{}))
	if r.s.mode == "container" {
		r.is("Dmesg", err, codes.Unknown, "error opening /dev/kmsg reader: open /dev/kmsg: no such file or directory")
	} else {
		r.ok("Dmesg", err)
	}
	_, err = r.list(c, "runtime", "MachineStatuses.runtime.talos.dev")
	unary("list of MachineStatuses", err)
}

func maintenanceReads(r *R) { r.readerCalls(r.insecure(r.s.Maintenance)) }

const notAuthorized = "not authorized"

// adminCalls are what a reader may not call.
func (r *R) adminCalls(c *client.Client) {
	mc := c.MachineClient
	denied := func(name string, err error) { r.is(name, err, codes.PermissionDenied, notAuthorized) }
	_, err := mc.Bootstrap(r.ctx, &machine.BootstrapRequest{})
	denied("Bootstrap", err)
	_, err = mc.GenerateClientConfiguration(r.ctx, &machine.GenerateClientConfigurationRequest{})
	denied("GenerateClientConfiguration", err)
	_, err = mc.Rollback(r.ctx, &machine.RollbackRequest{})
	denied("Rollback", err)
	denied("Kubeconfig", first(mc.Kubeconfig(r.ctx, empty())))
	denied("Read", first(mc.Read(r.ctx, &machine.ReadRequest{Path: "/etc/os-release"})))
	_, err = mc.ServiceStop(r.ctx, &machine.ServiceStopRequest{Id: "apid"})
	denied("ServiceStop", err)
	denied("EtcdSnapshot", first(mc.EtcdSnapshot(r.ctx, &machine.EtcdSnapshotRequest{})))
	_, err = rawCOSI(c).Destroy(r.ctx, &cosi.DestroyRequest{Namespace: "runtime", Type: "MachineStatuses.runtime.talos.dev", Id: "nosuch", Options: &cosi.DestroyOptions{}})
	denied("COSI Destroy", err)
	denied("COSI List of MachineConfigs", r.rawList(c, r.ctx, config.NamespaceName, config.MachineConfigType))
	denied("COSI List of OSRootSecrets", r.rawList(c, r.ctx, secrets.NamespaceName, secrets.OSRootType))
	r.is("COSI unknown namespace", r.rawList(c, r.ctx, "nosuchns", "MachineStatuses.runtime.talos.dev"), codes.PermissionDenied, `namespace "nosuchns" is not supported`)
	r.is("COSI unknown type", r.rawList(c, r.ctx, "runtime", "NoSuch.runtime.talos.dev"), codes.PermissionDenied, `resource type "NoSuch.runtime.talos.dev" is not supported`)
}

func maintenanceRefusals(r *R) {
	c := r.insecure(r.s.Maintenance)
	r.adminCalls(c)
	_, err := c.MachineClient.MetaWrite(r.ctx, &machine.MetaWriteRequest{Key: 10, Value: []byte("x")})
	r.is("MetaWrite", err, codes.PermissionDenied, notAuthorized)
}

func maintenanceSecrets(r *R) {
	c := r.insecure(r.s.Maintenance)
	_, err := c.COSI.List(r.ctx, resource.NewMetadata(config.NamespaceName, config.MachineConfigType, "", resource.VersionUndefined))
	if err == nil || !strings.Contains(err.Error(), "PermissionDenied") {
		r.Errorf("get machineconfig: got %v, want PermissionDenied and not an empty list", err)
	}
	_, err = rawCOSI(c).Get(r.ctx, &cosi.GetRequest{Namespace: config.NamespaceName, Type: config.MachineConfigType, Id: config.ActiveID, Options: &cosi.GetOptions{}})
	r.is("get of one", err, codes.PermissionDenied, notAuthorized)
}

func maintenanceEtcd(r *R) {
	c := r.insecure(r.s.Maintenance)
	r.etcdUnimplemented(c)
}

func (r *R) etcdUnimplemented(c *client.Client) {
	mc := c.MachineClient
	for _, local := range []bool{false, true} {
		_, err := mc.EtcdMemberList(r.ctx, &machine.EtcdMemberListRequest{QueryLocal: local})
		r.is("EtcdMemberList", err, codes.Unimplemented, "member list is only available on control plane nodes")
	}
	_, err := mc.EtcdStatus(r.ctx, empty())
	r.is("EtcdStatus", err, codes.Unimplemented, "etcd status is only available on control plane nodes")
	_, err = mc.EtcdAlarmList(r.ctx, empty())
	r.is("EtcdAlarmList", err, codes.Unimplemented, "etcd alarm list is only available on control plane nodes")
}

func maintenanceVersion(r *R) {
	resp, err := r.insecure(r.s.Maintenance).MachineClient.Version(r.ctx, empty())
	r.must(err)
	v := resp.GetMessages()[0]
	if v.GetFeatures() != nil {
		r.Errorf("features are %v, want none", v.GetFeatures())
	}
	want(r, "platform name", v.GetPlatform().GetName(), v.GetPlatform().GetMode())
	want(r, "os", v.GetVersion().GetOs(), "linux")
	if v.GetVersion().GetSha() == "" || !strings.HasPrefix(v.GetVersion().GetGoVersion(), "go1.") || v.GetVersion().GetArch() == "" {
		r.Errorf("version is %v", v.GetVersion())
	}
}

func maintenanceResources(r *R) {
	c := r.insecure(r.s.Maintenance)
	st, err := r.status(c)
	r.must(err)
	want(r, "MachineStatus", st.String(), "stage maintenance, ready true, unmet map[]")
	hn, err := c.MachineClient.Hostname(r.ctx, empty())
	r.must(err)
	h, err := safe.StateGetByID[*network.HostnameStatus](r.ctx, c.COSI, network.HostnameID)
	// Without a configuration only the platform names a machine: a blank one on metal has no name (HostnameConfigController).
	if nameless := state.IsNotFoundError(err) && r.s.bench == nil; !nameless {
		r.must(err)
		want(r, "hostname", h.TypedSpec().Hostname, hn.GetMessages()[0].GetHostname())
	}
	if r.s.bench != nil {
		want(r, "hostname from the platform", h.TypedSpec().Hostname, firstName)
	}
	got, err := r.list(c, network.NamespaceName, network.NodeAddressType)
	r.must(err)
	want(r, "node addresses", strings.Join(got, " "), "accumulative current default routed")
	for _, typ := range []string{cluster.MemberType, cluster.AffiliateType} {
		got, err := r.list(c, cluster.NamespaceName, typ)
		r.must(err)
		want(r, typ, len(got), 0)
	}
}

func maintenanceDisks(r *R) {
	c := r.insecure(r.s.Maintenance)
	for _, typ := range []string{block.DiskType, block.VolumeStatusType} {
		got, err := r.list(c, "runtime", typ)
		r.must(err)
		if len(got) == 0 {
			r.Errorf("no %s in namespace runtime", typ)
		}
	}
	resp, err := c.StorageClient.Disks(r.ctx, empty())
	r.must(err)
	disks := resp.GetMessages()[0].GetDisks()
	if !slices.ContainsFunc(disks, func(d *storage.Disk) bool { return strings.HasPrefix(d.GetDeviceName(), "/dev/") && d.GetSize() > 0 }) {
		r.Errorf("Disks are %v", disks)
	}
}

func maintenanceRouting(r *R) {
	c := r.insecure(r.s.Maintenance)
	// An address outside of what was named is not reached: a node in maintenance forwards nothing.
	for _, ctx := range []context.Context{
		client.WithNode(r.ctx, r.s.Maintenance), client.WithNode(r.ctx, "192.0.2.1"),
		client.WithNodes(r.ctx, "192.0.2.1"), client.WithNodes(r.ctx, r.s.Maintenance, "192.0.2.1"), //nolint:staticcheck // asked
	} {
		v, err := c.MachineClient.Version(ctx, empty())
		r.ok("Version", err)
		if err == nil && (len(v.GetMessages()) != 1 || v.GetMessages()[0].GetMetadata() != nil) {
			r.Errorf("Version answers %v", v.GetMessages())
		}
		_, err = c.MachineClient.Bootstrap(ctx, &machine.BootstrapRequest{})
		r.is("Bootstrap", err, codes.PermissionDenied, notAuthorized)
		r.ok("COSI List", r.rawList(c, ctx, "runtime", "MachineStatuses.runtime.talos.dev"))
	}
}

const unknownKey = "error decoding document /v1alpha1/ (line 1): unknown keys found during decoding:\nmachine:\n    nosuchkey: 1\n"

func maintenanceBadConfig(r *R) {
	c := r.insecure(r.s.Maintenance)
	_, err := r.dry(c, nil, auto)
	r.is("empty", err, codes.InvalidArgument, "config not found")
	_, err = r.dry(c, []byte("version: v1alpha1\nmachine:\n  nosuchkey: 1\n"), auto)
	r.is("unknown key", err, codes.InvalidArgument, unknownKey)
}

// badYAML is a flow node that ends too early, as the observations had it.
const badYAML = "{\n"

func badYAML13(r *R) {
	badYAMLAs(r, "decode error: yaml: while parsing a flow node at line 1: did not find expected node content")
}

func badYAML14(r *R) {
	badYAMLAs(r, "decode error: go-yaml load error in parser (while parsing a flow node) at L2.C1: did not find expected node content")
}

func badYAMLAs(r *R, text string) {
	_, err := r.dry(r.insecure(r.s.Maintenance), []byte(badYAML), auto)
	r.is("bad YAML", err, codes.InvalidArgument, text)
}

const minimal = "version: v1alpha1\nmachine:\n  type: controlplane\ncluster: {}\n"

func incomplete13(r *R) {
	_, err := r.dry(r.insecure(r.s.Maintenance), []byte(minimal), auto)
	r.has("incomplete", err, codes.InvalidArgument, "1 error occurred:\n\t* v1alpha1.Config: ", " errors occurred:\n\t* cluster controlplane endpoint is required\n\t* ",
		"issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)\n\t* issuing CA is required (.machine.ca)\n")
	if r.s.mode == "metal" {
		r.has("incomplete", err, codes.InvalidArgument, fmt.Sprintf("v1alpha1.Config: %d errors occurred:\n", 3+r.notInstalled(err)))
	}
}

// notInstalled is 1 when the node complains, too, of a missing install section: a metal node
// does while nothing is installed, and where this was seen something was.
func (r *R) notInstalled(err error) int {
	if r.s.mode == "metal" && strings.Contains(msgOf(err), `install instructions are required in "metal" mode`) {
		return 1
	}
	return 0
}

func incomplete14(r *R) {
	_, err := r.dry(r.insecure(r.s.Maintenance), []byte(minimal), auto)
	r.has("incomplete", err, codes.InvalidArgument, fmt.Sprintf("v1alpha1.Config: %d errors occurred:\n", 2+r.notInstalled(err)), "\t* issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)\n\t* issuing CA is required (.machine.ca)\n")
	if r.s.mode == "container" {
		r.has("incomplete", err, codes.InvalidArgument, "2 errors occurred:\n", "hostDNS config is required in container mode")
	}
	if err != nil && strings.Contains(err.Error(), "endpoint is required") {
		r.Errorf("it still complains of the endpoint: %v", err)
	}
}

func maintenanceServices(r *R) {
	wanted := map[string]string{"metal": "apid auditd containerd machined syslogd udevd", "container": "apid containerd machined"}[r.s.mode]
	got := r.services(r.insecure(r.s.Maintenance))
	if r.s.minor >= 14 {
		wanted = strings.Replace(wanted, "containerd", "containerd cri", 1)
		want(r, "cri", got["cri"].GetState(), "Waiting")
	}
	want(r, "services", ids(got), wanted)
}

func maintenanceLifecycle(r *R) {
	c := r.insecure(r.s.Maintenance)
	r.is("Install", first(c.LifecycleClient.Install(r.ctx, &machine.LifecycleServiceInstallRequest{})), codes.PermissionDenied, notAuthorized)
	r.is("Upgrade", first(c.LifecycleClient.Upgrade(r.ctx, &machine.LifecycleServiceUpgradeRequest{})), codes.PermissionDenied, notAuthorized)
	r.is("Pull", first(c.ImageClient.Pull(r.ctx, &machine.ImageServicePullRequest{})), codes.PermissionDenied, notAuthorized)
	r.ok("List", first(c.ImageClient.List(r.ctx, &machine.ImageServiceListRequest{Containerd: &common.ContainerdInstance{Namespace: common.ContainerdNamespace_NS_SYSTEM}})))
}
