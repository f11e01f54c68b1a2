package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ichor.maesh.dev/ichor/apply/journal"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/status/outbox"
	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/sync/git"
	"ichor.maesh.dev/ichor/sync/loop"
	"ichor.maesh.dev/ichor/validate/check"
)

// Looker finds what needs a check; sync/loop.Loop is one.
type Looker interface {
	Look(ctx context.Context) loop.Work
	Done(j loop.CheckJob)
	Retry(j loop.CheckJob)
}

// Journal is what the repository's loop asks of the inventory; apply/journal.Journal is one.
type Journal interface {
	Inventory
	Inventory() *state.Inventory
	Status() journal.Status
	Load(ctx context.Context, now time.Time) (journal.Status, error)
	Take(ctx context.Context, now time.Time) error
	Answer(ctx context.Context, now time.Time) error
	Acknowledge(ctx context.Context, now time.Time, head string) error
}

// repositoryLoop looks at the repository: it checks what needs a check, keeps the inventory, and gives the clusters'
// loops their targets.
type repositoryLoop struct {
	log     *slog.Logger
	now     func() time.Time
	looker  Looker
	commits *commits
	journal Journal
	say     *publisher
	metrics *metrics.Metrics
	branch  string
	only    []string
	// assign gives the targets to the clusters' loops, starting and ending them.
	assign func(map[string]*target)

	// finding says what is wrong with the status branch, "" nothing; foreign is its root where that is not Ichor's, and
	// accept lets Ichor write on it.
	finding func() (reason, detail string)
	foreign func() string
	accept  func(root string) error

	// gone: the watched branch was not there at the last look.
	gone bool
	// listed: the open pull requests were listed once.
	listed bool
	// more: the last look left work for the next one, which need not wait.
	more    bool
	head    *checked
	failed  string // the head whose check could not be done
	targets map[string]*target
	looked  atomic.Bool
	warned  map[string]bool
	// saidRoot is the foreign root of the status branch that was told.
	saidRoot string
	// seen is the newest head, for the beat.
	seen atomic.Value

	// invMu guards what follows. invAt is when the inventory was last looked at, lostAt the head at which it was found to
	// be unknown, invError the last failure, "" none.
	invMu            sync.Mutex
	invAt            time.Time
	lostAt, invError string
	// usedAck was taken once: it does not excuse a second loss.
	usedAck string
}

// look is one pass over the repository. Its error is for the back-off.
func (r *repositoryLoop) look(ctx context.Context) error {
	w := r.looker.Look(ctx)
	now := r.now()
	r.metrics.Git(string(git.ClassOf(w.GitErr)), now)
	if w.GitErr != nil {
		r.log.Error("look at the repository", "class", git.ClassOf(w.GitErr), "error", w.GitErr)
	}
	if w.ForgeErr != nil {
		r.metrics.Forge("list")
		r.log.Error("list pull requests", "error", w.ForgeErr)
	}
	if r.gone = w.Move.Kind == git.MoveGone; r.gone {
		r.log.Error("the watched branch is not there; the last head stays", "branch", r.branch, "default", w.Move.Default)
	}
	if !r.listed && w.ForgeErr == nil && w.Head != "" {
		// What was closed while Ichor was not running is in no look's list.
		r.listed = true
		var open []int
		for _, p := range w.Open {
			open = append(open, p.Number)
		}
		r.say.pages.OnlyPulls(open)
	}
	if len(w.Closed) > 0 {
		r.say.pages.ClosePulls(w.Closed)
	}
	r.seen.Store(w.Head)
	r.foreignRoot(ctx, w.Head)
	r.inventory(ctx, w.Head)
	if r.head != nil && w.Head != "" && w.Head != r.head.commit {
		r.say.superseded(r.head.commit, w.Head)
	}
	answered := true
	for _, j := range w.Checks {
		if ctx.Err() != nil {
			r.looker.Retry(j)
			continue
		}
		answered = r.job(ctx, j) && answered
	}
	if w.Head != "" && ctx.Err() == nil {
		r.follow(ctx, w.Head)
	}
	r.note(w)
	r.more = w.More && answered // else what can't be done would be tried without a pause
	if w.GitErr == nil {
		r.looked.Store(true)
	}
	return errors.Join(w.GitErr, w.ForgeErr)
}

