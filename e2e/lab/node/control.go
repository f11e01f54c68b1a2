package node

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Stage is the machine's stage as MachineStatus shows it, "off" without power and "down" between two boots.
func (n *Node) Stage() string {
	if !n.Power() {
		return "off"
	}
	b := n.current()
	if b == nil {
		return "down"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stage.String()
}

// Ready says whether the machine is running with no unmet condition: the health signal of a node.
func (n *Node) Ready() bool {
	b := n.current()
	if b == nil {
		return false
	}
	b.mu.Lock()
	stage := b.stage
	b.mu.Unlock()
	return stage == runtime.MachineStageRunning && len(b.unmet()) == 0
}

// BootID is the running boot's ID, empty while there is none.
func (n *Node) BootID() string {
	if b := n.current(); b != nil {
		return b.id
	}
	return ""
}

// Hostname is what the node calls itself now; empty when it has no name or is off.
func (n *Node) Hostname() string {
	if b := n.current(); b != nil {
		return b.hostname()
	}
	return ""
}

// Refuse makes the node refuse every configuration with InvalidArgument and the given reason;
// an empty reason ends that.
func (n *Node) Refuse(reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = reason
}

func (n *Node) refusal() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refuse
}

// SetTimeSynced says whether the node's clock is in sync; it is by default.
func (n *Node) SetTimeSynced(ok bool) {
	n.mu.Lock()
	n.badTime = !ok
	b := n.boot
	n.mu.Unlock()
	if b != nil {
		b.showTime(ok)
		b.refresh()
	}
}

// Impersonate puts another machine at the node's address until Unmask: the node loses power, and
// what answers is the mask. The node's own disks are not touched.
func (n *Node) Impersonate(m Mask) error {
	if err := n.halt(false); err != nil {
		return err
	}
	n.mu.Lock()
	n.mask = m
	n.mu.Unlock()
	n.emit("impersonate", "")
	other := n.impostorDisks()
	if m.Maintenance || m.Config != nil {
		if err := other.wipe(); err != nil {
			return err
		}
	}
	if m.Config != nil {
		if err := other.format(); err != nil {
			return err
		}
		if err := other.write(other.config(), m.Config); err != nil {
			return fmt.Errorf("impersonate node %s: %w", n.Name(), err)
		}
	}
	return n.Start()
}

// Unmask ends an impersonation: the node itself comes back.
func (n *Node) Unmask() error {
	n.mu.Lock()
	masked := n.mask.UUID != "" || n.mask.Maintenance || n.mask.Config != nil
	n.mu.Unlock()
	if !masked {
		return nil
	}
	if err := n.halt(false); err != nil {
		return err
	}
	n.mu.Lock()
	n.mask = Mask{}
	n.mu.Unlock()
	return n.Start()
}

func (n *Node) impostorDisks() disks {
	other := n.disks
	other.dir = filepath.Join(n.opts.Dir, "impostor")
	return other
}

// currentDisks are the disks that the next boot finds.
func (n *Node) currentDisks() disks {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mask.Maintenance || n.mask.Config != nil {
		return n.impostorDisks()
	}
	return n.disks
}

// Configure writes Talos and a configuration to the disks of a machine that is off: it boots as a
// configured node, as one that ran for long.
func (n *Node) Configure(config []byte) error {
	n.mu.Lock()
	running := n.stop != nil
	n.mu.Unlock()
	if running {
		return fmt.Errorf("configure node %s: it is running", n.Name())
	}
	version := n.bootVersion(n.disks)
	rel, err := releaseOf(version)
	if err == nil {
		_, err = rel.parse(config)
	}
	if err != nil {
		return fmt.Errorf("configure node %s: %w", n.Name(), err)
	}
	if err := n.disks.format(); err != nil {
		return err
	}
	if err := n.disks.writeBoot(bootEntries{Default: version}); err != nil {
		return err
	}
	return n.disks.write(n.disks.config(), config)
}

// Unmet says which readiness conditions the machine doesn't meet now, for people.
func (n *Node) Unmet() string {
	b := n.current()
	if b == nil {
		return ""
	}
	return fmt.Sprint(b.unmet())
}

// Move gives the machine another address: it loses power, and comes back there if it was on. What
// others know of the old address (etcd's peer URLs, endpoints) stays wrong, as on a real network.
func (n *Node) Move(addr netip.Addr) error {
	if !addr.Is4() || !addr.IsLoopback() {
		return fmt.Errorf("move node %s: address %s is not an IPv4 loopback address", n.Name(), addr)
	}
	wasOn := n.Power()
	if err := n.halt(false); err != nil {
		return err
	}
	if err := n.setAddress(addr); err != nil {
		return err
	}
	if !wasOn {
		return nil
	}
	return n.Start()
}

// setAddress gives a machine without power another address.
func (n *Node) setAddress(addr netip.Addr) error {
	n.mu.Lock()
	if n.opts.Net.NameOf(n.rec.Spec.Address) == n.rec.Spec.Name {
		n.opts.Net.Forget(n.rec.Spec.Address)
	}
	n.rec.Spec.Address = addr
	err := n.disks.writeRecord(n.rec)
	n.mu.Unlock()
	if err != nil {
		return fmt.Errorf("move node %s: %w", n.Name(), err)
	}
	n.opts.Net.Name(addr, n.Name())
	n.emit("move", addr.String())
	return nil
}
