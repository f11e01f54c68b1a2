package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/rs/xid"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxEvents is how many events a node keeps for tails (Talos: 1000).
const maxEvents = 1000

// event is one entry of the node's event stream.
type event struct {
	id      xid.ID
	at      time.Time
	actor   string
	payload proto.Message
}

// encode builds the message. The type URL has the prefix that Talos uses, not googleapis'.
func (e event) encode() (*machine.Event, error) {
	data := &anypb.Any{}
	if e.payload != nil {
		value, err := proto.Marshal(e.payload)
		if err != nil {
			return nil, err
		}
		data.TypeUrl = "talos/runtime/" + string(e.payload.ProtoReflect().Descriptor().FullName())
		data.Value = value
	}
	return &machine.Event{Data: data, Id: e.id.String(), ActorId: e.actor}, nil
}

// stream holds the events of one boot and wakes those who watch.
type stream struct {
	mu      sync.Mutex
	events  []event
	dropped int // how many are gone from the front
	wake    chan struct{}
}

func newStream() *stream { return &stream{wake: make(chan struct{})} }

func (s *stream) publish(actor string, payload proto.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event{id: xid.New(), at: time.Now(), actor: actor, payload: payload})
	if over := len(s.events) - maxEvents; over > 0 {
		s.events = append([]event(nil), s.events[over:]...)
		s.dropped += over
	}
	close(s.wake)
	s.wake = make(chan struct{})
}

// since returns the events from the position on, the next position, and what to wait for.
func (s *stream) since(pos int) ([]event, int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := max(pos-s.dropped, 0)
	out := append([]event(nil), s.events[min(from, len(s.events)):]...)
	return out, s.dropped + len(s.events), s.wake
}

// start finds where a watch begins: after what is there, or a tail before it.
func (s *stream) start(req *machine.EventsRequest) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.dropped + len(s.events)
	given := 0
	for _, b := range []bool{req.TailEvents != 0, req.TailId != "", req.TailSeconds != 0} {
		if b {
			given++
		}
	}
	if given > 1 {
		return 0, status.Error(codes.Unknown, "WithTailEvents can't be specified at the same time with WithTailID or WithTailDuration")
	}
	switch {
	case req.TailEvents < 0:
		return s.dropped, nil
	case req.TailEvents > 0:
		return max(end-int(req.TailEvents), s.dropped), nil
	case req.TailId != "":
		id, err := xid.FromString(req.TailId)
		if err != nil {
			return 0, fmt.Errorf("error parsing tail_id: %w", err)
		}
		for i, e := range s.events {
			if e.id.Compare(id) > 0 {
				return s.dropped + i, nil
			}
		}
	case req.TailSeconds > 0:
		after := time.Now().Add(-time.Duration(req.TailSeconds) * time.Second)
		for i, e := range s.events {
			if !e.id.Time().Before(after.Truncate(time.Second)) {
				return s.dropped + i, nil
			}
		}
	}
	return end, nil
}

// Events implements machine.MachineService: an empty hello first, then what happens.
func (a *api) Events(req *machine.EventsRequest, srv machine.MachineService_EventsServer) error {
	hello, err := event{id: xid.New(), actor: req.WithActorId}.encode()
	if err != nil {
		return err
	}
	if err := srv.Send(hello); err != nil {
		return err
	}
	pos, err := a.boot.events.start(req)
	if err != nil {
		return err
	}
	for {
		list, next, wake := a.boot.events.since(pos)
		pos = next
		for _, e := range list {
			if req.WithActorId != "" && e.actor != req.WithActorId {
				continue
			}
			msg, err := e.encode()
			if err != nil {
				return err
			}
			if err := srv.Send(msg); err != nil {
				return err
			}
		}
		select {
		case <-wake:
		case <-srv.Context().Done():
			return srv.Context().Err()
		case <-a.boot.ctx.Done():
			return nil
		}
	}
}
