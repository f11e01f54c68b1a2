// Package sim runs whole fleets in virtual time around the real plan.Next: simulated nodes, etcd, an inventory with
// compare-and-swap, an act that follows the protocol of apply/plan/doc.go, and faults. A seed decides everything, so
// that a failure is found again by its number.
package sim

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
)

// fleet is the world: one cluster, its nodes, its repository and its inventory.
type fleet struct {
	rnd   *rand.Rand
	now   time.Time
	nodes []*node
	// desired is the head; wishes are the configurations by machine.
	desired plan.Desired
	wishes  map[string]config
	commits int

	inv      *state.ClusterInventory
	gen      int64
	epoch    int64
	pushFail time.Time // the status branch can't be reached until then

	members    int // IDs given
	bootstraps int
	leader     int

	faults   bool
	log      []string
	problems []string
}

func (f *fleet) node(name string) *node {
	for _, n := range f.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (f *fleet) note(format string, args ...any) {
	f.log = append(f.log, f.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
	if len(f.log) > 1500 {
		f.log = f.log[500:]
	}
}

// violated notes a broken invariant.
func (f *fleet) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	f.note("VIOLATED: %s", text)
	f.problems = append(f.problems, text)
}

func (f *fleet) chance(p float64) bool { return f.rnd.Float64() < p }

func (f *fleet) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(f.rnd.Int64N(int64(hi-lo)+1))
}

// voters and those of them that are up.
func (f *fleet) voters() (all, up []*node) {
	for _, n := range f.nodes {
		if n.member != 0 && !n.learner {
			all = append(all, n)
			if n.etcdUp(f.now) {
				up = append(up, n)
			}
		}
	}
	return all, up
}

func (f *fleet) quorum() bool {
	all, up := f.voters()
	return len(all) > 0 && len(up) >= len(all)/2+1
}

// advance moves the clock, second by second, so that timers fire in order.
func (f *fleet) advance(d time.Duration) {
	end := f.now.Add(d)
	for f.now.Before(end) {
		f.now = f.now.Add(min(time.Second, end.Sub(f.now)))
		for _, n := range f.nodes {
			n.tick(f.now)
		}
		f.etcdTick()
		if f.faults {
			f.injectFaults()
		}
	}
}

// etcdTick elects, and lets nodes join as Talos does: one learner at a time, only while all voters are up.
func (f *fleet) etcdTick() {
	all, up := f.voters()
	if !f.quorum() {
		f.leader = 0
		return
	}
	led := false
	for _, n := range up {
		led = led || n.member == f.leader
	}
	if !led {
		f.leader = up[f.rnd.IntN(len(up))].member
	}
	learning := false
	for _, n := range f.nodes {
		if n.learner {
			learning = true
			if n.etcdUp(f.now) && !f.now.Before(n.promoteAt) {
				n.learner = false
				f.note("%s is a voter", n.name)
			}
		}
	}
	if learning || len(up) < len(all) {
		return
	}
	for _, n := range f.nodes {
		if n.role == plan.RoleControlPlane && n.configured && n.member == 0 && n.up(f.now) && !f.now.Before(n.joinAt) {
			f.members++
			n.member, n.learner, n.promoteAt = f.members, true, f.now.Add(f.between(5*time.Second, 20*time.Second))
			f.note("%s joins as a learner", n.name)
			return
		}
	}
}

func memberID(id int) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", id)
}

// facts is one read of a node.
func (f *fleet) facts(n *node) plan.MachineFacts {
	out := plan.MachineFacts{At: f.now, Endpoint: n.name + ":50000"}
	if !n.reachable(f.now) || n.downKind == "installing" && n.configured && !n.up(f.now) {
		out.Reach, out.Error = plan.ReachUnreachable, "connection refused"
		return out
	}
	out.Reach = plan.ReachOK
	out.TalosVersion = fmt.Sprintf("v1.%d.5", n.minor)
	out.BootID = fmt.Sprintf("boot-%s-%d", n.name, n.bootID)
	uuid, nodeID := n.uuid, n.nodeID
	if f.now.Before(n.otherUntil) {
		uuid, nodeID = "other-"+uuid, "other-"+nodeID
	}
	out.Identity.UUID = uuid
	out.Hostname = n.name
	if !n.configured {
		out.Mode, out.Stage = plan.ModeMaintenance, "maintenance"
		return out
	}
	out.Mode = plan.ModeConfigured
	out.Identity.NodeID, out.Identity.NodeName = nodeID, n.name
	f.serviceFacts(n, &out)
	f.configFacts(n, &out)
	return out
}

func (f *fleet) serviceFacts(n *node, out *plan.MachineFacts) {
	t, no := true, false
	ready := n.kubeletUp(f.now)
	out.Services = map[string]plan.ServiceFact{
		"apid": {State: "Running", Running: true}, "machined": {State: "Running", Running: true},
		"kubelet": {State: "Running", Running: ready},
	}
	out.Stage = "running"
	if n.role == plan.RoleControlPlane {
		out.Services["trustd"] = plan.ServiceFact{State: "Running", Running: true}
		e := &plan.EtcdFact{At: f.now, State: "Preparing"}
		out.Etcd = e
		api := n.etcdUp(f.now) && f.quorum() && !n.learner
		out.APIServerReady = &api
		if n.etcdUp(f.now) {
			e.State, e.MemberID, e.Learner = "Running", memberID(n.member), n.learner
			q := f.quorum()
			e.LinearizableRead, e.CaughtUp = &q, &q
			if q {
				e.Leader = memberID(f.leader)
				e.Members = f.memberList()
			}
			out.Identity.MemberID = e.MemberID
		} else if n.member != 0 {
			e.State = "Stopping"
			out.Identity.MemberID = ""
		} else {
			out.Stage = "booting"
		}
		running := n.etcdUp(f.now)
		out.Services["etcd"] = plan.ServiceFact{State: e.State, Running: running}
		ready = ready && running
	}
	out.Ready = &no
	if ready {
		out.Ready = &t
	} else {
		out.Unmet = []string{"services"}
	}
}

func (f *fleet) memberList() []plan.Member {
	var out []plan.Member
	for _, n := range f.nodes {
		if n.member != 0 {
			out = append(out, plan.Member{ID: memberID(n.member), Name: n.name, Learner: n.learner})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

// configFacts compares with the head as observe does.
func (f *fleet) configFacts(n *node, out *plan.MachineFacts) {
	wish, ok := f.wishes[n.name]
	if !ok {
		return
	}
	c := &plan.ConfigFact{At: f.now, ForDigest: wish.digest(), Running: n.running.digest(), Effect: "none"}
	c.Equal = n.running == wish
	c.PersistentEqual = !n.storedShown || n.stored == wish
	c.Staged = !c.Equal && n.storedShown && n.stored == wish
	c.TryPending = c.Equal && n.storedShown && n.stored != wish
	add := func(path, effect, service string) {
		c.Paths = append(c.Paths, plan.PathFact{Document: "v1alpha1", Path: path, Effect: effect, Service: service})
		c.Effect = effect
	}
	if n.running.Live != wish.Live || n.running.Bad != wish.Bad {
		add("machine.sysctls", "live", "")
	}
	if n.running.Restart != wish.Restart {
		add("cluster.etcd.extraArgs", "restart", "etcd")
	}
	if n.running.Reboot != wish.Reboot {
		add("machine.env", "reboot", "")
	}
	out.Config = c
}
