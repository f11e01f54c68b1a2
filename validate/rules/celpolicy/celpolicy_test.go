package celpolicy

import (
	"context"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func facts() *Facts {
	m := &fleet.Machine{Object: fleet.Object{Name: "w1"}, Manifest: &v1alpha1.TalosMachine{
		Metadata: v1alpha1.ObjectMeta{Labels: map[string]string{"rack": "a"}}, Spec: v1alpha1.TalosMachineSpec{Role: "worker", Hostname: "w1"},
	}}
	cl := &fleet.Cluster{Object: fleet.Object{Name: "prod"}, Manifest: &v1alpha1.TalosCluster{Spec: v1alpha1.TalosClusterSpec{TalosVersion: "v1.13.5"}}}
	return NewFacts(cl, m, mask.Render{Documents: []mask.Document{
		{ID: "v1alpha1", Fields: map[string]any{"machine": map[string]any{"type": "worker", "port": int64(7), "token": mask.Marker}}},
		{ID: "KubeSpanConfig", Fields: map[string]any{"kind": "KubeSpanConfig", "enabled": true}},
	}})
}

func TestEval(t *testing.T) {
	for expr, want := range map[string]string{
		`machine.role == "worker" && cluster.contract == "v1.13"`:      "true",
		`machine.labels["rack"] == "b"`:                                "false",
		`documents.exists(d, d.?kind.orValue("") == "KubeSpanConfig")`: "true",
		`config.machine.port < 8.5`:                                    "true",
		`config.machine.token == "<secret>"`:                           "true",
		`has(config.machine.sysctls)`:                                  "false",
		`config.machine.sysctls["a"] == "b"`:                           "no such key: sysctls",
		`config.machine.type`:                                          "it gives string",
		`machine.name.matches("^w[0-9]+$")`:                            "true",
		`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, a > 0)))))`: "cost is over the limit",
	} {
		e, err := Compile(expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		ok, err := e.Eval(t.Context(), facts())
		got := map[bool]string{true: "true", false: "false"}[ok]
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for expr, want := range map[string]string{
		`machine.name ==`:             "1:16: Syntax error",
		`nobody.name == ""`:           "undeclared reference to 'nobody'",
		`1 + 1`:                       "it gives int",
		`"a".replace("a", "b") != ""`: "undeclared reference to 'replace'",
		strings.Repeat("(", 100) + "true" + strings.Repeat(")", 100): "recursion",
		`"` + strings.Repeat("a", maxExpression) + `" == ""`:         "longer than",
	} {
		if _, err := Compile(expr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", expr, err, want)
		}
	}
}

// BenchmarkCost tells what a unit of cost takes: the budget of a check is made of it.
func BenchmarkCost(b *testing.B) {
	e, err := Compile(`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, a > 0))))`)
	if err != nil {
		b.Fatal(err)
	}
	f := facts()
	var spent uint64
	for b.Loop() {
		if _, err := e.Eval(b.Context(), f); err != nil {
			b.Fatal(err)
		}
		spent = e.spent
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(spent), "ns/cost")
}

// TestAnEvaluationEndsWithItsContext: a check that is cut short waits for no policy.
func TestAnEvaluationEndsWithItsContext(t *testing.T) {
	e, err := Compile(`documents.all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, b > 0))))`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := e.Eval(ctx, facts()); err == nil {
		t.Error("it went on")
	}
}
