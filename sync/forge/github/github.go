// Package github talks to GitHub, GitHub Enterprise Server and what speaks their API, through go-github.
package github

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"

	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/sync/forge"
	"ichor.maesh.dev/ichor/sync/forge/rest"
)

// Options of New.
type Options struct {
	// WebURL is the address people use: https://github.com, https://ghe.example, http://127.0.0.5:3000.
	WebURL string
	// APIURL is the API's address; "" derives it: api.github.com for github.com, else WebURL + /api/v3/.
	APIURL string
	// Repository is owner/name.
	Repository string
	// TokenFile holds a token; it is read again when it changes. Or App. Neither is anonymous.
	TokenFile string
	// Token is a fixed token, instead of TokenFile.
	Token secret.Bytes
	App   *App
	// CAFile holds PEM certificates that are trusted beside the system's; ProxyURL "" is the environment's.
	CAFile, ProxyURL string
	// AllowPlainHTTPAuth sends a credential over plain http to a host that isn't this machine.
	AllowPlainHTTPAuth bool
	// Timeout of one request, default 30 s.
	Timeout time.Duration
	// MaxPulls that are listed, default 1000.
	MaxPulls int
}

// Client is one shared client for everything that is asked of one repository: limits that GitHub tells one call hold
// for all. Calls go out one at a time, as GitHub advises.
type Client struct {
	o           Options
	owner, name string
	api         *gh.Client
	tokens      rest.Tokens
	turn        *rest.Turn
}

