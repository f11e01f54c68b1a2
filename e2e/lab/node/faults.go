package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// faults are what the lab did to a machine beside its network. They end with the process.
type faults struct {
	mu     sync.Mutex
	frozen chan struct{} // closed at the thaw; nil while the machine runs
	full   map[string]bool
	filled chan struct{} // closed when a partition gets full
	clock  time.Duration
}

// Freeze stops the machine at the next step that it takes: calls wait before they take effect,
// sequences before they reach another stage. Its network is frozen by the lab.
func (n *Node) Freeze() {
	n.faults.mu.Lock()
	defer n.faults.mu.Unlock()
	if n.faults.frozen == nil {
		n.faults.frozen = make(chan struct{})
	}
}

// Thaw lets a frozen machine go on.
func (n *Node) Thaw() {
	n.faults.mu.Lock()
	defer n.faults.mu.Unlock()
	if n.faults.frozen != nil {
		close(n.faults.frozen)
		n.faults.frozen = nil
	}
}

// thawed waits while the machine is frozen, or until it loses power. The caller's deadline does
// not end it: on a machine that stands still no timer runs.
func (b *boot) thawed() {
	for {
		b.node.faults.mu.Lock()
		frozen := b.node.faults.frozen
		b.node.faults.mu.Unlock()
		if frozen == nil {
			return
		}
		select {
		case <-frozen:
		case <-b.ctx.Done():
			return
		}
	}
}

// FillDisk makes a partition (such as "EPHEMERAL") full: nothing can be written to it any more,
// and etcd, if it has its data there, dies of it. An empty label makes room on all.
func (n *Node) FillDisk(label string) {
	n.faults.mu.Lock()
	defer n.faults.mu.Unlock()
	if label == "" {
		n.faults.full = nil
		return
	}
	full := map[string]bool{label: true}
	for l := range n.faults.full {
		full[l] = true
	}
	n.faults.full = full
	if n.faults.filled != nil {
		close(n.faults.filled)
		n.faults.filled = nil
	}
}

// diskFull says whether a partition is full, and otherwise what is closed when one gets full.
func (n *Node) diskFull(label string) (bool, <-chan struct{}) {
	n.faults.mu.Lock()
	defer n.faults.mu.Unlock()
	if n.faults.filled == nil {
		n.faults.filled = make(chan struct{})
	}
	return n.faults.full[label], n.faults.filled
}

// roomFor fails as the kernel does when the partition that a path lies on is full.
func (n *Node) roomFor(disk disks, path string) error {
	rel, err := filepath.Rel(disk.dir, path)
	if err != nil {
		return nil //nolint:nilerr // not on this machine's disks
	}
	label, _, _ := strings.Cut(rel, string(filepath.Separator))
	if full, _ := n.diskFull(label); full {
		return fmt.Errorf("write %s: %w", path, syscall.ENOSPC)
	}
	return nil
}

// SetClock makes the machine's clock run ahead (or behind, when negative) of the lab's, and says
// whether the node takes its time for synced. As on a node, a jump of the clock renews the
// certificates of the API.
func (n *Node) SetClock(offset time.Duration, synced bool) {
	n.faults.mu.Lock()
	jump := n.faults.clock != offset
	n.faults.clock = offset
	n.faults.mu.Unlock()
	if jump {
		n.emit("clock", offset.String())
		if b := n.current(); b != nil {
			b.recertify()
		}
	}
	n.SetTimeSynced(synced)
}

// now is the machine's time.
func (n *Node) now() time.Time {
	n.faults.mu.Lock()
	defer n.faults.mu.Unlock()
	return time.Now().Add(n.faults.clock)
}

// persistSoon takes the error of a configuration that found no room on STATE. Talos's controller
// writes it beside the call, which answers that all is well, and tries again until it can: until
// then a reboot brings the old configuration back.
func (b *boot) persistSoon(err error) error {
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	b.node.emit("error", "persist configuration: "+err.Error())
	if !b.persisting.CompareAndSwap(false, true) {
		return nil
	}
	b.goDo(func() {
		defer b.persisting.Store(false)
		for sleep(b.ctx, b.node.opts.Timings.JoinRetry) {
			if b.persistOnDisk() == nil {
				return
			}
		}
	})
	return nil
}

// waitTime waits until the node takes its time for synced: etcd, trustd and the kubelet start only then.
func (b *boot) waitTime(ctx context.Context) bool {
	for b.checkTime() != "" {
		if !sleep(ctx, b.node.opts.Timings.JoinRetry) {
			return false
		}
	}
	return true
}

// Swap lets two machines change their addresses: both lose power, and come back if they were on.
func Swap(a, b *Node) error {
	first, second := a.Power(), b.Power()
	if err := a.halt(false); err != nil {
		return err
	}
	if err := b.halt(false); err != nil {
		return err
	}
	addrA, addrB := a.Spec().Address, b.Spec().Address
	if err := a.setAddress(addrB); err != nil {
		return err
	}
	if err := b.setAddress(addrA); err != nil {
		return err
	}
	if first {
		if err := a.Start(); err != nil {
			return err
		}
	}
	if second {
		return b.Start()
	}
	return nil
}
