package check

import (
	"context"
	"slices"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/rules"
)

// What a stranger's commit may bring over what base has. A machine has 20 to 50 values and takes some 20 KiB while it is
// checked: ten thousand small ones fit beside a fleet of a thousand within 512 MiB.
const (
	strangerValues = 300_000
	strangerBytes  = 16 << 20
	// Above these a commit is not kept for the next check.
	keptValues = 20_000
	keptBytes  = 4 << 20
)

func (in Input) loadBase(ctx context.Context) (*side, error) {
	if in.BaseFS == nil {
		return nil, nil
	}
	return in.Cache.load(ctx, in.BaseTree, func() (*fleet.Fleet, []fleet.Problem, error) { return fleet.Load(ctx, in.BaseFS, in.Load) }, nil)
}

// loadHead loads the commit, a stranger's within what base allows it.
func (in Input) loadHead(ctx context.Context, base *side) (*side, error) {
	opt := in.Load
	var bytes int64
	var values int
	if base != nil {
		bytes, values = base.fleet.Extent()
	}
	if in.Stranger {
		opt.CacheReadOnly = true
		opt.MaxTotalSize = least(opt.MaxTotalSize, fleet.DefaultMaxTotalSize, bytes+strangerBytes)
		opt.MaxValues = least(opt.MaxValues, fleet.DefaultMaxValues, values+strangerValues)
	}
	load := func() (*fleet.Fleet, []fleet.Problem, error) { return fleet.Load(ctx, in.FS, opt) }
	if !in.Stranger {
		return in.Cache.load(ctx, in.Tree, load, nil)
	}
	return in.Cache.load(ctx, in.Tree, load, func(s *side) bool {
		b, v := s.fleet.Extent()
		return b <= bytes+keptBytes && v <= values+keptValues && !cut(s.problems)
	})
}

// cut tells whether not all of a commit was loaded. On the branch more may be.
func cut(problems []fleet.Problem) bool {
	return slices.ContainsFunc(problems, func(p fleet.Problem) bool { return p.Rule == rules.Limits && p.Severity == fleet.Error })
}

// least is the smaller of two bounds; a set one that is 0 is the default.
func least[T int | int64](set, def, bound T) T {
	if set <= 0 {
		set = def
	}
	return min(set, bound)
}
