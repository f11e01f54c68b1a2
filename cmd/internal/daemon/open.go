package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"ichor.maesh.dev/ichor/apply/act"
	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/cmd/internal/version"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/branch"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/status/outbox"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/gitea"
	"ichor.maesh.dev/ichor/sync/forge/github"
	"ichor.maesh.dev/ichor/sync/forge/gitlab"
	"ichor.maesh.dev/ichor/sync/forge/none"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/loop"
)

// Open puts the real parts together. It takes the state folder's lock, and reaches for the network only to learn the
// repository's identity from the forge; a forge that can't be reached is no reason not to start. env looks up the age
// identity (os.Getenv).
func Open(ctx context.Context, c config.Config, log *slog.Logger, env func(string) string) (_ *Parts, err error) {
	p := &Parts{Config: c, Log: log, Now: time.Now, Policy: policy(c), Metrics: metrics.New(version.String())}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder (stateDir): %w", err)
	}
	p.Keys, err = bundle.LoadKeys(env)
	if err != nil && !errors.Is(err, bundle.ErrNoKeys) {
		return nil, fmt.Errorf("load the age identities: %w", err)
	}
	f, err := OpenForge(c)
	if err != nil {
		return nil, err
	}
	p.identity, err = openIdentity(c, f, log, p.Now)
	if err != nil {
		return nil, err
	}
	if err := p.identity.check(ctx); err != nil {
		log.Error("nothing is read or written", "error", err)
	}
	mirror, err := openMirror(ctx, c, f, p.identity.guard())
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, func() { _ = mirror.Close() }) // nothing is lost by a store that did not close well
	load := LoadOptions(c)
	load.Cache = &fleet.Cache{} // files that did not change are parsed once
	p.commits = &commits{history: mirror, load: load, timeout: c.Limits.Check, now: p.Now, removed: p.removed, signed: signatures{c.Signatures, mirror}}
	p.Looker, err = loop.New(loop.Options{Branch: c.Branch, StateFile: filepath.Join(c.StateDir, "loop")}, mirror, f)
	if err != nil {
		return nil, err
	}
	writer, err := p.openStatus(c, mirror, f)
	if err != nil {
		return nil, err
	}
	return p, p.openApply(c, writer)
}

// removed tells whether the inventory says that a machine has left.
func (p *Parts) removed(cluster, machine string) bool {
	inv := p.Journal.Cluster(cluster)
	return inv != nil && inv.Machines[machine] != nil && !inv.Machines[machine].RemovedAt.IsZero()
}

// policy is the decision core's numbers with what the configuration sets.
func policy(c config.Config) plan.Policy {
	p := plan.DefaultPolicy()
	n := c.Nodes
	p.FactMaxAge, p.RetryInterval, p.UnreachableRetry = n.FactMaxAge, n.RetryInterval, n.UnreachableRetry
	p.RebootTimeout, p.JoinTimeout, p.ConfigTimeout, p.Poll = n.RebootTimeout, n.JoinTimeout, n.ConfigTimeout, n.Poll
	return p
}

// LoadOptions bounds what is read of a commit.
func LoadOptions(c config.Config) fleet.Options {
	return fleet.Options{
		Path: c.Path, MaxFiles: c.Limits.Files, MaxFileSize: c.Limits.FileSize, SecretScanExclude: c.SecretScan.Exclude,
	}
}

// OpenForge makes the forge's client.
func OpenForge(c config.Config) (forge.Forge, error) {
	var f forge.Forge
	var err error
	switch c.Forge.Kind {
	case "none":
		f = none.Forge{}
	case "gitea":
		f, err = gitea.New(gitea.Options{
			WebURL: c.Forge.URL, Repository: c.Forge.Repository, TokenFile: c.Forge.TokenFile, CAFile: c.CAFile, ProxyURL: c.Proxy,
			AllowPlainHTTPAuth: c.AllowInsecureAuth,
		})
	case "gitlab":
		f, err = gitlab.New(gitlab.Options{
			WebURL: c.Forge.URL, Repository: c.Forge.Repository, TokenFile: c.Forge.TokenFile, CAFile: c.CAFile, ProxyURL: c.Proxy,
			AllowPlainHTTPAuth: c.AllowInsecureAuth,
		})
	default:
		f, err = openGitHub(c)
	}
	if err != nil {
		return nil, fmt.Errorf("set up the forge: %w", err)
	}
	return f, nil
}

