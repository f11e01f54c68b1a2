// Package lab runs simulated Talos nodes on loopback addresses, with a network between them that
// can be told to fail. It is what the demonstration and the end-to-end tests of Ichor run on.
//
// The nodes speak the real Talos API and control planes run a real etcd member; the state is on
// disk and survives a kill of the process. docs/lab.md says what is simulated and what is not.
package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"ichor.maesh.dev/ichor/e2e/lab/node"
	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// Profile says how long things take on the nodes.
type Profile int

// Profiles.
const (
	// Fast is for tests and demonstrations.
	Fast Profile = iota
	// Real is near what real machines need.
	Real
)

// Options configure a lab.
type Options struct {
	// StateDir is where the nodes' disks are; it is made if needed.
	StateDir string
	// Profile is Fast by default.
	Profile Profile
	// Timings replace the profile's when set.
	Timings *node.Timings
	// OnEvent gets what happens on the nodes. It must not block. May be nil.
	OnEvent func(node.Event)
	// Kubernetes is real Kubernetes behind the nodes (package kube). Nil: plausible state only.
	Kubernetes node.Kubernetes
}

// Lab is a set of simulated nodes. All methods may be called from any goroutine.
type Lab struct {
	opts    Options
	timings node.Timings
	net     *wire.Net
	hooks   *hooks

	locked *os.File

	directory *node.Directory

	mu     sync.Mutex
	nodes  map[string]*node.Node
	sorted []*node.Node // nodes by name; never changed, only replaced
	closed bool
}

// New starts a lab on a folder: nodes that are in it already come back, those with power boot.
func New(_ context.Context, opts Options) (*Lab, error) {
	if opts.StateDir == "" {
		return nil, errors.New("start lab: no state folder")
	}
	l := &Lab{opts: opts, net: wire.New(), hooks: newHooks(), directory: node.NewDirectory(), nodes: map[string]*node.Node{}}
	switch {
	case opts.Timings != nil:
		l.timings = *opts.Timings
	case opts.Profile == Real:
		l.timings = node.Real()
	default:
		l.timings = node.Fast()
	}
	if err := l.lock(); err != nil {
		return nil, err
	}
	dirs, err := os.ReadDir(l.nodesDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("start lab: %w", err)
	}
	for _, d := range dirs {
		if !node.Recorded(filepath.Join(l.nodesDir(), d.Name())) {
			continue // a lab was killed while it made the machine: there is nothing of it yet
		}
		if _, err := l.add(node.Spec{Name: d.Name()}); err != nil {
			return nil, errors.Join(fmt.Errorf("start lab: %w", err), l.Close())
		}
	}
	for _, n := range l.Nodes() {
		if err := n.Resume(); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// lock keeps a second lab off the folder. The lock ends with the process, however it ends.
func (l *Lab) lock() error {
	if err := os.MkdirAll(l.opts.StateDir, 0o700); err != nil {
		return fmt.Errorf("start lab: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(l.opts.StateDir, "nodes.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("start lab: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return fmt.Errorf("start lab: another lab runs on %s: %w", l.opts.StateDir, err)
	}
	l.locked = f
	return nil
}

func (l *Lab) nodesDir() string { return filepath.Join(l.opts.StateDir, "nodes") }

// add makes the node without powering it on.
func (l *Lab) add(spec node.Spec) (*node.Node, error) {
	if spec.Name == "" || spec.Name != filepath.Base(spec.Name) || spec.Name[0] == '.' {
		return nil, fmt.Errorf("add node: %q is no name", spec.Name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("add node %s: the lab is closed", spec.Name)
	}
	if l.nodes[spec.Name] != nil {
		return nil, fmt.Errorf("add node %s: it is there already", spec.Name)
	}
	if other := l.net.NameOf(spec.Address); other != "" && l.nodes[other] != nil {
		return nil, fmt.Errorf("add node %s: node %s has address %s", spec.Name, other, spec.Address)
	}
	n, err := node.New(spec, node.Options{
		Dir: filepath.Join(l.nodesDir(), spec.Name), Timings: l.timings, Net: l.net,
		Peers: l.peers, At: l.at, Directory: l.directory, Hooks: l.hooks, OnEvent: l.event,
		Kubernetes: l.opts.Kubernetes,
	})
	if err != nil {
		return nil, err
	}
	l.nodes[spec.Name], l.sorted = n, nil
	return n, nil
}

// AddNode adds a machine with blank disks and powers it on: it boots into maintenance mode.
func (l *Lab) AddNode(spec node.Spec) (*node.Node, error) {
	n, err := l.add(spec)
	if err != nil {
		return nil, err
	}
	return n, n.Start()
}

// AddConfigured adds a machine that already runs Talos with the given configuration.
func (l *Lab) AddConfigured(spec node.Spec, config []byte) (*node.Node, error) {
	n, err := l.add(spec)
	if err != nil {
		return nil, err
	}
	if err := n.Configure(config); err != nil {
		return nil, err
	}
	return n, n.Start()
}

// Node returns a node by its name in the lab, nil when there is none.
func (l *Lab) Node(name string) *node.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes[name]
}

// Nodes returns all nodes by name.
func (l *Lab) Nodes() []*node.Node { return slices.Clone(l.peers()) }

// peers is Nodes without the copy: nodes ask for it all the time. It is not to be changed.
func (l *Lab) peers() []*node.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sorted == nil {
		for _, name := range slices.Sorted(maps.Keys(l.nodes)) {
			l.sorted = append(l.sorted, l.nodes[name])
		}
	}
	return l.sorted
}

// at is the node that owns an address, nil where there is none.
func (l *Lab) at(addr netip.Addr) *node.Node {
	if name := l.net.NameOf(addr); name != "" {
		return l.Node(name)
	}
	return nil
}

// Remove takes a machine out of the lab, with its disks.
func (l *Lab) Remove(name string) error {
	n := l.Node(name)
	if n == nil {
		return fmt.Errorf("remove node %s: there is none", name)
	}
	if err := n.Close(); err != nil {
		return err
	}
	l.net.Heal(name)
	l.mu.Lock()
	delete(l.nodes, name)
	l.sorted = nil
	l.mu.Unlock()
	l.net.Forget(n.Spec().Address)
	return os.RemoveAll(filepath.Join(l.nodesDir(), name))
}

// Close stops the simulation. It switches no machine off: the next lab on the folder resumes them.
func (l *Lab) Close() error {
	l.mu.Lock()
	l.closed = true
	nodes := make([]*node.Node, 0, len(l.nodes))
	for _, n := range l.nodes {
		nodes = append(nodes, n)
	}
	l.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		wg.Go(func() { errs[i] = n.Close() })
	}
	wg.Wait()
	l.locked.Close()
	return errors.Join(errs...)
}

// Addr parses a loopback address; it is for literals and panics on a bad one.
func Addr(s string) netip.Addr { return netip.MustParseAddr(s) }
