// Package outbox posts commit statuses: durable, at least once, in order, paced, and on change only.
//
// One record per commit and context lies in a file of the state folder. A record holds what is wanted, what was posted
// last, and whether an attempt is open whose outcome nobody knows; such an attempt is settled by reading back before
// anything is posted again.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Poster is the forge, as far as the outbox needs it. Its errors may be a Fault; others count as transient.
type Poster interface {
	// PostStatus posts. After an error the status may have been taken nevertheless, unless the fault says otherwise.
	PostStatus(ctx context.Context, sha string, s state.CommitStatus) error
	// Statuses gives the newest status of each context of a commit.
	Statuses(ctx context.Context, sha string) ([]state.CommitStatus, error)
}

// Fault is an error that knows its kind (sync/forge.Error is one): "transient" (may have been taken), "rate" (wait
// until), "auth" and "held" (a person has to act), "no-commit", "too-many", "permanent".
type Fault interface {
	error
	Fault() (kind string, until time.Time)
}

// Priority among statuses of the same urgency; final states always go before pending ones.
type Priority int

// Priorities.
const (
	Low    Priority = 0 // older commits
	Normal Priority = 1 // pull requests
	High   Priority = 2 // the head of the watched branch
)

// Options of New. Zero fields have the defaults.
type Options struct {
	// Pace is the least time between two writes (default 1 s, what GitHub asks for; negative is none).
	Pace time.Duration
	// PerHour is the most writes in an hour (default 400; negative is no limit).
	PerHour int
	// Budget of posts per commit and context, then only final states (default 50).
	Budget int
	// RetryMin and RetryMax of the back-off (defaults 1 s, 5 min).
	RetryMin, RetryMax time.Duration
	// CallTimeout of one request (default 30 s).
	CallTimeout time.Duration
	// AuthPause between attempts while the credential is refused (default 5 min).
	AuthPause time.Duration
	// OrphanAfter is when a pending status of an earlier process that nobody has set again since the start counts as left
	// behind (default 20 min after the start, then looked for hourly).
	OrphanAfter time.Duration
	// Orphan is told of such a status; true means that somebody takes care of it. Else it becomes an error.
	Orphan func(sha string, s state.CommitStatus) bool
	// Before runs before a status is posted: the report that it points to must be there first. Its error is retried.
	Before func(ctx context.Context, sha string, s state.CommitStatus) error
	// Keep is how long a record is remembered after its last change (default 30 days).
	Keep time.Duration
	// Log may be nil.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	set := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.Pace, time.Second)
	set(&o.RetryMin, time.Second)
	set(&o.RetryMax, 5*time.Minute)
	set(&o.CallTimeout, 30*time.Second)
	set(&o.AuthPause, 5*time.Minute)
	set(&o.OrphanAfter, 20*time.Minute)
	set(&o.Keep, 30*24*time.Hour)
	if o.PerHour == 0 {
		o.PerHour = 400
	}
	if o.Budget == 0 {
		o.Budget = 50
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// MaxDescription in runes (GitHub answers 422 above it, and then there is no status at all).
const MaxDescription = 140

// Outbox is safe for concurrent use; Run is called once.
type Outbox struct {
	o     Options
	dir   string
	forge Poster

	mu      sync.Mutex
	records map[string]*record
	seq     int64
	// primed commits were read back, or have records of an earlier process.
	primed map[string]bool
	// inherited are pending statuses of an earlier process that nobody has set again.
	inherited map[string]bool
	health    Health
	wake      chan struct{}
	idle      chan struct{} // closed when nothing is queued

	// Of Run alone.
	pauseUntil time.Time
	lastWrite  time.Time
	writes     []time.Time
	failures   int
}

// Health is how posting goes, for conditions and metrics.
type Health struct {
	// Queued statuses, and the age of the oldest.
	Queued int
	Oldest time.Time
	// Posted and Dropped since the start.
	Posted, Dropped int64
	// LastError is the last failure, "" after a success. Refused: the credential is refused.
	LastError string
	Refused   bool
	// PausedUntil is a limit that the forge told.
	PausedUntil time.Time
}

// New reads what an earlier process left in dir.
func New(dir string, p Poster, o Options) (*Outbox, error) {
	b := &Outbox{
		o: o.withDefaults(), dir: dir, forge: p, records: map[string]*record{}, primed: map[string]bool{}, inherited: map[string]bool{},
		wake: make(chan struct{}, 1), idle: make(chan struct{}),
	}
	if err := b.load(time.Now()); err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	for k, r := range b.records {
		b.seq = max(b.seq, r.Seq)
		b.primed[r.SHA] = true
		if s := r.last(); s != nil && s.State == state.StatePending && r.Dead == "" {
			b.inherited[k] = true
		}
	}
	b.checkIdle()
	return b, nil
}

// Set wants a status on a commit. It is durable when Set returns. What was queued for the same commit and context is
// replaced; what is already posted or queued is not queued again. The description becomes one line of 140 runes.
func (b *Outbox) Set(sha string, s state.CommitStatus, prio Priority) error {
	s.Description = clamp(s.Description)
	if sha == "" || s.Context == "" {
		return errors.New("queue status: commit and context are required")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := key(sha, s.Context)
	delete(b.inherited, k)
	r := b.records[k]
	if r == nil {
		r = &record{SHA: sha, Context: s.Context}
	}
	switch {
	case r.Dead != "":
		return nil // the forge takes no more for this commit and context; it was logged
	case r.Want != nil && *r.Want == s:
		return nil
	case r.Want == nil && r.Posted != nil && *r.Posted == s:
		return nil
	}
	next := *r
	b.seq++
	next.Seq, next.Prio, next.Changed, next.Tries = b.seq, prio, time.Now(), 0
	next.notBefore = time.Time{}
	if r.Posted != nil && *r.Posted == s && !r.Unsure {
		next.Want = nil // back to what the forge shows
	} else {
		next.Want = &s
	}
	if err := b.save(k, &next); err != nil {
		return fmt.Errorf("queue status %s on %s: %w", s.Context, sha, err)
	}
	b.records[k] = &next
	b.checkIdle()
	b.kick()
	return nil
}

func (b *Outbox) kick() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// checkIdle keeps the idle channel closed exactly while nothing is queued. The lock is held.
func (b *Outbox) checkIdle() {
	queued := false
	for _, r := range b.records {
		queued = queued || r.Want != nil
	}
	select {
	case <-b.idle:
		if queued {
			b.idle = make(chan struct{})
		}
	default:
		if !queued {
			close(b.idle)
		}
	}
}

// Flush waits until nothing is queued, or ctx ends.
func (b *Outbox) Flush(ctx context.Context) error {
	b.mu.Lock()
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("post statuses: %d are left: %w", b.Health().Queued, ctx.Err())
	}
}

// Health says how posting goes.
func (b *Outbox) Health() Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.health
	for _, r := range b.records {
		if r.Want != nil {
			h.Queued++
			if h.Oldest.IsZero() || r.Changed.Before(h.Oldest) {
				h.Oldest = r.Changed
			}
		}
	}
	return h
}

// Last gives the status that is wanted or posted for a commit and context, and whether there is one.
func (b *Outbox) Last(sha, context string) (state.CommitStatus, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.records[key(sha, context)]
	if r == nil || r.last() == nil {
		return state.CommitStatus{}, false
	}
	return *r.last(), true
}

func clamp(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > MaxDescription {
		return string(r[:MaxDescription-1]) + "…"
	}
	return s
}
