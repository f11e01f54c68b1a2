// Package git is the only part of Ichor that speaks Git: a bare mirror on disk, trees as fs.FS, the history that the
// loop and the checks need, and commits on the status branch by compare-and-swap.
//
// go-git is not safe for concurrent use, so every store has one owner (type store) and one lock; what callers get is
// copied out. Nothing is ever checked out.
package git

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"golang.org/x/crypto/ssh/knownhosts"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Class says what kind of trouble an error is, so that callers can choose between waiting, stopping and telling.
type Class string

// Classes. ClassNone is that of nil.
const (
	ClassNone Class = ""
	// ClassTransient: network, timeout, 5xx: try again with back-off.
	ClassTransient Class = "transient"
	// ClassTrust: certificate or host key is not the expected one. May be an attack: don't hurry to try again.
	ClassTrust Class = "trust"
	// ClassReplaced: another repository is in the place of the one that was there (Options.Guard).
	ClassReplaced Class = "replaced"
	// ClassCredential: the credential is refused or can't be read.
	ClassCredential Class = "credential"
	// ClassRate: the server asks to come back later.
	ClassRate Class = "rate"
	// ClassAccess: no such repository, or no right to see or change it.
	ClassAccess Class = "access"
	// ClassGone: the branch or pull request is not there (any more).
	ClassGone Class = "gone"
	// ClassEmpty: the repository has no commit yet.
	ClassEmpty Class = "empty"
	// ClassCorrupt: the local store is broken, and a fresh one did not help.
	ClassCorrupt Class = "corrupt"
	// ClassRaced: somebody else moved the branch first.
	ClassRaced Class = "raced"
	// ClassProtected: the server refuses the push by a rule.
	ClassProtected Class = "protected"
	// ClassUnsupported: the server or repository wants something that is not supported.
	ClassUnsupported Class = "unsupported"
	// ClassRedirect: the server points to another host.
	ClassRedirect Class = "redirect"
	// ClassLimits: what came is larger than the limits allow.
	ClassLimits Class = "limits"
	// ClassMalformed: what came is no honest Git data.
	ClassMalformed Class = "malformed"
	// ClassConfig: the configuration can't work (a refused URL, say).
	ClassConfig Class = "config"
	// ClassUnknownRevision: no such commit, here or there.
	ClassUnknownRevision Class = "unknown-revision"
)

// Kinds for errors.Is; the class says the same.
var (
	// ErrAbsent: the branch does not exist on the server.
	ErrAbsent = state.ErrBranchAbsent
	// ErrMoved: the branch is not where the caller saw it.
	ErrMoved = state.ErrBranchMoved
	// ErrProtected: a rule of the server forbids the push.
	ErrProtected = errors.New("push is refused by a rule of the server")
	// ErrUnknownRevision: the revision can't be found.
	ErrUnknownRevision = errors.New("unknown revision")
	// ErrNoFile: the path is not in the tree.
	ErrNoFile = state.ErrNoFile
	// ErrNoRepository: the folder is in no Git repository.
	ErrNoRepository = errors.New("not in a Git repository")
	// ErrUnknownOutcome: the push may or may not have arrived; read the tip to know.
	ErrUnknownOutcome = errors.New("outcome of the push is not known")

	errLimits = errors.New("over the limit")
	errClosed = errors.New("store is closed")
)

// Error is what this package returns: an operation, a class, the cause and, where a person can act, a hint.
type Error struct {
	Op    string
	Class Class
	Err   error
	Hint  string
}

