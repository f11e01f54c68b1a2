package plan

import (
	"strings"
	"time"
)

// seen sets what was last observed of a machine. "equal" makes a machine that is well and has the wish; other words
// change single facts of what was seen before.
func (s *scenario) seen(name string, w words) {
	f := s.facts[name]
	switch {
	case w.has("nothing"):
		delete(s.facts, name)
		return
	case w.has("maintenance"):
		f = s.maintenance(name)
	case w.has("equal") || w.has("configured") || f == nil:
		f = s.configured(name)
	}
	s.facts[name] = f
	s.stamp(f, s.in.Now)
	s.seenReach(f, w)
	s.seenIdentity(f, w)
	s.seenEtcd(f, w)
	if w.has("differs") {
		s.differs(f, w["differs"])
	}
	if w.has("trying") {
		f.Config.Equal, f.Config.PersistentEqual, f.Config.TryPending = true, false, true
	}
	if w.has("staged") {
		f.Config.Equal, f.Config.PersistentEqual, f.Config.Staged = false, true, true
	}
	if w.has("uncompared") {
		f.Config = nil
	}
	if w.has("for") {
		f.Config.ForDigest = w["for"]
	}
	if w.has("age") {
		s.stamp(f, s.in.Now.Add(-w.duration("age")))
	}
}

func (s *scenario) maintenance(name string) *MachineFacts {
	f := &MachineFacts{Reach: ReachOK, Mode: ModeMaintenance, Stage: "maintenance", TalosVersion: "v1.13.5", Fingerprint: "print-" + name, Endpoint: name + ":50000"}
	f.Identity.UUID = "uuid-" + name
	f.Hostname = name
	f.Since = s.in.Now.Add(-time.Hour)
	return f
}

func (s *scenario) configured(name string) *MachineFacts {
	t := true
	f := &MachineFacts{
		Reach: ReachOK, Since: s.in.Now.Add(-time.Hour), Endpoint: name + ":50000", Mode: ModeConfigured, Hostname: name,
		TalosVersion: "v1.13.5", Stage: "running", Ready: &t, BootID: "boot1", APIServerReady: &t, WellSince: s.in.Now.Add(-time.Hour),
		Services: map[string]ServiceFact{},
	}
	f.Identity.UUID, f.Identity.NodeID, f.Identity.NodeName = "uuid-"+name, "node-"+name, name
	for _, id := range neededServices(roleOf(name)) {
		f.Services[id] = ServiceFact{State: "Running", Running: true, Healthy: &t}
	}
	digest := "d1"
	if m := s.desired(name); m != nil {
		digest = m.Digest
	}
	f.Config = &ConfigFact{ForDigest: digest, Equal: true, PersistentEqual: true, Effect: "none", Running: "run-" + name}
	if roleOf(name) != RoleControlPlane {
		f.APIServerReady = nil
		return f
	}
	f.Etcd = &EtcdFact{State: "Running", MemberID: s.member[name], Leader: "0000000000000001", LinearizableRead: &t, CaughtUp: &t}
	f.Identity.MemberID = s.member[name]
	for _, n := range []string{"cp1", "cp2", "cp3", "cp4", "cp5"} {
		if id := s.member[n]; id != "" {
			f.Etcd.Members = append(f.Etcd.Members, Member{ID: id, Name: n})
		}
	}
	if s.member[name] == "" {
		s.waiting(f)
	}
	return f
}

// waiting: etcd waits for bootstrap or to join.
func (s *scenario) waiting(f *MachineFacts) {
	no := false
	f.Etcd = &EtcdFact{State: "Preparing"}
	f.Identity.MemberID, f.Stage, f.Ready, f.APIServerReady, f.WellSince = "", "booting", &no, &no, time.Time{}
	f.Services["etcd"] = ServiceFact{State: "Preparing"}
	f.Services["kubelet"] = ServiceFact{State: "Waiting"}
	f.Unmet = []string{"services"}
}