// slow is how long a check may take before its commit is said to be pending.
const slow = 2 * time.Second

// job checks one commit and says the verdict; false where it is to be done again.
func (r *repositoryLoop) job(ctx context.Context, j loop.CheckJob) bool {
	context := fold.Context(r.say.instance, "check")
	target := r.say.reportURL(j.Commit)
	prio := priority(j.Kind)
	var mu sync.Mutex
	finished := false
	timer := time.AfterFunc(slow, func() {
		mu.Lock() // so that pending can't come after the verdict
		defer mu.Unlock()
		if !finished {
			r.say.post(j.Commit, state.CommitStatus{
				Context: context, State: state.StatePending, Description: "checking", TargetURL: target,
			}, prio)
		}
	})
	res, err := r.checkJob(ctx, j)
	timer.Stop()
	mu.Lock()
	finished = true
	mu.Unlock()
	switch {
	case err == nil:
		r.sayReport(j, res, context, target, prio)
		r.looker.Done(j)
		return true
	case ctx.Err() != nil:
		r.looker.Retry(j)
	default:
		r.log.Error("check a commit", "commit", short(j.Commit), "kind", j.Kind, "error", err)
		r.metrics.Check(string(check.Errored), 0)
		r.sayFault(j, err, context, target, prio)
		if j.Err != nil {
			r.looker.Done(j)
			return true
		}
		r.looker.Retry(j)
	}
	return false
}

func (r *repositoryLoop) checkJob(ctx context.Context, j loop.CheckJob) (*checked, error) {
	if j.Err != nil {
		return nil, j.Err
	}
	s := subject{
		commit: j.Commit, base: j.Base, tree: j.Tree, against: j.Against,
		excuse: j.Kind == loop.KindPull || j.Kind == loop.KindQueue,
	}
	if s.tree == "" {
		s.tree, s.against = j.Commit, j.Base
	}
	if j.Note != "" {
		from := short(j.Against) + ", where it branched off"
		if j.Against == j.Base {
			from = "the branch as it is" // where it branched off is not known
		}
		s.note = fmt.Sprintf("This pull request is checked alone, compared with %s: %s. What the branch has got "+
			"since then is not looked at with it.", from, j.Note)
	}
	return r.commits.check(ctx, s)
}

func priority(k loop.Kind) outbox.Priority {
	switch k {
	case loop.KindHead, loop.KindQueue:
		return outbox.High
	case loop.KindPull:
		return outbox.Normal
	}
	return outbox.Low
}

func (r *repositoryLoop) sayReport(j loop.CheckJob, res *checked, context, target string, prio outbox.Priority) {
	r.putReport(j, res.report)
	s := state.CommitStatus{Context: context, State: state.StateSuccess, Description: report.Description(res.report), TargetURL: target}
	switch res.report.Verdict {
	case check.Passed:
	case check.Failed:
		s.State = state.StateFailure
	default:
		s.State = state.StateError
	}
	r.metrics.Check(string(res.report.Verdict), res.took)
	r.log.Info("checked a commit", "commit", short(j.Commit), "kind", j.Kind, "verdict", res.report.Verdict, "took", res.took)
	r.say.post(j.Commit, s, prio)
}

func (r *repositoryLoop) putReport(j loop.CheckJob, rep *check.Report) {
	data, err := report.JSON(rep)
	if err != nil {
		r.log.Error("encode a report", "commit", short(rep.Commit), "error", err)
		return
	}
	r.say.pages.Report(rep.Commit, j.PR, []byte(report.Markdown(rep, report.Options{JSONName: rep.Commit + ".json"})), data)
}

// sayFault says that a check could not be done, and why: pending never stays.
func (r *repositoryLoop) sayFault(j loop.CheckJob, err error, context, target string, prio outbox.Priority) {
	rep := &check.Report{
		APIVersion: check.ReportAPIVersion, Commit: j.Commit, Base: j.Base, Verdict: check.Errored,
		Problems: []fleet.Problem{{Rule: "limits", Severity: fleet.Error, Message: "the check could not be done: " + err.Error()}},
		Machines: []check.Machine{}, Plan: []check.Step{},
	}
	r.putReport(j, rep)
	r.say.post(j.Commit, state.CommitStatus{
		Context: context, State: state.StateError, Description: report.Description(rep), TargetURL: target,
	}, prio)
}

