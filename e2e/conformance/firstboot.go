package conformance

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errSame = errors.New("nothing changed yet")

func firstBootCases() []Case {
	given := NeedMaintenance | NeedConfig | NeedChange
	return []Case{
		{IDs: "13-T05", Needs: given | NeedBench, run: workerWaits},
		{IDs: "13-T01 13-T03 13-R07 13-C01 14-B04", Needs: given, run: fromMaintenance},
		{IDs: "13-T10 14-O06 13-T07", Needs: given, run: bootstrapTooEarly},
		{IDs: "13-T06 13-T17 13-T18 14-O13", Needs: given, run: beforeBootstrap},
		{IDs: "13-C02", Needs: given, Mode: "metal", run: onlyActiveAfterReboot},
		{IDs: "13-T11 13-T08", Needs: given, run: bootstrapRuns},
	}
}

// workerWaits leaves a configured worker behind, whose port opens when the control plane is configured.
func workerWaits(r *R) {
	b := r.s.bench
	a := b.Add(workerName, r.s.Version)
	r.s.Worker = a
	r.waitMaintenance(a)
	r.apply(r.insecure(a), b.Config(mtype.TypeWorker, workerName, r.s.minorFor()), auto)
	refused := 0
	r.wait("the worker's port to be refused for a while", func() error {
		_, err := r.freshStatus(a)
		_, ierr := r.insecure(a).MachineClient.Version(r.ctx, empty())
		if !strings.Contains(fmt.Sprint(err), "connect: connection refused") || !strings.Contains(fmt.Sprint(ierr), "connect: connection refused") {
			refused = 0
			return fmt.Errorf("secure %w, insecure %v", err, ierr)
		}
		if refused++; refused < 20 {
			return errSame
		}
		return nil
	})
}

// handshakeErrors are what a client without a certificate gets from a configured node; which one is a race.
var handshakeErrors = regexp.MustCompile(`error reading server preface: remote error: tls: certificate required|write: broken pipe|connection reset by peer|error reading from server: EOF|error reading server preface: (EOF|.*connection reset)`)

func fromMaintenance(r *R) {
	a := r.s.Maintenance
	r.waitMaintenance(a)
	metal := r.s.mode == "metal"
	_, err := r.status(r.admin(a))
	if err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		r.Errorf("a secure client before: %v", err)
	}
	if metal && r.s.bench != nil {
		got, err := r.list(r.insecure(a), "runtime", "SystemDisks.block.talos.dev")
		r.must(err)
		want(r, "system disks before", len(got), 0)
	}
	m := r.apply(r.insecure(a), r.s.Target.Config, auto)
	want(r, "mode", m.GetMode(), noReboot)
	want(r, "text", m.GetModeDetails(), textNoReboot)
	// Insecure: OK, refused, then one of the handshake's errors. Secure: unknown authority, refused, works.
	insecureClass := func(err error) string {
		switch msg := fmt.Sprint(err); {
		case err == nil:
			return "OK"
		case strings.Contains(msg, "connect: connection refused"):
			return "refused"
		case handshakeErrors.MatchString(msg) && status.Code(err) == codes.Unavailable:
			return "certificate"
		default:
			return msg
		}
	}
	var seen, secure []string
	r.wait("the secure API", func() error {
		_, err := r.insecure(a).MachineClient.Version(r.brief(5*time.Second), empty())
		note(&seen, insecureClass(err))
		st, err := r.freshStatus(a)
		switch msg := fmt.Sprint(err); {
		case err == nil:
			note(&secure, "works")
			if metal {
				r.firstSecure(a, st)
			}
			return nil
		case strings.Contains(msg, "signed by unknown authority"):
			note(&secure, "unknown authority")
		case strings.Contains(msg, "connect: connection refused"):
			note(&secure, "refused")
		case strings.Contains(msg, "EOF"), strings.Contains(msg, "reset by peer"), strings.Contains(msg, "broken pipe"), strings.Contains(msg, "closing transport"):
			// a connection that was open when the port closed
		default:
			note(&secure, msg)
		}
		return errors.New(msgOf(err))
	})
	_, err = r.insecure(a).MachineClient.Version(r.ctx, empty())
	note(&seen, insecureClass(err))
	r.ordered("insecure client", seen, "OK", "refused", "certificate", "refused", "certificate")
	r.ordered("secure client", secure, "unknown authority", "refused", "works")
	r.has("insecure in the end", err, codes.Unavailable)
	if !metal {
		want(r, "MachineConfigs", ids(r.versions(r.admin(a))), "persistent v1alpha1")
		return
	}
	r.wait("the installed system", func() error {
		c, err := r.s.dial(r.ctx, a, r.s.Talosconfig)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was written
		st, err := r.status(c)
		if err != nil {
			return err
		}
		if st.stage == "installing" || st.stage == "rebooting" {
			return errors.New(st.String())
		}
		want(r, "stage after the installation", st.stage, "booting")
		got, err := r.list(c, "runtime", "SystemDisks.block.talos.dev")
		r.must(err)
		want(r, "system disks after", len(got), 1)
		return nil
	})
}

