package conformance

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
)

func applyCases() []Case {
	change := NeedControlPlane | NeedChange
	return []Case{
		{IDs: "13-C10", Needs: NeedControlPlane, Max: 13, run: immediateOrNot},
		{IDs: "13-C08 13-C09", Needs: NeedControlPlane, Max: 13, run: needsReboot},
		{IDs: "13-C05", Needs: change, run: versionsRise},
		{IDs: "13-C03 13-C06 14-A17 14-A18 14-A19", Needs: change, run: stagedMoves},
		{IDs: "13-C04 14-A20", Needs: change, run: tryMoves},
	}
}

const (
	label     = "machine:\n  nodeLabels:\n    conformance.ichor/a: b\n"
	env       = "machine:\n  env:\n    ICHOR_CONFORMANCE: \"1\"\n"
	immediate = "this config change can't be applied in immediate mode\ndiff:\n"
)

// immediateOrNot is the rule of 1.13 for what a node can take without a reboot.
func immediateOrNot(r *R) {
	c := r.admin(r.s.ControlPlane)
	base := r.running(c)
	for name, patch := range map[string]string{
		"install": "machine:\n  install:\n    disk: /dev/vdz\n", "clusterName": "cluster:\n  clusterName: other\n",
		"sysctls": "machine:\n  sysctls:\n    vm.overcommit_memory: \"1\"\n", "labels": label,
	} {
		m, err := r.dry(c, r.patched(base, patch), auto)
		r.ok(name, err)
		if err == nil && (m.GetMode() != noReboot || !strings.HasPrefix(m.GetModeDetails(), "Dry run summary:\n"+textNoReboot+" (skipped in dry-run).\nConfig diff:\n\n--- a\n+++ b\n")) {
			r.Errorf("%s: mode %s, %.120q", name, m.GetMode(), m.GetModeDetails())
		}
	}
}

func needsReboot(r *R) {
	c := r.admin(r.s.ControlPlane)
	data := r.patched(r.running(c), env)
	m, err := r.dry(c, data, auto)
	r.must(err)
	want(r, "AUTO's mode", m.GetMode(), reboot)
	if !strings.HasPrefix(m.GetModeDetails(), "Dry run summary:\n"+textReboot+" (skipped in dry-run).\nConfig diff:\n\n--- a\n+++ b\n") {
		r.Errorf("AUTO's text is %.200q", m.GetModeDetails())
	}
	for _, mode := range []machine.ApplyConfigurationRequest_Mode{noReboot, try} {
		_, err := r.dry(c, data, mode)
		r.has(mode.String(), err, codes.InvalidArgument, immediate+"--- a\n+++ b\n", "+        ICHOR_CONFORMANCE: \"1\"")
	}
	m, err = r.dry(c, data, staged)
	r.must(err)
	want(r, "STAGED's mode", m.GetMode(), staged)
}

func versionsRise(r *R) {
	c := r.admin(r.s.ControlPlane)
	data := r.running(c)
	for _, mode := range []machine.ApplyConfigurationRequest_Mode{auto, noReboot, auto} {
		before := r.versions(c)
		m := r.apply(c, data, mode)
		want(r, "text", m.GetModeDetails(), textNoReboot)
		want(r, "moved after "+mode.String(), moved(before, r.versions(c)), "persistent v1alpha1")
	}
}

// restore brings a node back to a configuration.
func (r *R) restore(c *client.Client, data []byte) {
	if m := r.apply(c, data, auto); m.GetMode() != noReboot {
		r.Errorf("going back to the former configuration answers %s", m.GetMode())
	}
}

func stagedMoves(r *R) {
	c := r.admin(r.s.ControlPlane)
	base := r.running(c)
	other := r.patched(base, label)
	before := r.versions(c)
	m := r.apply(c, other, staged)
	defer r.restore(c, base)
	want(r, "mode", m.GetMode(), staged)
	want(r, "text", m.GetModeDetails(), textStaged)
	want(r, "moved", moved(before, r.versions(c)), "persistent")
	r.same("what runs is the old one", r.running(c), base)
	if got := string(r.configOf(c, "persistent")); got != string(other) {
		r.Errorf("what is staged can't be read back")
	}
	// A dry run compares with what runs.
	m, err := r.dry(c, other, auto)
	r.must(err)
	if !strings.Contains(m.GetModeDetails(), "\n+        conformance.ichor/a: b\n") {
		r.Errorf("the dry run of what is staged says %.300q", m.GetModeDetails())
	}
	m, err = r.dry(c, base, auto)
	r.must(err)
	want(r, "the dry run of what runs", m.GetModeDetails(), "Dry run summary:\n"+textNoReboot+noChanges)
	// AUTO overwrites what is staged.
	r.apply(c, base, auto)
	r.same("persistent after AUTO", r.configOf(c, "persistent"), base)
}

