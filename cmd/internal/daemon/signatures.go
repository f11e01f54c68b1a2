package daemon

import (
	"fmt"

	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/sync/git"
)

// ruleSignature is the identifier under which a report tells of a commit's signature. It is no rule of `ichor check`: who may
// sign is known to the daemon alone.
const ruleSignature = "signature"

// signatures judges the commits of the watched branch by keys of Ichor's own configuration. The zero value judges none.
type signatures struct {
	config config.Signatures
	read   interface {
		Signature(commit string, by *git.Signers) (git.Signature, error)
	}
}

// required tells whether a commit without a good signature is not to be followed.
func (s signatures) required() bool { return s.config.Mode == "require" }

// judge gives what is wrong with a commit's signature, nil nothing. The key files are read each time, so that a key that is
// added or taken away counts at once.
func (s signatures) judge(commit string) *fleet.Problem {
	if s.config.Mode == "" || s.config.Mode == "off" || s.read == nil {
		return nil
	}
	p := &fleet.Problem{Rule: ruleSignature, Severity: fleet.Warning}
	if s.required() {
		p.Severity = fleet.Error
	}
	by, err := git.LoadSigners(s.config.AllowedSignersFile, s.config.PGPKeysFile)
	if err != nil {
		p.Message = "the commit's signature can't be judged: " + err.Error()
		p.Hint = "mend the file that signatures.allowedSignersFile or signatures.pgpKeysFile names; it is read again by itself"
		return p
	}
	sig, err := s.read.Signature(commit, by)
	switch {
	case err != nil:
		p.Message = "the commit's signature can't be read: " + err.Error()
	case sig.Problem != "":
		p.Message = fmt.Sprintf("the commit %s can't be trusted by its signature: %s", short(commit), sig.Problem)
		p.Hint = "commit again with a key that Ichor's configuration lists (git commit -S); or, where this one is to count, add its key " +
			"to signatures.allowedSignersFile or signatures.pgpKeysFile"
	default:
		return nil
	}
	return p
}
