// Package celpolicy evaluates the expressions of a TalosPolicy: CEL over one machine's render. Expressions come from
// pull requests, so their cost is bounded, nothing but the standard functions is there, and no function makes text
// grow.
package celpolicy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// Bounds of one evaluation and one expression. A rule that walks all documents of a control plane costs some hundred.
const (
	maxCost       = 20_000
	maxExpression = 8 << 10
	// checkEvery is how many steps of a comprehension pass between two looks at the context.
	checkEvery = 100
)

// environment is made once: it costs milliseconds.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	object := cel.MapType(cel.StringType, cel.DynType)
	return cel.NewEnv(
		cel.Variable("machine", object),
		cel.Variable("cluster", object),
		cel.Variable("config", object),
		cel.Variable("documents", cel.ListType(object)),
		cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(50),
	)
})

// Expression is a compiled rule.
type Expression struct {
	program cel.Program
	// spent is the cost of the last evaluation.
	spent uint64
}

// Spent is the cost of the last evaluation, in CEL's units.
func (e *Expression) Spent() uint64 { return e.spent }

// Compile compiles an expression that gives true or false. The error names the place in the expression.
func Compile(text string) (*Expression, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("set CEL up: %w", err)
	}
	if len(text) > maxExpression {
		return nil, fmt.Errorf("it is longer than %d bytes", maxExpression)
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, errors.New(firstIssue(issues))
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("it gives %s, not true or false", t)
	}
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(checkEvery), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	return &Expression{program: program}, nil
}

// firstIssue gives the first complaint of CEL on one line: "1:9: undeclared reference to 'x'".
func firstIssue(issues *cel.Issues) string {
	list := issues.Errors()
	e := list[0]
	text := fmt.Sprintf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, strings.Join(strings.Fields(e.Message), " "))
	if n := len(list) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// Facts are what expressions about one machine see.
type Facts struct{ vars map[string]any }

// NewFacts takes them from the manifests and the masked render: secret values read as mask.Marker.
func NewFacts(cl *fleet.Cluster, m *fleet.Machine, r mask.Render) *Facts {
	config := map[string]any{}
	documents := make([]map[string]any, 0, len(r.Documents))
	for _, d := range r.Documents {
		if d.ID == "v1alpha1" {
			config = d.Fields
		}
		documents = append(documents, d.Fields)
	}
	spec, c := m.Manifest.Spec, cl.Manifest.Spec
	return &Facts{vars: map[string]any{
		"machine": map[string]any{
			"name": m.Name, "role": spec.Role, "hostname": spec.Hostname, "endpoint": spec.Endpoint,
			"approvalState": spec.ApprovalState, "labels": labels(m.Manifest.Metadata.Labels), "nodeLabels": labels(spec.NodeLabels),
		},
		"cluster": map[string]any{
			"name": cl.Name, "labels": labels(cl.Manifest.Metadata.Labels), "talosVersion": c.TalosVersion,
			"kubernetesVersion": c.KubernetesVersion, "contract": c.EffectiveContract(), "endpoint": c.Endpoint.Address,
			"controlPlanes": c.ControlPlane.Count, "cni": c.Network.Defaulted().CNI.Preset,
		},
		"config": config, "documents": documents,
	}}
}

func labels(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// Eval tells whether the rule holds. The error says why it can't be told.
func (e *Expression) Eval(ctx context.Context, f *Facts) (bool, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	out, details, err := e.program.ContextEval(ctx, f.vars)
	e.spent = maxCost
	if details != nil && details.ActualCost() != nil {
		e.spent = *details.ActualCost()
	}
	if err != nil {
		if strings.Contains(err.Error(), "cost limit exceeded") {
			return false, errors.New("it does too much: its cost is over the limit")
		}
		return false, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	if out.Type() != types.BoolType {
		return false, fmt.Errorf("it gives %s, not true or false", out.Type().TypeName())
	}
	return out.Value() == true, nil
}
