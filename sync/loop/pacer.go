package loop

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pacer says when to look next: after the interval with a little jitter, so that many Ichors don't ask at once; at once
// on a nudge; and less and less often while looks fail.
type Pacer struct {
	// Interval between looks. At least 100 ms.
	Interval time.Duration
	// MaxBackoff while looks fail, default 15 min.
	MaxBackoff time.Duration
	// Rand gives [0,1); nil is math/rand's.
	Rand func() float64

	failures int
	nudged   bool
}

// MinInterval is the shortest interval.
const MinInterval = 100 * time.Millisecond

// afterNudge is when to look once more after a nudge: forges send it before their own API knows (404 right after the
// delivery), and don't send it twice.
const afterNudge = 2 * time.Second

// Report tells how the last look went; failures in a row double the wait.
func (p *Pacer) Report(err error) {
	if err != nil {
		p.failures++
	} else {
		p.failures = 0
	}
}

// next is how long to wait.
func (p *Pacer) next() time.Duration {
	d := max(p.Interval, MinInterval)
	if p.failures > 0 {
		most := p.MaxBackoff
		if most <= 0 {
			most = 15 * time.Minute
		}
		most = max(most, d)
		for range min(p.failures-1, 30) {
			if d *= 2; d >= most {
				break
			}
		}
		d = min(d, most)
	}
	if p.nudged {
		d = min(d, afterNudge)
	}
	r := rand.Float64
	if p.Rand != nil {
		r = p.Rand
	}
	return time.Duration(float64(d) * (0.9 + 0.2*r()))
}

// Wait waits for the next look: true when it was nudged, false when the time came. The error is ctx's.
func (p *Pacer) Wait(ctx context.Context, nudges <-chan struct{}) (nudged bool, err error) {
	t := time.NewTimer(p.next())
	defer t.Stop()
	p.nudged = false
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-nudges:
		p.nudged = true
		return true, nil
	case <-t.C:
		return false, nil
	}
}
