package outbox

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Run posts until ctx ends, and then returns nil: what is queued stays on disk.
func (b *Outbox) Run(ctx context.Context) error {
	janitor := time.NewTimer(b.o.OrphanAfter)
	defer janitor.Stop()
	for ctx.Err() == nil {
		k, r, wait := b.pick(time.Now())
		if r == nil || wait > 0 {
			b.sleep(ctx, wait, janitor)
			continue
		}
		b.deliver(ctx, k, r)
	}
	return nil
}

// sleep waits for a new status, the time (0: none is set), the janitor's hour or the end.
func (b *Outbox) sleep(ctx context.Context, wait time.Duration, janitor *time.Timer) {
	var timer <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
	case <-b.wake:
	case <-timer:
	case <-janitor.C:
		b.tidy()
		janitor.Reset(time.Hour)
	}
}

// pick gives the record that is next, and how long to wait for it.
func (b *Outbox) pick(now time.Time) (string, *record, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var bestKey string
	var best *record
	soonest := time.Time{}
	for k, r := range b.records {
		if r.Want == nil {
			continue
		}
		if r.notBefore.After(now) {
			if soonest.IsZero() || r.notBefore.Before(soonest) {
				soonest = r.notBefore
			}
			continue
		}
		if best == nil || before(r, best) {
			bestKey, best = k, r
		}
	}
	if best == nil {
		if soonest.IsZero() {
			return "", nil, 0
		}
		return "", nil, soonest.Sub(now)
	}
	return bestKey, best, b.gap(now)
}

// before orders: final states, then priority, then first come.
func before(a, b *record) bool {
	if af, bf := final(a.Want), final(b.Want); af != bf {
		return af
	}
	if a.Prio != b.Prio {
		return a.Prio > b.Prio
	}
	return a.Seq < b.Seq
}

func final(s *state.CommitStatus) bool { return s.State != state.StatePending }

// gap is how long no write may go out: the forge's limits, our pace, our share of an hour.
func (b *Outbox) gap(now time.Time) time.Duration {
	until := b.pauseUntil
	if b.o.Pace > 0 && !b.lastWrite.IsZero() {
		if t := b.lastWrite.Add(b.o.Pace); t.After(until) {
			until = t
		}
	}
	hour := now.Add(-time.Hour)
	for len(b.writes) > 0 && !b.writes[0].After(hour) {
		b.writes = b.writes[1:]
	}
	if n := len(b.writes); b.o.PerHour > 0 && n >= b.o.PerHour {
		if t := b.writes[n-b.o.PerHour].Add(time.Hour); t.After(until) {
			until = t
		}
	}
	return until.Sub(now)
}

// deliver makes one attempt at what a record wants.
func (b *Outbox) deliver(ctx context.Context, k string, r *record) {
	want := *r.Want
	if r.Count >= b.o.Budget && !final(&want) {
		b.drop(k, r, fmt.Sprintf("budget of %d statuses is used up; only final states are posted", b.o.Budget), false)
		return
	}
	if b.o.Before != nil {
		if err := b.o.Before(ctx, r.SHA, want); err != nil {
			b.later(ctx, k, r, err, r.Unsure)
			return
		}
	}
	if r.Unsure || !b.isPrimed(r.SHA) {
		shown, err := b.readBack(ctx, k, r)
		if err != nil || shown {
			return // taken care of
		}
		if r = b.current(k); r == nil || r.Want == nil || *r.Want != want {
			return // it was changed meanwhile
		}
	}
	unsure := *r
	unsure.Unsure = true
	if !b.replace(k, r, &unsure) {
		return
	}
	call, cancel := context.WithTimeout(ctx, b.o.CallTimeout)
	err := b.forge.PostStatus(call, r.SHA, want)
	cancel()
	b.lastWrite = time.Now()
	b.writes = append(b.writes, b.lastWrite)
	b.settle(ctx, k, want, err)
}

// readBack asks the forge what it shows. True: it shows what is wanted already.
func (b *Outbox) readBack(ctx context.Context, k string, r *record) (bool, error) {
	call, cancel := context.WithTimeout(ctx, b.o.CallTimeout)
	defer cancel()
	list, err := b.forge.Statuses(call, r.SHA)
	kind, _ := faultOf(err)
	if err != nil && kind != "no-commit" && kind != "permanent" {
		b.fail(ctx, k, err, attempt{read: true, unsure: r.Unsure})
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.primed[r.SHA] = true
	now := b.records[k]
	if now == nil || now.Want == nil {
		return true, nil
	}
	next := *now
	next.Unsure = false
	for _, s := range list {
		if strings.EqualFold(s.Context, r.Context) {
			s.Context = now.Want.Context
			next.Posted = &s
		}
	}
	shown := err == nil && next.Posted != nil && *next.Posted == *next.Want
	if shown {
		next.Want = nil
		if now.Unsure {
			next.Count++
			b.health.Posted++
		}
		b.ok()
	}
	b.put(k, &next)
	return shown, nil
}

func (b *Outbox) isPrimed(sha string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.primed[sha]
}

func (b *Outbox) current(k string) *record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[k]
}

// replace puts next in old's place unless it was changed meanwhile.
func (b *Outbox) replace(k string, old, next *record) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.records[k] != old {
		return false
	}
	return b.put(k, next)
}

// put saves a record and shows it. When the disk refuses, the record is tried again later. The lock is held.
func (b *Outbox) put(k string, next *record) bool {
	if err := b.save(k, next); err != nil {
		b.health.LastError = err.Error()
		b.o.Log.Error("save status record", "context", next.Context, "commit", next.SHA, "error", err)
		b.pauseUntil = time.Now().Add(b.o.RetryMin)
		return false
	}
	b.records[k] = next
	b.checkIdle()
	return true
}