func tryMoves(r *R) {
	c := r.admin(r.s.ControlPlane)
	base := r.running(c)
	other := r.patched(base, label)
	const d = 2 * time.Second
	before := r.versions(c)
	m, err := r.trial(c, other, d)
	r.must(err)
	want(r, "text", m.GetModeDetails(), textNoReboot+"\nThe config is applied in 'try' mode and will be automatically reverted back in 2s")
	during := r.versions(c)
	want(r, "moved", moved(before, during), "v1alpha1")
	r.same("it runs", r.running(c), other)
	r.wait("the trial to end", func() error {
		if string(r.running(c)) == string(other) {
			return errSame
		}
		return nil
	})
	want(r, "moved at the end", moved(during, r.versions(c)), "v1alpha1")
	r.same("it runs again", r.running(c), base)
}

func apply114Cases() []Case {
	change := NeedControlPlane | NeedChange
	return []Case{
		{IDs: "14-A04 14-A05 14-A06 14-A08", Needs: NeedControlPlane, Min: 14, run: neverReboots},
		{IDs: "14-A21", Needs: change, Min: 14, run: tryConfirmed},
		{IDs: "14-A22 14-A23", Needs: change, Min: 14, run: tryTwice},
		{IDs: "14-A09", Needs: change, Min: 14, run: liveEffects},
		{IDs: "14-A07 14-A10 14-A11 14-A14 14-A15", Needs: change, Min: 14, Mode: "metal", run: afterRestartOnly},
		{IDs: "14-A25", Needs: change, Min: 14, run: oldClient},
	}
}

func neverReboots(r *R) {
	c := r.admin(r.s.ControlPlane)
	base := string(r.running(c))
	for name, patch := range map[string]string{
		"env":         env,
		"udev":        "machine:\n  udev:\n    rules:\n      - SUBSYSTEM==\"net\", NAME=\"x9\"\n",
		"files":       "machine:\n  files:\n    - path: /var/ichor-conformance\n      content: hello\n      permissions: 0o600\n      op: create\n",
		"features":    "machine:\n  features:\n    diskQuotaSupport: false\n",
		"baseRuntime": "machine:\n  baseRuntimeSpecOverrides:\n    process:\n      rlimits:\n        - type: RLIMIT_NOFILE\n          hard: 1024\n          soft: 1024\n",
	} {
		data, err := mergeText(base, patch)
		r.must(err)
		for _, mode := range []machine.ApplyConfigurationRequest_Mode{auto, noReboot, try} {
			m, err := r.dry(c, data, mode)
			r.ok(name+" in mode "+mode.String(), err)
			if err == nil && !strings.HasPrefix(m.GetModeDetails(), "Dry run summary:\n"+textNoReboot+" (skipped in dry-run).\nConfig diff:\n\n--- a\n+++ b\n") {
				r.Errorf("%s in mode %s: %.200q", name, mode, m.GetModeDetails())
			}
			if err == nil && mode == auto {
				want(r, "AUTO's mode", m.GetMode(), noReboot)
			}
		}
	}
}

func tryConfirmed(r *R) {
	c := r.admin(r.s.ControlPlane)
	base := r.running(c)
	other, err := mergeText(string(base), label)
	r.must(err)
	const d = 4 * time.Second
	_, err = r.trial(c, other, d)
	r.must(err)
	defer r.restore(c, base)
	before := r.versions(c)
	r.apply(c, other, auto)
	want(r, "moved when it was confirmed", moved(before, r.versions(c)), "persistent v1alpha1")
	r.pause(d + time.Second)
	r.same("after the time of the trial", r.running(c), other)
}

// tryTwice: the second trial's timer counts, and what comes back is what ran before it. (As it was
// seen, the first trial was of what was persisted.)
func tryTwice(r *R) {
	c := r.admin(r.s.ControlPlane)
	base := r.running(c)
	second, err := mergeText(string(base), env)
	r.must(err)
	_, err = r.trial(c, base, 2*time.Second)
	r.must(err)
	_, err = r.trial(c, second, 5*time.Second)
	r.must(err)
	began := time.Now()
	r.pause(3 * time.Second)
	if string(r.running(c)) != string(second) && time.Since(began) < 4500*time.Millisecond {
		r.Errorf("the first trial's timer ended the second one")
	}
	r.wait("the second trial to end", func() error {
		if string(r.running(c)) == string(second) {
			return errSame
		}
		return nil
	})
	r.same("what comes back", r.running(c), base)
}

