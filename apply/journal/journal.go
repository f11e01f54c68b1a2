package journal

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Defaults of Options.
const (
	// DefaultEvery is how often a holder looks at the branch.
	DefaultEvery = time.Minute
	// DefaultTakeover: a holder that left a claim unanswered for so long, by the taker's own clock, is taken for gone. It
	// is never less than looksToAnswer of the holder's own looks.
	DefaultTakeover = 30 * time.Second
	// AskAgain is how long a claim's answer counts at most; three times what a claim waits where that is less.
	AskAgain = 10 * time.Minute
)

// looksToAnswer is how many looks a holder has to answer a claim.
const looksToAnswer = 3

// pushTries bounds how often a write is tried again because reports moved the branch.
const pushTries = 5

// heldBefore bounds the IDs that a state folder remembers.
const heldBefore = 16

// Kinds of refusal.
var (
	// ErrNotHolder: this process does not hold the inventory, so it may not act.
	ErrNotHolder = errors.New("write the inventory: this Ichor is not its holder")
	// ErrFenced: another Ichor became the holder.
	ErrFenced = errors.New("write the inventory: another Ichor took over")
	// ErrHeld: another Ichor holds it and may be alive.
	ErrHeld = errors.New("take the inventory: another Ichor holds it")
	// ErrUnknown: the inventory is unknown; a person has to acknowledge first.
	ErrUnknown = errors.New("use the inventory: it is not known; acknowledge with ichor ack")
	// ErrRefused: newer format or foreign branch.
	ErrRefused = errors.New("use the inventory: refused")
	// ErrUnsettled: the branch changed under a write in a way that Load must judge first.
	ErrUnsettled = errors.New("write the inventory: the status branch changed; load it again")
	// ErrKnown: there is nothing to acknowledge.
	ErrKnown = errors.New("acknowledge a lost inventory: it is known")
	// ErrIntentOpen: the same act on the same machine is announced and its outcome not settled.
	ErrIntentOpen = errors.New("announce the act: the same one is under way")
)

// Options of a Journal.
type Options struct {
	Store Store
	// Dir is the state folder.
	Dir string
	// Keys for the MAC: the first seals, any opens.
	Keys [][]byte
	// Instance is the configured name, for people.
	Instance string
	// RepositoryID of the forge, "" where there is none.
	RepositoryID string
	// TakeOver takes the inventory from whoever holds it: the configuration says that this is the one Ichor.
	TakeOver bool
	// Every is how often the caller loads and answers; Takeover bounds the wait for an answer from below. 0 is the default.
	Every, Takeover time.Duration
}

// Status is what is to be said of the inventory.
type Status struct {
	State State
	// Mine: this process is the holder and may act.
	Mine   bool
	Holder state.Holder
	// Finding is state.ReasonStatusBranchLost or …Tampered while the branch is not as it was left, else "".
	Finding string
	// Fenced: this process was the holder and another took over.
	Fenced  bool
	Message string
	// CopyError: the copy in the state folder could not be written. The branch holds everything all the same.
	CopyError error
}

// snapshot is what readers see: as of the last load or write that ended, or that found out who the holder is.
type snapshot struct {
	// inv is never changed once it is here: a write replaces it.
	inv    *state.Inventory
	status Status
	proved time.Time
}

// Journal is the inventory with the right to write it. It is safe for concurrent use; writes go one after another.
// Readers never wait for them: a Git server that is silent must not stop the loops that watch nodes.
type Journal struct {
	opt Options
	dir *dir
	id  string
	now atomic.Pointer[snapshot]

	// mu is held through whole loads and writes, network calls included. The fields below are its.
	mu     sync.Mutex
	inv    *state.Inventory
	rev    string
	status Status
	// restore: inv must be written though nothing in it changed.
	restore bool
	// there is what the branch held at rev; unpushed is set while inv holds notes that only the state folder has.
	there    base
	unpushed *base
	// seen is the inventory on the branch, unchanged since. asked is when this process last put a claim on it.
	seen         string
	since, asked time.Time
	// proved is when the branch last showed this process as the holder.
	proved time.Time
	// epoch and generation are the highest that were ever verified.
	epoch, generation int64
}

