package gitlab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/rest"
)

// GitLab's states of a commit status. An error of Ichor's own is a canceled one: as failed it would blame the commit.
var toGitLab = map[state.CommitState]string{
	state.StatePending: "pending", state.StateSuccess: "success", state.StateFailure: "failed", state.StateError: "canceled",
}

var fromGitLab = map[string]state.CommitState{
	"created": state.StatePending, "waiting_for_resource": state.StatePending, "preparing": state.StatePending,
	"waiting_for_callback": state.StatePending, "pending": state.StatePending, "running": state.StatePending,
	"scheduled": state.StatePending, "manual": state.StatePending,
	"success": state.StateSuccess, "failed": state.StateFailure, "canceling": state.StateError, "canceled": state.StateError,
	"skipped": state.StateError,
}

type status struct {
	ID          int64  `json:"id,omitempty"`
	State       string `json:"state,omitempty"`
	Status      string `json:"status,omitempty"` // what answers call the state
	Ref         string `json:"ref,omitempty"`
	Name        string `json:"name"`
	TargetURL   string `json:"target_url,omitempty"`
	Description string `json:"description"`
}

// maxText is the longest name, description and target address that GitLab takes, in characters.
const maxText = 255

// PostStatus posts a commit status.
//
// GitLab makes a pipeline for it on a branch that holds the commit. A fork's head is on none ("404 References for commit
// Not Found"); the ref of its merge request is named then.
func (c *Client) PostStatus(ctx context.Context, sha string, s state.CommitStatus) error {
	op := fmt.Sprintf("post status %s on %s", s.Context, sha)
	st, ok := toGitLab[s.State]
	if !ok {
		return &forge.Error{Op: op, Kind: forge.KindPermanent, Err: fmt.Errorf("%q is no state", s.State)}
	}
	if n := utf8.RuneCountInString(s.Context); n > maxText {
		return &forge.Error{Op: op, Kind: forge.KindPermanent, Err: fmt.Errorf("the context has %d characters, GitLab takes %d", n, maxText)}
	}
	if utf8.RuneCountInString(s.TargetURL) > maxText {
		s.TargetURL = "" // rather no link than no status
	}
	in := status{State: st, Name: s.Context, TargetURL: s.TargetURL, Description: forge.Clamp(s.Description, maxText)}
	err := c.post(ctx, op, sha, in)
	if n := c.pull(sha); n != 0 && errors.Is(err, forge.ErrNoCommit) && strings.Contains(err.Error(), "References for commit") {
		head, _ := c.PullRefs()
		in.Ref = fmt.Sprintf(head, n)
		err = c.post(ctx, op, sha, in)
	}
	return settled(op, st, err)
}

func (c *Client) post(ctx context.Context, op, sha string, in status) error {
	var got status
	_, err := c.rest.Do(ctx, rest.Ask{
		Op: op, Method: http.MethodPost, Path: c.project() + "/statuses/" + url.PathEscape(sha), Out: &got, In: in,
	})
	if err == nil && (got.Status != in.State || got.Name != in.Name) {
		return notIts(op)
	}
	return err
}

// pull is the merge request that has this head, 0 none that was listed.
func (c *Client) pull(sha string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pulls[sha]
}

var transition = regexp.MustCompile(`Cannot transition status via :(\w+) from :(\w+)`)

// settled reads the refusal of a transition: GitLab's statuses are a machine of states, and not every one leads to every
// other. Where the state that stands is the one that was wanted (pending once more, or pending where it runs), it is done.
// Else another request came in between, so what is wanted is not there, and the next try finds another state.
func settled(op, want string, err error) error {
	if !errors.Is(err, forge.ErrPermanent) {
		return err
	}
	m := transition.FindStringSubmatch(err.Error())
	switch {
	case m == nil:
		return err
	case fromGitLab[m[2]] == fromGitLab[want]:
		return nil
	}
	return &forge.Error{Op: op, Kind: forge.KindTransient, Err: fmt.Errorf("the status stands at %s, from where GitLab lets it not become %s now", m[2], want)}
}

// Statuses gives the newest status of each context.
func (c *Client) Statuses(ctx context.Context, sha string) ([]state.CommitStatus, error) {
	op := "read statuses of " + sha
	newest := map[string]int64{}
	out, at := []state.CommitStatus{}, map[string]int{}
	q := url.Values{"per_page": {"100"}}
	for pages := 1; q != nil; pages++ {
		var list *[]status
		h, err := c.rest.Do(ctx, rest.Ask{
			Op: op, Method: http.MethodGet, Path: c.project() + "/repository/commits/" + url.PathEscape(sha) + "/statuses", Query: q, Out: &list,
		})
		if err != nil {
			return nil, err
		}
		if list == nil {
			return nil, notIts(op)
		}
		for _, s := range *list {
			// A name has one of each pipeline and branch.
			if id, ok := newest[s.Name]; ok && id >= s.ID {
				continue
			}
			newest[s.Name] = s.ID
			st := state.CommitStatus{Context: s.Name, State: fromGitLab[s.Status], Description: s.Description, TargetURL: s.TargetURL}
			if i, ok := at[s.Name]; ok {
				out[i] = st
			} else {
				at[s.Name], out = len(out), append(out, st)
			}
		}
		if q, err = next(q, h, len(*list), pages); err != nil {
			return nil, &forge.Error{Op: op, Kind: forge.KindTransient, Err: err}
		}
	}
	return out, nil
}
