// Package loop decides what is to be looked at: which commits need a check and which head is to be applied. It is
// level-triggered: each look compares what is there with what was done, so a lost delivery or a missed look costs time
// and nothing else.
package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/git"
)

// Source is what the loop asks of Git; sync/git.Mirror satisfies it.
type Source interface {
	// FetchBranch brings a branch up to date; on an error what was seen before stays.
	FetchBranch(ctx context.Context, branch string) (git.Move, error)
	// FetchPull makes the head of a pull request readable, if it still is sha.
	FetchPull(ctx context.Context, number int, sha string) error
	// MergePull says what to look at for a pull request whose head and base were fetched.
	MergePull(ctx context.Context, number int, base, head string) (git.Merge, error)
	// PullFits weighs a pull request by the forge's list of its files; Has tells whether a commit is here already.
	PullFits(number int, list []git.Object, complete bool) error
	Has(commit string) bool
	// KeepPulls and KeepBranches forget all others.
	KeepPulls(open []int) error
	KeepBranches(names []string) error
	// Parent is the first parent, "" for a root.
	Parent(commit string) (string, error)
	// IsAncestor tells whether old is now or among its ancestors.
	IsAncestor(old, now string) (bool, error)
}

// Pulls is what the loop asks of the forge.
type Pulls interface {
	PullRequests(ctx context.Context, base string) ([]forge.PullRequest, error)
}

// Kind of a check.
type Kind string

// Kinds.
const (
	// KindHead is the tip of the watched branch.
	KindHead Kind = "head"
	// KindHistory is an older first-parent commit of a push to it.
	KindHistory Kind = "history"
	// KindPull is the head of an open pull request.
	KindPull Kind = "pull"
	// KindQueue is a commit of the forge's merge queue.
	KindQueue Kind = "queue"
)

// CheckJob is one commit to check against a base ("" is none: a root commit).
type CheckJob struct {
	Commit, Base string
	Kind         Kind
	// PR is the pull request's number for KindPull.
	PR int
	// Ref on the server.
	Ref string
	// Tree is the commit whose files are checked: Commit, or the forge's commit that merges a pull request into Base. Against
	// is the commit that they are compared with: Base, or, where the merge is not known, where a pull request branched off.
	Tree, Against string
	// Note says why the result of the merge is not known, "" it is.
	Note string
	// Err is why the commit can't be had (too large, say): its check is an error, and nothing else suffers.
	Err error
}

func (j CheckJob) key() jobKey {
	return jobKey{j.Commit, j.Base, j.Tree, j.Against, j.Kind == KindHead || j.Kind == KindHistory}
}

// jobKey tells jobs apart. On the branch every problem counts, elsewhere only what base doesn't have, so the same
// commit and base can have two answers.
type jobKey struct {
	commit, base, tree, against string
	onBranch                    bool
}

// Work is what one look found.
type Work struct {
	// Head of the watched branch, the last one known when GitErr is set or the branch is gone; "" before the first.
	Head string
	// Move of the watched branch in this look. Old and Kind of a rewrite are for the rollout's hold.
	Move git.Move
	// Checks that are due, most urgent first: the head, the merge queue, the push's older commits newest first, pull
	// requests never checked, pull requests whose base moved. A job is handed out once, until Done or Retry.
	Checks []CheckJob
	// More: pull requests whose base moved were left for the next look, which need not wait.
	More bool
	// Open pull requests against the branch, as last listed; Closed are those that were open at the look before.
	Open   []forge.PullRequest
	Closed []int
	// GitErr and ForgeErr are what failed; the rest of the work is valid.
	GitErr, ForgeErr error
}

// Options of New.
type Options struct {
	// Branch that is watched.
	Branch string
	// History is how many first-parent commits a push or a downtime brings at most, beside the head. Default 10.
	History int
	// StateFile remembers up to where the branch was checked; "" remembers nothing.
	StateFile string
	// QueuePrefix of merge-queue branches, default "gh-readonly-queue/<branch>/".
	QueuePrefix string
}

// Loop is the state between looks. Look is called by one goroutine; Done and Retry by any.
type Loop struct {
	o     Options
	src   Source
	pulls Pulls

	mu sync.Mutex
	// head last seen, and since: the commit up to which everything on the branch was checked, "" when unknown.
	head, since string
	// flying was handed out and is not finished; done is finished, with the look that last wanted it.
	flying map[jobKey]bool
	done   map[jobKey]int
	looks  int
	open   []forge.PullRequest
	// refused are heads that can't be had, by pull request: they are not fetched again and again. Of Look alone, as the two
	// that follow: for which base and head the forge was asked to merge, and for how many looks it is waited for.
	refused map[int]refusal
	asked   map[int][2]string
	waited  map[int]int
	// queued is how many merge-queue branches the last look saw. Of Look alone.
	queued int
	// unsaved: since couldn't be written.
	unsaved bool
}

