package rules

import (
	"strings"
	"testing"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// oneRender is a cluster of one machine.
type oneRender struct{ m *fleet.Machine }

func (o oneRender) Cluster(string, ...string) ([]render.Result, error) {
	return []render.Result{{Machine: o.m, Masked: mask.Render{Documents: []mask.Document{{ID: "v1alpha1", Fields: map[string]any{}}}}}}, nil
}

// TestPoliciesThatCostTooMuch: a rule that is not evaluated, because the policies have used up what they may cost, does not
// count as held.
func TestPoliciesThatCostTooMuch(t *testing.T) {
	m := &fleet.Machine{Object: fleet.NewObject(v1alpha1.KindTalosMachine, "w1", "prod", fleet.Position{}), Manifest: &v1alpha1.TalosMachine{}}
	policy := &fleet.Policy{
		Object: fleet.NewObject(v1alpha1.KindTalosPolicy, "p", "", fleet.Position{File: "p.yaml", Line: 1}),
		Manifest: &v1alpha1.TalosPolicy{Spec: v1alpha1.TalosPolicySpec{
			Severity: "warning", Rules: []v1alpha1.PolicyRule{{Name: "r", Expression: `machine.name == "w1"`}},
		}},
	}
	cl := &fleet.Cluster{Object: fleet.NewObject(v1alpha1.KindTalosCluster, "prod", "prod", fleet.Position{}), Manifest: &v1alpha1.TalosCluster{}, Machines: []*fleet.Machine{m}}
	c := &Context{Ctx: t.Context(), Head: &fleet.Fleet{Clusters: []*fleet.Cluster{cl}, Policies: []*fleet.Policy{policy}}, HeadRenders: oneRender{m}}
	if found := policyRule().Run(c); len(found) > 0 || c.policyCost == 0 {
		t.Fatalf("%+v, cost %d", found, c.policyCost)
	}
	c.policyCost = maxPolicyCost + 1
	found := policyRule().Run(c)
	if len(found) != 1 || found[0].Severity != fleet.Error || !strings.Contains(found[0].Message, "cost too much together") || found[0].Cluster != "prod" {
		t.Errorf("%+v", found)
	}
}
