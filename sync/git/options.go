package git

import (
	"context"
	"time"
)

// Options of Open.
type Options struct {
	// Dir is the mirror's folder; it is made when missing, and may be deleted at any time.
	Dir string
	// URL of the repository: https, http, ssh (also user@host:path); a local path only with AllowLocal.
	URL        string
	AllowLocal bool
	// Auth to fetch with.
	Auth Auth
	// AllowPlainHTTPAuth sends a credential over plain http to a host that isn't this machine.
	AllowPlainHTTPAuth bool
	// CAFile holds PEM certificates that are trusted beside the system's.
	CAFile string
	// ProxyURL (http, https, socks5); "" is the environment's.
	ProxyURL string
	// Guard is asked before each conversation with the server; nil never minds. Its error says that the repository is another
	// one than before, and nothing is said to it then, no credential either (ClassReplaced).
	Guard func(ctx context.Context) error
	// Timeout of one operation, default 60 s.
	Timeout time.Duration
	// PullRef is the ref of a pull request with %d for its number, default "refs/pull/%d/head".
	PullRef string
	// MergeRef is the ref of the commit that merges a pull request into its base, with %d; "" where the server has none.
	MergeRef string
	Limits   Limits
}

// Limits of what is taken in. Zero fields have the defaults.
type Limits struct {
	// PackBytes, ObjectBytes and TotalBytes (unfolded) of one fetch of a branch (defaults 2 GiB, 128 MiB, 16 GiB).
	PackBytes, ObjectBytes, TotalBytes int64
	// PullPackBytes, PullObjectBytes and PullTotalBytes of one fetch of a pull request, which anybody may open
	// (defaults 64 MiB, 16 MiB, 512 MiB); PullObjects is how many objects it may have (default 200,000).
	PullPackBytes, PullObjectBytes, PullTotalBytes int64
	PullObjects                                    int
	// StoreBytes on disk; above it the store is made anew once (default 4 GiB).
	StoreBytes int64
	// Packs at which they are joined (default 50).
	Packs int
}

func orDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

func (o Options) withDefaults() Options {
	const mib = 1 << 20
	orDefault(&o.Timeout, 60*time.Second)
	orDefault(&o.Limits.PackBytes, 2048*mib)
	orDefault(&o.Limits.ObjectBytes, 128*mib)
	orDefault(&o.Limits.TotalBytes, 16384*mib)
	orDefault(&o.Limits.PullPackBytes, 64*mib)
	orDefault(&o.Limits.PullObjectBytes, 16*mib)
	orDefault(&o.Limits.PullTotalBytes, 512*mib)
	orDefault(&o.Limits.PullObjects, 200_000)
	orDefault(&o.Limits.StoreBytes, 4096*mib)
	orDefault(&o.Limits.Packs, 50)
	if o.PullRef == "" {
		o.PullRef = "refs/pull/%d/head"
	}
	return o
}

func (l Limits) branch() packLimits {
	return packLimits{pack: l.PackBytes, object: l.ObjectBytes, total: l.TotalBytes}
}

func (l Limits) pull() packLimits {
	return packLimits{pack: l.PullPackBytes, object: l.PullObjectBytes, total: l.PullTotalBytes, count: l.PullObjects}
}
