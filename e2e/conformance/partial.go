package conformance

import (
	"strings"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"
)

const hostnameOnly = "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: only-this\n"

// newTypesOf114 came with 1.14; unused they are empty lists.
var newTypesOf114 = []string{
	"RebootRequests.runtime.talos.dev", "UnattendedInstallStatuses.runtime.talos.dev", "BootIDs.runtime.talos.dev",
}

func newTypes(r *R) {
	c := r.insecure(r.s.Maintenance)
	for _, typ := range newTypesOf114 {
		got, err := r.list(c, "runtime", typ)
		r.ok("list of "+typ, err)
		if !strings.HasPrefix(typ, "BootIDs") {
			want(r, typ, len(got), 0)
		}
	}
}

func partialNeedsHostDNS(r *R) {
	_, err := r.dry(r.insecure(r.s.Maintenance), []byte(hostnameOnly), auto)
	r.is("HostnameConfig alone", err, codes.InvalidArgument, "1 error occurred:\n\t* hostDNS config is required in container mode\n\n")
}

func bothContracts(r *R) {
	c := r.insecure(r.s.Maintenance)
	for _, minor := range []int{13, 14} {
		for _, kind := range []mtype.Type{mtype.TypeControlPlane, mtype.TypeWorker} {
			m, err := r.dry(c, r.s.bench.Config(kind, "any", minor), auto)
			r.ok("contract 1."+string(rune('0'+minor/10))+string(rune('0'+minor%10))+" "+kind.String(), err)
			if err == nil && !strings.HasPrefix(m.GetModeDetails(), "Dry run summary:\n"+textNoReboot) {
				r.Errorf("it answers %q", m.GetModeDetails())
			}
		}
	}
}

const apiServerArgs = "cluster:\n  apiServer:\n    extraArgs:\n      v: \"4\"\n"

func conflictP2(r *R) {
	c := r.insecure(r.s.Maintenance)
	_, err := r.dry(c, r.patched(r.s.bench.Config(mtype.TypeControlPlane, "any", 14), apiServerArgs), auto)
	r.is("contract 1.14", err, codes.InvalidArgument, "1 error occurred:\n\t* kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)\n\n")
	_, err = r.dry(c, r.patched(r.s.bench.Config(mtype.TypeControlPlane, "any", 13), apiServerArgs), auto)
	r.ok("contract 1.13", err)
}

func controlPlaneDocsOnWorker(r *R) {
	data := string(r.s.bench.Config(mtype.TypeWorker, "any", 14)) + "---\napiVersion: v1alpha1\nkind: KubeAPIServerConfig\nimage: registry.k8s.io/kube-apiserver:v1.36.0\n"
	_, err := r.dry(r.insecure(r.s.Maintenance), []byte(data), auto)
	r.has("a worker's", err, codes.InvalidArgument, "the following document kinds are only allowed on control plane machines: [KubeAPIServerConfig]")
}

func maintenanceDryRun(r *R) {
	c := r.insecure(r.s.Maintenance)
	data := []byte(strings.Replace(string(r.s.Target.Config), "disk: /dev/", "disk: /dev/nosuch-", 1))
	for _, mode := range []machine.ApplyConfigurationRequest_Mode{auto, reboot, noReboot} {
		m, err := r.dry(c, data, mode)
		if err != nil {
			r.Fatalf("dry run in mode %s: %v", mode, err)
		}
		want(r, "mode", m.GetMode(), noReboot)
		if !strings.HasPrefix(m.GetModeDetails(), "Dry run summary:\n"+textNoReboot+" (skipped in dry-run).\nConfig diff:\n\n--- a\n+++ b\n@@ -0,0 +1,") {
			r.Errorf("mode %s: the text begins %.200q", mode, m.GetModeDetails())
		}
		// The whole configuration is in it, line by line, secrets included.
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimRight(line, "\n"); strings.Contains(line, "key: ") || strings.Contains(line, "token: ") {
				if !strings.Contains(m.GetModeDetails(), "+"+line+"\n") {
					r.Errorf("mode %s: a line of a secret is missing", mode)
				}
			}
		}
	}
}