// New makes a loop and reads its state file. A state file that can't be read is an error; a missing one is not.
func New(o Options, src Source, pulls Pulls) (*Loop, error) {
	if o.Branch == "" {
		return nil, errors.New("set up loop: no branch is named")
	}
	if o.History <= 0 {
		o.History = 10
	}
	if o.QueuePrefix == "" {
		o.QueuePrefix = "gh-readonly-queue/" + o.Branch + "/"
	}
	l := &Loop{o: o, src: src, pulls: pulls, flying: map[jobKey]bool{}, done: map[jobKey]int{}, refused: map[int]refusal{}, asked: map[int][2]string{}, waited: map[int]int{}}
	if o.StateFile != "" {
		b, err := os.ReadFile(o.StateFile)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read loop state: %w", err)
		}
		l.since = strings.TrimSpace(string(b))
	}
	return l, nil
}

// Look looks once at branch and pull requests and says what is due. It fetches; it waits for no check.
func (l *Loop) Look(ctx context.Context) Work {
	var w Work
	w.Move, w.GitErr = l.src.FetchBranch(ctx, l.o.Branch)
	l.mu.Lock()
	moved := w.GitErr == nil && w.Move.New != "" && w.Move.New != l.head
	if moved {
		l.head = w.Move.New
	}
	w.Head = l.head
	l.mu.Unlock()

	wanted := map[jobKey]bool{}
	var due []CheckJob
	add := func(jobs ...CheckJob) {
		for _, j := range jobs {
			if !wanted[j.key()] {
				wanted[j.key()] = true
				due = append(due, j)
			}
		}
	}
	if w.Head != "" {
		branch, err := l.branchJobs(w.Head)
		w.GitErr = errors.Join(w.GitErr, err)
		queue, err := l.queueJobs(ctx, w, l.landed(w.Head))
		w.GitErr = errors.Join(w.GitErr, err)
		if len(branch) > 0 {
			add(branch[0])
			l.forget(branch[0], moved)
		}
		add(queue...)
		if len(branch) > 1 {
			add(branch[1:]...)
		}
	}
	if git.ClassOf(w.GitErr) == git.ClassReplaced {
		w.ForgeErr = w.GitErr // another repository's pull requests are none of ours
	} else {
		add(l.pullJobs(ctx, &w)...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w.Checks = l.handOut(due, wanted)
	l.settle()
	return w
}

// branchJobs gives the head and the commits of the push below it, newest first.
func (l *Loop) branchJobs(head string) ([]CheckJob, error) {
	l.mu.Lock()
	since := l.since
	l.mu.Unlock()
	keys, err := l.walk(head, since)
	var out []CheckJob
	for i, k := range keys {
		kind := KindHistory
		if i == 0 {
			kind = KindHead
		}
		out = append(out, CheckJob{Commit: k.commit, Base: k.base, Tree: k.tree, Against: k.against, Kind: kind, Ref: "refs/heads/" + l.o.Branch})
	}
	return out, err
}

// walk goes down the first parents from head to what was on the branch when everything up to since had been checked.
// At first sight (since "") only the head counts: the commits below were made without Ichor.
func (l *Loop) walk(head, since string) ([]jobKey, error) {
	var out []jobKey
	for at := head; at != "" && len(out) <= l.o.History; {
		parent, err := l.src.Parent(at)
		if err != nil {
			return out, err
		}
		out = append(out, jobKey{commit: at, base: parent, tree: at, against: parent, onBranch: true})
		if since == "" || at == since || parent == "" {
			break
		}
		if known, err := l.known(parent, since); err != nil || known {
			return out, err
		}
		at = parent
	}
	return out, nil
}

// landed are the newest first-parent commits of the branch. What else asks for their check, a pull request or a place in the
// merge queue that the forge has not closed yet, gets none: compared with the branch they change nothing and would pass,
// whatever the branch's own check said.
func (l *Loop) landed(head string) map[string]bool {
	out := map[string]bool{}
	for at := head; at != "" && len(out) <= l.o.History; {
		out[at] = true
		parent, err := l.src.Parent(at)
		if err != nil {
			break // branchJobs says it
		}
		at = parent
	}
	return out
}

// known tells whether a commit was on the branch when everything up to since had been checked.
func (l *Loop) known(commit, since string) (bool, error) {
	if commit == since {
		return true, nil
	}
	ok, err := l.src.IsAncestor(commit, since)
	if git.ClassOf(err) == git.ClassUnknownRevision {
		return false, nil // since was rewritten away and the store made anew: the limit ends the walk
	}
	return ok, err
}

// queueJobs gives the commits that the forge's merge queue wants to know about. Their base is the head: the report
// shows all that would land.
func (l *Loop) queueJobs(ctx context.Context, w Work, landed map[string]bool) ([]CheckJob, error) {
	var names []string
	for name := range w.Move.Heads {
		if strings.HasPrefix(name, l.o.QueuePrefix) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var out []CheckJob
	var errs []error
	if w.GitErr == nil && len(names) < l.queued {
		errs = append(errs, l.src.KeepBranches(append([]string{l.o.Branch}, names...)))
	}
	if w.GitErr == nil {
		l.queued = len(names)
	}
	for _, name := range names {
		mv, err := l.src.FetchBranch(ctx, name)
		if err != nil || mv.New == "" {
			errs = append(errs, err)
			continue
		}
		if landed[mv.New] {
			continue
		}
		out = append(out, CheckJob{Commit: mv.New, Base: w.Head, Tree: mv.New, Against: w.Head, Kind: KindQueue, Ref: "refs/heads/" + name})
	}
	return out, errors.Join(errs...)
}

// pullJobs lists the open pull requests, fetches their heads and gives those never checked before those whose base
// moved. When the forge can't be asked, the list of before holds.
func (l *Loop) pullJobs(ctx context.Context, w *Work) []CheckJob {
	list, err := l.pulls.PullRequests(ctx, l.o.Branch)
	l.mu.Lock()
	if err != nil {
		w.ForgeErr, list = err, l.open
	} else {
		w.Closed = gone(l.open, list)
		l.open = list
	}
	w.Open = list
	checked := map[string]bool{}
	for k := range l.done {
		checked[k.commit] = true
	}
	l.mu.Unlock()
	if w.Head == "" {
		return nil // nothing to compare with yet
	}
	if len(w.Closed) > 0 {
		w.GitErr = errors.Join(w.GitErr, l.src.KeepPulls(numbers(list)))
	}
	return l.pulled(ctx, w, list, checked)
}

func gone(before, now []forge.PullRequest) []int {
	is := map[int]bool{}
	for _, p := range now {
		is[p.Number] = true
	}
	var out []int
	for _, p := range before {
		if !is[p.Number] {
			out = append(out, p.Number)
		}
	}
	sort.Ints(out)
	return out
}

func numbers(list []forge.PullRequest) []int {
	var out []int
	for _, p := range list {
		out = append(out, p.Number)
	}
	return out
}

// keepLooks is for how many looks an answer is remembered that nobody wants: a list that lags behind, or a server that
// fails for a while, must not make everything be checked again.
const keepLooks = 20

// forget makes the head due when the branch has moved to it, though it was checked before (a rewind): its verdict is
// about to be acted on.
func (l *Loop) forget(j CheckJob, moved bool) {
	if !moved {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.done, j.key())
}

// handOut gives the jobs that are neither done nor under way, and forgets what nobody wants any more.
func (l *Loop) handOut(due []CheckJob, wanted map[jobKey]bool) []CheckJob {
	l.looks++
	for k, last := range l.done {
		if wanted[k] {
			l.done[k] = l.looks
		} else if l.looks-last > keepLooks {
			delete(l.done, k)
		}
	}
	var out []CheckJob
	for _, j := range due {
		if k := j.key(); l.done[k] == 0 && !l.flying[k] {
			l.flying[k] = true
			out = append(out, j)
		}
	}
	return out
}

// settle moves since to the head when nothing of the branch is open, and saves it.
func (l *Loop) settle() {
	if l.head == "" || (l.since == l.head && !l.unsaved) || !l.branchDone() {
		return
	}
	l.since = l.head
	l.unsaved = l.o.StateFile != "" && writeFile(l.o.StateFile, []byte(l.since+"\n")) != nil
}

// branchDone: every commit of the branch that is due has its answer.
func (l *Loop) branchDone() bool {
	keys, err := l.walk(l.head, l.since)
	for _, k := range keys {
		if l.done[k] == 0 {
			return false
		}
	}
	return err == nil && len(keys) > 0
}

// Done says that a job has its final answer.
func (l *Loop) Done(j CheckJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.flying, j.key())
	l.done[j.key()] = max(l.looks, 1)
	if j.Kind == KindHead || j.Kind == KindHistory {
		l.settle()
	}
}

// Retry says that a job ended without an answer (cancelled, or the store was not readable): the next look hands it out
// again if it is still wanted.
func (l *Loop) Retry(j CheckJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.flying, j.key())
}

// writeFile writes by temp, fsync and rename.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