// Error gives op, cause and hint in one line.
func (e *Error) Error() string {
	s := e.Op + ": " + clip(e.Err.Error(), 300)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf gives the class of an error of this package, ClassNone for nil and ClassTransient for anything unknown.
func ClassOf(err error) Class {
	if err == nil {
		return ClassNone
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return classify(err)
}

// fail wraps err once: an error that has its class already keeps it.
func fail(op string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	c := classify(err)
	return &Error{Op: op, Class: c, Err: err, Hint: hints[c]}
}

func failAs(op string, c Class, err error) error {
	return &Error{Op: op, Class: c, Err: err, Hint: hints[c]}
}

var hints = map[Class]string{
	ClassTrust:      "the server's certificate or host key is not the expected one: check the CA or known_hosts file before anything else",
	ClassCredential: "check the token file or SSH key",
	ClassReplaced:   "put the right one back; where this one is meant, start with an empty state folder (stateDir)",
	ClassAccess:     "check the repository's address and the credential's rights; private repositories answer \"not found\" without them",
	ClassEmpty:      "waiting for the first commit",
	ClassProtected:  "allow Ichor's credential to push to this branch",
	ClassRedirect:   "set the repository's new address in the configuration",
}

// unwrapGit opens go-git's two wrappers, which have no Unwrap.
func unwrapGit(err error) error {
	for range 8 {
		var u *plumbing.UnexpectedError
		var p *plumbing.PermanentError
		switch {
		case errors.As(err, &u):
			err = u.Err
		case errors.As(err, &p):
			err = p.Err
		default:
			return err
		}
	}
	return err
}

// classify maps what go-git, net/http and the SSH library return (facts: gitops.md section 8).
func classify(err error) Class {
	err = unwrapGit(err)
	switch {
	case errors.Is(err, ErrAbsent):
		return ClassGone
	case errors.Is(err, ErrMoved):
		return ClassRaced
	case errors.Is(err, ErrProtected):
		return ClassProtected
	case errors.Is(err, ErrUnknownRevision), errors.Is(err, ErrNoFile):
		return ClassUnknownRevision
	case errors.Is(err, errBadTree):
		return ClassMalformed
	case errors.Is(err, errLimits):
		return ClassLimits
	case errors.Is(err, errRedirect):
		return ClassRedirect
	case errors.Is(err, transport.ErrAuthenticationRequired):
		return ClassCredential
	case errors.Is(err, transport.ErrAuthorizationFailed):
		// GitHub says its secondary limits with a 403 too.
		if strings.Contains(strings.ToLower(err.Error()), "rate limit") {
			return ClassRate
		}
		return ClassAccess
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return ClassAccess
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return ClassEmpty
	case isTrust(err):
		return ClassTrust
	}
	var h *githttp.Err
	if errors.As(err, &h) && h.StatusCode() == http.StatusTooManyRequests {
		return ClassRate
	}
	return classifyText(err)
}

// classifyText reads what only the text tells: the libraries have no kind for it.
func classifyText(err error) Class {
	text := err.Error()
	switch {
	case strings.Contains(text, "ssh: unable to authenticate"), strings.Contains(text, "no supported methods remain"):
		return ClassCredential
	case strings.Contains(text, "knownhosts: key"), strings.Contains(text, "host key mismatch"),
		strings.Contains(text, "no common algorithm for host key"):
		return ClassTrust
	case strings.Contains(text, "http redirect:"):
		return ClassRedirect
	case strings.Contains(text, "object-format"), strings.Contains(text, "does not support exact SHA1"):
		return ClassUnsupported
	}
	return ClassTransient
}

func isTrust(err error) bool {
	var (
		ua  x509.UnknownAuthorityError
		hn  x509.HostnameError
		inv x509.CertificateInvalidError
		cv  *tls.CertificateVerificationError
		key *knownhosts.KeyError
		rev *knownhosts.RevokedError
	)
	return errors.As(err, &ua) || errors.As(err, &hn) || errors.As(err, &inv) || errors.As(err, &cv) ||
		errors.As(err, &key) || errors.As(err, &rev)
}

// storeFault tells a broken store from trouble of the machine (a full disk, no right to read): only the former is
// cured by a fresh clone.
func storeFault(op string, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	for _, kind := range []error{ErrUnknownRevision, ErrNoFile, ErrMoved, ErrAbsent, errLimits, errBadTree} {
		if errors.Is(err, kind) {
			return fail(op, err)
		}
	}
	if isDisk(err) {
		return failAs(op, ClassTransient, err)
	}
	return failAs(op, ClassCorrupt, err)
}

// isDisk tells trouble of the machine and an end of the work from bad data.
func isDisk(err error) bool {
	for _, errno := range []error{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EACCES, syscall.EPERM, syscall.EROFS,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, context.Canceled, context.DeadlineExceeded, errClosed,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// clip shortens server text for messages: one line, n runes.
func clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func opf(format string, args ...any) string { return fmt.Sprintf(format, args...) }
