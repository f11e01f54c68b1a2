package scaffold

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
)

// NewIdentity makes an age identity and gives its public key; Store writes it.
type NewIdentity struct {
	// Recipient is the public key (age1…).
	Recipient string
	file      string
	identity  *age.X25519Identity
}

// MakeIdentity makes an identity that will be kept in file, which must lie outside of repository and not be there.
func MakeIdentity(file, repository string) (*NewIdentity, error) {
	inside, err := within(file, repository)
	if err != nil {
		return nil, err
	}
	if inside {
		return nil, fmt.Errorf("the age key file %s would lie in the repository: name one outside of it", file)
	}
	if _, err := os.Lstat(file); err == nil {
		return nil, fmt.Errorf("%s is there already and is never overwritten: give its public key with --age-recipient (age-keygen -y %s prints it), "+
			"or name another file with --age-key-file", file, file)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for the age key file: %w", err)
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make an age identity: %w", err)
	}
	return &NewIdentity{Recipient: id.Recipient().String(), file: file, identity: id}, nil
}

// File is where the identity is kept.
func (n *NewIdentity) File() string { return n.file }

// Store writes the identity, readable by its owner alone.
func (n *NewIdentity) Store() error {
	if err := os.MkdirAll(filepath.Dir(n.file), 0o700); err != nil {
		return fmt.Errorf("make folder of the age key: %w", err)
	}
	f, err := os.OpenFile(n.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the age key: %w", err)
	}
	_, err = fmt.Fprintf(f, "# created: %s\n# public key: %s\n%s\n", time.Now().Format(time.RFC3339), n.Recipient, n.identity)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the age key: %w", err)
	}
	return nil
}

// within tells whether file lies below dir, symlinks resolved as far as the paths are there.
func within(file, dir string) (bool, error) {
	f, err := real(file)
	if err != nil {
		return false, err
	}
	d, err := real(dir)
	if err != nil {
		return false, err
	}
	rel, err := filepath.Rel(d, f)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)), nil
}

func real(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", path, err)
	}
	rest := ""
	for p := abs; ; p = filepath.Dir(p) {
		if r, err := filepath.EvalSymlinks(p); err == nil {
			return filepath.Join(r, rest), nil
		}
		if p == filepath.Dir(p) {
			return abs, nil
		}
		rest = filepath.Join(filepath.Base(p), rest)
	}
}
