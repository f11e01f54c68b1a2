package node

import (
	"sort"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Service states, as ServiceList shows them.
const (
	stStarting  = "Starting"
	stWaiting   = "Waiting"
	stPreparing = "Preparing"
	stRunning   = "Running"
	stStopping  = "Stopping"
	stFinished  = "Finished"
	stFailed    = "Failed"
)

// maxServiceEvents is how many events a service keeps.
const maxServiceEvents = 64

type service struct {
	id      string
	state   string
	events  []*machine.ServiceEvent
	unknown bool
	healthy bool
	message string
	changed time.Time
}

// services are the node's services and their history. Whatever changes is published as an
// event, shown as a COSI resource while the service runs, and may change the machine's status.
type services struct {
	boot *boot
	mu   sync.Mutex
	byID map[string]*service
	wake chan struct{}
}

func newServices(b *boot) *services {
	return &services{boot: b, byID: map[string]*service{}, wake: make(chan struct{})}
}

// set moves a service to a state and notes why.
func (s *services) set(id, state, msg string) {
	s.mu.Lock()
	svc := s.byID[id]
	if svc == nil {
		svc = &service{id: id, unknown: true}
		s.byID[id] = svc
	}
	svc.state = state
	if state != stRunning {
		svc.unknown, svc.healthy, svc.message = true, false, ""
	}
	s.note(svc, msg)
	s.mu.Unlock()
	s.show(id)
}

// health notes the result of a service's health check.
func (s *services) health(id string, ok bool, msg string) {
	s.mu.Lock()
	svc := s.byID[id]
	if svc == nil || svc.state != stRunning || (!svc.unknown && svc.healthy == ok) {
		s.mu.Unlock()
		return
	}
	svc.unknown, svc.healthy, svc.message, svc.changed = false, ok, msg, s.boot.node.now()
	if ok {
		s.note(svc, "Health check successful")
	} else {
		s.note(svc, "Health check failed: "+msg)
	}
	s.mu.Unlock()
	s.show(id)
}

// up starts a service that needs nothing and is healthy at once.
func (s *services) up(ids ...string) {
	for _, id := range ids {
		s.set(id, stStarting, "Starting service")
		s.set(id, stRunning, "Started task "+id)
		s.health(id, true, "")
	}
}

// note appends to the history; s.mu is held.
func (s *services) note(svc *service, msg string) {
	now := timestamppb.New(s.boot.node.now())
	svc.events = append(svc.events, &machine.ServiceEvent{Msg: msg, State: svc.state, Ts: now})
	if over := len(svc.events) - maxServiceEvents; over > 0 {
		svc.events = svc.events[over:]
	}
	s.boot.events.publish("", &machine.ServiceStateEvent{
		Service: svc.id,
		Action:  actionOf(svc.state),
		Message: msg,
		Health:  &machine.ServiceHealth{Unknown: svc.unknown, Healthy: svc.healthy, LastMessage: svc.message},
	})
	close(s.wake)
	s.wake = make(chan struct{})
}

func actionOf(state string) machine.ServiceStateEvent_Action {
	switch state {
	case stStarting:
		return machine.ServiceStateEvent_INITIALIZED
	case stWaiting:
		return machine.ServiceStateEvent_WAITING
	case stPreparing:
		return machine.ServiceStateEvent_PREPARING
	case stRunning:
		return machine.ServiceStateEvent_RUNNING
	case stStopping:
		return machine.ServiceStateEvent_STOPPING
	case stFinished:
		return machine.ServiceStateEvent_FINISHED
	case stFailed:
		return machine.ServiceStateEvent_FAILED
	}
	return machine.ServiceStateEvent_INITIALIZED
}

// show brings the COSI resource in line: it exists while the service runs, and is destroyed when it stops.
func (s *services) show(id string) {
	s.mu.Lock()
	svc := *s.byID[id]
	s.mu.Unlock()
	switch svc.state {
	case stRunning:
		put(s.boot, "v1alpha1.ServiceController", v1alpha1.NewService(id), func(r *v1alpha1.Service) {
			*r.TypedSpec() = v1alpha1.ServiceSpec{Running: true, Healthy: svc.healthy, Unknown: svc.unknown}
		})
	default:
		remove(s.boot, "v1alpha1.ServiceController", v1alpha1.NewService(id).Metadata())
	}
	s.boot.refresh()
}

// is says whether a service runs and, if it checks its health, is healthy.
func (s *services) is(id string) (running, healthy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := s.byID[id]
	if svc == nil || svc.state != stRunning {
		return false, false
	}
	return true, !svc.unknown && svc.healthy
}

// state returns a service's state, empty when it was never started, and what to wait for to see it change.
func (s *services) state(id string) (string, bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := s.byID[id]
	if svc == nil {
		return "", false, s.wake
	}
	return svc.state, !svc.unknown && svc.healthy, s.wake
}

// list returns the services as the API shows them, by name.
func (s *services) list() []*machine.ServiceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*machine.ServiceInfo, 0, len(s.byID))
	for _, svc := range s.byID {
		health := &machine.ServiceHealth{Unknown: svc.unknown, Healthy: svc.healthy, LastMessage: svc.message}
		if !svc.changed.IsZero() {
			health.LastChange = timestamppb.New(svc.changed)
		}
		out = append(out, &machine.ServiceInfo{
			Id: svc.id, State: svc.state,
			Events: &machine.ServiceEvents{Events: append([]*machine.ServiceEvent(nil), svc.events...)},
			Health: health,
		})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Id < out[j].Id })
	return out
}