// Open takes the lock of the state folder. Errors: ErrLocked, ErrNoKeys.
func Open(opt Options) (*Journal, error) {
	if len(opt.Keys) == 0 {
		return nil, ErrNoKeys
	}
	if opt.Every == 0 {
		opt.Every = DefaultEvery
	}
	if opt.Takeover == 0 {
		opt.Takeover = DefaultTakeover
	}
	d, err := openDir(opt.Dir)
	if err != nil {
		return nil, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		d.close()
		return nil, fmt.Errorf("make a holder ID: %w", err)
	}
	j := &Journal{opt: opt, dir: d, id: hex.EncodeToString(id[:]), status: Status{State: NotLoaded}}
	j.show()
	return j, nil
}

// show gives readers what the fields hold.
func (j *Journal) show() { j.now.Store(&snapshot{inv: j.inv, status: j.status, proved: j.proved}) }

// lock is for loads and writes; the function that it gives ends them.
func (j *Journal) lock() (unlock func()) {
	j.mu.Lock()
	return func() {
		j.show()
		j.mu.Unlock()
	}
}

// Close frees the state folder. It pushes nothing: see Release.
func (j *Journal) Close() { j.dir.close() }

// ID of this process as a holder.
func (j *Journal) ID() string { return j.id }

// Status as of the last Load or write.
func (j *Journal) Status() Status { return j.now.Load().status }

// Inventory gives a copy, nil where it is not known.
func (j *Journal) Inventory() *state.Inventory { return clone(j.now.Load().inv) }

// Cluster gives a copy of one cluster's part; nil where the inventory is not known, empty where it knows nothing of
// the cluster.
func (j *Journal) Cluster(name string) *state.ClusterInventory {
	inv := j.now.Load().inv
	if inv == nil {
		return nil
	}
	// A copy of this part alone: every pass of every cluster asks for it.
	if c := inv.Clusters[name]; c != nil {
		return clone(&state.Inventory{Clusters: map[string]*state.ClusterInventory{name: c}}).Clusters[name]
	}
	return &state.ClusterInventory{}
}

// Load reads branch and copy and judges them. A holder that finds the branch damaged writes it again at once. An error
// means that the branch could not be read; the status stays what it was.
func (j *Journal) Load(ctx context.Context, now time.Time) (Status, error) {
	defer j.lock()()
	if err := j.load(ctx, now); err != nil {
		return j.status, err
	}
	if j.status.Mine && j.restore {
		if err := j.push(ctx, now, clone(j.inv)); err != nil {
			return j.status, err
		}
	}
	return j.status, nil
}

func (j *Journal) load(ctx context.Context, now time.Time) error {
	branch, rev, err := j.readBranch(ctx)
	if err != nil {
		return fmt.Errorf("read the inventory of the status branch: %w", err)
	}
	local, unpushed, err := j.readLocal()
	if err != nil {
		return err
	}
	wasMine := j.status.Mine
	v := judge(branch, local, unpushed)
	j.rev, j.inv, j.restore, j.there, j.unpushed = rev, v.inv, v.restore, baseOf(branch.inv), nil
	if v.restore && v.finding == "" {
		j.unpushed = unpushed
	}
	j.status = Status{State: v.state, Finding: v.finding, Message: v.message, CopyError: j.status.CopyError, Fenced: j.status.Fenced}
	if v.inv == nil {
		return nil
	}
	j.remember(v.inv)
	j.status.Holder = v.inv.Holder
	j.status.Mine = v.inv.Holder.ID == j.id
	if wasMine && !j.status.Mine {
		j.fenced(v.inv.Holder)
	}
	if branch.inv != nil && branch.inv.Holder.ID == j.id {
		j.proved = now
	}
	if v.inv.MAC != j.seen {
		j.seen, j.since = v.inv.MAC, now
	}
	if !v.restore && branch.inv != nil && (local.inv == nil || local.inv.MAC != branch.inv.MAC) {
		j.writeCopy(branch.inv)
	}
	return nil
}

func (j *Journal) fenced(by state.Holder) {
	j.status.Mine, j.status.Fenced, j.status.Holder = false, true, by
	j.status.Message = "another Ichor took over: " + describe(by)
	j.show() // at once: what still goes on under the lock may take its time
}

func describe(h state.Holder) string {
	name := h.Instance
	if name == "" {
		name = h.ID
	}
	return fmt.Sprintf("%s (epoch %d, since %s)", name, h.Epoch, h.Since.UTC().Format(time.RFC3339))
}

func (j *Journal) remember(inv *state.Inventory) {
	j.epoch, j.generation = max(j.epoch, inv.Holder.Epoch), max(j.generation, inv.Generation)
}

