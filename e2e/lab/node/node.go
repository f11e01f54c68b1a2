// Package node simulates a machine that runs Talos: the real gRPC services over TLS as Talos
// serves them, in maintenance and configured mode, COSI resources, boot, install, reboot and
// reset, and a real etcd member when the machine is a control plane.
//
// What it answers is taken from Talos's source and from real nodes; what it does behind the
// answers (kubelet, static pods, the installer) is plausible state that moves as on a node.
package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Node is one simulated machine. All methods may be called from any goroutine.
type Node struct {
	opts  Options
	disks disks

	mu       sync.Mutex
	rec      record
	boot     *boot
	stop     context.CancelFunc
	stopped  chan struct{}
	mask     Mask
	refuse   string
	notReady bool
	badTime  bool
	faults   faults
	closed   bool
}

// Mask is the machine that answers at a node's address instead of the node.
type Mask struct {
	// UUID is the system UUID of the other machine; alone, it is the node's disks in another box.
	UUID string
	// Maintenance makes it a machine with blank disks.
	Maintenance bool
	// Config makes it a machine that runs with this configuration, such as another cluster's.
	Config []byte
}

// New makes a machine, or finds it again in its folder, without power.
// On a folder that exists the record wins over the spec, except for what the spec changes
// knowingly: a different address or version is taken over.
func New(spec Spec, opts Options) (*Node, error) {
	n := &Node{opts: opts, disks: disks{dir: opts.Dir, lazy: opts.Timings.NoFsync}}
	n.disks.room = n.roomFor
	rec, err := n.disks.readRecord()
	switch {
	case err == nil:
		if spec.Address.IsValid() {
			rec.Spec.Address = spec.Address
		}
		if spec.TalosVersion != "" && spec.TalosVersion != rec.media() {
			// other boot media, and the disk written with it
			rec.Spec.TalosVersion, rec.Media = spec.TalosVersion, spec.TalosVersion
			if n.disks.installed() {
				if err := n.disks.writeBoot(bootEntries{Default: spec.TalosVersion}); err != nil {
					return nil, err
				}
			}
		}
	case errors.Is(err, fs.ErrNotExist):
		rec.Spec = spec
	default:
		return nil, err
	}
	if rec.Spec, err = rec.Spec.withDefaults(); err != nil {
		return nil, err
	}
	rec.Media = rec.media()
	n.rec = rec
	opts.Net.Name(rec.Spec.Address, rec.Spec.Name)
	return n, n.disks.writeRecord(rec)
}

// Name is the machine's name in the lab.
func (n *Node) Name() string { return n.Spec().Name }

// Spec returns the hardware.
func (n *Node) Spec() Spec {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rec.Spec
}

// Counters returns how often the node was written to.
func (n *Node) Counters() Counters {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rec.Counters
}

// count changes the counters and writes them down, so that a restart of the lab forgets nothing.
func (n *Node) count(f func(*Counters)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.rec.Counters)
	if err := n.disks.writeRecord(n.rec); err != nil {
		n.emit("error", err.Error())
	}
}

// Power says whether the machine is on.
func (n *Node) Power() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.rec.Off
}

// Resume powers the machine on unless it was off when the lab stopped.
func (n *Node) Resume() error {
	if !n.Power() {
		return nil
	}
	return n.Start()
}

// Start powers the machine on. On a running machine it does nothing.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("start node %s: the lab is closed", n.rec.Spec.Name)
	}
	if n.stop != nil {
		return nil
	}
	if n.rec.Off {
		n.rec.Off = false
		if err := n.disks.writeRecord(n.rec); err != nil {
			return fmt.Errorf("start node %s: %w", n.rec.Spec.Name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	before := n.stopped // the last run may still be losing its power
	n.stop, n.stopped = cancel, make(chan struct{})
	go n.run(ctx, n.stopped, before)
	return nil
}

// run boots the machine again and again until it is switched off.
func (n *Node) run(ctx context.Context, stopped, before chan struct{}) {
	defer close(stopped)
	if before != nil {
		<-before
	}
	for ctx.Err() == nil {
		b, err := newBoot(n)
		if err != nil {
			n.emit("error", fmt.Sprintf("boot: %v", err))
			n.powerLost(stopped)
			return
		}
		n.mu.Lock()
		n.boot = b
		n.mu.Unlock()
		n.emit("boot", b.id)
		out := b.run(ctx)
		n.mu.Lock()
		n.boot = nil
		n.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if out.off {
			n.emit("poweroff", "")
			n.powerLost(stopped)
			return
		}
		if !sleep(ctx, out.down) {
			return
		}
	}
}

// powerLost notes that the machine switched itself off.
func (n *Node) powerLost(stopped chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped != stopped {
		return
	}
	n.stop, n.rec.Off = nil, true
	if err := n.disks.writeRecord(n.rec); err != nil {
		n.emit("error", err.Error())
	}
}

// Kill takes the power away at once: connections break, etcd stops where it is. The machine
// stays off, over restarts of the lab too, until Start.
func (n *Node) Kill() error {
	n.emit("kill", "")
	return n.halt(true)
}

func (n *Node) halt(off bool) error {
	n.mu.Lock()
	stop, stopped := n.stop, n.stopped
	n.stop, n.boot = nil, nil // who looks from now on sees no machine that runs
	var err error
	if off {
		n.rec.Off = true
		err = n.disks.writeRecord(n.rec)
	}
	n.mu.Unlock()
	n.Thaw()
	if stop != nil {
		stop()
		<-stopped
	}
	return err
}

// Wipe loses the disks of the machine: it comes back in maintenance mode with a new identity.
// A machine that was off stays off.
func (n *Node) Wipe() error {
	wasOn := n.Power()
	if err := n.halt(false); err != nil {
		return err
	}
	n.emit("wipe", "")
	if err := n.disks.wipe(); err != nil {
		return fmt.Errorf("wipe node %s: %w", n.Name(), err)
	}
	if !wasOn {
		return nil
	}
	return n.Start()
}

// Reboot pulls the plug and puts it back: a reboot that nobody asked the node for.
func (n *Node) Reboot() error {
	n.emit("reboot", "power cycle")
	if err := n.halt(false); err != nil {
		return err
	}
	time.Sleep(n.opts.Timings.Down)
	return n.Start()
}

// Close stops the simulation of the machine without switching it off: the next lab resumes it.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	return n.halt(false)
}

// current is the boot that runs; nil while the machine is off or between two boots.
func (n *Node) current() *boot {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boot
}

func (n *Node) emit(kind, detail string) {
	if n.opts.OnEvent != nil {
		n.opts.OnEvent(Event{Time: time.Now().UTC(), Node: n.rec.Spec.Name, Kind: kind, Detail: detail})
	}
}

func (n *Node) getMask() Mask {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mask
}

// sleep waits for d, or until ctx is done, and says which.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// ConfigBytes returns the configuration that is active on the node, byte for byte as it was
// applied; nil when it has none or is off.
func (n *Node) ConfigBytes() []byte {
	if b := n.current(); b != nil {
		if cfg := b.config(); cfg != nil {
			bytes, err := cfg.Bytes()
			if err == nil {
				return bytes
			}
		}
		return nil
	}
	bytes, err := os.ReadFile(n.disks.config())
	if err != nil {
		return nil
	}
	return bytes
}