// follow brings the clusters' targets up to date with the head and the inventory.
func (r *repositoryLoop) follow(ctx context.Context, head string) {
	res, err := r.commits.head(ctx, head)
	if err != nil {
		if r.failed != head {
			r.failed = head
			r.log.Error("check the head; the last good commits stay in force", "commit", short(head), "error", err)
		}
		return
	}
	again := r.head != nil && r.head.commit == head && r.head.unsigned != res.unsigned
	r.head, r.failed = res, ""
	if again {
		// The commit is the same and what is said of it isn't: another key may sign now.
		r.sayReport(loop.CheckJob{Commit: head, Base: res.base, Kind: loop.KindHead}, res, fold.Context(r.say.instance, "check"),
			r.say.reportURL(head), priority(loop.KindHead))
	}
	var errs, warns int
	for _, p := range res.report.Problems {
		if p.Severity == fleet.Error {
			errs++
		} else {
			warns++
		}
	}
	r.unserved(res.detail.Head)
	r.metrics.CheckHead(res.report.Verdict == check.Passed, errs, warns)
	next, unsettled, err := targets(ctx, r.commits, res, r.journal.Inventory(), r.only)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.log.Error("find what is to be applied", "error", err)
		return
	}
	for name, err := range unsettled {
		r.log.Error("find what is to be applied; the cluster keeps what it has", "cluster", name, "error", err)
		if old := r.targets[name]; old != nil {
			next[name] = old
		}
	}
	for name, t := range next {
		if old := r.targets[name]; old != nil && equal(old, t) {
			next[name] = old // the same pointer: nothing is opened or rendered again
		}
	}
	r.targets = next
	r.assign(next)
}

// unserved warns of clusters that this instance is to serve and the head does not have: a misspelt name would silently
// serve nothing.
func (r *repositoryLoop) unserved(f *fleet.Fleet) {
	for _, name := range r.only {
		if f.Cluster(name) == nil && !r.warned[name] {
			r.log.Warn("the head has no cluster of this name (clusters)", "cluster", name)
			if r.warned == nil {
				r.warned = map[string]bool{}
			}
			r.warned[name] = true
		}
	}
}

// equal tells whether two targets are the same for a cluster's loop.
func equal(a, b *target) bool {
	return a.commit == b.commit && a.head == b.head && a.headNote == b.headNote && a.passed == b.passed &&
		a.suspend == b.suspend && a.observe == b.observe && a.skipUsed == b.skipUsed && slices.Equal(a.holds, b.holds) && slices.Equal(a.acks, b.acks)
}

// beat looks at the inventory every interval until ctx ends, whatever the checks do meanwhile: the claim of another Ichor
// is answered in time, and the right to act does not run out.
func (r *repositoryLoop) beat(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.invMu.Lock()
		due := r.now().Sub(r.invAt) >= interval
		r.invMu.Unlock()
		if head, ok := r.seen.Load().(string); ok && due {
			r.inventory(ctx, head)
		}
	}
}

// inventory reads and, where it may, takes the inventory, and acknowledges a lost one where the head says so.
func (r *repositoryLoop) inventory(ctx context.Context, head string) {
	r.invMu.Lock()
	defer r.invMu.Unlock()
	now := r.now()
	r.invAt = now
	st, err := r.journal.Load(ctx, now)
	if err != nil {
		r.invFailed("read the inventory", err)
		return
	}
	if st.State == journal.Unknown && head != "" {
		if r.lostAt == "" {
			r.lostAt = head
		}
		if a := r.lostAck(ctx, head); a != "" {
			if err := r.journal.Acknowledge(ctx, now, head); err != nil {
				r.invFailed("begin a new inventory", err)
				return
			}
			r.log.Warn("a person acknowledged that the inventory is lost; a new one was begun", "commit", short(head), "ack", a)
			r.lostAt, r.usedAck = "", a
			st = r.journal.Status()
		}
	}
	if !st.Mine && (st.State == journal.Known || st.State == journal.Fresh) {
		if err := r.journal.Take(ctx, now); err != nil {
			r.invFailed("take the inventory", err)
			return
		}
		r.log.Info("holds the inventory", "epoch", r.journal.Status().Holder.Epoch)
	}
	if err := r.journal.Answer(ctx, now); err != nil {
		r.invFailed("answer another Ichor's claim", err)
		return
	}
	r.invError = ""
}

