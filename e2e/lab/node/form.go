package node

import (
	"fmt"
	"net/netip"
	"strings"
)

// Form makes machines that are off, and were configured as control planes of one cluster, come up as the members of
// one etcd that runs for long: all voters, none of which had to join. No call of a client does that; it is how a lab
// begins with clusters that are there already. hostnames are those of the configurations, in the order of the nodes.
func Form(nodes []*Node, hostnames []string) error {
	parts := make([]string, len(nodes))
	for i, n := range nodes {
		if hostnames[i] == "" {
			return fmt.Errorf("form etcd: node %s has no hostname in its configuration", n.Name())
		}
		parts[i] = hostnames[i] + "=https://" + netip.AddrPortFrom(n.Spec().Address, peerPort).String()
	}
	for _, n := range nodes {
		if err := n.setInitial(strings.Join(parts, ",")); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) setInitial(cluster string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rec.InitialCluster == cluster {
		return nil
	}
	n.rec.InitialCluster = cluster
	return n.disks.writeRecord(n.rec)
}

// initialCluster is what the first start of the member begins with, "" when it joins or is bootstrapped.
func (n *Node) initialCluster() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rec.InitialCluster
}

// formed notes that the member has data of its own: when that is lost, it joins like any other.
func (n *Node) formed() {
	if err := n.setInitial(""); err != nil {
		n.emit("error", err.Error())
	}
}

// Recorded tells whether a folder holds a machine.
func Recorded(dir string) bool { return exists(disks{dir: dir}.record()) }

// HasEtcd tells whether the machine has etcd data, or will form some at its start.
func (n *Node) HasEtcd() bool { return n.initialCluster() != "" || !n.disks.etcdEmpty() }

// Configured tells whether the machine has a configuration on its disk.
func (n *Node) Configured() bool { return exists(n.disks.config()) }
