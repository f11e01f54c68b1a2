// Package gitlab talks to GitLab (/api/v4): merge requests are its pull requests.
package gitlab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/rest"
)

// Options of New.
type Options struct {
	// WebURL is the address people use, default https://gitlab.com.
	WebURL string
	// Repository is the project's path: group/name, or with subgroups group/sub/name.
	Repository string
	// TokenFile holds a personal, group or project access token with scope api; it is read again for each request. Token
	// is a fixed one instead. Neither is anonymous.
	TokenFile string
	Token     secret.Bytes
	// CAFile, ProxyURL, AllowPlainHTTPAuth and Timeout: see rest.Options.
	CAFile, ProxyURL   string
	AllowPlainHTTPAuth bool
	Timeout            time.Duration
	// MaxPulls that are listed, default 1000.
	MaxPulls int
}

// Client asks for one project.
type Client struct {
	o       Options
	project string
	rest    *rest.Client
}

var (
	_ forge.Forge  = (*Client)(nil)
	_ forge.Merger = (*Client)(nil)
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+$`)

// New makes a client. It does not reach for the network.
func New(o Options) (*Client, error) {
	if o.MaxPulls <= 0 {
		o.MaxPulls = 1000
	}
	if o.WebURL == "" {
		o.WebURL = "https://gitlab.com"
	}
	if !nameForm.MatchString(o.Repository) || strings.Contains("/"+o.Repository+"/", "/../") || strings.Contains("/"+o.Repository+"/", "/./") {
		return nil, fmt.Errorf("set up gitlab: repository %q is not group/name", o.Repository)
	}
	base, err := rest.Address(o.WebURL)
	if err != nil {
		return nil, fmt.Errorf("set up gitlab: %w", err)
	}
	base.Path += "api/v4/"
	c := &Client{o: o, project: "projects/" + url.PathEscape(o.Repository)}
	c.rest, err = rest.NewClient(rest.Options{
		Base: base, Tokens: rest.TokenOf(o.TokenFile, o.Token), Anonymous: o.TokenFile == "" && o.Token.Empty(),
		Authorize: func(r *http.Request, token string) { r.Header.Set("PRIVATE-TOKEN", token) },
		CAFile:    o.CAFile, ProxyURL: o.ProxyURL, AllowPlainHTTPAuth: o.AllowPlainHTTPAuth, Timeout: o.Timeout,
	}, kindOf)
	if err != nil {
		return nil, fmt.Errorf("set up gitlab: %w", err)
	}
	return c, nil
}

// kindOf tells a commit that is not there from a project that is not.
func kindOf(status int, text string) forge.Kind {
	if status == http.StatusNotFound && strings.Contains(text, "commit") {
		return forge.KindNoCommit
	}
	return ""
}

// Name is "gitlab".
func (*Client) Name() string { return "gitlab" }

// FileURL is the page of a file on a branch.
func (c *Client) FileURL(branch, path string) string {
	return forge.PageURL(c.o.WebURL, c.o.Repository, "/-/blob/", branch, path)
}

// PullRefs are GitLab's.
func (*Client) PullRefs() (head, merge string) {
	return "refs/merge-requests/%d/head", "refs/merge-requests/%d/merge"
}

// Repository reads the project.
func (c *Client) Repository(ctx context.Context) (forge.Repository, error) {
	op := "read project " + c.o.Repository
	var r struct {
		ID            int64  `json:"id"`
		Path          string `json:"path_with_namespace"`
		WebURL        string `json:"web_url"`
		DefaultBranch string `json:"default_branch"`
	}
	if _, err := c.rest.Do(ctx, rest.Ask{Op: op, Method: http.MethodGet, Path: c.project, Out: &r}); err != nil {
		return forge.Repository{}, err
	}
	if r.ID == 0 {
		return forge.Repository{}, notIts(op)
	}
	return forge.Repository{ID: strconv.FormatInt(r.ID, 10), FullName: r.Path, WebURL: r.WebURL, DefaultBranch: r.DefaultBranch}, nil
}

func notIts(op string) error {
	return &forge.Error{Op: op, Kind: forge.KindTransient, Err: errors.New("the answer is not the forge's")}
}

type mergeRequest struct {
	IID       int       `json:"iid"`
	State     string    `json:"state"`
	Title     string    `json:"title"`
	Draft     bool      `json:"draft"`
	SHA       string    `json:"sha"`
	Target    string    `json:"target_branch"`
	SourceID  int64     `json:"source_project_id"` // null where the fork was deleted
	TargetID  int64     `json:"target_project_id"`
	WebURL    string    `json:"web_url"`
	UpdatedAt time.Time `json:"updated_at"`
	Author    struct {
		Username string `json:"username"`
	} `json:"author"`
}

// PullRequests lists the open merge requests into base, the most recently updated first.
func (c *Client) PullRequests(ctx context.Context, base string) ([]forge.PullRequest, error) {
	op := "list merge requests of " + c.o.Repository
	q := url.Values{
		"state": {"opened"}, "target_branch": {base}, "order_by": {"updated_at"}, "sort": {"desc"}, "per_page": {"100"},
	}
	out, seen := []forge.PullRequest{}, map[int]bool{}
	for page := "1"; page != "" && len(out) < c.o.MaxPulls; {
		q.Set("page", page)
		var list *[]mergeRequest
		h, err := c.rest.Do(ctx, rest.Ask{Op: op, Method: http.MethodGet, Path: c.project + "/merge_requests", Query: q, Out: &list})
		if err != nil {
			return nil, err
		}
		if list == nil {
			return nil, notIts(op) // else every merge request would count as closed
		}
		for _, m := range *list {
			// One without a commit has nothing to check; and the list may have moved between two pages.
			if m.Target == base && m.State == "opened" && m.SHA != "" && !seen[m.IID] {
				seen[m.IID] = true
				out = append(out, c.contract(m))
			}
		}
		page = h.Get("X-Next-Page")
	}
	return out, nil
}

func (c *Client) contract(m mergeRequest) forge.PullRequest {
	out := forge.PullRequest{
		Number: m.IID, Head: m.SHA, Base: m.Target, Title: m.Title, Author: m.Author.Username, Draft: m.Draft,
		Fork: m.SourceID != m.TargetID, UpdatedAt: m.UpdatedAt.UTC(), URL: m.WebURL,
	}
	switch {
	case !out.Fork:
		out.HeadRepo = c.o.Repository
	case m.SourceID != 0:
		out.HeadRepo = fmt.Sprintf("project %d", m.SourceID) // the list has no more of it
	}
	return out
}

// GitLab's states of a commit status. An error of Ichor's own is a canceled one: as failed it would blame the commit.
var toGitLab = map[state.CommitState]string{
	state.StatePending: "pending", state.StateSuccess: "success", state.StateFailure: "failed", state.StateError: "canceled",
}

var fromGitLab = map[string]state.CommitState{
	"created": state.StatePending, "pending": state.StatePending, "running": state.StatePending,
	"success": state.StateSuccess, "failed": state.StateFailure, "canceled": state.StateError, "skipped": state.StateError,
}

type status struct {
	ID          int64  `json:"id,omitempty"`
	State       string `json:"state,omitempty"`
	Status      string `json:"status,omitempty"` // what answers call the state
	Name        string `json:"name"`
	TargetURL   string `json:"target_url,omitempty"`
	Description string `json:"description"`
}

// maxURL is the longest target address that GitLab takes.
const maxURL = 255

// PostStatus posts a commit status. The same state once more is refused by GitLab ("Cannot transition status"); what is
// wanted is there then, and it counts as done.
func (c *Client) PostStatus(ctx context.Context, sha string, s state.CommitStatus) error {
	op := fmt.Sprintf("post status %s on %s", s.Context, sha)
	st, ok := toGitLab[s.State]
	if !ok {
		return &forge.Error{Op: op, Kind: forge.KindPermanent, Err: fmt.Errorf("%q is no state", s.State)}
	}
	if len(s.TargetURL) > maxURL {
		s.TargetURL = "" // rather no link than no status
	}
	var got status
	_, err := c.rest.Do(ctx, rest.Ask{
		Op: op, Method: http.MethodPost, Path: c.project + "/statuses/" + url.PathEscape(sha), Out: &got,
		In: status{State: st, Name: s.Context, TargetURL: s.TargetURL, Description: s.Description},
	})
	if errors.Is(err, forge.ErrPermanent) && strings.Contains(err.Error(), "Cannot transition status") {
		return nil
	}
	if err == nil && (got.Status != st || got.Name != s.Context) {
		return notIts(op)
	}
	return err
}

// Statuses gives the newest status of each context.
func (c *Client) Statuses(ctx context.Context, sha string) ([]state.CommitStatus, error) {
	op := "read statuses of " + sha
	newest := map[string]int64{}
	out, at := []state.CommitStatus{}, map[string]int{}
	q := url.Values{"per_page": {"100"}}
	for page := "1"; page != ""; {
		q.Set("page", page)
		var list *[]status
		h, err := c.rest.Do(ctx, rest.Ask{
			Op: op, Method: http.MethodGet, Path: c.project + "/repository/commits/" + url.PathEscape(sha) + "/statuses", Query: q, Out: &list,
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
		page = h.Get("X-Next-Page")
	}
	return out, nil
}

// AskMerge has GitLab merge the request into its base on refs/merge-requests/N/merge.
func (c *Client) AskMerge(ctx context.Context, number int) error {
	_, err := c.rest.Do(ctx, rest.Ask{
		Op: fmt.Sprintf("ask for the merge of merge request %d", number), Method: http.MethodGet,
		Path: fmt.Sprintf("%s/merge_requests/%d/merge_ref", c.project, number),
	})
	return err
}
