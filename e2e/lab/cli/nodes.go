package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

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
	// Address that move gives it.
	Address string `json:"address,omitempty"`
	// Delay that slow puts before each packet.
	Delay time.Duration `json:"delay,omitempty"`
	// UUID and Maintenance say what impersonate shows; neither: the certificate of another cluster.
	UUID        string `json:"uuid,omitempty"`
	Maintenance bool   `json:"maintenance,omitempty"`
	// Count of configurations that refuse refuses. 0: all, until heal.
	Count int `json:"count,omitempty"`
}

// Acts and what each does, in the order of the help.
var Acts = []struct{ Name, Does string }{
	{"cut", "take it off the network: no connection gets through, to the API or to etcd"},
	{"heal", "end cut, hang, slow, impersonate and refuse"},
	{"hang", "connections are taken, nothing is answered"},
	{"slow", "answers are late by DELAY (500ms by default)"},
	{"reboot", "reboot it, as if somebody had pressed the button"},
	{"kill", "power off, without a shutdown"},
	{"start", "power on again after kill"},
	{"wipe", "the disk is lost: it comes back in maintenance mode with a new identity"},
	{"move", "it is found at ADDRESS from now on"},
	{"impersonate", "another machine answers at its address: of another cluster, or with --uuid, or with --maintenance"},
	{"refuse", "configurations are refused (the next --count of them)"},
}

// check tells whether the act is complete.
func (a NodeAct) check() error {
	known := slices.ContainsFunc(Acts, func(x struct{ Name, Does string }) bool { return x.Name == a.Act })
	switch {
	case !known:
		return fmt.Errorf("act on node %s: %q is not known; see ichor-lab node --help", a.Name, a.Act)
	case a.Name == "":
		return fmt.Errorf("%s a node: its name is wanted; ichor-lab node list has them", a.Act)
	case a.Act == "move" && a.Address == "":
		return fmt.Errorf("move node %s: the new address is wanted", a.Name)
	}
	return nil
}
