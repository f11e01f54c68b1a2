package lab

import (
	"context"
	"path"
	"sync"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// Hook is called at a point of a call on a node; see On.
type Hook func(context.Context, node.Call) error

// hooks holds what is to happen at named points.
type hooks struct {
	mu   sync.Mutex
	next int
	list map[int]entry
	// events get everything that happens on the nodes.
	events map[int]func(node.Event)
}

type entry struct {
	point string
	hook  Hook
}

func newHooks() *hooks { return &hooks{list: map[int]entry{}, events: map[int]func(node.Event){}} }

// On calls a hook at a point of every call on every node: "ApplyConfiguration.before" is before
// the node looks at it, "ApplyConfiguration.after" when it took effect and before the reply,
// "EtcdSnapshot.during" before each message of a streamed answer (node.Call.Message counts them
// from 1). The hook may wait (the call hangs), fail (the caller gets that error), or return
// node.ErrLoseReply (the connection breaks). The function that On returns takes the hook away again.
func (l *Lab) On(point string, h Hook) (remove func()) {
	l.hooks.mu.Lock()
	defer l.hooks.mu.Unlock()
	id := l.hooks.next
	l.hooks.next++
	l.hooks.list[id] = entry{point, h}
	return func() {
		l.hooks.mu.Lock()
		defer l.hooks.mu.Unlock()
		delete(l.hooks.list, id)
	}
}

// LoseReply makes the next reply of a method (such as "Reboot") of a node get lost after the call
// took effect: the connection breaks. A dry run doesn't count.
func (l *Lab) LoseReply(name, method string) {
	var once sync.Once
	var remove func()
	ready := make(chan struct{})
	remove = l.On(method+".after", func(_ context.Context, c node.Call) error {
		<-ready
		if c.Node != name || c.Dry {
			return nil
		}
		err := error(nil)
		once.Do(func() {
			err = node.ErrLoseReply
			remove()
		})
		return err
	})
	close(ready)
}

// Before implements node.Hooks.
func (h *hooks) Before(ctx context.Context, c node.Call) error { return h.run(ctx, c, "before") }

// After implements node.Hooks.
func (h *hooks) After(ctx context.Context, c node.Call) error { return h.run(ctx, c, "after") }

// During implements node.Hooks.
func (h *hooks) During(ctx context.Context, c node.Call) error { return h.run(ctx, c, "during") }

func (h *hooks) run(ctx context.Context, c node.Call, when string) error {
	point := path.Base(c.Method) + "." + when
	h.mu.Lock()
	var due []Hook
	for id := range h.next { // in the order in which they were added
		if e, ok := h.list[id]; ok && e.point == point {
			due = append(due, e.hook)
		}
	}
	h.mu.Unlock()
	for _, hook := range due {
		if err := hook(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
