package plan

import (
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// deathCase is cp3, silent for two minutes, seen so by cp1's proxy too; cp1 and cp2 are healthy and list its member.
func deathCase() Death {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	t := true
	members := []Member{
		{ID: "00000000000000a1", Name: "cp1", PeerURLs: []string{"https://10.0.0.1:2380"}},
		{ID: "00000000000000a2", Name: "cp2", PeerURLs: []string{"https://10.0.0.2:2380"}},
		{ID: "00000000000000a3", Name: "cp3", PeerURLs: []string{"https://10.0.0.3:2380"}},
	}
	healthy := func(id string) MachineFacts {
		return MachineFacts{At: now, Reach: ReachOK, Mode: ModeConfigured, Etcd: &EtcdFact{
			At: now, State: "Running", MemberID: id, Leader: members[0].ID, LinearizableRead: &t, CaughtUp: &t, Members: members,
		}}
	}
	return Death{
		Now: now, Grace: time.Minute, MaxAge: 10 * time.Second,
		Pinned: state.Identity{UUID: "u3", NodeID: "n3", NodeName: "cp3", MemberID: members[2].ID},
		Facts: MachineFacts{
			At: now, Since: now.Add(-2 * time.Minute), Reach: ReachUnreachable, Endpoint: "10.0.0.3:50000", Error: "refused",
			Proxy: &ProxyFact{At: now, Via: "cp1", Reach: ReachUnreachable},
		},
		Siblings: map[string]MachineFacts{"cp1": healthy(members[0].ID), "cp2": healthy(members[1].ID)},
	}
}

func TestDead(t *testing.T) {
	configured := func(d *Death, id state.Identity) {
		d.Facts = MachineFacts{At: d.Now, Since: d.Now.Add(-time.Hour), Reach: ReachOK, Mode: ModeConfigured, Endpoint: "10.0.0.3", Identity: id}
	}
	maintenance := func(d *Death, uuid string) {
		configured(d, state.Identity{UUID: uuid})
		d.Facts.Mode = ModeMaintenance
	}
	for _, c := range []struct {
		name string
		edit func(*Death)
		is   Tri
		why  string
	}{
		{"silent for longer than the grace", func(*Death) {}, Yes, "neither Ichor nor through cp1"},
		{"one healthy sibling is enough", func(d *Death) { delete(d.Siblings, "cp1") }, Yes, "cp2 lists its member"},
		{"silent for just the grace", func(d *Death) { d.Facts.Since = d.Now.Add(-time.Minute) }, Unknown, "not been silent for longer"},
		{"its facts are old", func(d *Death) { d.Facts.At = d.Now.Add(-11 * time.Second) }, Unknown, "read again"},
		{"not looked at", func(d *Death) { d.Facts = MachineFacts{} }, Unknown, "not looked at"},
		{"nobody asked a sibling", func(d *Death) { d.Facts.Proxy = nil }, Unknown, "through a sibling"},
		{"a sibling was asked long ago", func(d *Death) { d.Facts.Proxy.At = d.Now.Add(-time.Minute) }, Unknown, "through a sibling"},
		{"a sibling reaches it", func(d *Death) { d.Facts.Proxy.Reach = ReachOK }, No, "it answers through cp1"},
		{"its kubelet lives", func(d *Death) {
			d.Facts.Kube = &KubeFact{At: d.Now, Answers: true, LeaseRenewed: d.Now.Add(-30 * time.Second)}
		}, No, "its kubelet renewed its lease 30s ago"},
		{"its kubelet lived long ago", func(d *Death) {
			d.Facts.Kube = &KubeFact{At: d.Now, Answers: true, LeaseRenewed: d.Now.Add(-time.Hour)}
		}, Yes, ""},
		{"a lease counts for its own time though the grace is short", func(d *Death) {
			d.Grace = time.Second
			d.Facts.Kube = &KubeFact{At: d.Now, Answers: true, LeaseRenewed: d.Now.Add(-39 * time.Second)}
		}, No, "lease"},
		{"Kubernetes does not answer", func(d *Death) {
			d.Facts.Kube = &KubeFact{At: d.Now, LeaseRenewed: d.Now.Add(-time.Second)}
		}, Yes, ""},
		{"its member is not known", func(d *Death) { d.Pinned.MemberID = "" }, Unknown, "a name alone proves nothing"},
		{"etcd does not list it", func(d *Death) { d.Pinned.MemberID = "00000000000000a9" }, Unknown, "proves nothing about the machine"},
		{"no sibling", func(d *Death) { d.Siblings = nil }, Unknown, "no healthy control plane"},
		{"no healthy sibling", func(d *Death) {
			d.Siblings["cp1"].Etcd.Leader, d.Siblings["cp2"].Etcd.Leader = "", ""
		}, Unknown, "no healthy control plane"},
		{"the siblings' facts are old", func(d *Death) { d.Now = d.Now.Add(time.Minute); d.Facts.At = d.Now }, Unknown, "no healthy control plane"},
		{"it answers and sees a leader", func(d *Death) {
			configured(d, d.Pinned)
			d.Facts.Etcd = &EtcdFact{MemberID: d.Pinned.MemberID, Leader: "00000000000000a1"}
		}, No, "it is healthy"},
		{"its etcd fails", func(d *Death) {
			configured(d, d.Pinned)
			d.Facts.EtcdFailingSince = d.Now.Add(-2 * time.Minute)
		}, Yes, "its etcd has failed"},
		{"its etcd fails within the grace", func(d *Death) {
			configured(d, d.Pinned)
			d.Facts.EtcdFailingSince = d.Now.Add(-time.Minute)
		}, Unknown, "longer than the grace"},
		{"it answers, of etcd nothing is known", func(d *Death) { configured(d, d.Pinned) }, Unknown, "not seen to fail"},
		{"the same box waits in maintenance mode", func(d *Death) { maintenance(d, "U3") }, Yes, "the same box"},
		{"another box waits in its place", func(d *Death) { maintenance(d, "u9") }, Yes, "at the address where member"},
		{"another box waits where the member was not", func(d *Death) { maintenance(d, "u9"); d.Facts.Endpoint = "10.0.0.9" }, Unknown, "may run elsewhere"},
		{"a box without a UUID waits", func(d *Death) { maintenance(d, "") }, Unknown, "UUID is not known"},
		{"the same box was installed anew", func(d *Death) { configured(d, state.Identity{UUID: "u3", NodeID: "n9"}) }, Yes, "the same box"},
		{"another configured box is in its place", func(d *Death) { configured(d, state.Identity{UUID: "u9", NodeID: "n9"}) }, Yes, "at the address"},
		{"a box of another cluster", func(d *Death) { configured(d, state.Identity{}); d.Facts.Mode = ModeForeign }, Unknown, "who answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := deathCase()
			c.edit(&d)
			if v := Dead(d); v.Is != c.is || !strings.Contains(v.Why, c.why) {
				t.Errorf("%v: %s", v.Is, v.Why)
			}
		})
	}
}

func TestHostOf(t *testing.T) {
	for endpoint, want := range map[string]string{
		"10.0.0.3": "10.0.0.3", "10.0.0.3:50000": "10.0.0.3", "fd00::3": "fd00::3", "[fd00::3]:2380": "fd00::3", "[fd00::3]": "fd00::3",
	} {
		if got := hostOf(endpoint); got != want {
			t.Errorf("host of %s is %s", endpoint, got)
		}
	}
}
