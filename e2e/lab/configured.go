package lab

import (
	"context"
	"runtime"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"golang.org/x/sync/errgroup"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// Configured is a machine together with the configuration it runs.
type Configured struct {
	Spec   node.Spec
	Config []byte
}

// FromConfigured adds machines of one cluster that already run Talos. With a name in bootstrap their etcd is there too:
// the named control plane and the others among the machines are its voters; without one, control planes join what
// runs. It returns when all are running and ready.
func (l *Lab) FromConfigured(ctx context.Context, machines []Configured, bootstrap string) error {
	if err := l.StartConfigured(ctx, machines, bootstrap); err != nil {
		return err
	}
	for _, m := range machines {
		if err := l.WaitReady(ctx, m.Spec.Name); err != nil {
			return err
		}
	}
	return nil
}

// StartConfigured is FromConfigured without the wait.
func (l *Lab) StartConfigured(ctx context.Context, machines []Configured, bootstrap string) error {
	nodes := make([]*node.Node, len(machines))
	names := make([]string, len(machines)) // hostnames of control planes, else ""
	planes := make([]bool, len(machines))
	g := &errgroup.Group{}
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range machines {
		g.Go(func() (err error) {
			if nodes[i], err = l.add(m.Spec); err != nil {
				return err
			}
			if err := nodes[i].Configure(m.Config); err != nil {
				return err
			}
			planes[i], names[i] = roleAndName(m.Config)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	formed, err := l.form(nodes, names, planes, bootstrap)
	if err != nil {
		return err
	}
	// Control planes first: workers wait for them.
	for _, first := range []bool{true, false} {
		for i, n := range nodes {
			if planes[i] == first {
				if err := n.Start(); err != nil {
					return err
				}
			}
		}
	}
	if n := l.Node(bootstrap); n != nil && !formed {
		return n.Bootstrap(ctx)
	}
	return nil
}

// form prepares the control planes as members of one etcd, when all of their names are known.
func (l *Lab) form(nodes []*node.Node, names []string, planes []bool, bootstrap string) (bool, error) {
	var members []*node.Node
	var hosts []string
	there := false
	for i, n := range nodes {
		if !planes[i] {
			continue
		}
		if names[i] == "" {
			return false, nil // it names itself when it boots; the others join the first
		}
		there = there || n.Name() == bootstrap
		members, hosts = append(members, n), append(hosts, names[i])
	}
	if !there {
		return false, nil
	}
	return true, node.Form(members, hosts)
}

// roleAndName reads whether a configuration makes a control plane, and its hostname ("" where it names itself).
func roleAndName(data []byte) (plane bool, hostname string) {
	cfg, err := configloader.NewFromBytes(data)
	if err != nil || cfg.Machine() == nil {
		return false, ""
	}
	if !cfg.Machine().Type().IsControlPlane() {
		return false, ""
	}
	return true, node.HostnameOf(cfg)
}

// EnsureEtcd bootstraps etcd on the first of a cluster's control planes that is configured, unless one of them has some:
// a lab that was killed at its start may have come that far and no further.
func (l *Lab) EnsureEtcd(ctx context.Context, planes []string) error {
	var first *node.Node
	for _, name := range planes {
		n := l.Node(name)
		if n == nil || !n.Configured() || !n.Power() {
			continue
		}
		if n.HasEtcd() {
			return nil
		}
		if first == nil {
			first = n
		}
	}
	if first == nil {
		return nil
	}
	return first.Bootstrap(ctx)
}