func openGitHub(c config.Config) (*github.Client, error) {
	o := github.Options{
		WebURL: c.Forge.URL, Repository: c.Forge.Repository, CAFile: c.CAFile, ProxyURL: c.Proxy,
		AllowPlainHTTPAuth: c.AllowInsecureAuth,
	}
	if c.Forge.App.ID != 0 {
		o.App = &github.App{
			ID: strconv.FormatInt(c.Forge.App.ID, 10), InstallationID: c.Forge.App.InstallationID, KeyFile: c.Forge.App.KeyFile,
		}
	} else {
		o.TokenFile = c.Forge.TokenFile
	}
	return github.New(o)
}

// OpenMirror makes the Git mirror in the state folder.
func OpenMirror(ctx context.Context, c config.Config, f forge.Forge) (*git.Mirror, error) {
	return openMirror(ctx, c, f, nil)
}

func openMirror(ctx context.Context, c config.Config, f forge.Forge, guard func(context.Context) error) (*git.Mirror, error) {
	auth := git.Auth{
		Username: c.Username, TokenFile: c.TokenFile, SSHKeyFile: c.SSH.KeyFile, KnownHostsFile: c.SSH.KnownHostsFile,
	}
	if app, ok := f.(*github.Client); ok && c.Forge.App.ID != 0 && c.TokenFile == "" {
		auth.Source = app.Token
	}
	head, merge := f.PullRefs()
	m, err := git.Open(ctx, git.Options{
		PullRef: head, MergeRef: merge, Dir: filepath.Join(c.StateDir, "mirror"), URL: c.Repo, Auth: auth, CAFile: c.CAFile, ProxyURL: c.Proxy,
		AllowPlainHTTPAuth: c.AllowInsecureAuth, AllowLocal: true, Guard: guard,
	})
	if err != nil {
		return nil, fmt.Errorf("open the Git mirror: %w", err)
	}
	return m, nil
}

// openStatus makes what Ichor speaks through: the status branch and the queue of commit statuses.
func (p *Parts) openStatus(c config.Config, mirror *git.Mirror, f forge.Forge) (*branch.Writer, error) {
	b, err := mirror.Branch(c.StatusBranch, git.BranchOptions{})
	if err != nil {
		return nil, fmt.Errorf("open the status branch: %w", err)
	}
	p.closers = append(p.closers, func() { _ = b.Close() }) // see the mirror's
	writer, err := branch.New(b, branch.Options{
		StateFile: filepath.Join(c.StateDir, "status-branch.json"), Interval: c.Status.BatchTime, KeepClosed: c.Status.KeepClosed, Log: p.Log,
	})
	if err != nil {
		return nil, err
	}
	p.Write = writer.Run
	p.past = func(ctx context.Context, cluster string) (fold.Cluster, error) { return past(ctx, b, cluster) }
	p.Finding = func() (string, string) {
		h := writer.Health()
		if h.Finding != "" && h.ForeignRoot == "" && p.Now().Sub(h.FindingAt) > findingStays {
			if err := writer.Forgive(); err != nil {
				p.Log.Error("forget the finding on the status branch", "error", err)
			}
		}
		return h.Finding, h.Detail
	}
	p.Foreign, p.Accept = func() string { return writer.Health().ForeignRoot }, writer.Acknowledge
	p.Say = newPublisher(p.Log, p.Now, writer, nil, p.Metrics)
	p.commits.observed = p.Say.observation
	p.Say.instance, p.Say.branch = c.Instance, c.Branch
	if c.Forge.Kind == "none" {
		p.Say.statuses = nowhere{}
		p.Post, p.Flush, p.Queued = wait, func(context.Context) error { return nil }, func() int { return 0 }
		return writer, nil
	}
	p.Say.reportURL = func(commit string) string { return forge.ReportURL(f, c.StatusBranch, commit) }
	p.Say.pageURL = func(path string) string { return f.FileURL(c.StatusBranch, path) }
	box, err := outbox.New(filepath.Join(c.StateDir, "outbox"), f, outbox.Options{
		Pace: c.Status.Pace, PerHour: c.Status.PerHour, Before: p.before, Log: p.Log,
	})
	if err != nil {
		return nil, err
	}
	p.Say.statuses = box
	p.Post, p.Flush, p.Queued = box.Run, box.Flush, func() int { return box.Health().Queued }
	return writer, nil
}

