// Package none is for plain Git servers: no pull requests, no statuses. Reports on the status branch say it all.
package none

import (
	"context"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
)

// Forge does nothing.
type Forge struct{}

var _ forge.Forge = Forge{}

// Name is "none".
func (Forge) Name() string { return "none" }

// FileURL is "": there are no pages.
func (Forge) FileURL(_, _ string) string { return "" }

// PullRefs are the usual ones.
func (Forge) PullRefs() (head, merge string) { return "refs/pull/%d/head", "" }

// Repository is unknown: no ID to compare.
func (Forge) Repository(context.Context) (forge.Repository, error) { return forge.Repository{}, nil }

// PullRequests are none.
func (Forge) PullRequests(context.Context, string) ([]forge.PullRequest, error) { return nil, nil }

// PostStatus has nowhere to post to and succeeds.
func (Forge) PostStatus(context.Context, string, state.CommitStatus) error { return nil }

// Statuses are none.
func (Forge) Statuses(context.Context, string) ([]state.CommitStatus, error) { return nil, nil }