var (
	_ forge.Forge  = (*Client)(nil)
	_ forge.Sizer  = (*Client)(nil)
	_ forge.Merger = (*Client)(nil)
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$`)

// New makes a client. It does not reach for the network.
func New(o Options) (*Client, error) {
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.MaxPulls <= 0 {
		o.MaxPulls = 1000
	}
	if !nameForm.MatchString(o.Repository) {
		return nil, fmt.Errorf("set up github: repository %q is not owner/name", o.Repository)
	}
	base, err := apiURL(o.WebURL, o.APIURL)
	if err != nil {
		return nil, fmt.Errorf("set up github: %w", err)
	}
	shared := rest.Options{
		Base: base, Anonymous: o.TokenFile == "" && o.App == nil && o.Token.Empty(), CAFile: o.CAFile, ProxyURL: o.ProxyURL,
		AllowPlainHTTPAuth: o.AllowPlainHTTPAuth, Timeout: o.Timeout,
	}
	c := &Client{o: o, turn: rest.NewTurn()}
	c.owner, c.name, _ = strings.Cut(o.Repository, "/")
	if c.tokens, err = tokensOf(o, shared); err != nil {
		return nil, fmt.Errorf("set up github: %w", err)
	}
	shared.Tokens = c.tokens
	hc, err := rest.HTTP(shared)
	if err != nil {
		return nil, fmt.Errorf("set up github: %w", err)
	}
	c.api = gh.NewClient(hc)
	c.api.BaseURL, c.api.UploadURL, c.api.UserAgent = base, base, "ichor"
	return c, nil
}

// apiURL derives the API's address from the web address.
func apiURL(web, api string) (*url.URL, error) {
	raw := api
	if raw == "" {
		raw = web
	}
	if raw == "" {
		raw = "https://github.com"
	}
	u, err := rest.Address(raw)
	if err != nil {
		return nil, err
	}
	switch {
	case api != "":
	case strings.EqualFold(u.Host, "github.com") || strings.EqualFold(u.Host, "www.github.com"):
		u = &url.URL{Scheme: "https", Host: "api.github.com", Path: "/"}
	case strings.HasPrefix(u.Host, "api."):
	default:
		u.Path += "api/v3/"
	}
	return u, nil
}

// Name is "github".
func (*Client) Name() string { return "github" }

// FileURL is the page of a file on a branch.
func (c *Client) FileURL(branch, path string) string {
	web := c.o.WebURL
	if web == "" {
		web = "https://github.com"
	}
	return forge.PageURL(web, c.o.Repository, "/blob/", branch, path)
}

// PullRefs are GitHub's.
func (*Client) PullRefs() (head, merge string) { return "refs/pull/%d/head", "refs/pull/%d/merge" }

// Token gives a token that is valid now, for Git over HTTP. Empty when anonymous.
func (c *Client) Token(ctx context.Context) (secret.Bytes, error) { return c.tokens.Token(ctx) }

// call makes one call at a time.
func (c *Client) call(ctx context.Context, op string, fn func() error) error {
	return c.turn.Call(ctx, op, fault, fn)
}

// Repository reads the repository.
func (c *Client) Repository(ctx context.Context) (forge.Repository, error) {
	var out forge.Repository
	err := c.call(ctx, "read repository "+c.o.Repository, func() error {
		r, _, err := c.api.Repositories.Get(ctx, c.owner, c.name)
		if err != nil {
			return err
		}
		out = forge.Repository{
			ID: strconv.FormatInt(r.GetID(), 10), FullName: r.GetFullName(), WebURL: r.GetHTMLURL(),
			DefaultBranch: r.GetDefaultBranch(),
		}
		return nil
	})
	return out, err
}

// PullRequests lists the open ones against base, newest update first.
func (c *Client) PullRequests(ctx context.Context, base string) ([]forge.PullRequest, error) {
	o := &gh.PullRequestListOptions{
		State: "open", Base: base, Sort: "updated", Direction: "desc", ListOptions: gh.ListOptions{PerPage: 100},
	}
	out := []forge.PullRequest{}
	err := c.call(ctx, "list pull requests of "+c.o.Repository, func() error {
		for len(out) < c.o.MaxPulls {
			page, resp, err := c.api.PullRequests.List(ctx, c.owner, c.name, o)
			if err != nil {
				return err
			}
			if page == nil {
				return errNotJSON // else every pull request would count as closed
			}
			for _, p := range page {
				// What the filter let through is checked again: a base other than ours must never be taken for it.
				if p.GetBase().GetRef() == base && p.GetState() == "open" {
					out = append(out, pull(p))
				}
			}
			if resp.NextPage == 0 {
				return nil
			}
			o.Page = resp.NextPage
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return unique(out), nil
}

// unique drops what appears on two pages because the list moved between them.
func unique(in []forge.PullRequest) []forge.PullRequest {
	seen := map[int]bool{}
	out := in[:0]
	for _, p := range in {
		if !seen[p.Number] {
			seen[p.Number] = true
			out = append(out, p)
		}
	}
	return out
}

func pull(p *gh.PullRequest) forge.PullRequest {
	head, base := p.GetHead(), p.GetBase()
	return forge.PullRequest{
		Number: p.GetNumber(), Head: head.GetSHA(), Base: base.GetRef(), Title: p.GetTitle(),
		Author: p.GetUser().GetLogin(), Draft: p.GetDraft(), URL: p.GetHTMLURL(), UpdatedAt: p.GetUpdatedAt().UTC(),
		// A deleted fork has no repository any more; it is still not ours.
		Fork:     head.GetRepo() == nil || head.GetRepo().GetID() != base.GetRepo().GetID(),
		HeadRepo: head.GetRepo().GetFullName(),
	}
}

// PostStatus posts a commit status.
func (c *Client) PostStatus(ctx context.Context, sha string, s state.CommitStatus) error {
	st := &gh.RepoStatus{State: gh.String(string(s.State)), Context: gh.String(s.Context), Description: gh.String(s.Description)}
	if s.TargetURL != "" {
		st.TargetURL = gh.String(s.TargetURL)
	}
	return c.call(ctx, fmt.Sprintf("post status %s on %s", s.Context, sha), func() error {
		got, _, err := c.api.Repositories.CreateStatus(ctx, c.owner, c.name, sha, st)
		if err == nil && (got.GetState() != string(s.State) || !strings.EqualFold(got.GetContext(), s.Context)) {
			return errNotJSON // something in between answered
		}
		return err
	})
}

// Statuses gives the newest status of each context.
func (c *Client) Statuses(ctx context.Context, sha string) ([]state.CommitStatus, error) {
	out := []state.CommitStatus{}
	err := c.call(ctx, "read statuses of "+sha, func() error {
		o := &gh.ListOptions{PerPage: 100}
		for range 20 {
			page, resp, err := c.api.Repositories.GetCombinedStatus(ctx, c.owner, c.name, sha, o)
			if err != nil {
				return err
			}
			if page.GetSHA() == "" {
				return errNotJSON
			}
			for _, s := range page.Statuses {
				out = append(out, state.CommitStatus{
					Context: s.GetContext(), State: state.CommitState(s.GetState()),
					Description: s.GetDescription(), TargetURL: s.GetTargetURL(),
				})
			}
			if resp.NextPage == 0 {
				return nil
			}
			o.Page = resp.NextPage
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// errNotJSON: an answer of the right code whose body is not what GitHub sends. A proxy or a page for logging in may do so.
var errNotJSON = errors.New("the answer is not the forge's")

// Objects lists the files of a commit with their sizes. GitHub cuts lists of more than 100,000 entries or 7 MB.
func (c *Client) Objects(ctx context.Context, sha string) (list []forge.Object, complete bool, err error) {
	err = c.call(ctx, "read the file sizes of "+sha, func() error {
		tree, _, err := c.api.Git.GetTree(ctx, c.owner, c.name, sha, true)
		if err != nil {
			return err
		}
		for _, e := range tree.Entries {
			if e.GetType() == "blob" {
				list = append(list, forge.Object{Hash: e.GetSHA(), Size: int64(e.GetSize())})
			}
		}
		complete = !tree.GetTruncated()
		return nil
	})
	return list, complete, err
}

// AskMerge reads the pull request: that makes GitHub compute its merge commit anew where it is not up to date.
func (c *Client) AskMerge(ctx context.Context, number int) error {
	return c.call(ctx, fmt.Sprintf("ask for the merge of pull request %d", number), func() error {
		_, _, err := c.api.PullRequests.Get(ctx, c.owner, c.name, number)
		return err
	})
}