// liveEffects are shown by resources; removal takes them away again.
func liveEffects(r *R) {
	c := r.admin(r.s.ControlPlane)
	base := r.running(c)
	doc := string(base) + "---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables:\n    ICHOR_LIVE: \"yes\"\n"
	r.apply(c, []byte(doc), auto)
	shows := func() error {
		y, err := r.yamlOf(c, "runtime", "Environments.runtime.talos.dev", "machined")
		if err == nil && !strings.Contains(y, "ICHOR_LIVE=yes") {
			err = fmt.Errorf("the environment is %q", y)
		}
		return err
	}
	r.waitFor(10*time.Second, "the environment to show the variable", shows)
	r.restore(c, base)
	r.waitFor(10*time.Second, "the environment to lose the variable", func() error {
		if shows() == nil {
			return errors.New("it still has it")
		}
		return nil
	})
}

const aFile = "machine:\n  env:\n    ICHOR_CONFORMANCE: \"1\"\n  files:\n    - path: /var/ichor-conformance\n      content: hello\n      permissions: 0o600\n      op: create\n"

// afterRestartOnly: v1alpha1's env and files wait for a restart, and no resource says so.
func afterRestartOnly(r *R) {
	a := r.s.ControlPlane
	c := r.admin(a)
	base := r.running(c)
	data, err := mergeText(string(base), aFile)
	r.must(err)
	m := r.apply(c, data, auto)
	want(r, "mode", m.GetMode(), noReboot)
	want(r, "warnings", strings.Join(m.GetWarnings(), "|"), ".machine.files is deprecated; use dedicated configuration documents instead")
	r.apply(c, data, auto) // and again at once: no reboot is pending
	r.pause(r.settle())
	y, err := r.yamlOf(c, "runtime", "Environments.runtime.talos.dev", "machined")
	r.must(err)
	if strings.Contains(y, "ICHOR_CONFORMANCE") {
		r.Errorf("machine.env is in the environment at once: %s", y)
	}
	_, err = r.read(c, "/var/ichor-conformance")
	r.is("the file", err, codes.NotFound, "stat /var/ichor-conformance: no such file or directory")
	st, err := r.status(c)
	r.must(err)
	want(r, "stage", st.stage, "running")
	got, err := r.list(c, "runtime", "RebootRequests.runtime.talos.dev")
	r.ok("list of RebootRequests", err)
	want(r, "reboot requests", len(got), 0)
	r.rebootAndWait(a)
	c = r.admin(a)
	text, err := r.read(c, "/var/ichor-conformance")
	r.ok("the file after the restart", err)
	want(r, "its content", text, "hello")
	y, err = r.yamlOf(c, "runtime", "Environments.runtime.talos.dev", "machined")
	r.must(err)
	if !strings.Contains(y, "ICHOR_CONFORMANCE=1") {
		r.Errorf("machine.env is not in the environment after the restart: %s", y)
	}
	r.restore(c, base)
}

// oldClient sends what talosctl 1.13.5 sends: the modes by the numbers that it knows.
func oldClient(r *R) {
	c := r.admin(r.s.ControlPlane)
	data := r.running(c)
	m := r.apply(c, data, machine.ApplyConfigurationRequest_Mode(1))
	want(r, "mode AUTO comes back as", m.GetMode(), noReboot)
	_, err := r.tryApply(c, data, machine.ApplyConfigurationRequest_Mode(0))
	r.is("mode 0", err, codes.Unimplemented, noRebootMode)
}

// rebootAndWait reboots a node and waits until it is back.
func (r *R) rebootAndWait(addr string) {
	before, err := r.read(r.admin(addr), "/proc/sys/kernel/random/boot_id")
	r.must(err)
	_, err = r.admin(addr).MachineClient.Reboot(r.ctx, &machine.RebootRequest{})
	r.must(err)
	r.waitBoot(addr, before)
}

// waitBoot waits until a node runs in another boot.
func (r *R) waitBoot(addr, before string) {
	r.wait(addr+" to be back from a reboot", func() error {
		c, err := r.s.dial(r.ctx, addr, r.s.Talosconfig)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // nothing was written
		now, err := r.read(c, "/proc/sys/kernel/random/boot_id")
		if err == nil && now == before {
			err = errSame
		}
		return err
	})
	if r.s.bench != nil {
		r.waitReady(addr)
		return
	}
	r.waitStage(addr, "running")
}