// invFailed logs a failure once.
func (r *repositoryLoop) invFailed(what string, err error) {
	if msg := what + ": " + err.Error(); msg != r.invError {
		r.invError = msg
		r.log.Warn(what, "error", err)
	}
}

// ackInventory is the acknowledgement of a lost inventory: it names the head at which the loss was said, so that an
// old one excuses nothing.
const ackInventory = "inventory:"

// lostAck finds the acknowledgement in the head, "" none.
func (r *repositoryLoop) lostAck(ctx context.Context, head string) string {
	res, err := r.commits.head(ctx, head)
	if err != nil {
		return ""
	}
	parent, err := r.commits.history.Parent(head)
	if err != nil {
		return ""
	}
	acks := res.acks()
	for _, commit := range []string{head, parent, r.lostAt} {
		if commit != "" && ackInventory+commit != r.usedAck && slices.Contains(acks, ackInventory+commit) {
			return ackInventory + commit
		}
	}
	return ""
}

// ackRoot is the acknowledgement of a status branch whose root is not Ichor's.
const ackRoot = "root:"

// foreignRoot lets Ichor write on a status branch that it did not make, where the head says so.
func (r *repositoryLoop) foreignRoot(ctx context.Context, head string) {
	root := r.foreign()
	if root == "" || head == "" {
		return
	}
	res, err := r.commits.head(ctx, head)
	if err != nil {
		return
	}
	if !slices.Contains(res.acks(), ackRoot+root) {
		if r.saidRoot != root {
			// The branch itself can't say it: nothing is written there.
			r.saidRoot = root
			r.log.Error("the status branch has a root that is not Ichor's: nothing is written to it; to accept it, commit the "+
				"annotation ichor.maesh.dev/ack on a cluster (ichor ack)", "ack", ackRoot+root)
		}
		return
	}
	if err := r.accept(root); err != nil {
		r.log.Error("accept the status branch's root", "error", err)
		return
	}
	r.log.Warn("a person acknowledged the status branch's root", "root", root, "commit", short(head))
}

// note puts what is wrong with Ichor's surroundings on the fleet's page.
func (r *repositoryLoop) note(w loop.Work) {
	h := fold.Head{Branch: r.branch, Commit: w.Head}
	if r.head != nil && r.head.commit == w.Head {
		h.Verdict = string(r.head.report.Verdict)
	}
	add := func(kind string, status state.ConditionStatus, reason, message string) {
		h.Notes = append(h.Notes, state.Condition{Type: kind, Status: status, Reason: reason, Message: message})
	}
	st := r.journal.Status()
	switch {
	case st.State == journal.Unknown:
		add(state.CondInventory, state.False, state.ReasonInventoryUnknown, fmt.Sprintf("%s; where Ichor runs with another age identity than before, give it the old one too; "+
			"only where it is really lost, to begin a new one, commit the annotation "+
			`ichor.maesh.dev/ack: "%s%s" on a cluster`, st.Message, ackInventory, w.Head))
	case st.State == journal.Refused:
		add(state.CondInventory, state.False, state.ReasonInventoryUnknown, st.Message)
	case !st.Mine:
		r.invMu.Lock()
		add(state.CondInventory, state.False, state.ReasonFenced, r.invError)
		r.invMu.Unlock()
	}
	finding, detail := r.finding()
	if root := r.foreign(); root != "" {
		detail += fmt.Sprintf(`; to let Ichor write on it, commit the annotation ichor.maesh.dev/ack: "%s%s" on a cluster`, ackRoot, root)
	}
	if finding != "" {
		add("StatusBranch", state.False, finding, detail)
	}
	switch class := git.ClassOf(w.GitErr); class {
	case git.ClassNone:
	case git.ClassReplaced:
		add("Repository", state.False, "Replaced", w.GitErr.Error())
	default:
		add("Repository", state.False, "FetchFailed", string(class))
	}
	if w.Move.Kind == git.MoveGone {
		add("Repository", state.False, "BranchGone", "the watched branch is not there; the last head stays in force")
	}
	r.metrics.StatusBranch(finding == state.ReasonStatusBranchLost, finding == state.ReasonStatusBranchTampered)
	r.metrics.Inventory(st.State == journal.Known && st.Mine)
	r.say.setHead(h)
}
