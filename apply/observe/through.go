package observe

import (
	"context"
	"sort"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
)

// throughTimeout of a look through a sibling: its apid gives up connecting after some seconds by itself.
const throughTimeout = 5 * time.Second

// through asks the siblings of control planes that do not answer whether they reach them: a machine that only Ichor can't reach is
// not dead.
func (o *Observer) through(ctx context.Context, c *cluster, spec *Cluster, reads []*read) {
	var silent []*read
	for _, r := range reads {
		if r.machine.Role == plan.RoleControlPlane && r.facts.Reach == plan.ReachUnreachable {
			silent = append(silent, r)
		}
	}
	if len(silent) == 0 {
		return
	}
	now := map[string]plan.MachineFacts{}
	for _, r := range reads {
		now[r.machine.Name] = r.facts
	}
	var siblings []*Machine
	for i := range spec.Machines {
		m := &spec.Machines[i]
		f, read := now[m.Name]
		if !read {
			f = c.known(m).facts
		}
		if m.Role == plan.RoleControlPlane && f.Reach == plan.ReachOK && f.Mode == plan.ModeConfigured {
			siblings = append(siblings, m)
		}
	}
	sort.Slice(siblings, func(i, j int) bool { return siblings[i].Name < siblings[j].Name })
	var wg sync.WaitGroup
	for _, r := range silent {
		wg.Go(func() { r.facts.Proxy = o.ask(ctx, c, siblings, r.machine.Endpoint) })
	}
	wg.Wait()
}

// ask one sibling after the other until one can tell; nil: none can.
func (o *Observer) ask(ctx context.Context, c *cluster, siblings []*Machine, endpoint string) *plan.ProxyFact {
	for _, s := range siblings {
		cl, err := c.talos.Secure(s.Endpoint, talos.Reader)
		if err != nil {
			continue
		}
		at := o.opt.Now()
		limited, cancel := context.WithTimeout(ctx, throughTimeout)
		asked, err := cl.Through(limited, endpoint)
		cancel()
		switch {
		case err == nil:
			return &plan.ProxyFact{At: at, Via: s.Name, Reach: plan.ReachOK}
		case asked && talos.IsUnreachable(err) && ctx.Err() == nil:
			return &plan.ProxyFact{At: at, Via: s.Name, Reach: plan.ReachUnreachable, Error: err.Error()}
		case asked && !talos.IsUnreachable(err):
			// An answer of any other kind comes from the machine itself.
			return &plan.ProxyFact{At: at, Via: s.Name, Reach: plan.ReachOK, Error: err.Error()}
		}
	}
	return nil
}

// etcdFails tells whether a control plane answers, but its etcd status fails or it sees no leader.
func etcdFails(f plan.MachineFacts) bool {
	return f.Reach == plan.ReachOK && f.Mode == plan.ModeConfigured && f.Etcd != nil && (f.Etcd.MemberID == "" || f.Etcd.Leader == "")
}