func (s *scenario) seenReach(f *MachineFacts, w words) {
	if w.has("unreachable") {
		f.Reach, f.Error, f.WellSince, f.Config = ReachUnreachable, "connection refused", time.Time{}, nil
		f.Since = s.in.Now.Add(-w.duration("unreachable"))
	}
	if w.has("foreign") {
		f.Mode = ModeForeign
	}
	if w.has("well-for") {
		f.WellSince = s.in.Now.Add(-w.duration("well-for"))
	}
	if w.has("kube-address") {
		f.KubeAddress = w["kube-address"]
	}
	if w.has("kubelet") {
		f.Services["kubelet"] = ServiceFact{State: w["kubelet"]}
		f.WellSince = time.Time{}
	}
	if w.has("node-ready") {
		yes := w["node-ready"] == "true"
		f.NodeReady = &yes
		if !yes {
			no := false
			f.Ready, f.Unmet = &no, []string{"nodeReady"}
		}
	}
	w.set("stage", &f.Stage)
	w.set("boot", &f.BootID)
	w.set("talos", &f.TalosVersion)
	if w.has("since") {
		f.Since = s.in.Now.Add(-w.duration("since"))
	}
}

func (s *scenario) seenIdentity(f *MachineFacts, w words) {
	w.set("uuid", &f.Identity.UUID)
	w.set("node", &f.Identity.NodeID)
	w.set("nodename", &f.Identity.NodeName)
	w.set("hostname", &f.Hostname)
	w.set("fingerprint", &f.Fingerprint)
	if w.has("member") {
		f.Identity.MemberID = w["member"]
		if f.Etcd != nil {
			f.Etcd.MemberID = w["member"]
		}
	}
}

func (s *scenario) seenEtcd(f *MachineFacts, w words) {
	no := false
	if w.has("waiting") {
		s.waiting(f)
	}
	if w.has("etcd-down") {
		s.waiting(f)
		f.Etcd.State = "Failed"
	}
	if w.has("leader") {
		f.Etcd.Leader = s.member[w["leader"]]
	}
	if w.has("api") {
		f.APIServerReady = &no
		if w["api"] == "unknown" {
			f.APIServerReady = nil
		}
	}
	if w.has("learner") {
		f.Etcd.Learner = true
		for i := range f.Etcd.Members {
			f.Etcd.Members[i].Learner = f.Etcd.Members[i].Learner || f.Etcd.Members[i].ID == f.Etcd.MemberID
		}
	}
	if w.has("read") {
		f.Etcd.LinearizableRead, f.WellSince = &no, time.Time{}
	}
	if w.has("listed") { // members that etcd lists besides
		for _, id := range strings.Split(w["listed"], ",") {
			f.Etcd.Members = append(f.Etcd.Members, Member{ID: id, Name: id})
		}
	}
}

// differs makes the node's configuration differ from the wish: effects joined by +, a restart with its service.
func (s *scenario) differs(f *MachineFacts, effects string) {
	c := &ConfigFact{At: f.At, ForDigest: "d1", Running: "run-other", Effect: "live"}
	if f.Config != nil {
		c.ForDigest = f.Config.ForDigest
	}
	if effects == "" {
		effects = "live"
	}
	rank := map[string]int{"install": 1, "live": 2, "restart": 3, "reboot": 4}
	c.Effect = "install"
	for _, e := range strings.Split(effects, "+") {
		kind, service, _ := strings.Cut(e, ":")
		path := map[string]string{"live": "machine.sysctls", "restart": "cluster.apiServer.extraArgs", "reboot": "machine.env", "install": "machine.install.disk", "image": "machine.install.image"}[kind]
		if kind == "image" {
			kind = "install"
		}
		c.Paths = append(c.Paths, PathFact{Document: "v1alpha1", Path: path, Effect: kind, Service: service})
		if rank[kind] > rank[c.Effect] {
			c.Effect = kind
		}
	}
	f.Config = c
}
