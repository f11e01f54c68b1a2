package node

import "fmt"

// Reinstall exchanges the Talos version of the machine and of its disk, and keeps its data, as
// when somebody writes other boot assets while the power is off. A machine that was on comes back.
func (n *Node) Reinstall(version string) error {
	if _, err := releaseOf(version); err != nil {
		return fmt.Errorf("reinstall node %s: %w", n.Name(), err)
	}
	wasOn := n.Power()
	if err := n.halt(false); err != nil {
		return err
	}
	n.emit("reinstall", version)
	n.mu.Lock()
	n.rec.Spec.TalosVersion, n.rec.Media = version, version
	err := n.disks.writeRecord(n.rec)
	n.mu.Unlock()
	if err == nil && n.disks.installed() {
		err = n.disks.writeBoot(bootEntries{Default: version})
	}
	if err != nil {
		return fmt.Errorf("reinstall node %s: %w", n.Name(), err)
	}
	if !wasOn {
		return nil
	}
	return n.Start()
}
