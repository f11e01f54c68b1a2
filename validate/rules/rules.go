// Package rules holds the rules that a commit is checked by (SPEC section 2), one rule a file. A rule is a pure
// function of what the Context holds; it reads no network, opens no secret and touches no node.
package rules

import (
	"context"
	"slices"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
)

// Rule is one rule. Check gives its problems in any order (Run sorts); Rule and Severity (error) are filled in by Run
// where they are not set.
type Rule struct {
	// ID as reports, tests and docs use it.
	ID string
	// Doc is one sentence: what the rule holds a commit to.
	Doc string
	// AgainstBase: the rule compares with base, so that base alone can't break it.
	AgainstBase bool
	// OnBase: the rule sets Problem.OnBase itself, because it knows better than the comparison of messages.
	OnBase bool
	Check  func(*Context) []fleet.Problem
}

// Identifiers of the rules that the loader reports; they have no Check here.
const (
	Schema    = "schema"
	Reference = "reference"
	Limits    = "limits"
)

// All lists every rule in the order in which they run. A new rule is a new file and one line here.
func All() []Rule {
	return []Rule{
		uniqueRule(),
		contractRule(),
		networkOverlapRule(),
		endpointRule(),
		cniRule(),
		discoveryRule(),
		versionsRule(),
		immutableRule(),
		disruptiveRule(),
		sopsRule(),
		countRule(),
		deleteRule(),
		plaintextSecretRule(),
		backupInClusterRule(),
		renderRule(),
		suspiciousPatchRule(),
		policyRule(),
		runningVersionRule(),
	}
}

// Context is what a rule may look at. Rules run one after the other on it.
type Context struct {
	// Ctx bounds the check.
	Ctx context.Context
	// Head is the commit that is checked, Base what it is compared with (nil when there is none). "Live" means that
	// Base has it.
	Head, Base *fleet.Fleet
	// HeadRenders and BaseRenders make renders when they are asked for. BaseRenders is nil when there is no base.
	HeadRenders, BaseRenders Renders
	// Resolve looks a name up; nil never does. What it finds is at most a warning.
	Resolve func(ctx context.Context, host string) ([]string, error)
	// Scans has what earlier checks found in files; nil scans all anew.
	Scans *ScanCache
	// BasePolicies: the policies of base count too where head changes them (a pull request).
	BasePolicies bool
	// Removed tells whether a machine is known to have left its cluster already; nil where nobody knows.
	Removed func(cluster, machine string) bool
	// Recipients are Ichor's own age public keys, where they are known.
	Recipients []string
	// Observed is what was last seen of the nodes; nil where nobody knows. What comes of it is at most a warning.
	Observed *state.Observation

	// index has the machines of clusters that were asked for by name.
	index map[*fleet.Cluster]map[string]*fleet.Machine
	// headCluster is the one that was last asked for.
	headCluster *fleet.Cluster
	// policyCost is what the policies have cost so far.
	policyCost uint64
	// scan is what the secret scan found on head.
	scan *secretScan
}

// Run runs one rule and puts its problems in order.
func (r Rule) Run(c *Context) []fleet.Problem {
	problems := r.Check(c)
	for i := range problems {
		if problems[i].Rule == "" {
			problems[i].Rule = r.ID
		}
		if problems[i].Severity == "" {
			problems[i].Severity = fleet.Error
		}
	}
	Sort(problems)
	return problems
}

// Sort orders problems by place, then by everything else that is shown, so that the same problems are the same bytes.
func Sort(problems []fleet.Problem) {
	slices.SortStableFunc(problems, compareProblems)
}