// readBranch gives the branch's view; an error where it could not be read at all.
func (j *Journal) readBranch(ctx context.Context) (view, string, error) {
	data, rev, err := j.opt.Store.Read(ctx)
	switch {
	case errors.Is(err, ErrAbsent), errors.Is(err, ErrNoFile), errors.Is(err, ErrForeign):
		return view{err: err}, rev, nil
	case err != nil:
		return view{}, "", err
	}
	inv, err := open(data, j.opt.Keys, j.opt.RepositoryID)
	return view{inv: inv, err: err}, rev, nil
}

// readLocal gives the copy: of memory while this process holds the inventory, else of the state folder.
func (j *Journal) readLocal() (view, *base, error) {
	if j.status.Mine {
		return view{inv: j.inv}, j.unpushed, nil
	}
	data, err := j.dir.read(copyFile)
	if err != nil || data == nil {
		return view{}, nil, err
	}
	inv, err := open(data, j.opt.Keys, j.opt.RepositoryID)
	if err != nil {
		return view{err: err}, nil, nil
	}
	raw, err := j.dir.read(baseFile)
	if err != nil {
		return view{}, nil, err
	}
	var b base
	if raw == nil || json.Unmarshal(raw, &b) != nil || b.Generation >= inv.Generation {
		return view{inv: inv}, nil, nil
	}
	return view{inv: inv}, &b, nil
}

func baseOf(inv *state.Inventory) base {
	if inv == nil {
		return base{}
	}
	return base{MAC: inv.MAC, Epoch: inv.Holder.Epoch, Generation: inv.Generation}
}

// writeCopy keeps an error for the status: the branch is the truth, the copy a spare. A base that stays behind is of an
// older generation than the copy's own and is told by it: see readLocal and writeNote.
func (j *Journal) writeCopy(inv *state.Inventory) {
	data, err := seal(inv, j.opt.Keys)
	if err == nil {
		err = errors.Join(j.dir.remove(baseFile), j.dir.write(copyFile, data))
	}
	j.status.CopyError = err
}

// keep writes notes into the state folder alone: first what they were made on, then the copy, so that a copy with
// unpushed notes never looks like a pushed one.
func (j *Journal) keep(next *state.Inventory) error {
	if j.unpushed == nil {
		b := j.there
		j.unpushed = &b
	}
	next.Version, next.Generation = state.InventoryVersion, j.generation+1
	mac, err := macOf(next, j.opt.Keys[0])
	if err != nil {
		return err
	}
	next.MAC = mac
	raw, err := json.Marshal(j.unpushed)
	if err != nil {
		return fmt.Errorf("encode the base of the notes: %w", err)
	}
	data, err := seal(next, j.opt.Keys)
	if err != nil {
		return err
	}
	if err := errors.Join(j.dir.write(baseFile, raw), j.dir.write(copyFile, data)); err != nil {
		return err
	}
	j.inv, j.restore = next, true
	j.remember(next)
	return nil
}

// Update changes the inventory by a push. It does nothing where edit changes nothing. Errors: ErrNotHolder, ErrFenced,
// ErrUnsettled, what edit returns, what the Store returns; in all cases the inventory in memory is what was pushed
// last.
func (j *Journal) Update(ctx context.Context, now time.Time, edit func(*state.Inventory) error) error {
	defer j.lock()()
	return j.update(ctx, now, edit)
}

func (j *Journal) update(ctx context.Context, now time.Time, edit func(*state.Inventory) error) error {
	if !j.status.Mine || j.inv == nil {
		return ErrNotHolder
	}
	next := clone(j.inv)
	if err := edit(next); err != nil {
		return err
	}
	if same(next, j.inv) && !j.restore {
		return nil
	}
	return j.push(ctx, now, next)
}

// Note is Update for what may be lost: where the branch can't be reached now it stays in the state folder and goes out
// with the next push. It is no fence: what is destructive takes Intend or Update.
func (j *Journal) Note(ctx context.Context, now time.Time, edit func(*state.Inventory) error) error {
	began := time.Now()
	defer j.lock()()
	err := j.update(ctx, now, edit)
	switch {
	case err == nil, errors.Is(err, ErrNotHolder), errors.Is(err, ErrFenced), errors.Is(err, ErrUnsettled), errors.Is(err, ErrForeign):
		return err
	}
	// The wait for the lock and the push that failed may have taken as long as a takeover.
	if herr := j.holding(&snapshot{status: j.status, proved: j.proved}, now.Add(time.Since(began))); herr != nil {
		return errors.Join(err, herr)
	}
	next := clone(j.inv)
	if eerr := edit(next); eerr != nil {
		return eerr
	}
	return j.keep(next)
}

