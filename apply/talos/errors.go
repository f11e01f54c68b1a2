package talos

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
)

// Kind says what went wrong, so that callers never look at text.
type Kind string

// Kinds of an Error.
const (
	// Unreachable: no connection, or it broke.
	Unreachable Kind = "unreachable"
	// Timeout: the call was not answered within its deadline.
	Timeout Kind = "timeout"
	// PermissionDenied: the certificate's role may not do this; in maintenance mode most calls answer so.
	PermissionDenied Kind = "permission-denied"
	// NotFound: the resource is not there.
	NotFound Kind = "not-found"
	// NotSupported: this node's version or platform does not have the call or the mode.
	NotSupported Kind = "not-supported"
	// NotControlPlane: an etcd or bootstrap call at a node that is no control plane (or in maintenance mode).
	NotControlPlane Kind = "not-control-plane"
	// NeedsReboot: the node refuses the change without a reboot (Talos up to 1.13).
	NeedsReboot Kind = "needs-reboot"
	// Busy: another apply is under way, or the node is about to reboot for an earlier one.
	Busy Kind = "busy"
	// NotAvailableYet: bootstrap is not possible yet; asked again later it is.
	NotAvailableYet Kind = "not-available-yet"
	// AlreadyBootstrapped: etcd has data on this node.
	AlreadyBootstrapped Kind = "already-bootstrapped"
	// InvalidConfig: the node does not accept the configuration.
	InvalidConfig Kind = "invalid-config"
	// Learner: an etcd learner does not answer this.
	Learner Kind = "learner"
	// NoLeader: etcd has no leader, so no quorum.
	NoLeader Kind = "no-leader"
	// EtcdRefused: etcd does not take the change of members (not enough started members, unhealthy cluster). Nothing was done.
	EtcdRefused Kind = "etcd-refused"
	// NotMaintenance: the node is not in maintenance mode (any more).
	NotMaintenance Kind = "not-maintenance"
	// WrongCertificate: the node presented another certificate than the one that was pinned.
	WrongCertificate Kind = "wrong-certificate"
	// Failed: anything else.
	Failed Kind = "failed"
)

// Error of one call to one node. It holds no secret.
type Error struct {
	Kind Kind
	// Op is what was tried, as in "reading the machine status".
	Op       string
	Endpoint string
	// Text is what the node or the transport said, free of secrets; "" where it was withheld.
	Text string
	// Lost: a call that changes something may have arrived although no good answer came. Only observation tells.
	Lost bool
}

// Error names the act, the node and the reason.
func (e *Error) Error() string {
	text := e.Text
	if text == "" {
		text = string(e.Kind)
	}
	return fmt.Sprintf("%s of %s: %s", e.Op, e.Endpoint, text)
}

// Is tells whether err is an *Error of the kind.
func Is(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

// IsUnreachable tells whether err means that the node did not answer at all.
func IsUnreachable(err error) bool { return Is(err, Unreachable) || Is(err, Timeout) }

// Lost tells whether the call behind err may have arrived.
func Lost(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Lost
}

// KindOf gives the kind of err, Failed for a foreign error, "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Failed
}

// marks are the known texts of Talos and gRPC. They are looked at here and nowhere else
// (facts: talos.md 1.6, 3, 6; seen on 1.13.5 and 1.14.0-rc.1).
var (
	// The connection never stood, so nothing was sent …
	marksNotSent = []string{"Error while dialing", "dial tcp", "authentication handshake failed", "error reading server preface", "while waiting for connections", "no children to pick from"}
	// … whereas with these it stood and broke, whatever else the text says.
	marksSent     = []string{"closing transport", "error reading from server"}
	markImmediate = "can't be applied in immediate mode"
	markCPOnly    = "only available on control plane nodes"
	markLearner   = "rpc not supported for learner"
	markNoLeader  = "no leader"
	marksMembers  = []string{"not enough started members", "unhealthy cluster"}
	markPinned    = "doesn't match the provided fingerprints"
)

// classify makes an *Error of what a call returned. write: the call changes something.
func classify(op, endpoint string, err error, write bool, s *Scrubber) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	code, text := client.StatusCode(err), message(err)
	e := &Error{Op: op, Endpoint: endpoint, Kind: kindOf(code, text, err), Text: text}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal, codes.Aborted, codes.DataLoss:
		// An answer of these codes may come after the node did what was asked.
		e.Lost = write && (!containsAny(text, marksNotSent) || containsAny(text, marksSent))
	}
	switch e.Kind {
	case EtcdRefused:
		e.Text, e.Lost = s.Clean(text), false
	case NeedsReboot:
		// The node's text goes on with a diff of configurations.
		e.Text = "this change can't be applied without a reboot"
	default:
		e.Text = s.Clean(text)
	}
	return e
}

func kindOf(code codes.Code, text string, err error) Kind {
	switch code {
	case codes.Unavailable:
		if strings.Contains(text, markPinned) {
			return WrongCertificate
		}
		return Unreachable
	case codes.DeadlineExceeded, codes.Canceled:
		return Timeout
	case codes.PermissionDenied, codes.Unauthenticated:
		return PermissionDenied
	case codes.NotFound:
		return NotFound
	case codes.Unimplemented:
		if strings.Contains(text, markCPOnly) {
			return NotControlPlane
		}
		return NotSupported
	case codes.AlreadyExists:
		return AlreadyBootstrapped
	case codes.FailedPrecondition:
		return Busy
	case codes.InvalidArgument:
		if strings.Contains(text, markImmediate) {
			return NeedsReboot
		}
		return InvalidConfig
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Timeout
	case strings.Contains(text, markLearner):
		return Learner
	case strings.Contains(text, markNoLeader):
		return NoLeader
	case containsAny(text, marksMembers):
		return EtcdRefused
	}
	return Failed
}

// message gives the text of a gRPC status without its "rpc error: code = …" prefix.
func message(err error) string {
	if st := client.Status(err); st != nil {
		return st.Message()
	}
	return err.Error()
}

func containsAny(text string, marks []string) bool {
	for _, m := range marks {
		if strings.Contains(text, m) {
			return true
		}
	}
	return false
}
