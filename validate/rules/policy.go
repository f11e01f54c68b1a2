package rules

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/validate/rules/celpolicy"
)

func policyRule() Rule {
	return Rule{
		ID:     "policy",
		Doc:    "Every rule of every TalosPolicy holds on every machine that it selects.",
		OnBase: true,
		Check:  checkPolicy,
	}
}

// compiledRule is one rule of a policy; its expression is compiled once for all machines.
type compiledRule struct {
	policy *fleet.Policy
	index  int
	rule   v1alpha1.PolicyRule
	expr   *celpolicy.Expression
	// ofBase: base has the policy so, head has not.
	ofBase bool
}

func (r compiledRule) path(field string) string {
	return fmt.Sprintf("spec.rules[%d].%s", r.index, field)
}

func (r compiledRule) severity() fleet.Severity {
	if r.policy.Manifest.Spec.Severity == string(fleet.Warning) {
		return fleet.Warning
	}
	return fleet.Error
}

func checkPolicy(c *Context) []fleet.Problem {
	general, problems := compilePolicies(c, c.Head.Policies)
	if c.BasePolicies && c.Base != nil {
		general = append(general, changedPolicies(c, c.Base.Policies, c.Head.Policies)...)
	}
	for _, cl := range c.Head.Clusters {
		own, more := compilePolicies(c, cl.Policies)
		problems = append(problems, more...)
		rules := append(append([]compiledRule(nil), general...), own...)
		if was := c.baseCluster(cl.Name); was != nil && c.BasePolicies {
			rules = append(rules, changedPolicies(c, was.Policies, cl.Policies)...)
		}
		if cl.Manifest == nil || len(rules) == 0 {
			continue
		}
		results, err := c.HeadRenders.Cluster(cl.Name)
		if err != nil {
			continue // rule render speaks about it
		}
		problems = append(problems, policyProblems(c, cl, rules, results)...)
	}
	return problems
}

// baseCluster is a cluster of base, nil where there is none.
func (c *Context) baseCluster(name string) *fleet.Cluster {
	if c.Base == nil {
		return nil
	}
	return c.Base.Cluster(name)
}

// changedPolicies compiles those of base's policies that head has not, or not so: a pull request is judged by what is in
// force, not by what it makes of it. What does not compile is base's own trouble.
func changedPolicies(c *Context, base, head []*fleet.Policy) []compiledRule {
	var gone []*fleet.Policy
	for _, p := range base {
		if !slices.ContainsFunc(head, func(h *fleet.Policy) bool {
			return h.Name == p.Name && (h.Manifest == p.Manifest || reflect.DeepEqual(h.Manifest.Spec, p.Manifest.Spec))
		}) {
			gone = append(gone, p)
		}
	}
	rules, _ := compilePolicies(c, gone)
	for i := range rules {
		rules[i].ofBase = true
	}
	return rules
}

// compilePolicies compiles the rules of policies; what does not compile is a problem of rule schema.
func compilePolicies(c *Context, policies []*fleet.Policy) (rules []compiledRule, problems []fleet.Problem) {
	for _, p := range policies {
		for i, r := range p.Manifest.Spec.Rules {
			out := compiledRule{policy: p, index: i, rule: r}
			var err error
			if out.expr, err = celpolicy.Compile(r.Expression); err != nil {
				bad := problemAt(p.Object, out.path("expression"), "the expression does not compile: "+err.Error())
				bad.Rule = Schema
				bad.Hint = "CEL over machine, cluster, config and documents that gives true or false (docs/rules/policy.md)"
				bad.OnBase = c.samePolicyRule(out) != nil
				problems = append(problems, bad)
				continue
			}
			rules = append(rules, out)
		}
	}
	return rules, problems
}

// samePolicyRule finds the same rule of the same policy on base, nil where base has none.
func (c *Context) samePolicyRule(r compiledRule) *fleet.Policy {
	if c.Base == nil {
		return nil
	}
	policies := c.Base.Policies
	if r.policy.Cluster != "" {
		cl := c.Base.Cluster(r.policy.Cluster)
		if cl == nil {
			return nil
		}
		policies = cl.Policies
	}
	for _, p := range policies {
		if p.Name != r.policy.Name || p.Manifest.Spec.Severity != r.policy.Manifest.Spec.Severity {
			continue
		}
		for _, x := range p.Manifest.Spec.Rules {
			if x.Name == r.rule.Name && x.Expression == r.rule.Expression {
				return p
			}
		}
	}
	return nil
}

// verdicts are the machines of a cluster on which a rule does not hold, by what is said.
type verdicts struct {
	order []policyVerdict
	hit   map[policyVerdict][]*fleet.Machine
}