// past reads what was last said of a cluster, so that a restart loses neither its events nor since when conditions hold.
// It comes from a branch that somebody may have edited: nothing but words is taken from it.
func past(ctx context.Context, b *git.Branch, cluster string) (fold.Cluster, error) {
	tip, err := b.Tip(ctx)
	if errors.Is(err, git.ErrAbsent) {
		return fold.Cluster{}, nil
	}
	if err != nil {
		return fold.Cluster{}, err
	}
	data, err := b.ReadFile(ctx, tip.Hash, branch.ClusterStatus(cluster))
	if errors.Is(err, git.ErrNoFile) {
		return fold.Cluster{}, nil
	}
	if err != nil {
		return fold.Cluster{}, err
	}
	return fold.ParseStatus(data)
}

// findingStays is how long it is said that the status branch was lost or tampered with, after it was made good: long
// enough for a person to see it.
const findingStays = 24 * time.Hour

// openApply makes what acts: the inventory, the observer, the actor.
func (p *Parts) openApply(c config.Config, writer *branch.Writer) error {
	observer := observe.New(observe.Options{Now: p.Now, Parallel: c.Concurrency.Nodes})
	p.closers = append(p.closers, observer.Close)
	p.Nodes = observer
	audit, err := act.OpenAudit(c.StateDir, p.Log, p.Now)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	p.closers = append(p.closers, func() { _ = audit.Close() }) // each line was synced
	if p.Keys.Empty() {
		p.Log.Error("nothing can be applied", "error", errNoIdentity)
		p.Journal, p.Actor = noJournal{}, &act.Actor{Observer: observer, Audit: audit, Now: p.Now}
		return nil
	}
	j, err := journal.Open(journal.Options{
		Store: store{writer.Inventory()}, Dir: c.StateDir, Keys: p.Keys.MACKeys("inventory"), Instance: c.Instance,
		RepositoryID: p.identity.id(), Every: c.Interval, Takeover: c.Takeover.After, TakeOver: c.Takeover.Now,
	})
	if err != nil {
		return fmt.Errorf("open the inventory: %w", err)
	}
	p.closers = append(p.closers, j.Close)
	p.Journal, p.Release = j, j.Release
	p.Actor = &act.Actor{Observer: observer, Journal: j, Audit: audit, Now: p.Now}
	p.Say.mayPost = func() bool {
		st := j.Status()
		return st.Mine || st.State != journal.Known
	}
	return nil
}

// before is what comes before a status is posted: a repository that is the one it was, and the report.
func (p *Parts) before(ctx context.Context, sha string, s state.CommitStatus) error {
	if err := p.identity.check(ctx); err != nil {
		return err
	}
	return p.Say.Before(ctx, sha, s)
}

// store makes the status branch's inventory the journal's: the two packages name the same kinds of error.
type store struct{ inv *branch.Inventory }

func (s store) Read(ctx context.Context) ([]byte, string, error) {
	data, rev, err := s.inv.Read(ctx)
	return data, rev, kind(err)
}

func (s store) Write(ctx context.Context, data []byte, prev string) (string, error) {
	rev, err := s.inv.Write(ctx, data, prev)
	return rev, kind(err)
}

// kind adds the journal's kind to an error of the status branch.
func kind(err error) error {
	for from, to := range map[error]error{
		branch.ErrAbsent: journal.ErrAbsent, branch.ErrNoFile: journal.ErrNoFile, branch.ErrMoved: journal.ErrMoved,
		branch.ErrForeign: journal.ErrForeign,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w (%w)", to, err)
		}
	}
	return err
}
