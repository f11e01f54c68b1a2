package rules

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// TestEveryRuleIsDocumented: one page a rule, in the list, and no page without a rule.
func TestEveryRuleIsDocumented(t *testing.T) {
	index, err := os.ReadFile("../../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{Schema: true, Reference: true, Limits: true}
	for _, r := range All() {
		if known[r.ID] {
			t.Errorf("rule %s is listed twice", r.ID)
		}
		known[r.ID] = true
		if r.Doc == "" || r.Check == nil {
			t.Errorf("rule %s is not whole", r.ID)
		}
	}
	for id := range known {
		if _, err := os.Stat("../../docs/rules/" + id + ".md"); err != nil {
			t.Errorf("rule %s has no page", id)
		}
		if !strings.Contains(string(index), "(rules/"+id+".md)") {
			t.Errorf("rule %s is not in docs/rules.md", id)
		}
	}
	pages, err := filepath.Glob("../../docs/rules/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if !known[strings.TrimSuffix(filepath.Base(p), ".md")] {
			t.Errorf("%s documents no rule", p)
		}
	}
}

// TestRemovalStep is the arithmetic of SPEC section 4, to be checked with a finger: members, declared count, sentence.
func TestRemovalStep(t *testing.T) {
	for _, c := range []struct {
		n, declared int
		want        string
	}{
		{1, 1, "delete refused: last control plane (1 -> 0); delete the TalosCluster instead"},
		{0, 1, "delete refused: last control plane (1 -> 0); delete the TalosCluster instead"},
		{2, 1, "delete refused: control planes 2 -> 1, below etcd quorum of 2 for 2 members"},
		{2, 3, "delete refused: control planes 2 -> 1, below etcd quorum of 2 for 2 members"},
		{3, 3, "delete refused: control planes 3 -> 2, below the declared count of 3; either approve a replacement control plane first (then remove this one), or lower spec.controlPlane.count first"},
		{3, 1, ""},
		{4, 3, ""},
		{4, 5, "delete refused: control planes 4 -> 3, below the declared count of 5; either approve a replacement control plane first (then remove this one), or lower spec.controlPlane.count first"},
		{5, 3, ""},
		{6, 5, ""},
	} {
		if got := removalStep(c.n, c.declared); got != c.want {
			t.Errorf("%d members, %d declared: %q, want %q", c.n, c.declared, got, c.want)
		}
	}
}

func TestRepeatedUUIDs(t *testing.T) {
	for uuid, want := range map[string]bool{
		"": true, "00000000-0000-0000-0000-000000000000": true, "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF": true,
		"03000200-0400-0500-0006-000700080009": true, "12345678-1234-5678-90AB-CDDEEFAABBCC": true,
		"4c4c4544-0044-3510-8052-c4c04f4e3232": false, "11111111-1111-1111-1111-111111111112": false,
	} {
		if got := repeatedUUID(uuid); got != want {
			t.Errorf("%q: %t, want %t", uuid, got, want)
		}
	}
	for uuid := range repeatedUUIDs {
		if uuid != canonicalUUID(uuid) || len(uuid) != 36 {
			t.Errorf("%q is not in its canonical form", uuid)
		}
	}
}

func TestCanonicalEndpoint(t *testing.T) {
	for _, same := range [][]string{
		{"10.0.0.1", "10.0.0.1:50000", "[::ffff:10.0.0.1]:50000", "::ffff:10.0.0.1"},
		{"2001:db8::1", "[2001:db8::1]:50000", "[2001:DB8:0::1]"},
	} {
		for _, s := range same {
			if canonicalEndpoint(s) != canonicalEndpoint(same[0]) {
				t.Errorf("%s and %s differ", s, same[0])
			}
		}
	}
	if canonicalEndpoint("10.0.0.1") == canonicalEndpoint("10.0.0.1:50001") {
		t.Error("two ports are the same")
	}
}

// TestHits: few machines are named, of many the first and how many more.
func TestHits(t *testing.T) {
	var machines []*fleet.Machine
	for _, n := range []string{"d", "a", "c", "b"} {
		role := v1alpha1.RoleWorker
		if n == "b" {
			role = v1alpha1.RoleControlPlane
		}
		m := &v1alpha1.TalosMachine{Spec: v1alpha1.TalosMachineSpec{Role: role}}
		machines = append(machines, &fleet.Machine{Object: fleet.Object{Name: n}, Manifest: m})
	}
	for n, want := range map[int]string{1: "hits machine d", 2: "hits 2 workers: a, d", 4: "hits 4 machines: a, b, c and 1 more"} {
		if got := hits(machines[:n]); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
