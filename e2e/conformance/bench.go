package conformance

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// benchCases need machines of their own, or what no real machine should have to bear.
func benchCases() []Case {
	own := NeedBench
	return []Case{
		{IDs: "13-P01", Needs: own, run: addressInServices},
		{IDs: "13-T09 14-O19", Needs: own, run: skipRegistration},
		{IDs: "13-M26 13-R05", Needs: own, Mode: "metal", run: resetAndTry},
		{IDs: "13-R04", Needs: own, Mode: "metal", run: onlyMemberReset},
		{IDs: "14-O12", Needs: own, run: splitBootstrap},
		{IDs: "14-O09", Needs: own, Min: 14, run: bootstrapWorker},
		{IDs: "14-O08 14-O16 14-O17 14-O18", Needs: own, Min: 14, run: withoutKubernetes},
		{IDs: "14-O07 14-O27", Needs: own, Min: 14, Mode: "metal", run: unattendedInstall},
		{IDs: "14-O28", Needs: own, Min: 14, Mode: "metal", run: unattendedPending},
		{IDs: "14-A12", Needs: own, Min: 14, Mode: "metal", run: securityProfile},
		{IDs: "14-A13", Needs: own, Min: 14, run: workerToControlPlane},
		{IDs: "14-B08 14-G03", Needs: own, Min: 14, run: unknownDocuments},
		{IDs: "14-O23", Needs: own, Max: 13, Mode: "metal", run: upgradeByLifecycle},
		{IDs: "14-O24", Needs: own, Max: 13, Mode: "metal", run: upgradeByLegacyCall},
		{IDs: "14-J02 14-J03 14-J04", Needs: own, Min: 14, run: oldIntoNew},
		{IDs: "14-J05 14-J06 14-J07", Needs: own, Min: 14, run: newIntoOld},
		{IDs: "14-J08", Needs: own, Min: 14, run: oldOnNewDocuments},
	}
}

// Versions of the other minor, for what happens between the two.
const (
	version113 = "v1.13.5"
	version114 = "v1.14.0-rc.1"
)

// own makes machines for this case alone.
func (r *R) own() Bench {
	b := r.s.NewBench(r.t, r.t.Name())
	r.s.bench = b
	return b
}

// minorFor is the contract of configurations for the nodes' version.
func (s *site) minorFor() int { return min(max(s.minor, 13), 14) }

// add powers on a machine that only this case knows.
func (r *R) add(b Bench, name, version string) string {
	a := b.Add(name, version)
	r.s.extra = append(r.s.extra, a)
	r.waitMaintenance(a)
	return a
}

// up makes a machine and gives it a configuration.
func (r *R) up(b Bench, name, version string, kind mtype.Type, change func([]byte) []byte) string {
	a := r.add(b, name, version)
	minor := 13
	if strings.HasPrefix(version, "v1.14.") {
		minor = 14
	}
	data := b.Config(kind, name, minor)
	if change != nil {
		data = change(data)
	}
	r.apply(r.insecure(a), data, auto)
	return a
}

// one makes a control plane with a running etcd.
func (r *R) one(b Bench, name, version string) string {
	a := r.up(b, name, version, mtype.TypeControlPlane, nil)
	r.bootstrap(a)
	r.waitReady(a)
	return a
}

func addressInServices(r *R) {
	b := r.own()
	a := r.add(b, firstName, r.s.Version)
	prefix := a[:strings.LastIndexByte(a, '.')] + ".0/24"
	data := b.Config(mtype.TypeControlPlane, firstName, 13)
	r.apply(r.insecure(a), []byte(strings.Replace(string(data), "10.96.0.0/12", prefix, 1)), auto)
	var last string
	r.wait("the secure API with a certificate for 127.0.0.1", func() error {
		_, err := r.freshStatus(a)
		last = msgOf(err)
		if !strings.Contains(last, "x509: certificate is valid for 127.0.0.1, ") {
			return errors.New(last)
		}
		return nil
	})
	if !strings.Contains(last, ", not "+a) {
		r.Errorf("the client says %q", last)
	}
}

func skipRegistration(r *R) {
	b := r.own()
	a := r.up(b, firstName, r.s.Version, mtype.TypeControlPlane, func(data []byte) []byte {
		if r.s.minor < 14 {
			return r.patched(data, "machine:\n  kubelet:\n    skipNodeRegistration: true\n")
		}
		// KubeNodeConfig and the v1alpha1 document's labels don't bear each other.
		text := strings.Replace(string(data), "    nodeLabels:\n        node.kubernetes.io/exclude-from-external-load-balancers: \"\"\n", "", 1)
		return []byte(text + "---\napiVersion: v1alpha1\nkind: KubeNodeConfig\nskipNodeRegistration: true\n")
	})
	b.SetNodeReady(firstName, false)
	r.bootstrap(a)
	r.waitReady(a)
}

