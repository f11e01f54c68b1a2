package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/status/fold"
	"ichor.maesh.dev/ichor/status/metrics"
	"ichor.maesh.dev/ichor/status/outbox"
)

// Pages is where reports and pages go; status/branch.Writer is one. All but Flush only note what is to be; Flush pushes
// it.
type Pages interface {
	Put(path string, data []byte)
	Remove(path string)
	Report(commit string, pull int, markdown, json []byte)
	ClosePulls(numbers []int)
	// OnlyPulls says which pull requests are open.
	OnlyPulls(open []int)
	Flush(ctx context.Context) error
}

// Statuses takes commit statuses; status/outbox.Outbox is one. What is taken survives a crash.
type Statuses interface {
	Set(sha string, s state.CommitStatus, prio outbox.Priority) error
}

// publisher says things: pages first, then the statuses that point to them.
type publisher struct {
	log      *slog.Logger
	now      func() time.Time
	pages    Pages
	statuses Statuses
	metrics  *metrics.Metrics
	instance string
	branch   string
	// reportURL and pageURL give target URLs, "" where the forge has no web pages.
	reportURL func(commit string) string
	pageURL   func(path string) string
	// mayPost tells whether this instance is the one that speaks (with two Ichors on one repository only the holder posts).
	mayPost func() bool

	mu       sync.Mutex
	head     fold.Head
	clusters map[string]fold.Cluster
	// seen is when each cluster was last looked at.
	seen    map[string]time.Time
	written map[string]pageState
	// failing is since when the status branch can't be pushed to; zero while it can.
	failing time.Time
	posted  map[string]state.CommitStatus
	// ended are older heads: nothing about them becomes pending again.
	ended map[string]bool
	// unsaid are verdicts that this instance found while another one spoke, the oldest first.
	unsaid []unsaid
}

// unsaid is a verdict that another instance was to post.
type unsaid struct {
	sha    string
	status state.CommitStatus
	prio   outbox.Priority
	at     time.Time
}

// An unsaid verdict is kept for longer than a takeover takes: the holder may have gone before it posted it, and nobody
// checks that commit again.
const (
	unsaidStays = 15 * time.Minute
	maxUnsaid   = 1000
)

// pageState remembers what a cluster's page was written for.
type pageState struct {
	key string
	at  time.Time
}

// quietPage is how often a page is written though nothing but times and durations changed on it.
const quietPage = 5 * time.Minute

func newPublisher(log *slog.Logger, now func() time.Time, pages Pages, statuses Statuses, m *metrics.Metrics) *publisher {
	return &publisher{
		log: log, now: now, pages: pages, statuses: statuses, metrics: m,
		reportURL: func(string) string { return "" }, pageURL: func(string) string { return "" },
		mayPost:  func() bool { return true },
		clusters: map[string]fold.Cluster{}, seen: map[string]time.Time{}, written: map[string]pageState{}, posted: map[string]state.CommitStatus{},
		ended: map[string]bool{},
	}
}

