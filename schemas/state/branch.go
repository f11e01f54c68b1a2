package state

import (
	"errors"
	"fmt"
	"time"
)

// Person is an author or committer of a commit.
type Person struct{ Name, Email string }

// String gives Name <email>.
func (p Person) String() string { return fmt.Sprintf("%s <%s>", p.Name, p.Email) }

// CommitInfo says who made a commit.
type CommitInfo struct {
	Hash              string
	Parents           []string
	Author, Committer Person
	// Subject is the first line of the message; Message is all of it.
	Subject, Message string
	// When is the committer's time in UTC. People's clocks are wrong: it orders nothing.
	When time.Time
}

// BranchTip is where a branch is. Root is the first commit of its history (following first parents), which tells whose
// branch it is; Commits is how many there are.
type BranchTip struct {
	Hash, Root string
	Commits    int
}

// FileChange is a change of one file of a branch. Delete removes it (an absent one is no error), or the folder of that
// name with all in it.
type FileChange struct {
	Path   string
	Data   []byte
	Delete bool
}

// Kinds of errors about a branch, shared by who writes Git (sync/git) and who says what is written (status/branch).
var (
	// ErrBranchAbsent: the server has no such branch.
	ErrBranchAbsent = errors.New("branch is absent")
	// ErrBranchMoved: the branch is not where the caller saw it.
	ErrBranchMoved = errors.New("branch has moved")
	// ErrNoFile: the path is not in the tree.
	ErrNoFile = errors.New("no such file in the tree")
)
