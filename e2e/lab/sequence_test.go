package lab_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/protobuf/types/known/durationpb"
)

// story is what a node's event stream tells: sequences with their outcome, the names of tasks, and
// the stages, in order.
type story struct {
	ch   chan client.EventResult
	list []string
}

func (r *rig) watch(ctx context.Context, c *client.Client, opts ...client.EventsOptionFunc) *story {
	r.t.Helper()
	s := &story{ch: make(chan client.EventResult)}
	must(r.t, c.EventsWatchV2(ctx, s.ch, opts...))
	return s
}

// until collects until an entry begins with the text, or the stream or the time ends.
func (s *story) until(ctx context.Context, text string) []string {
	for {
		select {
		case ev := <-s.ch:
			if ev.Error != nil {
				return s.list
			}
			switch p := ev.Event.Payload.(type) {
			case *machine.SequenceEvent:
				e := p.Sequence + " " + p.Action.String()
				if p.Error != nil {
					e += " " + p.Error.Code.String() + ": " + p.Error.Message
				}
				s.list = append(s.list, e)
			case *machine.TaskEvent:
				if p.Action == machine.TaskEvent_START {
					s.list = append(s.list, p.Task)
				}
			case *machine.MachineStatusEvent:
				if e := "stage " + p.Stage.String(); !slices.Contains(s.list, e) || s.list[len(s.list)-1] != e {
					s.list = append(s.list, e)
				}
			default:
				continue
			}
			if strings.HasPrefix(s.list[len(s.list)-1], text) {
				return s.list
			}
		case <-ctx.Done():
			return append(s.list, ctx.Err().Error())
		}
	}
}

func (s *story) has(parts ...string) bool {
	for _, e := range s.list {
		if len(parts) > 0 && strings.HasPrefix(e, parts[0]) {
			parts = parts[1:]
		}
	}
	return len(parts) == 0
}

// TestSequenceEvents: the events of boots, reboots and resets, with the caller's actor where Talos
// has it, and the lock that only a watcher sees.
func TestSequenceEvents(t *testing.T) {
	r := newRig(t)
	n, c := r.single("v1.13.5")
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	boot := r.watch(ctx, c, client.WithTailEvents(-1))
	boot.until(ctx, "boot STOP")
	if !boot.has("initialize START", "loadConfig", "initialize STOP", "install START", "install STOP", "boot START", "setUserEnvVars", "mountEphemeralPartition", "writeUserFiles", "startAllServices", "boot STOP") {
		t.Errorf("a boot's events: %q", boot.list)
	}

	// Graceful on the only member: it fails in leave, after the stop, and the node comes back configured.
	id := n.BootID()
	all := r.watch(ctx, c)
	resp, err := c.ResetGenericWithResponse(r.ctx, &machine.ResetRequest{Graceful: true, Reboot: true})
	must(t, err)
	all.until(ctx, "reset NOOP")
	if !all.has("reset START", "stage RESETTING", "cordonAndDrainNode", "removeAllPods", "stopDBus", "leaveEtcd", "reset STOP",
		"reset NOOP FATAL: sequence failed: error running phase 4 in reset sequence: task 1/1: failed, failed to leave cluster: 1 error(s) occurred:") {
		t.Errorf("events of a reset that fails: %q", all.list)
	}
	if resp.Messages[0].ActorId == "" {
		t.Error("no actor")
	}
	r.again(n, id)
	c = r.secure("cp1")

	// Two resets: the second call answers as the first, and only watchers see that it does nothing.
	id = n.BootID()
	all = r.watch(ctx, c)
	in := &machine.ResetRequest{Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}}}
	resp, err = c.ResetGenericWithResponse(r.ctx, in)
	must(t, err)
	mine := r.watch(ctx, c, client.WithTailEvents(-1), client.WithActorID(resp.Messages[0].ActorId))
	must(t, c.ResetGeneric(r.ctx, in))
	all.until(ctx, "stopAllServices")
	mine.until(ctx, "stopAllServices")
	if !all.has("reset START", "reset NOOP LOCKED: sequence not started: locked", "stopAllServices") {
		t.Errorf("all events: %q", all.list)
	}
	if !mine.has("reset START", "stopAllPods", "stopServicesEphemeral", "unmountEphemeralPartition", "teardownVolumeLifecycle", "kexecPrepare", "stopAllServices") || mine.has("reset NOOP") {
		t.Errorf("events of the first caller: %q", mine.list)
	}
	must(t, r.lab.Wait(r.ctx, "another boot", func() bool { return n.BootID() != id && n.BootID() != "" }))
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))

	// A shutdown takes over a reboot.
	c = r.secure("cp1")
	all = r.watch(ctx, c)
	must(t, c.Reboot(r.ctx))
	must(t, c.Shutdown(r.ctx))
	all.until(ctx, "stopAllServices")
	if !all.has("reboot START", "reboot NOOP CANCELED: sequence failed: ", "shutdown START", "stage SHUTTING_DOWN", "storeShutdownEmergency", "stopAllServices") {
		t.Errorf("events of a takeover: %q", all.list)
	}
	must(t, r.lab.WaitStage(r.ctx, "cp1", "off"))
}

