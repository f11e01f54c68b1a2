package branch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sort"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// entry of the index: what a report belongs to.
type entry struct {
	// Pull request, 0 for the branch.
	Pull int `json:"pull,omitempty"`
	// At is when the report came, Closed when its pull request was seen closed.
	At     time.Time `json:"at"`
	Closed time.Time `json:"closed,omitzero"`
}

// staging is what the index is to be told with the next push.
type staging struct {
	added  map[string]int // commit → pull request
	closed map[int]bool
	// open are all pull requests that are open, where that is known: reports of others expire. Nil says nothing.
	open map[int]bool
}

func newStaging() staging { return staging{added: map[string]int{}, closed: map[int]bool{}} }

// gone tells whether a pull request was said to be closed.
func (s staging) gone(pull int) bool { return s.closed[pull] || (s.open != nil && !s.open[pull]) }

// add: a pull request that has a new report is open, whatever was said of it before.
func (s staging) add(commit string, pull int) {
	s.added[commit] = pull
	delete(s.closed, pull)
	if s.open != nil {
		s.open[pull] = true
	}
}

func (s staging) empty() bool { return len(s.added) == 0 && len(s.closed) == 0 && s.open == nil }

func (s staging) clone() staging {
	return staging{maps.Clone(s.added), maps.Clone(s.closed), maps.Clone(s.open)}
}

// drop forgets what was pushed, and keeps what came since.
func (s *staging) drop(pushed staging) {
	if pushed.open != nil && maps.Equal(s.open, pushed.open) {
		s.open = nil
	}
	for c, n := range pushed.added {
		if s.added[c] == n {
			delete(s.added, c)
		}
	}
	for n := range pushed.closed {
		delete(s.closed, n)
	}
}

// expire brings the index up to date on this tip and removes the reports that are too old or too many.
func (w *Writer) expire(ctx context.Context, v view, s staging, all map[string]state.FileChange) error {
	old, err := w.readIndex(ctx, v, all)
	if err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Second)
	index := maps.Clone(old)
	for commit, pull := range s.added {
		e, known := index[commit]
		if !known || e.Pull != 0 { // a report of the branch stays one
			e.Pull = pull
		}
		if !known {
			e.At = now
		}
		e.Closed = time.Time{}
		index[commit] = e
	}
	for commit, e := range index {
		if e.Pull != 0 && s.gone(e.Pull) && e.Closed.IsZero() {
			e.Closed = now
			index[commit] = e
		}
	}
	for _, commit := range w.expired(index, now) {
		if _, fresh := s.added[commit]; fresh {
			continue
		}
		delete(index, commit)
		for _, path := range []string{CheckMarkdown(commit), CheckJSON(commit)} {
			all[path] = state.FileChange{Path: path, Delete: true}
		}
	}
	if maps.Equal(old, index) {
		return nil
	}
	data, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	all[indexPath] = state.FileChange{Path: indexPath, Data: append(data, '\n')}
	return nil
}

// readIndex reads the index of the tip, or what is about to be restored over it. One that can't be read begins anew.
func (w *Writer) readIndex(ctx context.Context, v view, all map[string]state.FileChange) (map[string]entry, error) {
	index := map[string]entry{}
	c, restored := all[indexPath]
	data := c.Data
	if !restored && v.tip.Hash != "" {
		var err error
		if data, err = w.git.ReadFile(ctx, v.tip.Hash, indexPath); err != nil && !errors.Is(err, state.ErrNoFile) {
			return nil, fmt.Errorf("read index of reports: %w", err)
		}
	}
	if len(data) > 0 && json.Unmarshal(data, &index) != nil {
		w.o.Log.Warn("index of reports can't be read; it begins anew")
		index = map[string]entry{}
	}
	return index, nil
}

// expired lists the commits whose reports go, sorted.
func (w *Writer) expired(index map[string]entry, now time.Time) []string {
	var out, rest []string
	for commit, e := range index {
		if !e.Closed.IsZero() && now.Sub(e.Closed) >= w.o.KeepClosed {
			out = append(out, commit)
		} else {
			rest = append(rest, commit)
		}
	}
	sort.Slice(rest, func(i, j int) bool {
		a, b := index[rest[i]], index[rest[j]]
		if !a.At.Equal(b.At) {
			return a.At.Before(b.At)
		}
		return rest[i] < rest[j]
	})
	if n := len(rest) - w.o.KeepReports; n > 0 {
		out = append(out, rest[:n]...)
	}
	sort.Strings(out)
	return out
}
