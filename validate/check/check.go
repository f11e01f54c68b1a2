package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/validate/rules"
)

// DefaultTimeout bounds a check (SPEC section 2, limits).
const DefaultTimeout = 5 * time.Minute

// Input is one check: a commit's files, and those of what it is compared with.
type Input struct {
	// FS holds the commit's files; BaseFS those of base, nil when there is none.
	FS, BaseFS fs.FS
	// Commit and Base name them in the report.
	Commit, Base string
	// Load bounds and narrows what is read, on both sides.
	Load fleet.Options
	// Notes say what the reader of the report has to know of how the commit was looked at.
	Notes []string
	// Also are problems that the caller found; they count as those of the rules do.
	Also []fleet.Problem
	// ExcuseBase: a problem that base has too does not fail the check (pull requests, check with an explicit --base).
	ExcuseBase bool
	// Stranger: anybody may have sent the commit. It may bring some thousand machines over what base has, not more, and
	// nothing large of it stays in memory.
	Stranger bool
	// Timeout of the whole check; 0 is DefaultTimeout. A commit that takes longer fails by rule limits.
	Timeout time.Duration
	// Resolve looks up names of backup stores; nil never does.
	Resolve func(ctx context.Context, host string) ([]string, error)
	// Removed tells whether a machine is known to have left already; nil where nobody knows.
	Removed func(cluster, machine string) bool
	// Recipients are Ichor's own age public keys, so that rule sops can tell whether it will open what is encrypted; nil
	// where they are not known.
	Recipients []string
	// Observed is what was last seen of the nodes; nil where nobody knows. It gives warnings and notes with their age,
	// and what of the plan would be refused now; it is never part of the verdict.
	Observed *state.Observation
	// Cache has what other checks of the same repository loaded and rendered; nil begins from nothing. Tree and BaseTree
	// name the content of FS and BaseFS there (a commit's hash); "" where it has no name.
	Cache          *Cache
	Tree, BaseTree string
	// KeepRenders keeps every machine's masked render in Detail. It costs memory.
	KeepRenders bool
}

// Detail is what a check found on its way, for the daemon and the commands.
type Detail struct {
	// Head and Base as they were loaded; Base is nil when there is none.
	Head, Base *fleet.Fleet
	// Digests of the masked renders at head, by cluster and machine; those that don't render are missing.
	Digests map[string]map[string]string
	// Renders at head, masked, by cluster and machine; nil unless Input.KeepRenders.
	Renders map[string]map[string]mask.Render

	scrubber scrubber
}

// Run checks one commit. What is wrong with the commit is in the report; an error is Ichor's own fault or that of its
// surroundings (the files can't be read, ctx is done), and then the verdict is not known.
func Run(ctx context.Context, in Input) (*Report, *Detail, error) {
	timeout := in.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	limited, cancel := context.WithTimeoutCause(ctx, timeout, errTooLong)
	defer cancel()
	r, d, err := run(limited, in)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(limited), errTooLong) {
		return tooLong(in, timeout), &Detail{}, nil
	}
	return r, d, err
}

var errTooLong = errors.New("check took too long")

// tooLong is the report of a commit that can't be checked in the time that it has.
func tooLong(in Input, timeout time.Duration) *Report {
	r := newReport(in)
	r.Problems = append(r.Problems, fleet.Problem{
		Rule: rules.Limits, Severity: fleet.Error,
		Message: fmt.Sprintf("the check did not finish within %s", timeout),
		Hint:    "make the repository smaller, narrow it with --path, or raise the limit",
	})
	r.Verdict = Failed
	return r
}

func newReport(in Input) *Report {
	return &Report{
		APIVersion: ReportAPIVersion, Commit: in.Commit, Base: in.Base, Notes: slices.Clone(in.Notes), Verdict: Passed,
		Problems: []fleet.Problem{}, Machines: []Machine{}, Plan: []Step{},
	}
}