// post queues a status; the same one again is nothing. It goes out after the pages put so far (Before).
func (p *publisher) post(sha string, s state.CommitStatus, prio outbox.Priority) {
	if s.Context == "" || sha == "" {
		return
	}
	if !p.mayPost() {
		p.keepUnsaid(sha, s, prio)
		return
	}
	key := sha + " " + s.Context
	p.mu.Lock()
	known := p.posted[key] == s || (p.ended[sha] && s.State == state.StatePending)
	p.mu.Unlock()
	if known {
		return
	}
	if err := p.statuses.Set(sha, s, prio); err != nil {
		p.log.Error("queue a commit status", "commit", short(sha), "context", s.Context, "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.posted) > 10_000 {
		clear(p.posted) // only a cache: the outbox drops what it posted last
	}
	p.posted[key] = s
}

// keepUnsaid remembers a verdict for the case that the holder is gone. What is said of clusters is found anew in each
// pass, so it is not kept.
func (p *publisher) keepUnsaid(sha string, s state.CommitStatus, prio outbox.Priority) {
	if s.Context != fold.Context(p.instance, "check") || s.State == state.StatePending {
		return
	}
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsaid = slices.DeleteFunc(p.unsaid, func(u unsaid) bool { return u.sha == sha || now.Sub(u.at) > unsaidStays })
	p.unsaid = append(p.unsaid, unsaid{sha, s, prio, now})
	p.unsaid = p.unsaid[max(0, len(p.unsaid)-maxUnsaid):]
}

// catchUp posts what was found while another instance spoke, once this one does.
func (p *publisher) catchUp() {
	if !p.mayPost() {
		return
	}
	p.mu.Lock()
	list := p.unsaid
	p.unsaid = nil
	p.mu.Unlock()
	for _, u := range list {
		if p.now().Sub(u.at) <= unsaidStays {
			p.post(u.sha, u.status, u.prio)
		}
	}
}

// patience is how long a status waits for a status branch that can't be pushed to; then it goes out without its report:
// a verdict that never comes would block every merge.
const patience = 30 * time.Second

// flush pushes the pages.
func (p *publisher) flush(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := p.pages.Flush(limited)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.failing = time.Time{}
	case p.failing.IsZero():
		p.failing = p.now()
		p.log.Error("push the status branch", "error", err)
	}
	return err
}

// Before is the outbox's hook: a report is pushed before the status that points to it.
func (p *publisher) Before(ctx context.Context, _ string, _ state.CommitStatus) error {
	err := p.flush(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && p.now().Sub(p.failing) > patience {
		return nil
	}
	return err
}

// cluster publishes what a pass of a cluster's loop found.
func (p *publisher) cluster(t *target, now time.Time, c fold.Cluster, facts map[string]plan.MachineFacts) {
	page := "clusters/" + c.Name + "/README.md"
	if t.headNote != "" {
		c.Progress.Message = strings.TrimSuffix(t.headNote+"; "+c.Progress.Message, "; ")
	}
	p.mu.Lock()
	p.clusters[c.Name], p.seen[c.Name] = c, now
	key := pageKey(c)
	old, ok := p.written[c.Name]
	// Two that write the same pages would overwrite each other's without end: the one that speaks writes them.
	write := p.mayPost() && (!ok || old.key != key || now.Sub(old.at) >= quietPage)
	if write {
		p.written[c.Name] = pageState{key, now}
	}
	p.mu.Unlock()
	if write {
		p.putCluster(c, page)
	}
	apply := fold.ApplyStatus(p.instance, c, p.pageURL(page))
	if t.headNote != "" && apply.State == state.StateSuccess {
		apply.State = state.StateFailure
		apply.Description = t.headNote
	}
	p.post(t.head, apply, outbox.High)
	if nodes, ok := fold.NodesStatus(p.instance, c, p.pageURL(page)); ok {
		p.post(t.head, nodes, outbox.High)
	}
	p.measure(c, facts, now)
}

// observation is what was last seen of the nodes, for the checks.
func (p *publisher) observation(now time.Time) *state.Observation {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := &state.Observation{Now: now, Clusters: make(map[string]state.ObservedCluster, len(p.clusters))}
	for name, c := range p.clusters {
		out.Clusters[name] = fold.Observed(c, p.seen[name])
	}
	return out
}

func (p *publisher) putCluster(c fold.Cluster, page string) {
	data, err := fold.StatusYAML(c)
	if err != nil {
		p.log.Error("encode a cluster's status", "cluster", c.Name, "error", err)
		return
	}
	p.pages.Put("clusters/"+c.Name+"/status.yaml", data)
	p.pages.Put(page, fold.ClusterPage(c))
	p.putFleet()
}

// pageKey is what a page says without its times and durations.
func pageKey(c fold.Cluster) string {
	var b strings.Builder
	fmt.Fprintln(&b, c.Commit, c.Mode, c.Progress.State, c.Progress.Converged, c.Progress.Total, c.Members)
	for _, cond := range c.Conditions {
		fmt.Fprintln(&b, cond.Type, cond.Status, cond.Reason)
	}
	for _, m := range c.Machines {
		fmt.Fprintln(&b, m.Name, m.Reason, m.Converged, m.Stage, m.Mode, m.TalosVersion, m.Identity, m.Endpoint)
		for _, cond := range m.Conditions {
			fmt.Fprintln(&b, cond.Type, cond.Status, cond.Reason)
		}
	}
	if n := len(c.Events); n > 0 {
		fmt.Fprintln(&b, c.Events[n-1].At, c.Events[n-1].Message)
	}
	return b.String()
}

// setHead notes what the fleet's page says of the watched branch.
func (p *publisher) setHead(h fold.Head) {
	p.mu.Lock()
	changed := fmt.Sprint(p.head) != fmt.Sprint(h)
	p.head = h
	p.mu.Unlock()
	if changed {
		p.putFleet()
	}
	p.catchUp()
}

func (p *publisher) putFleet() {
	if !p.mayPost() {
		return
	}
	p.mu.Lock()
	var list []fold.Cluster
	for _, c := range p.clusters {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b fold.Cluster) int { return strings.Compare(a.Name, b.Name) })
	page := fold.FleetPage(p.head, list)
	p.mu.Unlock()
	p.pages.Put("README.md", page)
}

