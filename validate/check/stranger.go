package check

import (
	"context"

	"ichor.maesh.dev/ichor/schemas/fleet"
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
	return in.Cache.load(ctx, in.BaseTree, func() (*fleet.Fleet, []fleet.Problem, error) { return fleet.Load(ctx, in.BaseFS, in.Load) })
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
	head, err := in.Cache.load(ctx, in.Tree, func() (*fleet.Fleet, []fleet.Problem, error) { return fleet.Load(ctx, in.FS, opt) })
	if err == nil && in.Stranger {
		if b, v := head.fleet.Extent(); b > bytes+keptBytes || v > values+keptValues {
			in.Cache.forget(in.Tree)
		}
	}
	return head, err
}

// least is the smaller of two bounds; a set one that is 0 is the default.
func least[T int | int64](set, def, bound T) T {
	if set <= 0 {
		set = def
	}
	return min(set, bound)
}

// forget drops a commit.
func (c *Cache) forget(commit string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.sides {
		if s.commit == commit {
			c.sides = append(c.sides[:i:i], c.sides[i+1:]...)
			return
		}
	}
}