// TestConfigResources: persistent and v1alpha1 through maintenance, installation, apply modes and reboots.
func TestConfigResources(t *testing.T) {
	r := newRig(t)
	n, c := r.single("v1.13.5")
	ids := func() string {
		list, err := c.COSI.List(r.ctx, resource.NewMetadata("config", "MachineConfigs.config.talos.dev", "", resource.VersionUndefined))
		must(t, err)
		var out []string
		for _, i := range list.Items {
			out = append(out, i.Metadata().ID()+"@"+i.Metadata().Version().String())
		}
		return strings.Join(out, " ")
	}
	want := func(when, text string) {
		t.Helper()
		if got := ids(); got != text {
			t.Errorf("%s: %s, want %s", when, got, text)
		}
	}
	conf := r.config(mtype.TypeControlPlane, "cp1")
	want("after the installation's reboot", "v1alpha1@1")
	r.apply(c, conf, auto)
	want("after the first apply", "persistent@1 v1alpha1@2")
	r.apply(c, conf, noReboot)
	want("the same again", "persistent@2 v1alpha1@3")
	r.apply(c, r.withEnv("cp1"), staged)
	want("staged", "persistent@3 v1alpha1@3")
	label := []byte(strings.Replace(string(conf), "nodeLabels:\n", "nodeLabels:\n        try: it\n", 1))
	_, err := c.ApplyConfiguration(r.ctx, &machine.ApplyConfigurationRequest{Data: label, Mode: try, TryModeTimeout: durationpb.New(300 * time.Millisecond)})
	must(t, err)
	want("on trial", "persistent@3 v1alpha1@4")
	must(t, r.lab.Wait(r.ctx, "the trial to end", func() bool { return ids() == "persistent@3 v1alpha1@5" }))
	boot := n.BootID()
	must(t, c.Reboot(r.ctx))
	r.again(n, boot)
	c = r.secure("cp1")
	want("after a reboot", "v1alpha1@1")
	if got := string(n.ConfigBytes()); got != string(r.withEnv("cp1")) {
		t.Error("what was staged is not in force")
	}

	// From maintenance mode of an installed machine both are there at once.
	must(t, c.ResetGeneric(r.ctx, &machine.ResetRequest{Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{
		{Label: "STATE", Wipe: true}, {Label: "EPHEMERAL", Wipe: true},
	}}))
	must(t, r.lab.WaitStage(r.ctx, "cp1", "maintenance"))
	must(t, r.lab.WaitMaintenance(r.ctx, "cp1"))
	r.apply(r.insecure("cp1"), conf, auto)
	r.bootstrap("cp1")
	must(t, r.lab.WaitReady(r.ctx, "cp1"))
	c = r.secure("cp1")
	want("from maintenance without an installation", "persistent@1 v1alpha1@1")
}
