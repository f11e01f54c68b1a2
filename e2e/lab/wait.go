package lab

import (
	"context"
	"fmt"
	"time"
)

// pollEvery is how often the waits look; what they wait for is real I/O.
const pollEvery = 10 * time.Millisecond

// Wait looks until cond holds, and says what it waited for when ctx ends first.
func (l *Lab) Wait(ctx context.Context, what string, cond func() bool) error {
	for !cond() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(pollEvery):
		}
	}
	return nil
}

// WaitStage waits until a node is in one of the stages (as MachineStatus words them, and "off").
func (l *Lab) WaitStage(ctx context.Context, name string, stages ...string) error {
	n, err := l.find(name)
	if err != nil {
		return err
	}
	err = l.Wait(ctx, fmt.Sprintf("node %s to be %v", name, stages), func() bool {
		now := n.Stage()
		for _, s := range stages {
			if now == s {
				return true
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("%w (it is %s)", err, n.Stage())
	}
	return nil
}

// WaitMaintenance waits until a node serves the maintenance API.
func (l *Lab) WaitMaintenance(ctx context.Context, name string) error {
	n, err := l.find(name)
	if err != nil {
		return err
	}
	return l.Wait(ctx, "maintenance API of node "+name, func() bool { return n.MaintenanceFingerprint() != "" })
}

// WaitReady waits until a node is running with no unmet condition.
func (l *Lab) WaitReady(ctx context.Context, name string) error {
	n, err := l.find(name)
	if err != nil {
		return err
	}
	if err := l.Wait(ctx, "node "+name+" to be running and ready", n.Ready); err != nil {
		return fmt.Errorf("%w (it is %s; %s)", err, n.Stage(), n.Unmet())
	}
	return nil
}
