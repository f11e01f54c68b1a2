package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

func sopsRule() Rule {
	return Rule{
		ID: "sops",
		Doc: "The secrets bundle and the credentials files are well-formed SOPS files, encrypted with age, to Ichor's " +
			"recipient where that is known.",
		Check: checkSops,
	}
}

func checkSops(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	// A file that many clusters name is read once.
	shapes := map[string]shape{}
	look := func(o fleet.Object, path string, f *fleet.File) {
		if f == nil {
			return // rule reference speaks about it
		}
		s, known := shapes[f.Path]
		if !known {
			s = c.Scans.shape(f.Data)
			shapes[f.Path] = s
		}
		if message, hint := s.problem(f.Path, c.Recipients); message != "" {
			p := problemAt(o, path, message)
			p.Hint = hint
			problems = append(problems, p)
		}
	}
	for _, cl := range c.Head.Clusters {
		if cl.Manifest != nil {
			look(cl.Object, "spec.secretsRef.path", cl.Secrets)
		}
		for _, b := range cl.Backups {
			look(b.Object, "spec.s3.credentialsRef.path", b.Credentials)
		}
		for _, p := range cl.Patches {
			for i, e := range p.Entries {
				if e.Sops != nil {
					look(p.Object, entryPath(p, i), e.Sops)
					break // the file is the same for all entries
				}
			}
		}
	}
	return problems
}

// shape is what can be seen of a file without a key.
type shape struct {
	info bundle.Info
	err  error
}

// problem says what is wrong with a file, "" nothing.
func (s shape) problem(file string, recipients []string) (message, hint string) {
	const encrypt = "encrypt it with sops encrypt --age RECIPIENT"
	switch {
	case errors.Is(s.err, bundle.ErrNotEncrypted):
		return file + " is not SOPS-encrypted", encrypt
	case errors.Is(s.err, bundle.ErrKeyService):
		return fmt.Sprintf("%s can't be opened by Ichor: %s", file, s.err), "encrypt it to an age recipient alone: nothing is ever asked of a cloud or of a key ring"
	case s.err != nil:
		return fmt.Sprintf("%s is no well-formed SOPS file: %s", file, s.err), "encrypt it anew with sops; a file that was edited by hand can't be opened"
	case len(s.info.Encrypted) == 0:
		return file + " has SOPS metadata, but no encrypted value", encrypt
	case len(recipients) > 0 && !slices.ContainsFunc(recipients, func(r string) bool { return slices.Contains(s.info.Recipients, r) }):
		return fmt.Sprintf("%s is not encrypted to Ichor's recipient", file),
			"add " + strings.Join(recipients, " or ") + " to .sops.yaml and run sops updatekeys " + file
	}
	return "", ""
}