// resetAndTry resets a control plane's system partitions and keeps META, as the observed reset
// did; then it tries a configuration from maintenance mode, which needs no installation any more.
func resetAndTry(r *R) {
	b := r.own()
	a := r.one(b, firstName, r.s.Version)
	data := r.running(r.admin(a))
	_, err := r.admin(a).MachineClient.Reset(r.ctx, &machine.ResetRequest{Graceful: false, Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{
		{Label: "STATE", Wipe: true}, {Label: "EPHEMERAL", Wipe: true},
	}})
	r.must(err)
	st := r.waitStage(a, "resetting")
	want(r, "while resetting", st.String(), "stage resetting, ready true, unmet map[]")
	r.waitMaintenance(a)
	c := r.insecure(a)
	got, err := r.list(c, "runtime", "SystemDisks.block.talos.dev")
	r.must(err)
	want(r, "META is kept: system disks", len(got), 1)

	m, err := r.trial(c, data, 3*time.Second)
	r.must(err)
	if !strings.HasSuffix(m.GetModeDetails(), "\nThe config is applied in 'try' mode and will be automatically reverted back in 3s") {
		r.Errorf("the text is %q", m.GetModeDetails())
	}
	r.wait("the trial to be in force", func() error {
		_, err := r.freshStatus(a)
		return err
	})
	refused := 0
	r.wait("the port to stay refused after the trial", func() error {
		_, err := r.freshStatus(a)
		_, ierr := r.insecure(a).MachineClient.Version(r.brief(5*time.Second), empty())
		if !strings.Contains(msgOf(err), "connect: connection refused") || !strings.Contains(msgOf(ierr), "connect: connection refused") {
			refused = 0
			return fmt.Errorf("secure %w, insecure %v", err, ierr)
		}
		if refused++; refused < 25 {
			return errSame
		}
		return nil
	})
	b.Kill(firstName)
	b.Start(firstName)
	r.waitMaintenance(a)
}

// onlyMemberReset: a graceful reset of the only member fails inside; the machine comes back as it was.
func onlyMemberReset(r *R) {
	b := r.own()
	a := r.one(b, firstName, r.s.Version)
	data := r.running(r.admin(a))
	_, err := r.admin(a).MachineClient.Reset(r.ctx, &machine.ResetRequest{Graceful: true, Reboot: true})
	r.must(err)
	r.goesDown(a, "resetting", "rebooting", "booting", "running")
	r.waitReady(a)
	r.same("the configuration", r.running(r.admin(a)), data)
	members, err := r.members(r.admin(a), true)
	r.must(err)
	want(r, "members", len(members), 1)
}

// splitBootstrap: nothing keeps a control plane that has not joined from making a second cluster.
func splitBootstrap(r *R) {
	b := r.own()
	one := r.one(b, firstName, r.s.Version)
	b.Cut(firstName) // so that the second can't join first
	two := r.up(b, secondName, r.s.Version, mtype.TypeControlPlane, nil)
	r.bootstrap(two)
	r.waitReady(two)
	b.Heal(firstName)
	r.waitReady(one)
	for name, a := range map[string]string{firstName: one, secondName: two} {
		m, err := r.members(r.admin(a), true)
		r.must(err)
		if len(m) != 1 || m[0].GetHostname() != name {
			r.Errorf("%s has members %v, want itself alone", name, m)
		}
	}
}

// bootstrapWorker: a worker that was just configured says "not yet", and only later "never".
func bootstrapWorker(r *R) {
	b := r.own()
	r.one(b, firstName, r.s.Version)
	w := r.up(b, workerName, r.s.Version, mtype.TypeWorker, nil)
	var seen []string
	r.wait("the worker to refuse for good", func() error {
		c, err := r.s.dial(r.ctx, w, r.s.Talosconfig)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was written
		_, err = c.MachineClient.Bootstrap(r.brief(5*time.Second), &machine.BootstrapRequest{})
		switch status.Code(err) {
		case codes.FailedPrecondition:
			r.is("Bootstrap at first", err, codes.FailedPrecondition, "bootstrap is not available yet")
			note(&seen, "not yet")
		case codes.Unimplemented:
			r.is("Bootstrap later", err, codes.Unimplemented, "bootstrap is only available on control plane nodes")
			note(&seen, "never")
			return nil
		}
		return err
	})
	if want := "not yet|never"; strings.Join(seen, "|") != want {
		r.Errorf("Bootstrap at a worker was answered %q, want %q", seen, want)
	}
}

