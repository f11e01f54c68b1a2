package conformance

import (
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func lifecycleCases() []Case {
	change := NeedControlPlane | NeedChange
	return []Case{
		{IDs: "13-C07 13-C11", Needs: change, Max: 13, run: autoReboots},
		{IDs: "13-R02", Needs: change, Max: 13, Mode: "container", run: rebootModeInContainer},
		{IDs: "13-R06 13-R09", Needs: change, Mode: "metal", run: rebootSequence},
	}
}

// autoReboots: a change that needs a reboot causes one, and nothing more is taken until then.
func autoReboots(r *R) {
	a := r.s.ControlPlane
	c := r.admin(a)
	base := r.running(c)
	before, err := r.read(c, "/proc/sys/kernel/random/boot_id")
	r.must(err)
	data := r.patched(base, env)
	m := r.apply(c, data, auto)
	want(r, "mode", m.GetMode(), reboot)
	if !strings.HasPrefix(m.GetModeDetails(), textReboot+": "+immediate+"--- a\n+++ b\n") {
		r.Errorf("the text begins %.200q", m.GetModeDetails())
	}
	_, err = r.tryApply(c, data, auto)
	r.is("a second apply", err, codes.FailedPrecondition, "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot")
	r.waitBoot(a, before)
	c = r.admin(a)
	r.same("what runs after the reboot", r.running(c), data)
	want(r, "MachineConfigs after the reboot", ids(r.versions(c)), "v1alpha1")
	// The next apply makes the persistent one again. In mode REBOOT the way back needs no reason.
	before = r.bootOf(a)
	m = r.apply(c, base, reboot)
	want(r, "text of mode REBOOT", m.GetModeDetails(), textReboot)
	r.waitBoot(a, before)
	c = r.admin(a)
	r.apply(c, r.running(c), noReboot)
	want(r, "MachineConfigs after the next apply", ids(r.versions(c)), "persistent v1alpha1")
}

func rebootModeInContainer(r *R) {
	c := r.admin(r.s.ControlPlane)
	m := r.apply(c, r.running(c), reboot)
	want(r, "text", m.GetModeDetails(), textReboot)
	r.waitDown(r.s.ControlPlane)
	r.waitStage(r.s.ControlPlane, "running", "booting")
}

// rebootSequence watches a node that reboots from outside.
func rebootSequence(r *R) {
	a := r.s.ControlPlane
	c := r.admin(a)
	_, err := c.MachineClient.Reboot(r.ctx, &machine.RebootRequest{})
	r.must(err)
	r.goesDown(a, "rebooting", "booting", "running")
	if r.s.bench != nil {
		r.waitReady(a)
	}
	want(r, "MachineConfigs after the reboot", ids(r.versions(r.admin(a))), "v1alpha1")
}

// goesDown follows a node from an orderly stop to its next stages: the stage with nothing unmet,
// machined's socket gone or the port closed, no answer, then the stages that follow.
func (r *R) goesDown(a, stage string, after ...string) {
	var seen []string
	open := r.admin(a) // a connection that exists sees the last moments; a new one takes time to come about
	steps := append([]string{stage, "machined is gone", "no answer"}, after...)
	if after[0] == "rebooting" { // the sequence failed, and another one follows
		steps = append([]string{stage, "rebooting", "machined is gone", "no answer"}, after[1:]...)
	}
	deadline := time.Now().Add(r.s.Patience / 2)
	for len(seen) == 0 || seen[len(seen)-1] != after[len(after)-1] {
		st, err := r.status(open)
		if err != nil && !strings.Contains(msgOf(err), machinedGone) {
			st, err = r.freshStatus(a)
		}
		switch step := downStep(st, err); {
		case step == "" || (len(seen) == 0 && step != stage): // nothing, or it has not begun
		default:
			note(&seen, step)
			if step == stage && (!st.ready || len(st.unmet) != 0) {
				r.Errorf("while %s it is %s", stage, st)
			}
		}
		if time.Now().After(deadline) || r.ctx.Err() != nil {
			r.Fatalf("waited for %s to go down and come back: it was seen %q", a, seen)
		}
		r.pause(5 * time.Millisecond)
	}
	r.ordered("the node", seen, steps...)
	for _, step := range []string{stage, "machined is gone", "no answer"} {
		if !slices.Contains(seen, step) && (r.s.bench != nil || step != "machined is gone") {
			r.Errorf("it was never seen %q: %q", step, seen)
		}
	}
}

const machinedGone = "dial unix /system/run/machined/machine.sock: connect: no such file or directory"

// downStep names what a node shows on its way; empty for a connection that broke as the port closed.
func downStep(st machineStatus, err error) string {
	msg := msgOf(err)
	switch {
	case err == nil:
		return st.stage
	case strings.Contains(msg, machinedGone):
		return "machined is gone"
	case strings.Contains(msg, "connect: connection refused"), strings.Contains(msg, "no route to host"), status.Code(err) == codes.DeadlineExceeded,
		strings.Contains(msg, "i/o timeout"), strings.Contains(msg, "context deadline exceeded"):
		return "no answer"
	case strings.Contains(msg, "EOF"), strings.Contains(msg, "reset by peer"), strings.Contains(msg, "broken pipe"), strings.Contains(msg, "closing transport"):
		return ""
	}
	return msg
}

// bootOf is the running boot's identity.
func (r *R) bootOf(a string) string {
	id, err := r.read(r.dial(a, r.s.Talosconfig), "/proc/sys/kernel/random/boot_id")
	r.must(err)
	return id
}