type policyVerdict struct {
	text   string
	onBase bool
}

func policyProblems(c *Context, cl *fleet.Cluster, rules []compiledRule, results []render.Result) []fleet.Problem {
	facts := make([]*celpolicy.Facts, len(results))
	var problems []fleet.Problem
	for _, r := range rules {
		v := verdicts{hit: map[policyVerdict][]*fleet.Machine{}}
		for i, res := range results {
			if res.Err != nil || !fleet.Matches(r.policy.Manifest.Spec.Selector, res.Machine) {
				continue
			}
			if facts[i] == nil {
				facts[i] = celpolicy.NewFacts(cl, res.Machine, res.Masked)
			}
			if c.policyCost > maxPolicyCost {
				return append(problems, tooCostly(cl, r))
			}
			if text := r.judge(c, facts[i]); text != "" {
				v.add(policyVerdict{text, c.policyFailsOnBase(r, res.Machine, text)}, res.Machine)
			}
			if c.Ctx != nil && c.Ctx.Err() != nil {
				return problems // the check is cut short, and says so itself
			}
		}
		problems = append(problems, v.problems(cl, r)...)
	}
	return problems
}

// maxPolicyCost bounds all policies of a check together, in CEL's units (up to half a microsecond each). Twenty rules on ten
// thousand machines need a fifth of it; more is a stranger who wants to keep the checks of others waiting.
const maxPolicyCost = 50_000_000

// tooCostly ends the evaluation: what was not evaluated does not count as held.
func tooCostly(cl *fleet.Cluster, r compiledRule) fleet.Problem {
	p := problemAt(r.policy.Object, r.path("expression"), "the policies cost too much together: this rule and the rest were not evaluated on every machine")
	p.Cluster = cl.Name
	p.Hint = "make the rules cheaper, or select fewer machines"
	return p
}

// judge gives what is to be said of a rule on a machine, "" where it holds.
func (r compiledRule) judge(c *Context, f *celpolicy.Facts) string {
	holds, err := r.expr.Eval(c.Ctx, f)
	c.policyCost += r.expr.Spent()
	switch {
	case err != nil:
		return fmt.Sprintf("rule %q can't be evaluated: %s", r.rule.Name, err)
	case holds:
		return ""
	case r.rule.Message != "":
		return fmt.Sprintf("rule %q does not hold: %s", r.rule.Name, strings.TrimSpace(r.rule.Message))
	}
	return fmt.Sprintf("rule %q does not hold", r.rule.Name)
}

// policyFailsOnBase tells whether base has the rule, and fails it on that machine in the same way.
func (c *Context) policyFailsOnBase(r compiledRule, m *fleet.Machine, text string) bool {
	policy := c.samePolicyRule(r)
	if policy == nil || c.BaseRenders == nil {
		return false
	}
	cl := c.Base.Cluster(m.Cluster)
	if cl == nil || cl.Manifest == nil {
		return false
	}
	found, err := c.BaseRenders.Cluster(cl.Name, m.Name)
	if err != nil || len(found) != 1 || found[0].Err != nil || !fleet.Matches(policy.Manifest.Spec.Selector, found[0].Machine) {
		return false
	}
	return r.judge(c, celpolicy.NewFacts(cl, found[0].Machine, found[0].Masked)) == text
}

func (v *verdicts) add(what policyVerdict, m *fleet.Machine) {
	if len(v.hit[what]) == 0 {
		v.order = append(v.order, what)
	}
	v.hit[what] = append(v.hit[what], m)
}

func (v *verdicts) problems(cl *fleet.Cluster, r compiledRule) []fleet.Problem {
	var out []fleet.Problem
	for _, what := range v.order {
		machines := v.hit[what]
		p := problemAt(r.policy.Object, r.path("expression"), what.text+" ("+hits(machines)+")")
		p.Severity, p.Cluster, p.OnBase = r.severity(), cl.Name, what.onBase
		if len(machines) == 1 {
			p.Machine = machines[0].Name
		}
		p.Hint = "change what the machines' patches set, or the policy; the rule is: " + strings.Join(strings.Fields(r.rule.Expression), " ")
		if r.ofBase {
			p.Hint = "this commit changes or deletes the policy, but base's counts until that is merged: merge the policy's change first, by itself"
			p.File, p.Line, p.Column = "", 0, 0 // base's place: head may have another file there, or none
		}
		if strings.Contains(what.text, "no such key") {
			p.Hint = `a field that may be missing is asked for with has(), or with .?field.orValue(…)`
		}
		out = append(out, p)
	}
	return out
}
