package branch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Git is the branch in its repository; sync/git.Branch satisfies it. Errors are told apart by state.ErrBranchAbsent,
// state.ErrBranchMoved and state.ErrNoFile.
type Git interface {
	// Tip fetches the branch and says where it is.
	Tip(ctx context.Context) (state.BranchTip, error)
	// ReadFile and FileHash (Git's blob hash) are about a tip that was fetched; Files lists those below a folder.
	ReadFile(ctx context.Context, tip, path string) ([]byte, error)
	FileHash(ctx context.Context, tip, path string) (string, error)
	Files(ctx context.Context, tip, dir string) ([]string, error)
	// EverHad tells whether the file was there at tip or before.
	EverHad(ctx context.Context, tip, path string) (bool, error)
	CommitInfo(ctx context.Context, commit string) (state.CommitInfo, error)
	IsAncestor(ctx context.Context, old, now string) (bool, error)
	// Commit moves the branch from parent ("" makes it) to a new commit with the changes, or fails with
	// state.ErrBranchMoved. It succeeds only when the server lists the new commit. No change gives parent.
	Commit(ctx context.Context, parent string, changes []state.FileChange, message string, when time.Time) (string, error)
	// Compact replaces the history by one commit.
	Compact(ctx context.Context, tip string, keep func(path string) bool, message string, when time.Time) (string, error)
}

// Kinds of errors.
var (
	// ErrAbsent: there is no branch, or it never held an inventory.
	ErrAbsent = errors.New("status branch holds no inventory yet")
	// ErrNoFile: the branch held an inventory, and it is gone.
	ErrNoFile = errors.New("inventory is gone from the status branch")
	// ErrMoved: somebody else wrote in between.
	ErrMoved = errors.New("status branch was written by somebody else")
	// ErrForeign: the branch has a root that isn't Ichor's; nothing is written until it is acknowledged.
	ErrForeign = errors.New("status branch has a foreign root")
)

// Options of New.
type Options struct {
	// StateFile remembers what was pushed last.
	StateFile string
	// Interval is the least time between two pushes of reports (default 10 s). The inventory is not held back by it.
	Interval time.Duration
	// InspectEvery is how often the branch is looked at when there is nothing to push (default 1 min).
	InspectEvery time.Duration
	// CompactAt commits the history is replaced by one (default 1000).
	CompactAt int
	// KeepClosed is how long the report of a closed pull request stays (default 7 days); KeepReports is the most reports
	// (default 500), the oldest go first.
	KeepClosed  time.Duration
	KeepReports int
	// Log may be nil.
	Log *slog.Logger
}

// tries of a push that loses the race.
const tries = 8

// Writer is safe for concurrent use.
type Writer struct {
	git Git
	o   Options

	push sync.Mutex // orders what goes to the server

	mu     sync.Mutex
	staged map[string]change
	// pushed is the hash of what was last pushed to a path, reports of commits aside.
	pushed map[string]string
	index  staging
	mem    memory
	health Health
	seq    int64
	wake   chan struct{}
}

// change is staged content; seq tells whether it was replaced while a push was under way.
type change struct {
	data   []byte
	remove bool
	seq    int64
}

// Health is how the branch is, for conditions, pages and metrics.
type Health struct {
	// Finding is "", state.ReasonStatusBranchLost or state.ReasonStatusBranchTampered, since FindingAt, with Detail. It
	// stays until Forgive.
	Finding   string
	FindingAt time.Time
	Detail    string
	// ForeignRoot is the root commit that isn't Ichor's; nothing is written while it is set.
	ForeignRoot string
	// Tip and Commits as last seen, LastPush of ours, and LastError ("" after a success).
	Tip       string
	Commits   int
	LastPush  time.Time
	LastError string
	// Staged files that wait for a push.
	Staged int
}

// New makes a writer and reads its state file. It does not reach for the network.
func New(g Git, o Options) (*Writer, error) {
	set := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.Interval, 10*time.Second)
	set(&o.InspectEvery, time.Minute)
	set(&o.KeepClosed, 7*24*time.Hour)
	if o.CompactAt == 0 {
		o.CompactAt = 1000
	}
	if o.KeepReports == 0 {
		o.KeepReports = 500
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m, err := loadMemory(o.StateFile)
	if err != nil {
		return nil, fmt.Errorf("open status branch: %w", err)
	}
	w := &Writer{git: g, o: o, staged: map[string]change{}, pushed: map[string]string{}, index: newStaging(), mem: m, wake: make(chan struct{}, 1)}
	w.health.Finding, w.health.FindingAt, w.health.Detail = m.Finding, m.FindingAt, m.Detail
	return w, nil
}