func old12Modes(r *R) {
	c := r.insecure(r.s.Maintenance)
	for mode, word := range map[machine.ApplyConfigurationRequest_Mode]string{noReboot: "no-reboot", staged: "staged"} {
		_, err := r.dry(c, []byte(hostnameOnly), mode)
		r.is(word, err, codes.Unimplemented, "apply configuration --mode='"+word+"' is not supported in maintenance mode")
	}
}

func old12Config(r *R) {
	c := r.insecure(r.s.Maintenance)
	_, err := r.dry(c, []byte(badYAML), auto)
	r.has("bad YAML", err, codes.Unknown)
	_, err = r.dry(c, []byte(minimal), auto)
	r.has("incomplete", err, codes.InvalidArgument, "configuration validation failed: ")
	m, err := r.dry(c, r.s.Target.Config, auto)
	r.must(err)
	want(r, "text", m.GetModeDetails(), "Node is running in maintenance mode and does not have a config yet.")
}

func old12Calls(r *R) {
	c := r.insecure(r.s.Maintenance)
	const text = "API is not implemented in maintenance mode"
	_, err := c.MachineClient.Version(r.ctx, empty())
	r.ok("Version is asked by this suite with no certificate", errIfNot(err, codes.OK, codes.Unimplemented))
	_, err = c.MachineClient.Upgrade(r.ctx, &machine.UpgradeRequest{Image: "x/y:z"}) //nolint:staticcheck // asked
	r.is("Upgrade", err, codes.Unimplemented, text)
	_, err = c.MachineClient.MetaWrite(r.ctx, &machine.MetaWriteRequest{Key: 10})
	r.is("MetaWrite", err, codes.Unimplemented, text)
	_, err = c.MachineClient.Reset(r.ctx, &machine.ResetRequest{})
	r.is("Reset", err, codes.Unimplemented, text)
	r.has("LifecycleService", first(c.LifecycleClient.Upgrade(r.ctx, &machine.LifecycleServiceUpgradeRequest{})), codes.Unimplemented, "unknown service machine.LifecycleService")
	_, err = c.TimeClient.Time(r.ctx, empty())
	r.has("TimeService", err, codes.Unimplemented, "unknown service time.TimeService")
	_, err = rawCOSI(c).Get(r.ctx, &cosi.GetRequest{Namespace: "runtime", Type: "MachineStatuses.runtime.talos.dev", Id: "machine", Options: &cosi.GetOptions{}})
	r.ok("COSI", err)
}

// partialDocument is on metal: in container form 1.14 wants hostDNS with it (14-O04).
func partialDocument(r *R) {
	a := r.s.Maintenance
	before := x509.SPKIFingerprint(r.serverCert(a)).String()
	c := r.insecure(a)
	m := r.apply(c, []byte(hostnameOnly), auto)
	want(r, "mode", m.GetMode(), noReboot)
	want(r, "text", m.GetModeDetails(), textNoReboot)
	r.wait("the new name in the certificate", func() error {
		cert := r.serverCert(a)
		if x509.SPKIFingerprint(cert).String() == before {
			return errSame
		}
		return cert.VerifyHostname("only-this")
	})
	st, err := r.status(c)
	r.must(err)
	want(r, "MachineStatus", st.String(), "stage maintenance, ready true, unmet map[]")
	h, err := c.MachineClient.Hostname(r.ctx, empty())
	r.must(err)
	want(r, "hostname", h.GetMessages()[0].GetHostname(), "only-this")
	m, err = r.dry(c, []byte(hostnameOnly), auto)
	r.must(err)
	want(r, "the same again", m.GetModeDetails(), "Dry run summary:\n"+textNoReboot+noChanges)
	r.has("it still hides its configuration", r.rawList(c, r.ctx, "config", "MachineConfigs.config.talos.dev"), codes.PermissionDenied)
}

func stagedInMaintenance(r *R) {
	c := r.insecure(r.s.Maintenance)
	m := r.apply(c, r.s.Target.Config, staged)
	want(r, "mode", m.GetMode(), staged)
	want(r, "text", m.GetModeDetails(), textStaged)
	r.pause(r.settle())
	st, err := r.status(r.insecure(r.s.Maintenance))
	r.must(err)
	want(r, "MachineStatus", st.String(), "stage maintenance, ready true, unmet map[]")
	// Only a machine that can be wiped by its bench goes on from here as if nothing had been staged.
	r.s.bench.Wipe(firstName)
	r.waitMaintenance(r.s.Maintenance)
}
