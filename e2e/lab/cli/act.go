package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// Act implements Nodes.
func (n *labNodes) Act(_ context.Context, a NodeAct) error {
	if err := n.act(a); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch f := a.fault(); {
	case a.Act == "heal":
		for _, f := range n.undo[a.Name] {
			f()
		}
		delete(n.faults, a.Name)
		delete(n.undo, a.Name)
	case a.Act == "kill" || a.Act == "reboot" || a.Act == "wipe":
		// power ends what stands still
		n.faults[a.Name] = slices.DeleteFunc(n.faults[a.Name], func(f string) bool { return f == "freeze" })
	case f != "" && !slices.Contains(n.faults[a.Name], f):
		n.faults[a.Name] = append(n.faults[a.Name], f)
	}
	return nil
}

func (n *labNodes) act(a NodeAct) error {
	if from, to, two := a.between(); two {
		switch a.Act {
		case "cut":
			return n.lab.CutBetween(from, to)
		case "hang":
			return n.lab.HangBetween(from, to)
		case "slow":
			return n.lab.SlowBetween(from, to, cmp.Or(a.Delay, 500*time.Millisecond))
		}
	}
	if f := map[string]func(string) error{
		"cut": n.lab.Cut, "heal": n.lab.Heal, "close": n.lab.Refuse, "mute": n.lab.Mute, "hang": n.lab.Hang,
		"freeze": n.lab.Freeze, "reboot": n.lab.Reboot, "kill": n.lab.Kill, "start": n.lab.Start, "wipe": n.lab.Wipe,
	}[a.Act]; f != nil {
		return f(a.Name)
	}
	switch a.Act {
	case "slow":
		return n.lab.Slow(a.Name, cmp.Or(a.Delay, 500*time.Millisecond))
	case "full":
		return n.lab.FillDisk(a.Name, a.Partition)
	case "clock":
		return n.lab.SetClock(a.Name, a.Delay, a.Synced)
	case "move":
		addr, err := loopback(a.Address)
		if err != nil {
			return fmt.Errorf("move node %s: %w", a.Name, err)
		}
		return n.lab.Move(a.Name, addr)
	case "swap":
		return n.lab.Swap(a.Name, a.Other)
	case "twin":
		return n.twin(a)
	case "impersonate":
		return n.impersonate(a)
	case "refuse":
		return n.refuse(a)
	case "at":
		return n.at(a)
	}
	return fmt.Errorf("%s node %s: not known", a.Act, a.Name)
}

func loopback(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() || !addr.IsLoopback() {
		return addr, fmt.Errorf("%q: want an address of 127.0.0.0/8", text)
	}
	return addr, nil
}

// twin starts a second machine with the node's configuration; it is called NAME-twin.
func (n *labNodes) twin(a NodeAct) error {
	addr, err := loopback(a.Address)
	if err != nil {
		return fmt.Errorf("add a twin of node %s: %w", a.Name, err)
	}
	twin := a.Name + "-twin"
	if _, err := n.lab.Twin(a.Name, twin, addr); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.info[a.Name]
	m.Node, m.Address, m.UUID = twin, addr, ""
	n.info[twin] = m
	return nil
}

// at scripts a step.
func (n *labNodes) at(a NodeAct) error {
	step := a.Step
	step.Node = a.Name
	remove, err := n.lab.At(step)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.undo[a.Name] = append(n.undo[a.Name], remove)
	return nil
}

// refuse all configurations, or the next few, dry runs counted like the rest.
func (n *labNodes) refuse(a NodeAct) error {
	n.opt.OnEvent("node.refuse", map[string]any{"node": a.Name, "count": a.Count})
	text := cmp.Or(a.Text, refusal)
	if a.Count <= 0 {
		return n.lab.RefuseConfig(a.Name, text)
	}
	var mu sync.Mutex
	left := a.Count
	remove := n.lab.On("ApplyConfiguration.before", func(_ context.Context, c node.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if c.Node != a.Name || left == 0 {
			return nil
		}
		left--
		return status.Error(codes.InvalidArgument, text)
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.undo[a.Name] = append(n.undo[a.Name], remove)
	return nil
}

// impersonate puts another machine at the node's address.
func (n *labNodes) impersonate(a NodeAct) error {
	if a.Other != "" {
		return n.lab.Misroute(a.Name, a.Other)
	}
	m := node.Mask{UUID: a.UUID, Maintenance: a.Maintenance}
	if a.UUID == "" && !a.Maintenance {
		cfg, err := strangerConfig(n.lab.Node(a.Name).Spec().Address)
		if err != nil {
			return fmt.Errorf("impersonate node %s: %w", a.Name, err)
		}
		m.Config = cfg
	}
	return n.lab.Impersonate(a.Name, m)
}