// bare is a machine's own part of a control plane's configuration, without a cluster.
func (r *R) bare(data []byte, cluster string) []byte {
	text := string(data)
	i, j := strings.Index(text, "\ncluster:"), strings.Index(text, "\n---")
	if i < 0 || j < i {
		r.Fatalf("the configuration has no cluster section before its first document's end")
	}
	rest := "---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: " + firstName + "\n"
	return []byte(text[:i+1] + cluster + rest)
}

func withoutKubernetes(r *R) {
	b := r.own()
	a := r.add(b, firstName, r.s.Version)
	data := b.Config(mtype.TypeControlPlane, firstName, 14)
	_, err := r.dry(r.insecure(a), r.bare(data, ""), auto)
	r.has("without a cluster section", err, codes.InvalidArgument, "cluster instructions are required")
	r.apply(r.insecure(a), r.bare(data, "cluster: {}\n"), auto)
	r.waitReady(a)
	c := r.admin(a)
	wanted := map[string]string{"metal": "apid auditd containerd cri machined syslogd trustd udevd", "container": "apid containerd cri machined trustd"}[r.s.mode]
	want(r, "services", ids(r.services(c)), wanted)
	_, err = c.MachineClient.Bootstrap(r.ctx, &machine.BootstrapRequest{})
	r.is("Bootstrap", err, codes.InvalidArgument, "etcd is not configured, bootstrap is not possible")
	_, err = r.members(c, false)
	r.is("EtcdMemberList", err, codes.Unknown, "no controlplane endpoints discovered yet")
	_, err = c.MachineClient.EtcdStatus(r.ctx, empty())
	r.has("EtcdStatus", err, codes.Unknown, "failed to create etcd client: ")
	r.is("Kubeconfig", first(c.MachineClient.Kubeconfig(r.ctx, empty())), codes.FailedPrecondition, "k8s API server CA config is not set")

	boot := r.bootOf(a)
	r.apply(c, data, auto)
	r.wait("the kubelet", func() error {
		if s := r.services(c)["kubelet"]; s.GetState() != "Running" {
			return fmt.Errorf("the kubelet is %q", s.GetState())
		}
		return nil
	})
	r.bootstrap(a)
	r.waitReady(a)
	want(r, "the boot", r.bootOf(a), boot)
}

// unattendedDoc stands in an rc.1 configuration in the place of machine.install.
func unattendedDoc(match string) string {
	return "---\napiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller:\n    image: ghcr.io/siderolabs/installer:" + version114 +
		"\nprovisioning:\n    diskSelector:\n        match: " + match + "\n"
}

// withoutInstall takes machine.install away.
func (r *R) withoutInstall(data []byte) string {
	text := string(data)
	i := strings.Index(text, "\n    install:\n")
	if i < 0 {
		r.Fatalf("the configuration has no install section")
	}
	rest := text[i+len("\n    install:\n"):]
	for strings.HasPrefix(rest, "        ") {
		rest = rest[strings.IndexByte(rest, '\n')+1:]
	}
	return text[:i+1] + rest
}

func (r *R) unattendedPhase(a string) (string, error) {
	c, err := r.s.dial(r.ctx, a, r.s.Talosconfig)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // nothing was written
	y, err := r.yamlOf(c, "runtime", "UnattendedInstallStatuses.runtime.talos.dev", "unattended-install")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(y) {
		if phase, ok := strings.CutPrefix(strings.TrimSpace(line), "phase: "); ok {
			requests, err := r.list(c, "runtime", "RebootRequests.runtime.talos.dev")
			if err == nil && len(requests) > 0 {
				want(r, "reboot requests", strings.Join(requests, " "), "reboot-request")
				phase += " with a reboot request"
			}
			return phase, err
		}
	}
	return y, nil
}

