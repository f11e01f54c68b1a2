package node

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// The sequences' names, as events show them.
const (
	seqInitialize   = "initialize"
	seqInstall      = "install"
	seqBoot         = "boot"
	seqReboot       = "reboot"
	seqReset        = "reset"
	seqShutdown     = "shutdown"
	seqUpgrade      = "upgrade"
	seqStageUpgrade = "stageUpgrade"
)

// phase is one step of a sequence, with one task in it: every phase that the lab plays has one.
type phase struct {
	name, task string
	run        func(context.Context) error // nil: nothing that can be seen
	lenient    bool                        // an error is only logged
}

// sequencer lets one sequence run at a time, with Talos's rules for what may take over what.
type sequencer struct {
	mu      sync.Mutex
	current string
	cancel  context.CancelFunc
	done    chan struct{}
}

// takeovers lists which sequence may take over a running one
// (internal/app/machined/pkg/runtime/sequencer.go).
var takeovers = map[string]map[string]bool{
	seqInitialize: set("maintenanceUpgrade", seqReboot),
	seqBoot:       set(seqReboot, seqReset, seqUpgrade),
	seqReboot:     set(seqReboot),
	seqReset:      set(seqReboot),
}

// errLocked is the answer of a busy sequencer; callers of the API never see it, only watchers of events.
var errLocked = errors.New("sequence not started: locked")

// sequence runs the phases in the calling goroutine, with the events and stages that Talos's
// controller and its MachineStatusController give. A failure reboots the machine, as it does on a node.
func (b *boot) sequence(name, actor string, force bool, phases []phase) {
	ctx, release, err := b.seq.take(b.ctx, name, force)
	if err != nil {
		// Published without the actor: whoever started it and filters by actor never sees it.
		b.node.emit("sequence-locked", name)
		b.publishSequence(name, "", machine.SequenceEvent_NOOP, &common.Error{Code: common.Code_LOCKED, Message: err.Error()})
		return
	}
	defer release()
	b.publishSequence(name, actor, machine.SequenceEvent_START, nil)
	err = b.runPhases(ctx, name, actor, phases)
	if b.ctx.Err() != nil {
		return
	}
	// The stop is published whatever the outcome; so a boot that is taken over shows "running" for a moment.
	b.publishSequence(name, actor, machine.SequenceEvent_STOP, nil)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		b.publishSequence(name, actor, machine.SequenceEvent_NOOP,
			&common.Error{Code: common.Code_CANCELED, Message: "sequence failed: " + err.Error()})
	default:
		b.node.emit("sequence-failed", name+": "+err.Error())
		b.publishSequence(name, actor, machine.SequenceEvent_NOOP,
			&common.Error{Code: common.Code_FATAL, Message: "sequence failed: " + err.Error()})
		b.stopServices(b.ctx)
		b.stopEverything(b.ctx)
		if sleep(b.ctx, b.node.opts.Timings.FailurePause) {
			b.finish(outcome{down: b.node.opts.Timings.Down})
		}
	}
}

func (b *boot) runPhases(ctx context.Context, sequence, actor string, phases []phase) error {
	for i, p := range phases {
		b.publishPhase(sequence, actor, p.name, machine.PhaseEvent_START)
		b.publishTask(actor, p.task, machine.TaskEvent_START)
		var err error
		if p.run != nil {
			err = p.run(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.publishTask(actor, p.task, machine.TaskEvent_STOP)
		b.publishPhase(sequence, actor, p.name, machine.PhaseEvent_STOP)
		switch {
		case err == nil:
		case p.lenient:
			b.node.emit("error", fmt.Sprintf("phase %s: %v", p.name, err))
		default:
			return fmt.Errorf("error running phase %d in %s sequence: task 1/1: failed, %w", i+1, sequence, err)
		}
	}
	return nil
}

// take gets the lock, cancelling the sequence that holds it when the new one may take over.
func (s *sequencer) take(parent context.Context, name string, force bool) (context.Context, func(), error) {
	s.mu.Lock()
	for s.current != "" {
		if !force && !takeovers[s.current][name] {
			s.mu.Unlock()
			return nil, nil, errLocked
		}
		s.cancel()
		done := s.done
		s.mu.Unlock()
		<-done
		s.mu.Lock()
	}
	ctx, cancel := context.WithCancel(parent)
	done := make(chan struct{})
	s.current, s.cancel, s.done = name, cancel, done
	s.mu.Unlock()
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.current = ""
		cancel()
		close(done)
	}, nil
}

// running is the name of the sequence that holds the lock, empty when none does.
func (s *sequencer) running() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// publishSequence publishes the event, and moves the stage as Talos derives it from that event.
func (b *boot) publishSequence(name, actor string, action machine.SequenceEvent_Action, err *common.Error) {
	b.events.publish(actor, &machine.SequenceEvent{Sequence: name, Action: action, Error: err})
	switch {
	case action == machine.SequenceEvent_START:
		if s, ok := startStages[name]; ok {
			b.setStage(s)
		}
	case action == machine.SequenceEvent_STOP && name == seqBoot && err == nil:
		b.setStage(runtime.MachineStageRunning)
	case err != nil && err.Code == common.Code_FATAL && name != seqShutdown:
		b.setStage(runtime.MachineStageRebooting)
	}
}

var startStages = map[string]runtime.MachineStage{
	seqInitialize:   runtime.MachineStageBooting,
	seqBoot:         runtime.MachineStageBooting,
	seqReboot:       runtime.MachineStageRebooting,
	seqReset:        runtime.MachineStageResetting,
	seqShutdown:     runtime.MachineStageShuttingDown,
	seqUpgrade:      runtime.MachineStageUpgrading,
	seqStageUpgrade: runtime.MachineStageUpgrading,
}

func (b *boot) publishPhase(sequence, actor, name string, action machine.PhaseEvent_Action) {
	b.events.publish(actor, &machine.PhaseEvent{Phase: name, Action: action})
	if action != machine.PhaseEvent_START {
		return
	}
	switch {
	case sequence == seqInstall && name == "install":
		b.setStage(runtime.MachineStageInstalling)
	case name == "kexec" && (sequence == seqInstall || sequence == seqUpgrade || sequence == seqStageUpgrade):
		b.setStage(runtime.MachineStageRebooting)
	}
}

func (b *boot) publishTask(actor, name string, action machine.TaskEvent_Action) {
	b.events.publish(actor, &machine.TaskEvent{Task: name, Action: action})
}
