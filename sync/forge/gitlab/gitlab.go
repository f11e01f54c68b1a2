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
	"sync"
	"sync/atomic"
	"time"

	"ichor.maesh.dev/ichor/schemas/secret"
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
	o    Options
	rest *rest.Client
	// id of the project, 0 until it was read once. From then on all but Repository ask for the number: a project that was
	// renamed or moved answers, as by its old path it answers with a redirect that no POST survives; and another project that
	// has got the path is told nothing.
	id atomic.Int64

	mu sync.Mutex
	// pulls are the merge requests listed last, by their head.
	pulls map[string]int
}

// byPath is the project's place in the API: its path is one segment, the slashes escaped.
func (c *Client) byPath() string { return "projects/" + url.PathEscape(c.o.Repository) }

func (c *Client) project() string {
	if id := c.id.Load(); id != 0 {
		return "projects/" + strconv.FormatInt(id, 10)
	}
	return c.byPath()
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
	c := &Client{o: o, pulls: map[string]int{}}
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

// kindOf tells a commit that is not there from a project that is not, and a lock that somebody else holds from a request
// that is wrong ("Another update to this commit status is in progress", "409 Conflict: Resource lock").
func kindOf(status int, text string) forge.Kind {
	switch {
	case status == http.StatusNotFound && strings.Contains(text, "commit"):
		return forge.KindNoCommit
	case status == http.StatusConflict:
		return forge.KindTransient
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

type project struct {
	ID            int64  `json:"id"`
	Path          string `json:"path_with_namespace"`
	WebURL        string `json:"web_url"`
	DefaultBranch string `json:"default_branch"`
}

// Repository reads the project that has the configured path now.
func (c *Client) Repository(ctx context.Context) (forge.Repository, error) {
	op := "read project " + c.o.Repository
	var r project
	if _, err := c.rest.Do(ctx, rest.Ask{Op: op, Method: http.MethodGet, Path: c.byPath(), Out: &r}); err != nil {
		return forge.Repository{}, err
	}
	if r.ID == 0 {
		return forge.Repository{}, notIts(op)
	}
	c.id.CompareAndSwap(0, r.ID)
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
	WIP       bool      `json:"work_in_progress"` // a draft to servers before 13.2
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
	out, seen, heads := []forge.PullRequest{}, map[int]bool{}, map[string]int{}
	for pages := 1; q != nil && len(out) < c.o.MaxPulls; pages++ {
		var list *[]mergeRequest
		h, err := c.rest.Do(ctx, rest.Ask{Op: op, Method: http.MethodGet, Path: c.project() + "/merge_requests", Query: q, Out: &list})
		if err != nil {
			return nil, err
		}
		if list == nil {
			return nil, notIts(op) // else every merge request would count as closed
		}
		for _, m := range *list {
			// One without a commit has nothing to check; and the list may have moved between two pages.
			if m.Target == base && m.State == "opened" && m.SHA != "" && !seen[m.IID] {
				seen[m.IID], heads[m.SHA] = true, m.IID
				out = append(out, c.contract(m))
			}
		}
		if q, err = next(q, h, len(*list), pages); err != nil {
			return nil, &forge.Error{Op: op, Kind: forge.KindTransient, Err: err}
		}
	}
	c.mu.Lock()
	c.pulls = heads
	c.mu.Unlock()
	return out, nil
}

func (c *Client) contract(m mergeRequest) forge.PullRequest {
	out := forge.PullRequest{
		Number: m.IID, Head: m.SHA, Base: m.Target, Title: m.Title, Author: m.Author.Username, Draft: m.Draft || m.WIP,
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

// AskMerge has GitLab merge the request into its base on refs/merge-requests/N/merge.
func (c *Client) AskMerge(ctx context.Context, number int) error {
	_, err := c.rest.Do(ctx, rest.Ask{
		Op: fmt.Sprintf("ask for the merge of merge request %d", number), Method: http.MethodGet,
		Path: fmt.Sprintf("%s/merge_requests/%d/merge_ref", c.project(), number),
	})
	return err
}
