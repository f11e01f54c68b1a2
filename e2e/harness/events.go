package harness

import (
	"encoding/json"
	"sync"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

// Events collects what a lab says. It is an io.Writer for StartLabWith: each write is one JSON line.
type Events struct {
	mu   sync.Mutex
	list []forge.Event
}

// Write takes a line.
func (e *Events) Write(line []byte) (int, error) {
	var ev forge.Event
	if err := json.Unmarshal(line, &ev); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
	return len(line), nil
}

// Len is how many there are: a mark for Since.
func (e *Events) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.list)
}

// Since gives the events after a mark, oldest first, of the given kinds (none: all).
func (e *Events) Since(mark int, kinds ...string) []forge.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []forge.Event
	for _, ev := range e.list[min(mark, len(e.list)):] {
		if len(kinds) == 0 {
			out = append(out, ev)
		}
		for _, k := range kinds {
			if ev.Kind == k {
				out = append(out, ev)
			}
		}
	}
	return out
}

// Field of an event as text, "" where it has none.
func Field(ev forge.Event, name string) string {
	s, _ := ev.Fields[name].(string)
	return s
}
