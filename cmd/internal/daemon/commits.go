package daemon

import (
	"context"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/validate/check"
)

// History is what the daemon asks of the mirror; sync/git.Mirror is one.
type History interface {
	// FS gives the tree of a commit that was fetched.
	FS(commit string) (fs.FS, error)
	// Parent gives the first parent, "" for a root commit.
	Parent(commit string) (string, error)
	// IsAncestor tells whether old is now or one of its ancestors; a commit that is not there is nobody's.
	IsAncestor(old, now string) (bool, error)
	// CommitInfo reads a commit.
	CommitInfo(commit string) (git.CommitInfo, error)
}

// checked is a commit with what its check found.
type checked struct {
	commit, base string
	report       *check.Report
	detail       *check.Detail
	took         time.Duration
	// unsigned is what is wrong with its signature, "" nothing.
	unsigned string
	// untrusted: its signature is not good, and one is required. Nothing that it says is followed.
	untrusted bool
}

// acks are the acknowledgements of a commit; one that can't be trusted acknowledges nothing.
func (r *checked) acks() []string {
	if r.untrusted {
		return nil
	}
	return allAcks(r.detail.Head)
}

// commits checks commits and remembers the newest results.
type commits struct {
	history History
	load    fleet.Options
	timeout time.Duration
	now     func() time.Time
	signed  signatures
	// removed tells whether a machine is known to have left; nil where nobody knows.
	removed func(cluster, machine string) bool
	// observed gives what was last seen of the nodes, for warnings beside a verdict; nil where nobody looks.
	observed func(now time.Time) *state.Observation

	// known has what the checks loaded and rendered; it fits load.
	known check.Cache

	mu      sync.Mutex
	results map[string]*checked
	order   []string
	// digests of machines at commits that are only needed as baselines, by commit and cluster.
	baselines map[string]map[string]string
	// rendering lets one baseline be rendered at a time: each takes a whole fleet into memory, and at the start every
	// cluster asks for its own.
	rendering sync.Mutex
}

// rememberBaselines bounds how many clusters' digests stay in memory; there must be room for one of each cluster.
const rememberBaselines = 1024

// rememberChecks bounds how many results stay in memory: each holds a whole fleet.
const rememberChecks = 8

// errNoTree marks a commit whose files can't be had (any more).
type errNoTree struct{ err error }

func (e errNoTree) Error() string { return "read the commit's files: " + e.err.Error() }
func (e errNoTree) Unwrap() error { return e.err }

// subject is a commit as it is to be looked at.
type subject struct {
	// commit that is judged, base that it is said to be compared with ("" none).
	commit, base string
	// tree is the commit whose files are read, against the one whose files they are compared with ("" none): a pull request
	// is looked at as a merge would leave it.
	tree, against string
	// note goes into the report.
	note string
	// excuse: problems that base has too do not fail it. It is set for whatever is not on the watched branch.
	excuse bool
}

// onBranch is a commit of the watched branch.
func onBranch(commit, base string) subject {
	return subject{commit: commit, base: base, tree: commit, against: base}
}