func run(ctx context.Context, in Input) (*Report, *Detail, error) {
	base, err := in.loadBase(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("load base: %w", err)
	}
	head, err := in.loadHead(ctx, base)
	if err != nil {
		return nil, nil, fmt.Errorf("load the commit: %w", err)
	}
	s := &session{ctx: ctx, in: in, head: head.fleet, report: newReport(in), headRenders: newRenders(ctx, head, in.Cache)}
	if base != nil {
		s.base, s.baseProblems, s.baseRenders = base.fleet, base.problems, newRenders(ctx, base, in.Cache)
	}
	s.detail = &Detail{Head: head.fleet, Base: s.base, Digests: map[string]map[string]string{}}
	if in.KeepRenders {
		s.detail.Renders = map[string]map[string]mask.Render{}
	}
	if err := s.machines(); err != nil {
		return nil, nil, err
	}
	s.problems(head.problems)
	if err := s.fault(); err != nil {
		return nil, nil, err
	}
	s.verdict()
	s.plan()
	s.scrub()
	if err := s.fault(); err != nil {
		return nil, nil, err
	}
	return s.report, s.detail, nil
}

// session is one check under way.
type session struct {
	ctx                      context.Context
	in                       Input
	head, base               *fleet.Fleet
	baseProblems             []fleet.Problem
	headRenders, baseRenders *renders
	report                   *Report
	detail                   *Detail
	// headContext and ownBase keep what rules found out on the way, see context and baseContext.
	headContext, ownBase *rules.Context
}

// fault is set when the check was cut short: then nothing that it found is a verdict.
func (s *session) fault() error {
	if err := context.Cause(s.ctx); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return nil
}

// problems runs the rules and marks what base has too.
func (s *session) problems(loaded []fleet.Problem) {
	all := append(slices.Clone(loaded), s.in.Also...)
	markOnBase(all, s.baseProblems)
	c := s.context()
	for _, r := range rules.All() {
		found := r.Run(c)
		if !r.OnBase && !r.AgainstBase && s.base != nil && len(found) > 0 {
			markOnBase(found, r.Run(s.baseContext()))
		}
		all = append(all, found...)
	}
	rules.Sort(all)
	s.report.Problems = append(s.report.Problems, slices.Compact(all)...)
	if note := rules.NotObserved(c); note != "" {
		s.report.NotChecked = append(s.report.NotChecked, note)
	}
}

// context is head looked at, beside base.
func (s *session) context() *rules.Context {
	if s.headContext == nil {
		c := &rules.Context{
			Ctx: s.ctx, Head: s.head, Base: s.base, HeadRenders: s.headRenders, Resolve: s.in.Resolve, Removed: s.in.Removed,
			Recipients: s.in.Recipients, Observed: s.in.Observed, Scans: s.in.Cache.scanned(),
			BasePolicies: s.in.ExcuseBase,
		}
		if s.baseRenders != nil {
			c.BaseRenders = s.baseRenders
		}
		s.headContext = c
	}
	return s.headContext
}

// baseContext is base looked at for itself.
func (s *session) baseContext() *rules.Context {
	if s.ownBase == nil {
		s.ownBase = &rules.Context{
			Ctx: s.ctx, Head: s.base, HeadRenders: s.baseRenders, Resolve: s.in.Resolve,
			Recipients: s.in.Recipients, Observed: s.in.Observed, Scans: s.in.Cache.scanned(),
		}
	}
	return s.ownBase
}

// verdict fails on every error, but those that base has too where they are excused.
func (s *session) verdict() {
	s.report.holds = holds(s.report.Problems, s.in.ExcuseBase, s.head, s.base)
	for _, p := range s.report.Problems {
		if counts(p, s.in.ExcuseBase) {
			s.report.Verdict = Failed
		}
	}
}

// counts tells whether a problem fails the check.
func counts(p fleet.Problem, excuseBase bool) bool {
	return p.Severity == fleet.Error && (!p.OnBase || !excuseBase)
}
