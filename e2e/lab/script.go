package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// Step is something that goes wrong at a named point of what happens on a node.
type Step struct {
	// Node on which it happens.
	Node string `json:"node"`
	// Point is METHOD.before (the call came, nothing was done), METHOD.after (it took effect, the
	// reply is not sent), METHOD.during (a message of a streamed reply is about to be sent), or an
	// event, as the lab prints them: KIND or KIND=DETAIL, such as stage=installing. Dry runs don't count.
	Point string `json:"point"`
	// Do is one of Does.
	Do string `json:"do"`
	// Arg is the duration of wait, or the error of fail: "CODE: text", such as "Unavailable: try later".
	Arg string `json:"arg,omitempty"`
	// Count is how often it happens; 0: once; -1: each time.
	Count int `json:"count,omitempty"`
	// Message is the number of the streamed message for METHOD.during, from 1; 0: the second, so
	// that a part of the stream got through.
	Message int `json:"message,omitempty"`
}

// Does is what a step can do; those with Call need a call.
var Does = []struct {
	Name, Text string
	Call       bool
}{
	{"lose-reply", "break the caller's connection", true},
	{"hang", "hold the call until it is healed, or the caller gives up", true},
	{"wait", "hold it for DURATION, then go on", true},
	{"fail", "answer with an error, \"CODE: text\"", true},
	{"cut", "cut the node off", false},
	{"mute", "lose all that the node answers", false},
	{"close", "make its ports refuse connections", false},
	{"freeze", "freeze the machine", false},
	{"kill", "take its power away", false},
	{"reboot", "power-cycle it", false},
	{"wipe", "lose its disks", false},
}

// String words the step as the command line does.
func (s Step) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s:%s %s", s.Point, s.Do, s.Arg))
}

// At lets a step happen when its point is reached. What it returns takes the step away again, and
// ends a hang.
func (l *Lab) At(s Step) (remove func(), err error) {
	call, when, err := s.check()
	if err != nil {
		return nil, err
	}
	if _, err := l.find(s.Node); err != nil {
		return nil, err
	}
	r := &running{lab: l, step: s, left: s.Count, stop: make(chan struct{})}
	if r.left == 0 {
		r.left = 1
	}
	if s.Message == 0 {
		r.step.Message = 2
	}
	take := func() {}
	if call != "" {
		take = l.On(call+"."+when, r.onCall)
	} else {
		take = l.onEvent(r.onEvent)
	}
	return sync.OnceFunc(func() {
		take()
		close(r.stop)
	}), nil
}

// check says what call or event the point is.
func (s Step) check() (call, when string, err error) {
	i := slices.IndexFunc(Does, func(d struct {
		Name, Text string
		Call       bool
	},
	) bool {
		return d.Name == s.Do
	})
	if i < 0 {
		return "", "", fmt.Errorf("at %s of node %s do %q: not known; ichor-lab node at --help lists what can happen", s.Point, s.Node, s.Do)
	}
	if s.Count < -1 || s.Message < 0 {
		return "", "", fmt.Errorf("at %s of node %s: counts are from 1", s.Point, s.Node)
	}
	if s.Do == "wait" {
		if d, err := time.ParseDuration(s.Arg); err != nil || d <= 0 {
			return "", "", fmt.Errorf("at %s of node %s wait %q: want a duration such as 5s", s.Point, s.Node, s.Arg)
		}
	}
	if s.Do == "fail" {
		if _, err := parseFailure(s.Arg); err != nil {
			return "", "", fmt.Errorf("at %s of node %s: %w", s.Point, s.Node, err)
		}
	}
	method, when, isCall := strings.Cut(s.Point, ".")
	if !isCall {
		if s.Point == "" || Does[i].Call {
			return "", "", fmt.Errorf("at %q of node %s %s: that needs a call, such as ApplyConfiguration.after", s.Point, s.Node, s.Do)
		}
		return "", "", nil
	}
	stream, known := methodOf(method)
	switch {
	case !known:
		return "", "", fmt.Errorf("at %s of node %s: no call of the Talos API is named %q", s.Point, s.Node, method)
	case !slices.Contains([]string{"before", "after", "during"}, when):
		return "", "", fmt.Errorf("at %s of node %s: want %s.before, %s.after or %s.during", s.Point, s.Node, method, method, method)
	case when == "during" && !stream:
		return "", "", fmt.Errorf("at %s of node %s: %s answers with one message; want %s.before or %s.after", s.Point, s.Node, method, method, method)
	}
	return method, when, nil
}