// settle writes down what became of a post. What is wanted may have changed meanwhile.
func (b *Outbox) settle(ctx context.Context, k string, sent state.CommitStatus, err error) {
	if err != nil {
		b.fail(ctx, k, err, attempt{unsure: true})
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next := *b.records[k]
	next.Posted, next.Unsure, next.Count, next.Tries = &sent, false, next.Count+1, 0
	if next.Want != nil && *next.Want == sent {
		next.Want = nil
	}
	b.ok()
	b.health.Posted++
	b.put(k, &next)
}

func (b *Outbox) ok() {
	b.failures, b.health.LastError, b.health.Refused, b.health.PausedUntil = 0, "", false, time.Time{}
}

// noCommitTries: 1, 2, 4, 8 s; a status can be faster than the push to a fork (facts section 4).
const noCommitTries = 4

// attempt is what failed: a read or a post, and whether a post may have been taken.
type attempt struct{ read, unsure bool }

// fail decides what an error means.
func (b *Outbox) fail(ctx context.Context, k string, err error, a attempt) {
	r := b.current(k)
	if r == nil {
		return
	}
	kind, until := faultOf(err)
	switch {
	case ctx.Err() != nil:
		return // the end of the process says nothing about the forge; Unsure stays on disk
	case kind == "rate":
		b.pause(until, err, false)
		b.refused(k, a)
	case kind == "auth", kind == "held":
		b.pause(time.Now().Add(b.o.AuthPause), err, true)
		b.refused(k, a)
	case kind == "no-commit" && r.Tries < noCommitTries:
		b.retry(k, time.Second<<r.Tries, err, false)
	case kind == "no-commit":
		b.drop(k, r, "the forge doesn't know the commit", false)
	case kind == "too-many":
		b.drop(k, r, "the forge takes no more statuses for this commit and context", true)
	case kind == "permanent":
		b.drop(k, r, err.Error(), false)
	default:
		b.later(ctx, k, r, err, a.unsure)
	}
}

// later retries after a back-off of the record's own, and slows everything down while failures follow on each other.
func (b *Outbox) later(ctx context.Context, k string, r *record, err error, unsure bool) {
	if ctx.Err() != nil {
		return
	}
	b.failures++
	b.pauseUntil = time.Now().Add(min(b.backoff(b.failures), 30*time.Second))
	b.retry(k, b.backoff(r.Tries+1), err, unsure)
}

func (b *Outbox) backoff(n int) time.Duration {
	d := b.o.RetryMin
	for range min(n-1, 30) {
		if d *= 2; d >= b.o.RetryMax {
			return b.o.RetryMax
		}
	}
	return d
}

func (b *Outbox) retry(k string, after time.Duration, err error, unsure bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.health.LastError = err.Error()
	next := *b.records[k]
	next.Tries++
	next.Unsure = unsure
	next.notBefore = time.Now().Add(after)
	b.o.Log.Warn("post status again later", "context", next.Context, "commit", next.SHA, "after", after, "error", err)
	b.put(k, &next)
}

// refused notes that a post was certainly not taken. A refused read says nothing about the post before it.
func (b *Outbox) refused(k string, a attempt) {
	if a.read {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next := *b.records[k]
	next.Unsure = false
	b.put(k, &next)
}

func (b *Outbox) pause(until time.Time, err error, refused bool) {
	if least := time.Now().Add(b.o.RetryMin); until.Before(least) {
		until = least
	}
	b.pauseUntil = until
	b.mu.Lock()
	defer b.mu.Unlock()
	b.health.LastError, b.health.Refused, b.health.PausedUntil = err.Error(), refused, until
	b.o.Log.Warn("hold statuses back", "until", until, "error", err)
}

// drop gives a status up, with one line in the log. dead: nothing more is tried for this commit and context.
func (b *Outbox) drop(k string, r *record, why string, dead bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.records[k] == nil || b.records[k].Seq != r.Seq {
		return
	}
	next := *b.records[k]
	b.o.Log.Error("drop status", "context", next.Context, "commit", next.SHA, "state", next.Want.State, "reason", why)
	next.Want, next.Unsure, next.Tries = nil, false, 0
	if dead {
		next.Dead = why
	}
	b.health.Dropped++
	b.health.LastError = why
	b.put(k, &next)
}

func faultOf(err error) (string, time.Time) {
	var f Fault
	if errors.As(err, &f) {
		return f.Fault()
	}
	return "transient", time.Time{}
}

// tidy forgets old records and ends pending statuses that an earlier process left behind and nobody has taken up: a
// required context that stays pending blocks the pull request for ever.
func (b *Outbox) tidy() {
	var left []record
	b.mu.Lock()
	b.prune(time.Now())
	for k := range b.inherited {
		if r := b.records[k]; r != nil && r.last() != nil {
			left = append(left, *r)
		}
	}
	clear(b.inherited)
	b.mu.Unlock()
	sort.Slice(left, func(i, j int) bool { return left[i].Seq < left[j].Seq })
	for _, r := range left {
		s := *r.last()
		if b.o.Orphan != nil && b.o.Orphan(r.SHA, s) {
			continue
		}
		s.State, s.Description = state.StateError, "did not finish; it was interrupted"
		if err := b.Set(r.SHA, s, r.Prio); err != nil {
			b.o.Log.Error("end a pending status", "context", s.Context, "commit", r.SHA, "error", err)
		}
	}
}
