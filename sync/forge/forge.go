// Package forge is the contract with the service that hosts the repository: pull requests in, commit statuses out.
// One sub-package a forge implements it; forgetest holds the suite that each must pass.
package forge

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Forge is what Ichor asks of a forge. Every method may return *Error. Implementations are safe for concurrent use.
type Forge interface {
	// Name of the kind: github, gitea, gitlab, none.
	Name() string
	// FileURL is the page of a file on a branch, for people; "" where there is none.
	FileURL(branch, path string) string
	// PullRefs are the refs of pull requests on the Git server, with %d for the number: of the head, and of the commit that
	// merges it into its base ("" where the forge makes none).
	PullRefs() (head, merge string)
	// Repository reads the repository. Its ID stays the same when it is renamed or moved.
	Repository(ctx context.Context) (Repository, error)
	// PullRequests lists the open pull requests against base, the most recently updated first, drafts and forks too.
	PullRequests(ctx context.Context, base string) ([]PullRequest, error)
	// PostStatus posts a commit status. The description must fit (Clamp).
	PostStatus(ctx context.Context, sha string, s state.CommitStatus) error
	// Statuses gives the newest status of each context of a commit.
	Statuses(ctx context.Context, sha string) ([]state.CommitStatus, error)
}

// Object is a file of a commit: its Git hash, and its size in bytes.
type Object struct {
	Hash string
	Size int64
}

// Sizer is a Forge that can tell how large the files of a commit are before anything is fetched.
type Sizer interface {
	// Objects lists the files of a commit. complete is false where the forge has cut the list.
	Objects(ctx context.Context, sha string) (list []Object, complete bool, err error)
}

// Merger is a Forge that brings its merge commit of a pull request up to date when asked, in its own time.
type Merger interface {
	AskMerge(ctx context.Context, number int) error
}

// Repository as the forge knows it.
type Repository struct {
	// ID is numeric, "" where the forge has none.
	ID string
	// FullName is owner/name as it is now.
	FullName string
	// WebURL is the repository's page.
	WebURL        string
	DefaultBranch string
}

// PullRequest that is open.
type PullRequest struct {
	Number int
	// Head is the commit at its tip, Base the branch it is against.
	Head, Base string
	Title      string
	Author     string
	Draft      bool
	// Fork: the head lies in another repository, or in one that was deleted.
	Fork bool
	// HeadRepo is owner/name (or another name of the forge's for it), "" when it was deleted.
	HeadRepo  string
	UpdatedAt time.Time
	// URL of its page.
	URL string
}

// Kind of an error, for callers that must choose what to do.
type Kind string

// Kinds.
const (
	// KindTransient: network, timeout, 5xx. The request may have been carried out.
	KindTransient Kind = "transient"
	// KindRate: wait until Error.Until.
	KindRate Kind = "rate"
	// KindAuth: the credential is refused or may not do this.
	KindAuth Kind = "auth"
	// KindNoCommit: the forge doesn't know the commit (yet).
	KindNoCommit Kind = "no-commit"
	// KindTooMany: the commit and context hold as many statuses as the forge takes.
	KindTooMany Kind = "too-many"
	// KindHeld: the repository is not where it was, can't be seen with this credential, or the server is not the one that is
	// trusted. A person has to act; until then nothing is lost, and it is tried seldom.
	KindHeld Kind = "held"
	// KindPermanent: the request itself is wrong and will not work.
	KindPermanent Kind = "permanent"
)

// Kinds for errors.Is.
var (
	ErrAuth      = errors.New("credential is refused")
	ErrHeld      = errors.New("repository is not to be had as it is")
	ErrNoCommit  = errors.New("commit is not known to the forge")
	ErrTooMany   = errors.New("too many statuses on the commit")
	ErrPermanent = errors.New("request is refused")
)

// Error is an error with its kind.
type Error struct {
	// Op is the operation, verb first.
	Op   string
	Kind Kind
	// Until is when to try again, for KindRate.
	Until time.Time
	Err   error
}

// Error gives operation and cause in one line.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Op, Clamp(e.Err.Error(), 300)) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is work with the kinds above.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrAuth:
		return e.Kind == KindAuth
	case ErrHeld:
		return e.Kind == KindHeld
	case ErrNoCommit:
		return e.Kind == KindNoCommit
	case ErrTooMany:
		return e.Kind == KindTooMany
	case ErrPermanent:
		return e.Kind == KindPermanent
	}
	return false
}

// Fault gives kind and time, for consumers that don't import this package (status/outbox).
func (e *Error) Fault() (kind string, until time.Time) { return string(e.Kind), e.Until }

// KindOf gives the kind of an error: "" for nil, transient for one that isn't of this package.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindTransient
}

// Clamp makes text one line of at most n runes; a cut is shown by an ellipsis.
func Clamp(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// ReportURL is the page of a commit's report on the status branch, "" where there is none.
func ReportURL(f Forge, statusBranch, commit string) string {
	return f.FileURL(statusBranch, "checks/"+commit+".md")
}

// PageURL puts an address together: the parts are escaped between their slashes. "" without a web address or repository.
func PageURL(web, repository, infix, branch, path string) string {
	if web == "" || repository == "" {
		return ""
	}
	esc := func(s string) string {
		parts := strings.Split(s, "/")
		for i, p := range parts {
			parts[i] = url.PathEscape(p)
		}
		return strings.Join(parts, "/")
	}
	return strings.TrimRight(web, "/") + "/" + esc(strings.Trim(repository, "/")) + infix + esc(branch) + "/" + esc(path)
}
