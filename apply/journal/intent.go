package journal

import (
	"context"
	"fmt"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Intend announces a destructive act by a push and returns the intent as it was pushed. Without it no call. It fills
// in ID, Holder, Epoch and At. also (nil: nothing) changes the cluster's part in the same push. Errors: those of Update,
// and ErrIntentOpen.
func (j *Journal) Intend(ctx context.Context, now time.Time, cluster string, in state.Intent, also func(*state.ClusterInventory)) (state.Intent, error) {
	defer j.lock()()
	err := j.update(ctx, now, func(inv *state.Inventory) error {
		c := Of(inv, cluster)
		for _, open := range c.Intents {
			if open.Act == in.Act && open.Machine == in.Machine {
				return fmt.Errorf("%w: %s", ErrIntentOpen, open.ID)
			}
		}
		in.ID = fmt.Sprintf("%d-%d-%s-%s", inv.Holder.Epoch, j.generation+1, in.Act, in.Machine)
		in.Holder, in.Epoch, in.At = inv.Holder.ID, inv.Holder.Epoch, now.UTC()
		c.Intents = append(c.Intents, in)
		if also != nil {
			also(c)
		}
		return nil
	})
	return in, err
}

// Edit changes one cluster's part.
func (j *Journal) Edit(ctx context.Context, now time.Time, cluster string, edit func(*state.ClusterInventory)) error {
	return j.Update(ctx, now, func(inv *state.Inventory) error {
		edit(Of(inv, cluster))
		return nil
	})
}

// Of gives a cluster's part, made where it is missing.
func Of(inv *state.Inventory, cluster string) *state.ClusterInventory {
	if inv.Clusters == nil {
		inv.Clusters = map[string]*state.ClusterInventory{}
	}
	c := inv.Clusters[cluster]
	if c == nil {
		c = &state.ClusterInventory{}
		inv.Clusters[cluster] = c
	}
	return c
}

// MachineOf gives a machine's part, made where it is missing.
func MachineOf(c *state.ClusterInventory, machine string) *state.MachineInventory {
	if c.Machines == nil {
		c.Machines = map[string]*state.MachineInventory{}
	}
	m := c.Machines[machine]
	if m == nil {
		m = &state.MachineInventory{}
		c.Machines[machine] = m
	}
	return m
}

// CloseIntent takes an intent off the cluster's list and returns it; false where it is not there (it was closed before).
func CloseIntent(c *state.ClusterInventory, id string) (state.Intent, bool) {
	for i, in := range c.Intents {
		if in.ID == id {
			c.Intents = append(c.Intents[:i:i], c.Intents[i+1:]...)
			return in, true
		}
	}
	return state.Intent{}, false
}

// MarkSent notes that the call behind an intent was answered.
func MarkSent(c *state.ClusterInventory, id string) {
	for i := range c.Intents {
		if c.Intents[i].ID == id {
			c.Intents[i].Sent = true
		}
	}
}
