package journal

import (
	"context"
	"errors"
)

// Store is where the inventory lies for all to see: one file on the status branch.
type Store interface {
	// Read gives the newest content with its revision. Errors: ErrAbsent, ErrNoFile, ErrForeign.
	Read(ctx context.Context) (data []byte, rev string, err error)
	// Write replaces the content where the newest revision is still prev ("" where Read said ErrAbsent) and gives the
	// new revision. It returns only when the remote has it. Errors: ErrMoved, ErrForeign. Any other error leaves open
	// whether the write arrived.
	Write(ctx context.Context, data []byte, prev string) (rev string, err error)
}

// Kinds of a Store's errors.
var (
	// ErrAbsent: there is no branch.
	ErrAbsent = errors.New("status branch is absent")
	// ErrNoFile: the branch is there (Read gives its revision) and holds no inventory. A Store that can't tell gives
	// ErrAbsent, which takes a deleted file for a first run where the copy is lost too.
	ErrNoFile = errors.New("status branch holds no inventory")
	// ErrMoved: someone else wrote in between.
	ErrMoved = errors.New("status branch moved")
	// ErrForeign: the branch is not Ichor's.
	ErrForeign = errors.New("status branch has a foreign root")
)
