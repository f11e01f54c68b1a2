package node

import (
	"context"
	"crypto/x509"

	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

var errNotAuthorized = status.Error(codes.PermissionDenied, "not authorized")

type rolesKey struct{}

// rolesOf returns the caller's roles.
func rolesOf(ctx context.Context) role.Set {
	s, ok := ctx.Value(rolesKey{}).(role.Set)
	if !ok {
		return role.MakeSet()
	}
	return s
}

// extractRoles finds the caller's roles: reader for everybody in maintenance mode, else what the
// client certificate's organizations say. Another node, whose certificate says os:impersonator,
// passes on the roles of its own caller in the metadata key talos-role.
func extractRoles(ctx context.Context, maintenance bool) role.Set {
	if maintenance {
		return role.MakeSet(role.Reader)
	}
	leaf := clientLeaf(ctx)
	if leaf == nil {
		return role.MakeSet()
	}
	roles, _ := role.Parse(leaf.Subject.Organization)
	if roles.Includes(role.Impersonator) {
		if md, ok := metadata.FromIncomingContext(ctx); ok {
			if passed := md.Get("talos-role"); len(passed) > 0 {
				roles, _ = role.Parse(passed)
			}
		}
	}
	return roles
}

func clientLeaf(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return nil
	}
	return info.State.PeerCertificates[0]
}

// authorize checks the roles against the rules; a method without a rule is for admins.
func authorize(ctx context.Context, method string) error {
	allowed, ok := rules[method]
	if !ok {
		allowed = admins
	}
	if !rolesOf(ctx).IncludesAny(allowed) {
		return errNotAuthorized
	}
	return nil
}

var (
	admins    = role.MakeSet(role.Admin)
	operators = role.MakeSet(role.Admin, role.Operator)
	readers   = role.MakeSet(role.Admin, role.Operator, role.Reader)
	backups   = role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup)
)

// rules are who may call what, from Talos v1.13.5
// (internal/app/machined/pkg/system/services/machined.go).
var rules = buildRules()

func buildRules() map[string]role.Set {
	m := map[string]role.Set{
		"/machine.MachineService/ApplyConfiguration":            role.MakeSet(role.Admin, role.Reader), // the handler looks again
		"/machine.MachineService/EtcdSnapshot":                  role.MakeSet(role.Admin, role.Operator, role.EtcdBackup),
		"/machine.MachineService/MetaWrite":                     role.MakeSet(role.Admin, role.MetaWriter),
		"/machine.MachineService/MetaDelete":                    role.MakeSet(role.Admin, role.MetaWriter),
		"/machine.ImageService/Verify":                          role.MakeSet(role.Admin, role.Operator, role.Reader, role.ImageVerifier),
		"/storage.StorageService/BlockDeviceWipe":               role.MakeSet(role.Admin, role.Reader), // and again
		"/machine.LVMService/LogicalVolumeRemove":               role.MakeSet(role.Admin, role.Reader),
		"/machine.LVMService/VolumeGroupRemove":                 role.MakeSet(role.Admin, role.Reader),
		"/machine.LVMService/PhysicalVolumeRemove":              role.MakeSet(role.Admin, role.Reader),
		"/machine.ImageService/Pull":                            operators,
		"/cluster.ClusterService/HealthCheck":                   readers,
		"/inspect.InspectService/ControllerRuntimeDependencies": readers,
		"/machine.ImageService/List":                            readers,
		"/cosi.resource.State/Get":                              readers,
		"/cosi.resource.State/List":                             readers,
		"/cosi.resource.State/Watch":                            readers,
		"/storage.StorageService/Disks":                         readers,
		"/time.TimeService/Time":                                readers,
		"/time.TimeService/TimeCheck":                           readers,
	}
	for _, name := range []string{"EtcdAlarmList", "EtcdMemberList", "EtcdStatus"} {
		m["/machine.MachineService/"+name] = backups
	}
	for _, name := range []string{
		"EtcdAlarmDisarm", "EtcdDefragment", "ImagePull", "PacketCapture", "Reboot", "Restart",
		"ServiceRestart", "ServiceStart", "ServiceStop", "Shutdown",
	} {
		m["/machine.MachineService/"+name] = operators
	}
	for _, name := range []string{
		"CPUInfo", "CPUFreqStats", "Containers", "DiskStats", "DiskUsage", "Dmesg", "Events", "Hostname", "ImageList",
		"List", "LoadAvg", "Logs", "LogsContainers", "Memory", "Mounts", "NetworkDeviceStats", "Netstat", "Processes",
		"ServiceList", "Stats", "SystemStat", "Version",
	} {
		m["/machine.MachineService/"+name] = readers
	}
	return m
}
