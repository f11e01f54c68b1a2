package loop

import (
	"context"
	"errors"
	"fmt"

	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/git"
)

// refusal is a head that can't be had, and why.
type refusal struct {
	head string
	err  error
}

// Bounds of one look: a branch that moves must not keep the next push waiting while hundreds of pull requests are checked
// again, nor cost hundreds of requests.
const (
	againPerLook = 5
	asksPerLook  = 10
	// mergeLooks is how many looks a check that is done again waits for the forge's merge commit.
	mergeLooks = 3
)

// pulled gives the checks of open pull requests: those never checked first, then those whose base moved, each newest first
// as the forge lists them.
func (l *Loop) pulled(ctx context.Context, w *Work, list []forge.PullRequest, checked map[string]bool) []CheckJob {
	var fresh, again []CheckJob
	asks := asksPerLook
	for _, p := range list {
		j := CheckJob{
			Commit: p.Head, Base: w.Head, Tree: p.Head, Against: w.Head, Kind: KindPull, PR: p.Number,
			Ref: fmt.Sprintf("refs/pull/%d/head", p.Number),
		}
		err := l.have(ctx, p)
		switch git.ClassOf(err) {
		case git.ClassNone:
			if err := l.merged(ctx, &j, &asks); err != nil {
				w.GitErr = errors.Join(w.GitErr, err)
				continue
			}
			if j.Against == j.Commit {
				continue // it has landed: see Loop.landed
			}
		case git.ClassLimits, git.ClassMalformed, git.ClassUnsupported, git.ClassUnknownRevision:
			j.Err = err
		case git.ClassRaced, git.ClassGone:
			continue // the list is older than the repository, or newer: the next look has both
		default:
			w.GitErr = errors.Join(w.GitErr, err)
			continue
		}
		switch {
		case !checked[p.Head]:
			fresh = append(fresh, j)
		case j.Note == "" || l.patient(p.Number):
			again = append(again, j)
		}
	}
	l.tidyPulls(list)
	return append(fresh, l.some(again, w)...)
}

// have makes the head of a pull request readable, within the limits for strangers. One that is over them is not fetched
// again until its head changes.
func (l *Loop) have(ctx context.Context, p forge.PullRequest) error {
	if r, ok := l.refused[p.Number]; ok && r.head == p.Head {
		return r.err
	}
	err := l.weigh(ctx, p)
	if err == nil {
		err = l.src.FetchPull(ctx, p.Number, p.Head)
	}
	switch git.ClassOf(err) {
	case git.ClassLimits, git.ClassMalformed:
		l.refused[p.Number] = refusal{p.Head, err}
	}
	return err
}

// weigh asks the forge how large the files are before anything is fetched. A forge that can't tell is no reason to refuse:
// the fetch has limits of its own.
func (l *Loop) weigh(ctx context.Context, p forge.PullRequest) error {
	sizer, ok := l.pulls.(forge.Sizer)
	if !ok || l.src.Has(p.Head) {
		return nil
	}
	list, complete, err := sizer.Objects(ctx, p.Head)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	objects := make([]git.Object, len(list))
	for i, o := range list {
		objects[i] = git.Object(o)
	}
	return l.src.PullFits(p.Number, objects, complete)
}

// merged finds what to look at, and asks the forge once for a merge commit that it has not made.
func (l *Loop) merged(ctx context.Context, j *CheckJob, asks *int) error {
	m, err := l.src.MergePull(ctx, j.PR, j.Base, j.Commit)
	if err != nil {
		return err
	}
	j.Tree, j.Against, j.Note = m.Commit, m.Against, m.Why
	if m.Why == "" {
		delete(l.waited, j.PR)
		return nil
	}
	merger, ok := l.pulls.(forge.Merger)
	if of := [2]string{j.Base, j.Commit}; ok && l.asked[j.PR] != of && *asks > 0 {
		*asks--
		l.asked[j.PR], l.waited[j.PR] = of, mergeLooks
		if err := merger.AskMerge(ctx, j.PR); err != nil {
			delete(l.waited, j.PR) // it can't be merged, or not be asked: nothing to wait for
		}
	}
	return nil
}

// patient tells whether a check that was done against an older base is to be done again without a merge commit: when it was
// waited for.
func (l *Loop) patient(number int) bool {
	if l.waited[number] > 0 {
		l.waited[number]--
		return false
	}
	return true
}

// some holds back all but a few of the checks that are done again.
func (l *Loop) some(again []CheckJob, w *Work) []CheckJob {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []CheckJob
	due := 0
	for _, j := range again {
		if l.done[j.key()] == 0 && !l.flying[j.key()] {
			if due++; due > againPerLook {
				w.More = true
				continue
			}
		}
		out = append(out, j)
	}
	return out
}

// tidyPulls forgets what is known of pull requests that are not open.
func (l *Loop) tidyPulls(list []forge.PullRequest) {
	open := map[int]bool{}
	for _, p := range list {
		open[p.Number] = true
	}
	for n := range l.refused {
		if !open[n] {
			delete(l.refused, n)
		}
	}
	for n := range l.asked {
		if !open[n] {
			delete(l.asked, n)
			delete(l.waited, n)
		}
	}
}