// check does (or remembers) the check of a commit.
func (c *commits) check(ctx context.Context, s subject) (*checked, error) {
	var unsigned *fleet.Problem
	key := fmt.Sprintf("%+v", s)
	if !s.excuse {
		if unsigned = c.signed.judge(s.commit); unsigned != nil {
			key += unsigned.Message // who may sign can change
		}
	}
	c.mu.Lock()
	if r, ok := c.results[key]; ok {
		c.mu.Unlock()
		return r, nil
	}
	c.mu.Unlock()

	in := check.Input{
		Commit: s.commit, Base: s.base, Load: c.load, ExcuseBase: s.excuse, Timeout: c.timeout, Removed: c.removed,
		Stranger: s.excuse, Cache: &c.known, Tree: s.tree, BaseTree: s.against,
	}
	if s.note != "" {
		in.Notes = []string{s.note}
	}
	if c.observed != nil {
		in.Observed = c.observed(c.now())
	}
	if unsigned != nil {
		in.Also = []fleet.Problem{*unsigned}
	}
	var err error
	if in.FS, err = c.history.FS(s.tree); err != nil {
		return nil, errNoTree{err}
	}
	if s.against != "" {
		if in.BaseFS, err = c.history.FS(s.against); err != nil {
			return nil, errNoTree{err}
		}
	}
	start := c.now()
	report, detail, err := check.Run(ctx, in)
	if git.ClassOf(err) == git.ClassMalformed {
		report, detail, err = malformed(s, err), &check.Detail{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check commit %s: %w", s.commit, err)
	}
	r := &checked{
		commit: s.commit, base: s.base, report: report, detail: detail, took: c.now().Sub(start),
		untrusted: unsigned != nil && c.signed.required(),
	}
	if unsigned != nil {
		r.unsigned = unsigned.Message
	}
	if s.excuse {
		r.detail = &check.Detail{} // nothing is ever applied of it, and a stranger's may be large
	}
	c.remember(key, r)
	return r, nil
}

// malformed is the report of a commit whose trees no honest Git writes: that is the commit's fault.
func malformed(s subject, err error) *check.Report {
	return &check.Report{
		APIVersion: check.ReportAPIVersion, Commit: s.commit, Base: s.base, Verdict: check.Failed,
		Problems: []fleet.Problem{{
			Rule: "limits", Severity: fleet.Error, Message: "the commit can't be read: " + err.Error(),
			Hint: "make the commit anew with git itself; git fsck names the tree",
		}},
		Machines: []check.Machine{}, Plan: []check.Step{},
	}
}

func (c *commits) remember(key string, r *checked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.results == nil {
		c.results = map[string]*checked{}
	}
	if _, known := c.results[key]; !known {
		c.order = append(c.order, key)
	}
	c.results[key] = r
	for len(c.order) > rememberChecks {
		delete(c.results, c.order[0])
		c.order = c.order[1:]
	}
}

// head checks a commit of the watched branch against its first parent; everything counts. A check that ran out of time
// is an error here: it says nothing of what the commit holds.
func (c *commits) head(ctx context.Context, commit string) (*checked, error) {
	base, err := c.history.Parent(commit)
	if err != nil {
		return nil, errNoTree{err}
	}
	r, err := c.check(ctx, onBranch(commit, base))
	if err == nil && r.detail.Head == nil {
		return nil, fmt.Errorf("check commit %s: it did not finish in time", commit)
	}
	return r, err
}

// baseline gives the masked digests that this build renders for a cluster at a commit, by machine; nil where the
// commit or the cluster in it can't be had.
func (c *commits) baseline(ctx context.Context, commit, cluster string) map[string]string {
	if commit == "" {
		return nil
	}
	key := commit + "/" + cluster
	if d, ok := c.knownBaseline(key, commit, cluster); ok {
		return d
	}
	c.rendering.Lock()
	defer c.rendering.Unlock()
	if d, ok := c.knownBaseline(key, commit, cluster); ok {
		return d
	}
	d, known := c.render(ctx, commit, cluster)
	if !known {
		return nil // asked again at the next pass
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.baselines == nil {
		c.baselines = map[string]map[string]string{}
	}
	for old := range c.baselines {
		if len(c.baselines) < rememberBaselines {
			break
		}
		delete(c.baselines, old)
	}
	c.baselines[key] = d
	return d
}

// knownBaseline is one that was rendered before, or that a check of the commit which passed has found.
func (c *commits) knownBaseline(key, commit, cluster string) (map[string]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, ok := c.baselines[key]; ok {
		return d, true
	}
	for _, r := range c.results {
		if r.commit == commit && r.report.Verdict == check.Passed && r.detail.Digests[cluster] != nil {
			return r.detail.Digests[cluster], true
		}
	}
	return nil, false
}

// render gives the digests of a cluster at a commit (nil where it has none); false where that can't be known now: the
// files can't be read, or ctx is done.
func (c *commits) render(ctx context.Context, commit, cluster string) (map[string]string, bool) {
	files, err := c.history.FS(commit)
	if err != nil {
		return nil, false
	}
	f, _, err := fleet.Load(ctx, files, c.load)
	if err != nil {
		return nil, false
	}
	cl := f.Cluster(cluster)
	if cl == nil || cl.Manifest == nil {
		return nil, true
	}
	var ciphertext []byte
	if cl.Secrets != nil {
		ciphertext = cl.Secrets.Data
	}
	b, err := bundle.StandIn(cluster, ciphertext)
	if err != nil {
		return nil, true
	}
	results, err := render.Cluster(ctx, render.Input{Cluster: cl, Bundle: b, WithoutConfig: true})
	if err != nil {
		return nil, ctx.Err() == nil
	}
	digests := map[string]string{}
	for _, r := range results {
		if r.Err == nil {
			digests[r.Machine.Name] = r.Digest
		}
	}
	return digests, true
}
