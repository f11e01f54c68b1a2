package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

// pull does what was asked about a pull request.
func (s *Session) pull(ctx context.Context, in PullRequest) (PullResult, error) {
	var res PullResult
	var err error
	switch in.Act {
	case "open":
		res.Commit, err = s.pushBranch(ctx, in)
		if err == nil {
			in.Number, err = s.forge.OpenPull(forge.OpenOptions{Branch: in.Branch, Base: in.Base, Title: cmp.Or(in.Title, in.Branch), Draft: in.Draft, Author: in.Author})
		}
	case "push":
		if in.Branch, in.Base, err = s.openBranch(in.Number); err == nil {
			res.Commit, err = s.pushBranch(ctx, in)
		}
	case "merge":
		res.Commit, err = s.forge.Merge(ctx, in.Number, forge.MergeOptions{Squash: in.Squash, By: in.Author})
	case "close":
		err = s.forge.ClosePR(in.Number)
	default:
		err = fmt.Errorf("%q is not known", in.Act)
	}
	if err != nil {
		if in.Number > 0 {
			return res, fmt.Errorf("%s pull request %d: %w", in.Act, in.Number, err)
		}
		return res, fmt.Errorf("%s pull request of branch %s: %w", in.Act, in.Branch, err)
	}
	for _, p := range s.forge.Pulls() {
		if p.Number == in.Number {
			res.Pull = p
		}
	}
	return res, nil
}

// openBranch gives head and base of an open pull request.
func (s *Session) openBranch(n int) (head, base string, err error) {
	for _, p := range s.forge.Pulls() {
		switch {
		case p.Number != n:
		case p.State != "open":
			return "", "", fmt.Errorf("it is %s", p.State)
		default:
			return p.Head, p.Base, nil
		}
	}
	return "", "", fmt.Errorf("there is none; ichor-lab pr list has the numbers")
}

// pushBranch commits a folder on the head branch, beginning a new branch at the base.
func (s *Session) pushBranch(ctx context.Context, in PullRequest) (string, error) {
	owner, branch, fork := strings.Cut(in.Branch, ":")
	if !fork {
		owner, branch = "", in.Branch
	} else if !s.forge.HasFork(owner) {
		if err := s.forge.Fork(owner); err != nil {
			return "", err
		}
	}
	if in.Dir == "" {
		return "", nil
	}
	return s.forge.Push(ctx, forge.PushOptions{
		Dir: in.Dir, Branch: branch, From: in.Base, Owner: owner, Message: cmp.Or(in.Message, in.Title, "Update"),
		Author: in.Author, Force: in.Force,
	})
}