// Put stages a file; it goes out with the next batch. What was pushed last is not staged again. InventoryPath is
// refused.
func (w *Writer) Put(path string, data []byte) { w.stage(path, change{data: data}) }

// Remove stages the removal of a file or folder.
func (w *Writer) Remove(path string) { w.stage(path, change{remove: true}) }

func (w *Writer) stage(path string, c change) {
	if path == InventoryPath || path == indexPath {
		panic("branch: " + path + " is not written as a report") // a programmer's error, never data
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waits := w.staged[path]; !waits && !c.remove && w.pushed[path] == blobHash(c.data) {
		return
	}
	w.seq++
	c.seq = w.seq
	w.staged[path] = c
	w.kick()
}

// keepPushed notes what was pushed. The lock is held.
func (w *Writer) keepPushed(staged map[string]change) {
	for path, c := range staged {
		switch {
		case c.remove:
			maps.DeleteFunc(w.pushed, func(p, _ string) bool { return p == path || strings.HasPrefix(p, path+"/") })
		case !strings.HasPrefix(path, "checks/"):
			w.pushed[path] = blobHash(c.data)
		}
	}
}

// Report stages a commit's report. pull is the number of the pull request it belongs to, 0 for the branch.
func (w *Writer) Report(commit string, pull int, markdown, json []byte) {
	w.Put(CheckMarkdown(commit), markdown)
	w.Put(CheckJSON(commit), json)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index.add(commit, pull)
}

// ClosePulls says that pull requests were closed: their reports expire.
func (w *Writer) ClosePulls(numbers []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range numbers {
		w.index.closed[n] = true
	}
	if len(numbers) > 0 {
		w.kick()
	}
}

// OnlyPulls says which pull requests are open: reports of others expire, those that were closed while nobody looked too.
func (w *Writer) OnlyPulls(open []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index.open = map[int]bool{}
	for _, n := range open {
		w.index.open[n] = true
	}
	w.kick()
}

func (w *Writer) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Health says how the branch is.
func (w *Writer) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health
	h.Staged = len(w.staged)
	return h
}

// Run pushes what is staged, in batches, and looks at the branch now and then, until ctx ends; then it pushes once more
// what is left.
func (w *Writer) Run(ctx context.Context) error {
	inspect := time.NewTicker(w.o.InspectEvery)
	defer inspect.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			return w.Flush(last)
		case <-w.wake:
		case <-inspect.C:
			if _, err := w.Inspect(ctx); err != nil {
				w.o.Log.Warn("look at status branch", "error", err)
			}
			continue
		}
		if !w.pause(ctx, failures) {
			continue
		}
		if err := w.Flush(ctx); err != nil && ctx.Err() == nil {
			failures++
			w.o.Log.Warn("push reports again later", "error", err)
			w.kick()
			continue
		}
		failures = 0
	}
}