// forget drops a cluster that is gone.
func (p *publisher) forget(cluster string) {
	p.mu.Lock()
	delete(p.clusters, cluster)
	delete(p.written, cluster)
	p.mu.Unlock()
	if p.mayPost() {
		p.pages.Remove("clusters/" + cluster)
	}
	p.metrics.ForgetCluster(cluster)
	p.putFleet()
}

func (p *publisher) measure(c fold.Cluster, facts map[string]plan.MachineFacts, now time.Time) {
	for _, m := range c.Machines {
		f, read := facts[m.Name]
		if m.Approval != "approved" && !read {
			p.metrics.ForgetMachine(c.Name, m.Name)
			continue
		}
		var silent time.Duration
		if f.Reach == plan.ReachUnreachable {
			silent = now.Sub(f.Since)
		}
		pending := slices.ContainsFunc(m.Conditions, func(cond state.Condition) bool {
			return cond.Type == state.CondRebootPending && cond.Status == state.True
		})
		p.metrics.Machine(c.Name, m.Name, f.Reach == plan.ReachOK, m.Converged, pending, silent)
	}
	p.metrics.Etcd(c.Name, etcdSeen(c, facts))
	p.metrics.Apply(c.Name, c.Progress.State, c.Progress.Converged, c.Progress.Total, now)
}

// etcdSeen counts the members as listed, and the voters among the machines that were seen healthy at their last read.
func etcdSeen(c fold.Cluster, facts map[string]plan.MachineFacts) metrics.Etcd {
	var e metrics.Etcd
	voter := map[string]bool{}
	for _, m := range c.Members {
		if m.Learner {
			e.Learners++
			continue
		}
		e.Voters++
		voter[m.ID] = true
	}
	for _, f := range facts {
		if f.Reach == plan.ReachOK && f.Mode == plan.ModeConfigured && f.Etcd != nil && voter[f.Etcd.MemberID] && plan.HealthyMember(f).Is == plan.Yes {
			e.Healthy++
		}
	}
	return e
}

// superseded ends the pending statuses of an older head: nothing will be applied for it any more.
func (p *publisher) superseded(old, now string) {
	p.mu.Lock()
	p.ended[old] = true
	delete(p.ended, now)
	var list []state.CommitStatus
	for key, s := range p.posted {
		if sha, _, _ := strings.Cut(key, " "); sha == old && s.State == state.StatePending {
			list = append(list, s)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(list, func(a, b state.CommitStatus) int { return strings.Compare(a.Context, b.Context) })
	for _, s := range list {
		s.State, s.Description = state.StateError, "superseded by "+short(now)
		p.post(old, s, outbox.Low)
	}
}