func same(a, b *state.Inventory) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// push writes next as the generation after the newest. It is called with the lock held.
func (j *Journal) push(ctx context.Context, now time.Time, next *state.Inventory) error {
	next.Version = state.InventoryVersion
	for range pushTries {
		// Sealed anew in each try: what moved the branch may have been a claim, which has a generation of its own.
		next.Generation = j.generation + 1
		mac, err := macOf(next, j.opt.Keys[0])
		if err != nil {
			return err
		}
		next.MAC = mac
		data, err := seal(next, j.opt.Keys)
		if err != nil {
			return err
		}
		rev, err := j.opt.Store.Write(ctx, data, j.rev)
		if err == nil {
			j.pushedAs(now, next, rev)
			return nil
		}
		again, err := j.settle(ctx, now, next, data, err)
		if err != nil || !again {
			return err
		}
	}
	return fmt.Errorf("write the inventory: %w, %d times in a row", ErrMoved, pushTries)
}

func (j *Journal) pushedAs(now time.Time, next *state.Inventory, rev string) {
	j.inv, j.rev, j.restore, j.there, j.unpushed = next, rev, false, baseOf(next), nil
	j.remember(next)
	j.proved = now
	j.status = Status{State: Known, Mine: next.Holder.ID == j.id, Holder: next.Holder}
	j.writeCopy(next)
}

// settle finds out what became of a write that failed: it arrived and its answer was lost; reports moved the branch
// (try again); another holder wrote; or the branch must be judged anew.
func (j *Journal) settle(ctx context.Context, now time.Time, next *state.Inventory, data []byte, cause error) (again bool, err error) {
	got, rev, rerr := j.opt.Store.Read(ctx)
	if rerr == nil && bytes.Equal(got, data) {
		j.pushedAs(now, next, rev)
		return false, nil
	}
	if !errors.Is(cause, ErrMoved) {
		return false, fmt.Errorf("write the inventory: %w", cause)
	}
	if (errors.Is(rerr, ErrAbsent) || errors.Is(rerr, ErrNoFile)) && j.there.MAC == "" {
		// There was no good inventory and still is none: reports made the branch, or someone cleared it.
		j.rev = rev
		return true, nil
	}
	if rerr != nil {
		return false, fmt.Errorf("%w (%w)", ErrUnsettled, rerr)
	}
	there, oerr := open(got, j.opt.Keys, j.opt.RepositoryID)
	switch {
	case oerr == nil && there.MAC == j.there.MAC, oerr == nil && j.status.Mine && there.Holder.ID == j.id:
		// Reports moved the branch, or it shows an earlier write of this process, or somebody's claim.
		j.rev, j.there = rev, baseOf(there)
		j.remember(there)
		return true, nil
	case oerr == nil && there.Holder.ID != j.id && there.Holder.Epoch >= next.Holder.Epoch:
		if j.status.Mine {
			j.fenced(there.Holder)
		}
		return false, ErrFenced
	}
	return false, ErrUnsettled
}

// Holding tells whether this process may write to nodes what is not destructive: it holds the inventory, and the branch
// showed so recently enough that nobody can have taken over since.
func (j *Journal) Holding(now time.Time) error {
	return j.holding(j.now.Load(), now)
}

func (j *Journal) holding(s *snapshot, now time.Time) error {
	if !s.status.Mine {
		return ErrNotHolder
	}
	if now.Sub(s.proved) >= patience(j.opt.Takeover, j.opt.Every)/2 {
		// Without a duration: the text goes into commit statuses, which are posted anew where it changes.
		return fmt.Errorf("%w: the status branch was not seen lately", ErrNotHolder)
	}
	return nil
}

// Answer takes another's claim off the branch, which says that this holder lives. The caller loads and answers every
// Options.Every.
func (j *Journal) Answer(ctx context.Context, now time.Time) error {
	defer j.lock()()
	if !j.status.Mine || j.inv == nil || j.inv.Claim == nil {
		return nil
	}
	return j.update(ctx, now, func(inv *state.Inventory) error {
		inv.Claim = nil
		return nil
	})
}

// heldByFolder lists the IDs under which processes of this state folder held the inventory.
func (j *Journal) heldByFolder() ([]string, error) {
	ids, err := j.dir.holder()
	return strings.Fields(ids), err
}
