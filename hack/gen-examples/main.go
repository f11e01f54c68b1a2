// Command gen-examples makes the encrypted files of examples/ that are missing: secrets bundles, S3 credentials, a
// registry's password. What is there stays as it is, so a second run changes nothing.
//
// They are sealed to the age recipient in the example's .sops.yaml; where that is missing, a new identity is made and
// thrown away: nobody can open these files, and nobody needs to. See examples/README.md.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/render/bundle"
)

// file is one encrypted file of an example.
type file struct {
	example, path string
	// regex of the keys whose values are encrypted; "" all.
	regex string
	plain func() ([]byte, error)
}

var files = []file{
	{"minimal", "secrets.sops.yaml", "", newBundle},
	{"prod", "clusters/prod/secrets.sops.yaml", "", newBundle},
	{"prod", "clusters/prod/s3.sops.yaml", "", text("accessKeyID: example\nsecretAccessKey: example\n")},
	{"prod", "clusters/prod/patches/registry.sops.yaml", "^password$", text(
		"machine:\n  registries:\n    config:\n      registry.example.com:\n        auth:\n" +
			"          username: talos\n          password: example\n")},
}

func newBundle() ([]byte, error) {
	_, plain, err := bundle.Generate("v1.13", secrets.NewClock())
	return plain, err
}

func text(s string) func() ([]byte, error) { return func() ([]byte, error) { return []byte(s), nil } }

func main() {
	for _, f := range files {
		if err := f.make("examples"); err != nil {
			fmt.Fprintln(os.Stderr, "gen-examples:", err)
			os.Exit(1)
		}
	}
}

func (f file) make(root string) error {
	path := filepath.Join(root, f.example, f.path)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	recipient, err := recipientOf(filepath.Join(root, f.example, ".sops.yaml"))
	if err != nil {
		return err
	}
	plain, err := f.plain()
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	sealed, err := bundle.Encrypt(plain, f.path, []string{recipient}, f.regex)
	if err != nil {
		return err
	}
	return os.WriteFile(path, sealed, 0o644)
}

var ageLine = regexp.MustCompile(`(?m)^\s+age: (age1[a-z0-9]+)$`)

// recipientOf reads the recipient that an example's files are sealed to, and makes one where there is none.
func recipientOf(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		m := ageLine.FindSubmatch(data)
		if m == nil {
			return "", fmt.Errorf("read %s: it names no age recipient", path)
		}
		return string(m[1]), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", fmt.Errorf("make an age identity: %w", err)
	}
	recipient := id.Recipient().String()
	return recipient, os.WriteFile(path, fmt.Appendf(nil, sopsRules, recipient, recipient), 0o644)
}

// sopsRules tell the sops command what to encrypt, and to whom.
const sopsRules = `# For the sops command: which files it encrypts, which values of them, and to whom. Replace the recipient by your own.
creation_rules:
  - path_regex: patches/.*\.sops\.yaml$
    encrypted_regex: ^password$
    age: %s
  - path_regex: .*\.sops\.yaml$
    age: %s
`
