package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab"
	"ichor.maesh.dev/ichor/e2e/lab/wire"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// Nodes are the simulated machines behind the commands.
type Nodes interface {
	// Start starts a node for each machine; one that the state folder knows goes on as it was. With a fleet and its
	// bundles, machines that are new are configured and their etcd is bootstrapped.
	Start(ctx context.Context, machines []Machine, configured *Configured) error
	// List gives the nodes, sorted by name.
	List() []NodeInfo
	// Act does one of Acts to a node.
	Act(ctx context.Context, act NodeAct) error
	// Close stops all nodes; their state stays on disk.
	Close() error
}

// Configured is what --configured needs.
type Configured struct {
	Fleet   *fleet.Fleet
	Bundles map[string]*bundle.Bundle
	// Keys open the encrypted values of patches.
	Keys bundle.Values
}

// NodeInfo is a line of "ichor-lab node list".
type NodeInfo struct {
	Name    string `json:"name"`
	Cluster string `json:"cluster,omitempty"`
	Role    string `json:"role,omitempty"`
	Address string `json:"address"`
	UUID    string `json:"uuid"`
	// Stage as MachineStatus words it; off without power, down between two boots.
	Stage string `json:"stage"`
	// Faults that are in force, "" for none.
	Faults string `json:"faults,omitempty"`
	// Writes that the node took: configurations, bootstraps, reboots.
	Configurations int `json:"configurations"`
	Bootstraps     int `json:"bootstraps"`
	Reboots        int `json:"reboots"`
	// Fingerprint of its maintenance certificate, "" where it has none now.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// NodeAct is one thing that is done to a node.
type NodeAct struct {
	// Act is one of Acts.
	Act string `json:"act"`
	// Name of the node.
	Name string `json:"name"`
	// From and To limit cut, hang and slow to what another node begins with this one, or this one
	// with another; "outside" is everybody who is no node.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Address that move gives it, or that twin has.
	Address string `json:"address,omitempty"`
	// Delay that slow puts before what arrives, and the offset of clock.
	Delay time.Duration `json:"delay,omitempty"`
	// Synced says that the node believes its wrong clock.
	Synced bool `json:"synced,omitempty"`
	// Other is the node that swap and impersonate are about.
	Other string `json:"other,omitempty"`
	// UUID and Maintenance say what impersonate shows; neither, nor Other: the certificate of another cluster.
	UUID        string `json:"uuid,omitempty"`
	Maintenance bool   `json:"maintenance,omitempty"`
	// Partition that full fills.
	Partition string `json:"partition,omitempty"`
	// Count of configurations that refuse refuses. 0: all, until heal.
	Count int `json:"count,omitempty"`
	// Text that refuse answers; "" is the lab's own.
	Text string `json:"text,omitempty"`
	// Step of at.
	Step lab.Step `json:"step,omitzero"`
}

// Acts and what each does, in the order of the help.
var Acts = []struct{ Name, Does string }{
	{"cut", "take it off the network: no connection gets through, to the API or to etcd"},
	{"heal", "end everything below that lasts, and steps of at"},
	{"close", "its ports refuse connections, as a host without the software does"},
	{"mute", "what is sent to it arrives and takes effect, what it answers is lost"},
	{"hang", "connections are taken, nothing is answered"},
	{"slow", "answers are late by DELAY (500ms by default)"},
	{"freeze", "the machine stands still; what was sent meanwhile takes effect after heal"},
	{"reboot", "reboot it, as if somebody had pressed the button"},
	{"kill", "power off, without a shutdown"},
	{"start", "power on again after kill"},
	{"wipe", "the disk is lost: it comes back in maintenance mode with a new identity"},
	{"full", "its partition STATE or EPHEMERAL is full: nothing more is written there, and etcd dies of the latter"},
	{"clock", "its clock is wrong by OFFSET: its certificates and its view of others' with it"},
	{"move", "it is found at ADDRESS from now on"},
	{"swap", "it and OTHER change their addresses, as leases of DHCP do"},
	{"twin", "a second machine with its configuration and name starts at ADDRESS"},
	{"impersonate", "another machine answers at its address: of another cluster, or with --uuid, --maintenance or --as"},
	{"refuse", "configurations are refused (the next --count of them)"},
	{"at", "let something happen at a named POINT of a call or of what the node does"},
}

// outside is how commands name everybody who is no node.
const outside = "outside"

// check tells whether the act is complete.
func (a NodeAct) check() error {
	known := slices.ContainsFunc(Acts, func(x struct{ Name, Does string }) bool { return x.Name == a.Act })
	switch {
	case !known:
		return fmt.Errorf("act on node %s: %q is not known; see ichor-lab node --help", a.Name, a.Act)
	case a.Name == "":
		return fmt.Errorf("%s a node: its name is wanted; ichor-lab node list has them", a.Act)
	case (a.Act == "move" || a.Act == "twin") && a.Address == "":
		return fmt.Errorf("%s node %s: the address is wanted", a.Act, a.Name)
	case a.From != "" && a.To != "":
		return fmt.Errorf("%s node %s: --from or --to, not both; for both ways give the command twice", a.Act, a.Name)
	case (a.From != "" || a.To != "") && !slices.Contains([]string{"cut", "hang", "slow"}, a.Act):
		return fmt.Errorf("%s node %s: between two nodes there are cut, hang and slow", a.Act, a.Name)
	}
	return nil
}

// between are the two ends of a fault of the network, and whether it is between two at all.
func (a NodeAct) between() (from, to string, two bool) {
	end := func(name string) string {
		if name == outside {
			return wire.Outside
		}
		return name
	}
	switch {
	case a.From != "":
		return end(a.From), a.Name, true
	case a.To != "":
		return a.Name, end(a.To), true
	}
	return "", "", false
}

// fault is what "node list" shows of an act that lasts; empty for one that doesn't.
func (a NodeAct) fault() string {
	switch a.Act {
	case "cut", "hang", "slow":
		if a.From != "" {
			return a.Act + " from " + a.From
		}
		if a.To != "" {
			return a.Act + " to " + a.To
		}
		return a.Act
	case "close", "mute", "freeze", "impersonate", "refuse":
		return a.Act
	case "full":
		return "full " + a.Partition
	case "clock":
		return "clock " + a.Delay.String()
	case "at":
		return a.Step.String()
	}
	return ""
}