func unattendedInstall(r *R) {
	b := r.own()
	a := r.add(b, firstName, r.s.Version)
	m := r.apply(r.insecure(a), []byte(r.withoutInstall(b.Config(mtype.TypeControlPlane, firstName, 14))+unattendedDoc(`disk.dev_path == "/dev/vda"`)), auto)
	want(r, "text", m.GetModeDetails(), textNoReboot)
	var phases []string
	r.wait("the unattended installation to end", func() error {
		phase, err := r.unattendedPhase(a)
		if err != nil {
			return err
		}
		note(&phases, phase)
		st, err := r.freshStatus(a)
		if err == nil && (st.stage == "installing" || (st.stage == "booting" && st.ready)) {
			r.Errorf("phase %s: %s, want booting and not ready", phase, st)
		}
		if phase == "installed" {
			return nil
		}
		c := r.admin(a)
		_, err = c.MachineClient.Bootstrap(r.brief(5*time.Second), &machine.BootstrapRequest{})
		if code := status.Code(err); code != codes.FailedPrecondition && code != codes.Unavailable {
			r.Errorf("Bootstrap in phase %s: %v", phase, err)
		}
		return errors.New(phase)
	})
	r.ordered("the phases", phases, "installing", "waiting-for-reboot", "waiting-for-reboot with a reboot request", "installed")
	if !strings.Contains(strings.Join(phases, "|"), "waiting-for-reboot with a reboot request") {
		r.Errorf("no reboot was requested: %q", phases)
	}
	got, err := r.list(r.admin(a), "runtime", "SystemDisks.block.talos.dev")
	r.must(err)
	want(r, "system disks", len(got), 1)
	r.bootstrap(a)
	r.waitReady(a)
}

func unattendedPending(r *R) {
	b := r.own()
	a := r.add(b, firstName, r.s.Version)
	r.apply(r.insecure(a), []byte(r.withoutInstall(b.Config(mtype.TypeControlPlane, firstName, 14))+unattendedDoc(`disk.dev_path == "/dev/nosuch"`)), auto)
	r.wait("the phase", func() error {
		phase, err := r.unattendedPhase(a)
		if err == nil && phase != "pending" {
			err = errors.New(phase)
		}
		return err
	})
	y, err := r.yamlOf(r.admin(a), "runtime", "UnattendedInstallStatuses.runtime.talos.dev", "unattended-install")
	r.must(err)
	if !strings.Contains(y, "no disk matched the selector") {
		r.Errorf("the status is %q", y)
	}
}

func securityProfile(r *R) {
	b := r.own()
	doc := func(on string) string {
		return "---\napiVersion: v1alpha1\nkind: SecurityProfileConfig\nworkloadIsolation: " + on + "\n"
	}
	var base string
	a := r.up(b, firstName, r.s.Version, mtype.TypeControlPlane, func(data []byte) []byte {
		base = string(data)
		return []byte(base + doc("true"))
	})
	r.bootstrap(a)
	r.waitReady(a)
	c := r.admin(a)
	want(r, "sandboxd", r.services(c)["sandboxd"].GetState(), "Running")
	m := r.apply(c, []byte(base+doc("false")), auto)
	want(r, "mode", m.GetMode(), noReboot)
	r.pause(r.settle())
	want(r, "sandboxd after it was switched off", r.services(c)["sandboxd"].GetState(), "Running")
	r.rebootAndWait(a)
	if s := r.services(r.admin(a))["sandboxd"]; s != nil {
		r.Errorf("after the restart sandboxd is %s", s.GetState())
	}
}

func workerToControlPlane(r *R) {
	b := r.own()
	r.one(b, firstName, r.s.Version)
	w := r.up(b, workerName, r.s.Version, mtype.TypeWorker, nil)
	r.waitReady(w)
	c := r.admin(w)
	m := r.apply(c, b.Config(mtype.TypeControlPlane, workerName, 14), auto)
	want(r, "mode", m.GetMode(), noReboot)
	machineType := func() string {
		y, err := r.yamlOf(c, "config", "MachineTypes.config.talos.dev", "machine-type")
		r.must(err)
		return strings.TrimSpace(y)
	}
	want(r, "machine type at once", machineType(), "controlplane")
	r.wait("the status to say what is missing", func() error {
		st, err := r.freshStatus(w)
		if err != nil {
			return err
		}
		if got := st.unmet["services"]; st.ready || st.stage != "running" || got != "etcd not running, trustd not running" {
			return errors.New(st.String())
		}
		return nil
	})
	r.pause(r.settle())
	for _, id := range []string{"etcd", "trustd"} {
		if s := r.services(c)[id]; s.GetState() == "Running" {
			r.Errorf("%s was started", id)
		}
	}
	r.apply(c, b.Config(mtype.TypeWorker, workerName, 14), auto)
	want(r, "machine type on the way back", machineType(), "worker")
	r.waitReady(w)
}
