package etcd

import (
	"testing"

	"ichor.maesh.dev/ichor/apply/plan"
)

func TestDisagreement(t *testing.T) {
	members := []plan.Member{{ID: "a", Name: "cp1"}, {ID: "b", Name: "cp2"}}
	fact := func(edit func(*plan.EtcdFact)) *plan.EtcdFact {
		f := &plan.EtcdFact{MemberID: "a", Leader: "b", Members: members}
		if edit != nil {
			edit(f)
		}
		return f
	}
	direct := Look{MemberID: "a", Leader: "b", Members: []plan.Member{{ID: "b"}, {ID: "a"}}, AppliedIndex: 7}
	for _, c := range []struct {
		name string
		edit func(*plan.EtcdFact)
		want string
	}{
		{"the same, in another order", nil, ""},
		{"another member", func(f *plan.EtcdFact) { f.MemberID = "c" }, "member c, etcd itself says a"},
		{"the Talos API does not know the member", func(f *plan.EtcdFact) { f.MemberID = "" }, ""},
		{"no leader", func(f *plan.EtcdFact) { f.Leader = "" }, "leader none, etcd itself says b"},
		{"a learner", func(f *plan.EtcdFact) { f.Learner = true }, "learner true, etcd itself says false"},
		{"no list", func(f *plan.EtcdFact) { f.Members = nil }, ""},
		{"one more", func(f *plan.EtcdFact) { f.Members = append(members[:2:2], plan.Member{ID: "d", Learner: true}) }, "members a,b,d (learner), etcd itself says a,b"},
	} {
		if got := Disagreement(fact(c.edit), &direct); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
