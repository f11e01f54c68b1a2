package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/status/outbox"
)

// Parts is what a daemon is put together from. Open makes the real ones; tests put others in.
type Parts struct {
	Config  config.Config
	Log     *slog.Logger
	Now     func() time.Time
	Keys    bundle.Keys
	Policy  plan.Policy
	Metrics *metrics.Metrics
	Looker  Looker
	Journal Journal
	Nodes   Nodes
	Actor   Actor
	Say     *publisher
	// Post posts statuses until ctx ends; Flush waits until none is queued; Queued counts them.
	Post   func(ctx context.Context) error
	Flush  func(ctx context.Context) error
	Queued func() int
	// Write pushes pages until ctx ends. Finding says what is wrong with the status branch, "" nothing.
	Write   func(ctx context.Context) error
	Finding func() (reason, detail string)
	// Foreign is the status branch's root where that is not Ichor's, "" else; Accept lets Ichor write on it.
	Foreign func() string
	Accept  func(root string) error
	// Release hands the inventory back; nil where there is none.
	Release func(ctx context.Context, now time.Time) error

	commits *commits
	// identity is who the repository is; nil where no forge can say.
	identity *repoIdentity
	// past gives what was last said of a cluster; nil knows nothing.
	past    func(ctx context.Context, cluster string) (fold.Cluster, error)
	closers []func()
}

// Close frees what Open took.
func (p *Parts) Close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		p.closers[i]()
	}
}

func (p *Parts) forget(cluster string) { p.Nodes.Forget(cluster) }

// errNoIdentity says why nothing can be applied.
var errNoIdentity = errors.New("no age identity: set SOPS_AGE_KEY or SOPS_AGE_KEY_FILE; checks go on, nothing is applied")

// noJournal stands in where there is no age identity: an inventory could be neither sealed nor trusted, so nothing is
// written to a node. Checks and their statuses go on.
type noJournal struct{}

func (noJournal) Cluster(string) *state.ClusterInventory { return &state.ClusterInventory{} }
func (noJournal) Holding(time.Time) error                { return errNoIdentity }
func (noJournal) Inventory() *state.Inventory            { return nil }
func (noJournal) Status() journal.Status {
	return journal.Status{State: journal.Refused, Message: errNoIdentity.Error()}
}

func (n noJournal) Load(context.Context, time.Time) (journal.Status, error) { return n.Status(), nil }
func (noJournal) Take(context.Context, time.Time) error                     { return errNoIdentity }
func (noJournal) Answer(context.Context, time.Time) error                   { return nil }
func (noJournal) Acknowledge(context.Context, time.Time, string) error      { return errNoIdentity }

// nowhere takes the statuses where there is no forge.
type nowhere struct{}

func (nowhere) Set(string, state.CommitStatus, outbox.Priority) error { return nil }

// wait waits for the end of ctx.
func wait(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