// pause keeps the interval since the last push, longer while pushes fail. False when ctx ended.
func (w *Writer) pause(ctx context.Context, failures int) bool {
	w.mu.Lock()
	d := time.Until(w.health.LastPush.Add(w.o.Interval))
	w.mu.Unlock()
	if failures > 0 {
		d = max(d, min(time.Second<<min(failures-1, 10), 5*time.Minute))
	}
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// FlushReport makes sure that a commit's report, if there is one staged, is on the branch: it must be there before the
// status that points to it.
func (w *Writer) FlushReport(ctx context.Context, commit string) error {
	w.mu.Lock()
	_, md := w.staged[CheckMarkdown(commit)]
	_, js := w.staged[CheckJSON(commit)]
	w.mu.Unlock()
	if !md && !js {
		return nil
	}
	return w.Flush(ctx)
}

// Flush pushes everything that is staged now. Nothing staged is nothing done.
func (w *Writer) Flush(ctx context.Context) error {
	w.push.Lock()
	defer w.push.Unlock()
	w.mu.Lock()
	empty := len(w.staged) == 0 && w.index.empty()
	w.mu.Unlock()
	if empty {
		return nil
	}
	return w.note(w.publish(ctx))
}

// Inspect looks at the branch and repairs what somebody else did to it.
func (w *Writer) Inspect(ctx context.Context) (Health, error) {
	w.push.Lock()
	defer w.push.Unlock()
	err := w.note(w.publish(ctx))
	return w.Health(), err
}

// note keeps the last error for Health.
func (w *Writer) note(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.health.LastError = ""
	if err != nil {
		w.health.LastError = err.Error()
	}
	return err
}

// publish builds the changes on the newest tip and pushes them, again when it lost a race. push is held.
func (w *Writer) publish(ctx context.Context) error {
	for try := range tries {
		v, err := w.look(ctx)
		if err != nil {
			return err
		}
		w.mu.Lock()
		staged, index := maps.Clone(w.staged), w.index.clone()
		w.mu.Unlock()
		changes, err := w.changes(ctx, v, staged, index)
		if err != nil {
			return err
		}
		hash, err := w.commit(ctx, v, changes, "Report")
		if errors.Is(err, state.ErrBranchMoved) {
			wait(ctx, try)
			continue
		}
		if err != nil {
			return err
		}
		w.mu.Lock()
		for path, c := range staged {
			if w.staged[path].seq == c.seq {
				delete(w.staged, path)
			}
		}
		w.index.drop(index)
		w.keepPushed(staged)
		w.mu.Unlock()
		return w.compact(ctx, hash)
	}
	return fmt.Errorf("push reports: %w", ErrMoved)
}

// commit pushes changes on top of what was looked at and remembers the new tip.
func (w *Writer) commit(ctx context.Context, v view, changes []state.FileChange, subject string) (string, error) {
	if len(changes) == 0 {
		return v.tip.Hash, w.remember(v.tip.Hash, v.tip.Root)
	}
	message := subject + "\n\n" + writerTrailer + w.mem.ID + "\n"
	if v.tip.Hash == "" {
		message = "Begin the status branch\n\n" + rootTrailer + "\n" + writerTrailer + w.mem.ID + "\n"
	}
	hash, err := w.git.Commit(ctx, v.tip.Hash, changes, message, time.Now())
	if err != nil {
		return "", err
	}
	root := v.tip.Root
	if v.tip.Hash == "" {
		root = hash
	}
	if hash != v.tip.Hash {
		w.mu.Lock()
		w.health.LastPush, w.health.Tip, w.health.Commits = time.Now(), hash, v.tip.Commits+1
		w.mu.Unlock()
	}
	return hash, w.remember(hash, root)
}

// changes are what restores the branch, what is staged, and what the index of reports makes of it, sorted by path.
func (w *Writer) changes(ctx context.Context, v view, staged map[string]change, index staging) ([]state.FileChange, error) {
	all := map[string]state.FileChange{}
	for _, c := range w.restore(ctx, v) {
		all[c.Path] = c
	}
	for path, c := range staged {
		all[path] = state.FileChange{Path: path, Data: c.data, Delete: c.remove}
	}
	if err := w.expire(ctx, v, index, all); err != nil {
		return nil, err
	}
	out := make([]state.FileChange, 0, len(all))
	for _, c := range all {
		out = append(out, c)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out, nil
}

// compact replaces a long history by one commit, where nobody has moved the branch. A server that forbids it is asked
// again only after as many commits more.
func (w *Writer) compact(ctx context.Context, tip string) error {
	w.mu.Lock()
	n, at := w.health.Commits, w.mem.CompactAt
	w.mu.Unlock()
	if n < max(w.o.CompactAt, at) || tip == "" {
		return nil
	}
	if _, err := w.git.FileHash(ctx, tip, InventoryPath); err != nil {
		return nil //nolint:nilerr // without an inventory the history is the proof that there was one
	}
	message := "Compact the status branch\n\n" + rootTrailer + "\n" + writerTrailer + w.mem.ID + "\n"
	hash, err := w.git.Compact(ctx, tip, nil, message, time.Now())
	switch {
	case errors.Is(err, state.ErrBranchMoved):
		return nil
	case err != nil:
		w.o.Log.Warn("compact status branch later", "commits", n, "error", err)
		w.mu.Lock()
		w.mem.CompactAt = n + w.o.CompactAt
		w.mu.Unlock()
		return nil
	}
	w.mu.Lock()
	w.health.Tip, w.health.Commits = hash, 1
	w.mem.CompactAt = 0
	w.mu.Unlock()
	return w.remember(hash, hash)
}

// wait lets the other writer go first, longer each time.
func wait(ctx context.Context, try int) {
	t := time.NewTimer(time.Duration(rand.Int64N(int64(25*time.Millisecond) << try)))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
