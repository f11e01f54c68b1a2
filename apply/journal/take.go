package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Take makes this process the holder, with the next epoch. It loads first. From another holder it takes only where
// that one released it, is a dead process of this very state folder (whose lock is ours), left this process's claim
// unanswered for long enough, or where Options.TakeOver says so; call it again until it does. Errors: ErrHeld,
// ErrUnknown, ErrRefused, ErrFenced (another was faster), what the Store returns.
func (j *Journal) Take(ctx context.Context, now time.Time) error {
	defer j.lock()()
	if err := j.load(ctx, now); err != nil {
		return err
	}
	switch j.status.State {
	case Unknown:
		return fmt.Errorf("%w: %s", ErrUnknown, j.status.Message)
	case Refused:
		return fmt.Errorf("%w: %s", ErrRefused, j.status.Message)
	}
	if j.status.Mine && !j.restore {
		return nil
	}
	if err := j.mayTake(ctx, now); err != nil {
		return err
	}
	next := clone(j.inv)
	if next == nil {
		next = &state.Inventory{}
	}
	return j.become(ctx, now, next)
}

func (j *Journal) mayTake(ctx context.Context, now time.Time) error {
	if j.inv == nil || j.inv.Holder.ID == "" || j.inv.Holder.ID == j.id || j.opt.TakeOver {
		return nil
	}
	ours, err := j.heldByFolder()
	if err != nil {
		return err
	}
	if slices.Contains(ours, j.inv.Holder.ID) {
		return nil
	}
	every, err := time.ParseDuration(j.inv.Holder.Every)
	if err != nil {
		every = DefaultEvery
	}
	wait, still := patience(j.opt.Takeover, every), now.Sub(j.since)
	if c := j.inv.Claim; c != nil && c.ID == j.id && still >= wait {
		return nil
	}
	again := min(AskAgain, 3*wait)
	held := fmt.Errorf("%w: %s", ErrHeld, describe(j.inv.Holder))
	j.status.Message = "held by " + describe(j.inv.Holder) + "; this Ichor stands by"
	switch c := j.inv.Claim; {
	case c != nil && c.ID == j.id:
		return held
	case c != nil && still < 2*wait:
		return held // another one asks; its turn first
	case !j.asked.IsZero() && (still < again || now.Sub(j.asked) < again):
		return held // it moved, or answered, lately
	}
	return errors.Join(held, j.claim(ctx, now))
}

// patience is how long a claim waits for its answer.
func patience(takeover, every time.Duration) time.Duration { return max(takeover, looksToAnswer*every) }

// claim asks the holder whether it lives, by a push that leaves everything else as it is.
func (j *Journal) claim(ctx context.Context, now time.Time) error {
	next := clone(j.inv)
	next.Claim = &state.Claim{ID: j.id, Instance: j.opt.Instance}
	next.Generation = j.inv.Generation + 1
	mac, err := macOf(next, j.opt.Keys[0])
	if err != nil {
		return err
	}
	next.MAC = mac
	data, err := seal(next, j.opt.Keys)
	if err != nil {
		return err
	}
	rev, err := j.opt.Store.Write(ctx, data, j.rev)
	if err != nil {
		return fmt.Errorf("ask the holder of the inventory: %w", err)
	}
	j.asked, j.rev, j.inv, j.there = now, rev, next, baseOf(next)
	j.seen, j.since = mac, now
	j.remember(next)
	return nil
}

// become writes next with this process as the holder. The ID goes into the state folder before the push: a process
// that dies in between must be known as ours when the folder is used again.
func (j *Journal) become(ctx context.Context, now time.Time, next *state.Inventory) error {
	ours, err := j.heldByFolder()
	if err != nil {
		return err
	}
	if !slices.Contains(ours, j.id) {
		ours = append(ours, j.id)
		ours = ours[max(0, len(ours)-heldBefore):]
		if err := j.dir.write(holderFile, []byte(strings.Join(ours, "\n")+"\n")); err != nil {
			return err
		}
	}
	next.Holder = state.Holder{
		ID: j.id, Instance: j.opt.Instance, Epoch: j.epoch + 1, Since: now.UTC().Truncate(time.Second), Every: j.opt.Every.String(),
	}
	next.Claim = nil
	if j.opt.RepositoryID != "" {
		next.RepositoryID = j.opt.RepositoryID
	}
	err = j.push(ctx, now, next)
	if errors.Is(err, ErrUnsettled) {
		// Someone else wrote since Load; it decides anew at the next pass.
		return fmt.Errorf("take the inventory: %w", err)
	}
	return err
}

// Release says on the branch that nobody holds the inventory, so that the next Ichor need not wait.
func (j *Journal) Release(ctx context.Context, now time.Time) error {
	defer j.lock()()
	return j.update(ctx, now, func(inv *state.Inventory) error {
		inv.Holder.ID = ""
		return nil
	})
}

// Acknowledge begins a new inventory where the old one is unknown: a person said so by a commit. Operations present at
// that head never run, and every cluster has to be adopted again. Errors: ErrKnown, ErrRefused, what the Store returns.
func (j *Journal) Acknowledge(ctx context.Context, now time.Time, head string) error {
	defer j.lock()()
	if err := j.load(ctx, now); err != nil {
		return err
	}
	switch j.status.State {
	case Refused:
		return fmt.Errorf("%w: %s", ErrRefused, j.status.Message)
	case Unknown:
	default:
		return ErrKnown
	}
	return j.become(ctx, now, &state.Inventory{UnknownAt: head})
}
