package node

import (
	"context"
	"errors"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

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
	"initialize": set("maintenanceUpgrade", "reboot"),
	"boot":       set("reboot", "reset", "upgrade"),
	"reboot":     set("reboot"),
	"reset":      set("reboot"),
}

// errLocked is the answer of a busy sequencer; callers of the API never see it, only watchers of events.
var errLocked = errors.New("sequence not started: locked")

// sequence runs f as the named sequence in the calling goroutine. A failure reboots the machine,
// as it does on a node.
func (b *boot) sequence(name, actor string, force bool, f func(context.Context) error) {
	ctx, release, err := b.seq.take(b.ctx, name, force)
	if err != nil {
		// Published without the actor: whoever started it and filters by actor never sees it.
		b.publishSequence(name, "", machine.SequenceEvent_NOOP, &common.Error{Code: common.Code_LOCKED, Message: err.Error()})
		return
	}
	defer release()
	b.publishSequence(name, actor, machine.SequenceEvent_START, nil)
	err = f(ctx)
	switch {
	case err == nil:
		b.publishSequence(name, actor, machine.SequenceEvent_STOP, nil)
	case b.ctx.Err() != nil:
	case ctx.Err() != nil:
		b.publishSequence(name, actor, machine.SequenceEvent_NOOP,
			&common.Error{Code: common.Code_CANCELED, Message: "sequence failed: " + err.Error()})
	default:
		b.publishSequence(name, actor, machine.SequenceEvent_NOOP,
			&common.Error{Code: common.Code_FATAL, Message: "sequence failed: " + err.Error()})
		b.node.emit("sequence-failed", name+": "+err.Error())
		b.setStage(runtime.MachineStageRebooting)
		b.stopAll(b.ctx)
		if sleep(b.ctx, b.node.opts.Timings.FailurePause) {
			b.finish(outcome{down: b.node.opts.Timings.Down})
		}
	}
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

func (b *boot) publishSequence(name, actor string, action machine.SequenceEvent_Action, err *common.Error) {
	b.events.publish(actor, &machine.SequenceEvent{Sequence: name, Action: action, Error: err})
}

func (b *boot) publishPhase(name string, action machine.PhaseEvent_Action) {
	b.events.publish("", &machine.PhaseEvent{Phase: name, Action: action})
}

func (b *boot) publishTask(name string, action machine.TaskEvent_Action) {
	b.events.publish("", &machine.TaskEvent{Task: name, Action: action})
}