// methodOf says whether the Talos API has a call of a name, and whether it streams its answer.
func methodOf(name string) (stream, known bool) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		switch f.Package() {
		case "machine", "storage", "cluster", "inspect", "time", "cosi.resource":
		default:
			return true
		}
		for i := range f.Services().Len() {
			if m := f.Services().Get(i).Methods().ByName(protoreflect.Name(name)); m != nil {
				known = true
				stream = stream || m.IsStreamingServer()
			}
		}
		return true
	})
	return stream, known
}

// parseFailure reads "CODE: text".
func parseFailure(text string) (error, error) { //nolint:staticcheck // the first one is the value
	name, message, ok := strings.Cut(text, ": ")
	var code codes.Code
	if !ok || code.UnmarshalJSON([]byte(fmt.Sprintf("%q", screaming(name)))) != nil || code == codes.OK {
		return nil, fmt.Errorf("fail with %q: want CODE: text, such as \"Unavailable: try later\"", text)
	}
	return status.Error(code, message), nil
}

// screaming turns DeadlineExceeded into DEADLINE_EXCEEDED, as gRPC reads its codes.
func screaming(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	if name = strings.ToUpper(b.String()); name == "CANCELED" {
		return "CANCELLED"
	}
	return name
}

// running is a step that waits for its point.
type running struct {
	lab  *Lab
	step Step
	mu   sync.Mutex
	left int
	stop chan struct{}
}

// due counts an occurrence and says whether the step happens.
func (r *running) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return false
	}
	if r.left > 0 {
		r.left--
	}
	return true
}

func (r *running) onCall(ctx context.Context, c node.Call) error {
	if c.Node != r.step.Node || c.Dry || (c.Message != 0 && c.Message != r.step.Message) || !r.due() {
		return nil
	}
	r.lab.say(c.Node, "step", r.step.String())
	switch r.step.Do {
	case "lose-reply":
		return node.ErrLoseReply
	case "hang":
		select {
		case <-ctx.Done():
		case <-r.stop:
		}
		return nil
	case "wait":
		d, _ := time.ParseDuration(r.step.Arg) // checked
		select {
		case <-ctx.Done():
		case <-r.stop:
		case <-time.After(d):
		}
		return nil
	case "fail":
		failure, _ := parseFailure(r.step.Arg) // checked
		return failure
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.act()
	}()
	select { // power acts wait for the call that they break
	case <-done:
	case <-ctx.Done():
	}
	switch r.step.Do {
	case "kill", "reboot", "wipe":
		return node.ErrLoseReply
	}
	return nil
}

func (r *running) onEvent(e node.Event) {
	kind, detail, exact := strings.Cut(r.step.Point, "=")
	if e.Node != r.step.Node || e.Kind != kind || (exact && e.Detail != detail) || !r.due() {
		return
	}
	go r.act() // who sends an event must not wait
}

// act does to the node what the step says.
func (r *running) act() {
	l, n := r.lab, r.step.Node
	err := map[string]func(string) error{
		"cut": l.Cut, "mute": l.Mute, "close": l.Refuse, "freeze": l.Freeze,
		"kill": l.Kill, "reboot": l.Reboot, "wipe": l.Wipe,
	}[r.step.Do](n)
	if err != nil {
		l.say(n, "error", err.Error())
	}
}

// onEvent calls f with everything that happens, until the function that it returns is called.
func (l *Lab) onEvent(f func(node.Event)) (remove func()) {
	l.hooks.mu.Lock()
	defer l.hooks.mu.Unlock()
	id := l.hooks.next
	l.hooks.next++
	l.hooks.events[id] = f
	return func() {
		l.hooks.mu.Lock()
		defer l.hooks.mu.Unlock()
		delete(l.hooks.events, id)
	}
}

// event passes on what happens on a node.
func (l *Lab) event(e node.Event) {
	l.hooks.mu.Lock()
	list := make([]func(node.Event), 0, len(l.hooks.events))
	for _, f := range l.hooks.events {
		list = append(list, f)
	}
	l.hooks.mu.Unlock()
	for _, f := range list {
		f(e)
	}
	if l.opts.OnEvent != nil {
		l.opts.OnEvent(e)
	}
}