// firstSecure is what a metal node shows as soon as it has a configuration: it installs.
func (r *R) firstSecure(a string, st machineStatus) {
	if st.stage == "rebooting" || st.stage == "booting" {
		r.Errorf("the installation was over before it could be looked at: %s", st)
		return
	}
	want(r, "MachineStatus", st.String(), "stage installing, ready true, unmet map[]")
	c := r.admin(a)
	want(r, "MachineConfigs", ids(r.versions(c)), "persistent v1alpha1")
	v, err := c.MachineClient.Version(r.ctx, empty())
	r.must(err)
	want(r, "features.rbac", v.GetMessages()[0].GetFeatures().GetRbac(), true)
	if r.s.minor >= 14 {
		got, err := r.list(c, "runtime", "UnattendedInstallStatuses.runtime.talos.dev")
		r.ok("list of UnattendedInstallStatuses", err)
		want(r, "UnattendedInstallStatuses", len(got), 0)
	}
}

// note appends what is new.
func note(list *[]string, s string) {
	if n := len(*list); n == 0 || (*list)[n-1] != s {
		*list = append(*list, s)
	}
}

// ordered wants what was seen to be some of the steps, in their order, up to the last one.
func (r *R) ordered(what string, seen []string, steps ...string) {
	i := 0
	for _, s := range seen {
		for i < len(steps) && steps[i] != s {
			i++
		}
		if i == len(steps) {
			r.Errorf("%s: saw %q, want some of %q in this order", what, seen, steps)
			return
		}
	}
	if len(seen) == 0 || seen[len(seen)-1] != steps[len(steps)-1] {
		r.Errorf("%s: saw %q, want %q in the end", what, seen, steps[len(steps)-1])
	}
}

// unmetBefore are the reasons that "services" may have on the way up.
var unmetBefore = []string{
	"cri not healthy", "cri not running", "kubelet not running", "kubelet not healthy", "etcd not running", "trustd not running",
	"trustd not healthy", "apid not healthy", "apid not running", "sandboxd not healthy", "containerd not healthy",
}

func bootstrapTooEarly(r *R) {
	a := r.s.Maintenance
	early, longest := 0, time.Duration(0)
	r.wait("the container runtime", func() error {
		c, err := r.s.dial(r.ctx, a, r.s.Talosconfig)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was written
		st, err := r.status(c)
		if err != nil {
			return err
		}
		for reason := range strings.SplitSeq(st.unmet["services"], ", ") {
			if reason != "" && !slices.Contains(unmetBefore, reason) {
				r.Errorf("services are unmet for %q", reason)
			}
		}
		if up := r.services(c)["cri"]; up.GetState() == "Running" && up.GetHealth().GetHealthy() {
			return nil
		}
		if early == 1 { // another one might be accepted
			return errSame
		}
		start := time.Now()
		_, err = c.MachineClient.Bootstrap(r.brief(10*time.Second), &machine.BootstrapRequest{})
		took := time.Since(start)
		switch {
		case err == nil:
			r.s.bootstrapped = true
			r.Skip("the container runtime came up while Bootstrap waited for it")
		case status.Code(err) == codes.Unavailable:
			return err
		}
		early++
		r.is("Bootstrap too early", err, codes.FailedPrecondition, "bootstrap is not available yet")
		if r.s.minor >= 14 && took > time.Second/2 {
			r.Errorf("it took %s, want it at once", took)
		}
		longest = max(longest, took)
		return errSame
	})
	if early == 0 {
		r.Skip("the container runtime was up before it could be asked")
	}
	// A boot that ends meanwhile, as after an installation, ends the wait.
	if r.s.minor < 14 && longest < r.bootstrapWait() {
		r.Errorf("it took %s at most, want %s", longest, r.bootstrapWait())
	}
}

// bootstrapWait is how long 1.13 waits for the container runtime: a second, less in a lab that is fast.
func (r *R) bootstrapWait() time.Duration {
	if r.s.bench != nil {
		return 90 * time.Millisecond
	}
	return 900 * time.Millisecond
}

