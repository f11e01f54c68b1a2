// Package check puts a check together: load, rules, render, diff and plan of one commit, into a Report. It
// reads no network, opens no secret and touches no node.
package check

import "ichor.maesh.dev/ichor/schemas/fleet"

// ReportAPIVersion is the version of the JSON form, a stable interface (schemas/report.schema.json).
const ReportAPIVersion = "ichor.maesh.dev/report/v1"

// Verdict of a check.
type Verdict string

// Verdicts.
const (
	Passed Verdict = "passed"
	Failed Verdict = "failed"
	// Errored: the check itself could not be done (Ichor's fault or the environment's), not the commit's.
	Errored Verdict = "error"
)

// Report is what a check says. The same input gives the same bytes.
type Report struct {
	APIVersion string          `json:"apiVersion"`
	Commit     string          `json:"commit"`
	Base       string          `json:"base"`
	Verdict    Verdict         `json:"verdict"`
	Problems   []fleet.Problem `json:"problems"`
	Machines   []Machine       `json:"machines"`
	Plan       []Step          `json:"plan"`
	// Notes say how the commit was looked at; NotChecked what could not be looked at, because nothing is known of it.
	Notes      []string `json:"notes,omitempty"`
	NotChecked []string `json:"notChecked,omitempty"`

	// holds lists the clusters that errors stop ("" is all of them); see ClusterPassed.
	holds map[string]bool
}

// Change of a machine between base and commit.
type Change string

// Changes.
const (
	ChangeNone   Change = "none"
	ChangeNew    Change = "new"
	ChangeUpdate Change = "update"
	ChangeRemove Change = "remove"
)

// Machine is one machine in the report. Digest is of the masked render ("sha256:<hex>"), "" where it does not render.
type Machine struct {
	Cluster string       `json:"cluster"`
	Name    string       `json:"name"`
	Role    string       `json:"role"`
	Change  Change       `json:"change"`
	Digest  string       `json:"digest"`
	Effect  string       `json:"effect"`
	Paths   []PathChange `json:"paths"`
}

// PathChange is one changed leaf; Before and After are masked, "" where absent.
type PathChange struct {
	Document string `json:"document"`
	Path     string `json:"path"`
	Effect   string `json:"effect"`
	Before   string `json:"before"`
	After    string `json:"after"`
	// Service names what restarts, for effect restart.
	Service string `json:"service,omitempty"`
}

// Step of the plan. Disrupts says what it disrupts ("" nothing), Refusal what would refuse it now ("" nothing).
type Step struct {
	Step     int    `json:"step"`
	Cluster  string `json:"cluster"`
	Machine  string `json:"machine"`
	Action   string `json:"action"`
	Disrupts string `json:"disrupts"`
	Refusal  string `json:"refusal"`
	// Quorum is the arithmetic of etcd at this step of a control plane: "2 of 3 members stay, 2 needed".
	Quorum string `json:"quorum,omitempty"`
	// RefusedNow is what the rollout would refuse this step for by what was last observed, with its time; "" nothing, or
	// nothing is known. It is never part of the verdict.
	RefusedNow string `json:"refusedNow,omitempty"`
}
