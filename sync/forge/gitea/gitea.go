// Package gitea talks to Gitea and Forgejo, which share the API that is used here (/api/v1).
package gitea

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
	// WebURL is the address people use: https://gitea.example, with a path where the server has one.
	WebURL string
	// Repository is owner/name.
	Repository string
	// TokenFile holds a token; it is read again for each request. Token is a fixed one instead. Neither is anonymous.
	TokenFile string
	Token     secret.Bytes
	// CAFile, ProxyURL, AllowPlainHTTPAuth and Timeout: see rest.Options.
	CAFile, ProxyURL   string
	AllowPlainHTTPAuth bool
	Timeout            time.Duration
	// MaxPulls that are listed, default 1000.
	MaxPulls int
}

// Client asks for one repository.
type Client struct {
	o    Options
	rest *rest.Client
}

var (
	_ forge.Forge = (*Client)(nil)
	_ forge.Sizer = (*Client)(nil)
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$`)

// New makes a client. It does not reach for the network.
func New(o Options) (*Client, error) {
	if o.MaxPulls <= 0 {
		o.MaxPulls = 1000
	}
	if !nameForm.MatchString(o.Repository) || strings.HasPrefix(o.Repository, "../") || strings.HasSuffix(o.Repository, "/..") {
		return nil, fmt.Errorf("set up gitea: repository %q is not owner/name", o.Repository)
	}
	base, err := rest.Address(o.WebURL)
	if err != nil {
		return nil, fmt.Errorf("set up gitea: %w", err)
	}
	base.Path += "api/v1/"
	c := &Client{o: o}
	c.rest, err = rest.NewClient(rest.Options{
		Base: base, Tokens: rest.TokenOf(o.TokenFile, o.Token), Anonymous: o.TokenFile == "" && o.Token.Empty(),
		Authorize: func(r *http.Request, token string) { r.Header.Set("Authorization", "token "+token) },
		CAFile:    o.CAFile, ProxyURL: o.ProxyURL, AllowPlainHTTPAuth: o.AllowPlainHTTPAuth, Timeout: o.Timeout,
	}, kindOf)
	if err != nil {
		return nil, fmt.Errorf("set up gitea: %w", err)
	}
	return c, nil
}

// kindOf tells a commit that is not there from a repository that is not.
func kindOf(status int, text string) forge.Kind {
	switch {
	case status == http.StatusNotFound && strings.Contains(text, "object does not exist"),
		status == http.StatusNotFound && strings.Contains(text, "commit"),
		status == http.StatusUnprocessableEntity && strings.Contains(text, "sha not found"):
		return forge.KindNoCommit
	case status == http.StatusInternalServerError && strings.Contains(text, "object does not exist"):
		return forge.KindNoCommit
	}
	return ""
}

// Name is "gitea".
func (*Client) Name() string { return "gitea" }

// FileURL is the page of a file on a branch.
func (c *Client) FileURL(branch, path string) string {
	return forge.PageURL(c.o.WebURL, c.o.Repository, "/src/branch/", branch, path)
}

// PullRefs are Gitea's; it makes no merge commits.
func (*Client) PullRefs() (head, merge string) { return "refs/pull/%d/head", "" }

func (c *Client) path(format string, args ...any) string {
	return "repos/" + c.o.Repository + fmt.Sprintf(format, args...)
}

type repository struct {
	ID            int64  `json:"id"`
	FullName      string `json:"full_name"`
	HTMLURL       string `json:"html_url"`
	DefaultBranch string `json:"default_branch"`
}

// Repository reads the repository.
func (c *Client) Repository(ctx context.Context) (forge.Repository, error) {
	op := "read repository " + c.o.Repository
	var r repository
	if _, err := c.rest.Do(ctx, rest.Ask{Op: op, Method: http.MethodGet, Path: c.path(""), Out: &r}); err != nil {
		return forge.Repository{}, err
	}
	if r.ID == 0 {
		return forge.Repository{}, notIts(op)
	}
	return forge.Repository{
		ID: strconv.FormatInt(r.ID, 10), FullName: r.FullName, WebURL: r.HTMLURL, DefaultBranch: r.DefaultBranch,
	}, nil
}

func notIts(op string) error {
	return &forge.Error{Op: op, Kind: forge.KindTransient, Err: errors.New("the answer is not the forge's")}
}

type pull struct {
	Number    int       `json:"number"`
	State     string    `json:"state"`
	Title     string    `json:"title"`
	Draft     bool      `json:"draft"`
	HTMLURL   string    `json:"html_url"`
	UpdatedAt time.Time `json:"updated_at"`
	User      struct {
		Login string `json:"login"`
	} `json:"user"`
	Head, Base side
}

type side struct {
	Ref    string      `json:"ref"`
	SHA    string      `json:"sha"`
	RepoID int64       `json:"repo_id"`
	Repo   *repository `json:"repo"`
}

// perPage is what Gitea gives at most unless its administrator allows more (MAX_RESPONSE_ITEMS).
const perPage = 50

// PullRequests lists the open ones against base, the most recently updated first.
func (c *Client) PullRequests(ctx context.Context, base string) ([]forge.PullRequest, error) {
	op := "list pull requests of " + c.o.Repository
	q := url.Values{"state": {"open"}, "sort": {"recentupdate"}, "base_branch": {base}, "limit": {strconv.Itoa(perPage)}}
	out, seen := []forge.PullRequest{}, map[int]bool{}
	for page := 1; len(out) < c.o.MaxPulls; page++ {
		q.Set("page", strconv.Itoa(page))
		var list *[]pull
		if _, err := c.rest.Do(ctx, rest.Ask{Op: op, Method: http.MethodGet, Path: c.path("/pulls"), Query: q, Out: &list}); err != nil {
			return nil, err
		}
		if list == nil {
			return nil, notIts(op) // else every pull request would count as closed
		}
		for _, p := range *list {
			// A server that does not know the filter gives all bases; and the list may have moved between two pages.
			if p.Base.Ref == base && p.State == "open" && !seen[p.Number] {
				seen[p.Number] = true
				out = append(out, p.contract())
			}
		}
		if len(*list) == 0 {
			break // a page may be shorter than asked for: the server's own limit counts
		}
	}
	return out, nil
}

func (p pull) contract() forge.PullRequest {
	out := forge.PullRequest{
		Number: p.Number, Head: p.Head.SHA, Base: p.Base.Ref, Title: p.Title, Author: p.User.Login, Draft: p.Draft,
		URL: p.HTMLURL, UpdatedAt: p.UpdatedAt.UTC(),
		// A deleted fork has no repository any more; it is still not ours.
		Fork: p.Head.Repo == nil || p.Head.RepoID != p.Base.RepoID,
	}
	if p.Head.Repo != nil {
		out.HeadRepo = p.Head.Repo.FullName
	}
	return out
}

type status struct {
	ID          int64  `json:"id,omitempty"`
	State       string `json:"state,omitempty"`
	Status      string `json:"status,omitempty"` // what answers call the state
	TargetURL   string `json:"target_url"`
	Description string `json:"description"`
	Context     string `json:"context"`
}

// PostStatus posts a commit status.
func (c *Client) PostStatus(ctx context.Context, sha string, s state.CommitStatus) error {
	op := fmt.Sprintf("post status %s on %s", s.Context, sha)
	switch s.State {
	case state.StatePending, state.StateSuccess, state.StateFailure, state.StateError:
	default:
		// Gitea takes any text for a state.
		return &forge.Error{Op: op, Kind: forge.KindPermanent, Err: fmt.Errorf("%q is no state", s.State)}
	}
	var got status
	_, err := c.rest.Do(ctx, rest.Ask{
		Op: op, Method: http.MethodPost, Path: c.path("/statuses/%s", url.PathEscape(sha)), Out: &got,
		In: status{State: string(s.State), TargetURL: s.TargetURL, Description: s.Description, Context: s.Context},
	})
	if err == nil && (got.Status != string(s.State) || got.Context != s.Context) {
		return notIts(op)
	}
	return err
}

// Statuses gives the newest status of each context.
func (c *Client) Statuses(ctx context.Context, sha string) ([]state.CommitStatus, error) {
	op := "read statuses of " + sha
	out, newest := []state.CommitStatus{}, map[string]int64{}
	at := map[string]int{}
	for page := 1; page <= 20; page++ {
		var got *struct {
			Statuses []status `json:"statuses"`
		}
		_, err := c.rest.Do(ctx, rest.Ask{
			Op: op, Method: http.MethodGet, Path: c.path("/commits/%s/status", url.PathEscape(sha)), Out: &got,
			Query: url.Values{"page": {strconv.Itoa(page)}, "limit": {strconv.Itoa(perPage)}},
		})
		if err != nil {
			return nil, err
		}
		if got == nil {
			return nil, notIts(op)
		}
		fresh := false
		for _, s := range got.Statuses {
			if id, ok := newest[s.Context]; ok && id >= s.ID {
				continue
			}
			st := state.CommitStatus{
				Context: s.Context, State: state.CommitState(s.Status), Description: s.Description, TargetURL: s.TargetURL,
			}
			if i, ok := at[s.Context]; ok {
				out[i] = st
			} else {
				at[s.Context], out = len(out), append(out, st)
			}
			newest[s.Context], fresh = s.ID, true
		}
		if !fresh {
			break
		}
	}
	return out, nil
}

// Objects lists the files of a commit with their sizes.
func (c *Client) Objects(ctx context.Context, sha string) (list []forge.Object, complete bool, err error) {
	op := "read the file sizes of " + sha
	const pages = 20
	for page := 1; page <= pages; page++ {
		var got *struct {
			Tree []struct {
				Type string `json:"type"`
				SHA  string `json:"sha"`
				Size int64  `json:"size"`
			} `json:"tree"`
			Truncated bool `json:"truncated"`
		}
		_, err := c.rest.Do(ctx, rest.Ask{
			Op: op, Method: http.MethodGet, Path: c.path("/git/trees/%s", url.PathEscape(sha)), Out: &got,
			Query: url.Values{"recursive": {"true"}, "page": {strconv.Itoa(page)}, "per_page": {"1000"}},
		})
		if err != nil {
			return nil, false, err
		}
		if got == nil {
			return nil, false, notIts(op)
		}
		for _, e := range got.Tree {
			if e.Type == "blob" {
				list = append(list, forge.Object{Hash: e.SHA, Size: e.Size})
			}
		}
		if !got.Truncated || len(got.Tree) == 0 {
			return list, !got.Truncated, nil
		}
	}
	return list, false, nil
}
