package plan

// Tri is a truth value that knows that it may not know.
type Tri int

// Truth values.
const (
	Unknown Tri = iota
	Yes
	No
)

// Verdict is a truth value with its reason, a phrase that fits after "is not" or "because".
type Verdict struct {
	Is  Tri
	Why string
}

func yes() Verdict               { return Verdict{Is: Yes} }
func no(why string) Verdict      { return Verdict{Is: No, Why: why} }
func unknown(why string) Verdict { return Verdict{Is: Unknown, Why: why} }

// SeenWell tells whether facts of one read show the machine reachable, ready and, as a control plane, a healthy
// member as far as it says itself (SPEC section 3, "Terms in numbers"). observe keeps WellSince by it; act uses it
// for Expect.OthersHealthy. What takes several machines to see (one leader for all) is not in it.
func SeenWell(f MachineFacts, role string, nodeReadySeen bool) bool {
	if f.Reach != ReachOK || f.Mode != ModeConfigured || Ready(f, role, nodeReadySeen).Is != Yes {
		return false
	}
	return role != RoleControlPlane || HealthyMember(f).Is == Yes
}

// Roles of a machine.
const (
	RoleControlPlane = "controlplane"
	RoleWorker       = "worker"
)

// neededServices of a role (facts/talos.md section 5).
func neededServices(role string) []string {
	if role == RoleControlPlane {
		return []string{"apid", "etcd", "kubelet", "machined", "trustd"}
	}
	return []string{"apid", "kubelet", "machined"}
}

// Ready tells whether a machine is ready: stage running, the services of its role running and healthy, nothing unmet,
// and nodeReady only where it was true before (a cluster without a CNI never is).
func Ready(f MachineFacts, role string, nodeReadySeen bool) Verdict {
	switch f.Stage {
	case "running":
	case "":
		return unknown("its stage is not known")
	default:
		return no("its stage is " + f.Stage)
	}
	if f.Services == nil {
		return unknown("its services are not known")
	}
	for _, id := range neededServices(role) {
		s, ok := f.Services[id]
		if !ok || !s.Running {
			return no("service " + id + " is not running")
		}
		if s.Healthy != nil && !*s.Healthy {
			return no("service " + id + " is not healthy")
		}
	}
	if f.Ready == nil {
		return unknown("its readiness is not known")
	}
	for _, c := range f.Unmet {
		if c != "nodeReady" {
			return no("condition " + c + " is not met")
		}
	}
	if !*f.Ready && len(f.Unmet) == 0 {
		return no("it says that it is not ready")
	}
	if nodeReadySeen && f.NodeReady != nil && !*f.NodeReady {
		return no("its Kubernetes node is not ready")
	}
	return yes()
}

// HealthyMember tells whether a control plane is a healthy member as far as it says itself: a voter that answers a
// linearizable read, without alarm, with a leader, caught up, and not contradicted by etcd's own port.
func HealthyMember(f MachineFacts) Verdict {
	e := f.Etcd
	if e == nil {
		return unknown("its etcd was not read")
	}
	switch {
	case e.MemberID == "" && e.State == "":
		return unknown("its etcd member is not known")
	case e.MemberID == "":
		return no("it is no etcd member (etcd is " + e.State + ")")
	case e.Learner:
		return no("it is still a learner")
	case len(e.Alarms) > 0:
		return no("etcd alarm " + e.Alarms[0])
	case len(e.Errors) > 0:
		return no("etcd says " + e.Errors[0])
	case e.Disagrees != "":
		return no("etcd and the Talos API disagree: " + e.Disagrees)
	case e.Leader == "":
		return no("it sees no etcd leader")
	case e.LinearizableRead == nil:
		return unknown("no linearizable read was tried")
	case !*e.LinearizableRead:
		return no("a linearizable read through it failed")
	case e.CaughtUp == nil:
		return unknown("how far its etcd is behind is not known")
	case !*e.CaughtUp:
		return no("its etcd is behind the leader")
	}
	return yes()
}
