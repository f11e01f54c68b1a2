package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// Spec is the hardware of a simulated machine. What it is to become, its configuration says.
type Spec struct {
	// Name is the machine's name in the lab.
	Name string `json:"name"`
	// Hostname is what the platform (DHCP) calls it until a configuration says otherwise; may be empty.
	Hostname string `json:"hostname,omitempty"`
	// Address is the loopback address it listens on (ports 50000, and 2379 and 2380 with etcd).
	Address netip.Addr `json:"address"`
	// UUID is the SMBIOS system UUID; derived from the name when empty.
	UUID string `json:"uuid"`
	// TalosVersion is the version of the machine's boot media, default v1.13.5; of a machine in
	// the lab it is the version that runs, or ran last.
	TalosVersion string `json:"talosVersion"`
	// Disks are its block devices; default one virtio disk vda of 10 GiB.
	Disks []Disk `json:"disks"`
}

// Disk is a block device of a simulated machine.
type Disk struct {
	Name      string `json:"name"` // such as "vda"
	Size      uint64 `json:"size"` // bytes
	Serial    string `json:"serial,omitempty"`
	Model     string `json:"model,omitempty"`
	WWID      string `json:"wwid,omitempty"`
	Transport string `json:"transport,omitempty"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
	BusPath   string `json:"busPath,omitempty"`
	// Symlinks are further paths, such as /dev/disk/by-id/….
	Symlinks []string `json:"symlinks,omitempty"`
}

// withDefaults fills what is empty and checks the rest.
func (s Spec) withDefaults() (Spec, error) {
	if s.Name == "" {
		return s, fmt.Errorf("add a node: it has no name")
	}
	if !s.Address.Is4() || !s.Address.IsLoopback() {
		return s, fmt.Errorf("add node %s: address %s is not an IPv4 loopback address", s.Name, s.Address)
	}
	if s.TalosVersion == "" {
		s.TalosVersion = "v1.13.5"
	}
	if _, err := releaseOf(s.TalosVersion); err != nil {
		return s, fmt.Errorf("add node %s: %w", s.Name, err)
	}
	if s.UUID == "" {
		s.UUID = uuid.NewSHA1(uuid.NameSpaceDNS, []byte(s.Name+".lab.ichor.maesh.dev")).String()
	}
	if len(s.Disks) == 0 {
		s.Disks = []Disk{{Name: "vda", Size: 10 << 30, Serial: s.Name, Transport: "virtio"}}
	}
	return s, nil
}

// mac is the address of the machine's one network card, derived from its UUID.
func (s Spec) mac() net.HardwareAddr {
	sum := sha256.Sum256([]byte(s.UUID))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// Counters say how often a node was written to since it was added to the lab. They count
// calls that took effect, never dry runs or refused ones.
type Counters struct {
	ApplyConfiguration int `json:"applyConfiguration"`
	Bootstrap          int `json:"bootstrap"`
	Reboot             int `json:"reboot"`
	Reset              int `json:"reset"`
	Shutdown           int `json:"shutdown"`
	Upgrade            int `json:"upgrade"`
	Rollback           int `json:"rollback"`
	EtcdRemoveMember   int `json:"etcdRemoveMember"`
	EtcdLeaveCluster   int `json:"etcdLeaveCluster"`
	EtcdForfeit        int `json:"etcdForfeit"`
	EtcdRecover        int `json:"etcdRecover"`
}

// Event is something that happened on a node, for the lab's log (JSON lines).
type Event struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`
	Kind   string    `json:"kind"`
	Detail string    `json:"detail,omitempty"`
}

// Call is one RPC that reached a node's handler, for hooks.
type Call struct {
	Node   string
	Method string // such as "/machine.MachineService/Reboot"
	Dry    bool   // an ApplyConfiguration with dry_run
	// Message is the number of the message that is about to be streamed, from 1; 0 outside During.
	Message int
}

// Hooks are called around every RPC that a node serves. A hook may block; an error that it
// returns is what the caller gets, and ErrLoseReply makes the connection break instead.
type Hooks interface {
	// Before runs before the call took effect, After when it did (only after success).
	Before(context.Context, Call) error
	After(context.Context, Call) error
	// During runs before each message of a streamed answer.
	During(context.Context, Call) error
}

// Options are what the lab gives each node.
type Options struct {
	// Dir is the machine's folder: its disks and its record.
	Dir string
	// Timings is the profile.
	Timings Timings
	// Net is the network with its faults.
	Net *wire.Net
	// Peers returns all nodes of the lab, this one included, in a stable order.
	Peers func() []*Node
	// At returns the node at an address, nil where there is none.
	At func(netip.Addr) *Node
	// Directory is the lab's discovery service.
	Directory *Directory
	// Hooks may be nil.
	Hooks Hooks
	// OnEvent gets what happens; it must not block. May be nil.
	OnEvent func(Event)
	// Kubernetes is real Kubernetes behind the kubelets. May be nil.
	Kubernetes Kubernetes
}