// settle is long enough for a node to do what it must not do.
func (r *R) settle() time.Duration {
	if r.s.bench != nil {
		return 500 * time.Millisecond
	}
	return 20 * time.Second
}

func (r *R) hostname(c *client.Client) string {
	h, err := c.MachineClient.Hostname(r.ctx, empty())
	r.must(err)
	return h.GetMessages()[0].GetHostname()
}

func beforeBootstrap(r *R) {
	if r.s.bootstrapped {
		r.Skip("Bootstrap was accepted when it was asked too early")
	}
	c := r.admin(r.s.Maintenance)
	name := r.hostname(c)
	r.wait("nothing but etcd to be missing", func() error {
		st, err := r.status(c)
		if err != nil {
			return err
		}
		want(r, "stage", st.stage, "booting")
		want(r, "ready", st.ready, false)
		if st.unmet["services"] != "etcd not running" {
			return errors.New(st.String())
		}
		// The node can't become ready without an API server.
		if got := st.unmet["nodeReady"]; got != fmt.Sprintf("node %q status is not available yet", name) {
			r.Errorf("nodeReady is unmet for %q", got)
		}
		return nil
	})
	etcd := r.services(c)["etcd"]
	want(r, "etcd", etcd.GetState(), "Preparing")
	want(r, "etcd's health is unknown", etcd.GetHealth().GetUnknown(), true)
	if ev := etcd.GetEvents().GetEvents(); len(ev) == 0 || ev[len(ev)-1].GetMsg() != "Running pre state" {
		r.Errorf("etcd's last event is %v", ev)
	}
	for call, err := range r.hanging(c) {
		if status.Code(err) != codes.DeadlineExceeded {
			r.Errorf("%s: got %v, want it to hang until the deadline", call, err)
		}
	}
}

// hanging asks etcd's calls at once, each with a deadline, and returns what came of them.
func (r *R) hanging(c *client.Client) map[string]error {
	const deadline = 1500 * time.Millisecond
	calls := map[string]func() error{
		"EtcdMemberList": func() error {
			_, err := c.MachineClient.EtcdMemberList(r.brief(deadline), &machine.EtcdMemberListRequest{QueryLocal: true})
			return err
		},
		"EtcdStatus": func() error {
			_, err := c.MachineClient.EtcdStatus(r.brief(deadline), empty())
			return err
		},
		"EtcdAlarmList": func() error {
			_, err := c.MachineClient.EtcdAlarmList(r.brief(deadline), empty())
			return err
		},
		"EtcdSnapshot": func() error {
			return first(c.MachineClient.EtcdSnapshot(r.brief(deadline), &machine.EtcdSnapshotRequest{}))
		},
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]error{}
	for name, f := range calls {
		wg.Go(func() {
			err := f()
			mu.Lock()
			defer mu.Unlock()
			out[name] = err
		})
	}
	wg.Wait()
	return out
}

func onlyActiveAfterReboot(r *R) {
	want(r, "MachineConfigs after the reboot", ids(r.versions(r.admin(r.s.Maintenance))), "v1alpha1")
}

func bootstrapRuns(r *R) {
	a := r.s.Maintenance
	resp, err := &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{}}}, error(nil)
	if !r.s.bootstrapped {
		resp, err = r.admin(a).MachineClient.Bootstrap(r.brief(10*time.Second), &machine.BootstrapRequest{})
	}
	r.must(err)
	if len(resp.GetMessages()) != 1 || resp.GetMessages()[0].GetMetadata() != nil {
		r.Errorf("Bootstrap answers %v, want one empty message", resp)
	}
	st := r.waitStage(a, "running")
	for name := range st.unmet {
		if name != "nodeReady" && name != "services" && name != "staticPods" {
			r.Errorf("unmet is %v", st.unmet)
		}
	}
	r.wait("etcd to answer", func() error {
		m, err := r.members(r.admin(a), true)
		if err == nil && len(m) != 1 {
			err = fmt.Errorf("members are %v", m)
		}
		return err
	})
	if r.s.ControlPlane == "" {
		r.s.ControlPlane = a
	}
	if r.s.bench != nil {
		r.waitReady(a)
	}
	r.s.Maintenance = "" // it is no more
	r.s.extra = append(r.s.extra, a)
}

func msgOf(err error) string { return fmt.Sprint(err) }

// errIfNot is the error unless its code is one of these.
func errIfNot(err error, allowed ...codes.Code) error {
	if slices.Contains(allowed, status.Code(err)) {
		return nil
	}
	return err
}
