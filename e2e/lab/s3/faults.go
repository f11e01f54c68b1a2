package s3

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// Kinds of faults, and what each does, in the order of the help.
var Kinds = []struct{ Name, Does string }{
	{"cut", "no connection gets through; those that exist go silent"},
	{"refuse", "connections are refused, those that exist break"},
	{"hang", "requests are taken and never answered"},
	{"slow", "everything is late (--delay), or transfers are slow (--rate)"},
	{"half", "the connection breaks in the middle of an object, up or down"},
	{"lost-reply", "what was asked is done, and the connection breaks before the answer"},
	{"corrupt", "a bit flips on the way: of what is downloaded, or with --on PutObject or UploadPart of what is uploaded"},
	{"fail", "requests get an error, 503 SlowDown by default"},
	{"clock", "the store's clock is wrong by --offset: it dates objects so, and refuses requests more than 15 minutes off"},
}

// Fault is something that goes wrong with the store.
type Fault struct {
	// Kind is one of Kinds.
	Kind string `json:"kind"`
	// On is the operation that it hits, as S3 names it (such as PutObject); empty for all that the
	// kind is about. cut and refuse hit connections, and take none.
	On string `json:"on,omitempty"`
	// Count of requests that it hits; 0: all, until Heal.
	Count int `json:"count,omitempty"`
	// Delay of slow, before each request.
	Delay time.Duration `json:"delay,omitempty"`
	// Rate of slow, bytes a second.
	Rate int64 `json:"rate,omitempty"`
	// Offset of clock; ahead is positive.
	Offset time.Duration `json:"offset,omitempty"`
	// Status of fail; default 503.
	Status int `json:"status,omitempty"`
}

// fault is one in force.
type fault struct {
	Fault
	left int // requests that it still hits; -1: no end
}

// check fills what is empty and refuses what makes no sense.
func (f *Fault) check() error {
	if !slices.ContainsFunc(Kinds, func(k struct{ Name, Does string }) bool { return k.Name == f.Kind }) {
		return fmt.Errorf("make the S3 store fail: %q is not a kind of fault", f.Kind)
	}
	if f.On != "" && !slices.Contains(operations, f.On) {
		return fmt.Errorf("make the S3 store fail on %q: not an operation; there are %s", f.On, strings.Join(operations, ", "))
	}
	onWire := f.Kind == "cut" || f.Kind == "refuse"
	switch {
	case onWire && (f.On != "" || f.Count != 0):
		return fmt.Errorf("%s the S3 store: it hits connections, not single operations or requests", f.Kind)
	case f.Count < 0:
		return fmt.Errorf("%s the S3 store: count %d: want 0 (all) or more", f.Kind, f.Count)
	case f.Kind == "clock" && f.Offset == 0:
		return fmt.Errorf("set the S3 store's clock: want an offset such as 20m or -1h; heal sets it right")
	case f.Kind == "clock" && (f.On != "" || f.Count != 0):
		return fmt.Errorf("set the S3 store's clock: it is wrong for all requests")
	case f.Kind == "half" && f.On != "" && f.On != "PutObject" && f.On != "UploadPart" && f.On != "GetObject":
		return fmt.Errorf("half a %s: objects are moved by PutObject, UploadPart and GetObject only", f.On)
	case f.Kind == "corrupt" && f.On != "" && f.On != "PutObject" && f.On != "UploadPart" && f.On != "GetObject":
		return fmt.Errorf("corrupt a %s: objects are moved by PutObject, UploadPart and GetObject only", f.On)
	case f.Kind == "slow" && f.Rate < 0, f.Kind == "slow" && f.Delay < 0:
		return fmt.Errorf("slow the S3 store: want a delay or a rate above nothing")
	case f.Kind == "fail" && f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("make the S3 store fail with status %d: want one from 400 to 599", f.Status)
	}
	if f.Kind == "slow" && f.Delay == 0 && f.Rate == 0 {
		f.Delay = 500 * time.Millisecond
	}
	if f.Kind == "fail" && f.Status == 0 {
		f.Status = 503
	}
	return nil
}

// Fault puts a fault in force until Heal, or until it hit its count of requests.
func (s *Store) Fault(f Fault) error {
	if err := f.check(); err != nil {
		return err
	}
	switch f.Kind {
	case "cut":
		s.net.Cut(name, wire.Blackhole)
	case "refuse":
		s.net.Cut(name, wire.Refuse)
	}
	left := f.Count
	if left == 0 {
		left = -1
	}
	s.mu.Lock()
	s.faults = slices.DeleteFunc(s.faults, func(x *fault) bool { return x.Kind == f.Kind && x.On == f.On })
	s.faults = append(s.faults, &fault{Fault: f, left: left})
	s.mu.Unlock()
	s.opts.OnEvent("s3.fault", map[string]any{"kind": f.Kind, "on": f.On, "count": f.Count})
	return nil
}

// Heal ends every fault. What was corrupted in the store stays so.
func (s *Store) Heal() {
	s.mu.Lock()
	had := len(s.faults) > 0
	s.faults = nil
	s.mu.Unlock()
	s.net.Heal(name)
	if had {
		s.opts.OnEvent("s3.heal", nil)
	}
}

// Faults that are in force.
func (s *Store) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Fault{}
	for _, f := range s.faults {
		if f.left != 0 {
			x := f.Fault
			x.Count = max(f.left, 0)
			out = append(out, x)
		}
	}
	return out
}

// hit says whether a kind of fault hits this operation, and uses it up. on are the operations that
// the kind is about when the fault names none; none: all.
func (s *Store) hit(kind, op string, on ...string) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Kind != kind || f.left == 0 || (f.On != "" && f.On != op) || (f.On == "" && len(on) > 0 && !slices.Contains(on, op)) {
			continue
		}
		if f.left > 0 {
			f.left--
		}
		return f.Fault, true
	}
	return Fault{}, false
}
