package bundle

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"filippo.io/age"

	"ichor.maesh.dev/ichor/schemas/secret"
)

// Names of the environment variables that hold age identities, as the sops command reads them.
const (
	EnvKey     = "SOPS_AGE_KEY"
	EnvKeyFile = "SOPS_AGE_KEY_FILE"
)

// ErrNoKeys says that no age identity is configured.
var ErrNoKeys = errors.New("no age identity: set " + EnvKey + " or " + EnvKeyFile)

// Keys are Ichor's age identities. They never print. The zero value has none.
//
// All lies behind a pointer, because fmt calls no method on an unexported field of a struct that somebody prints,
// but does not follow a pointer there either.
type Keys struct{ ring *ring }

type ring struct {
	ids        []age.Identity
	texts      []secret.Bytes
	recipients []string
}

// LoadKeys reads the identities from the variables that env looks up (os.Getenv): those of SOPS_AGE_KEY
// first, then those of the file that SOPS_AGE_KEY_FILE names. ErrNoKeys where neither is set. Plugins are not
// run and SSH keys are not looked for: what opens the secrets is exactly what was configured.
func LoadKeys(env func(string) string) (Keys, error) {
	k := Keys{ring: &ring{}}
	if text := env(EnvKey); text != "" {
		if err := k.add([]byte(text)); err != nil {
			return Keys{}, fmt.Errorf("read %s: %w", EnvKey, err)
		}
	}
	if file := env(EnvKeyFile); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return Keys{}, fmt.Errorf("read %s: %w", EnvKeyFile, err)
		}
		if err := k.add(text); err != nil {
			return Keys{}, fmt.Errorf("read %s %s: %w", EnvKeyFile, file, err)
		}
	}
	if k.Empty() {
		return Keys{}, ErrNoKeys
	}
	return k, nil
}

// ParseKeys reads identities in the format of an age key file.
func ParseKeys(text []byte) (Keys, error) {
	k := Keys{ring: &ring{}}
	if err := k.add(text); err != nil {
		return Keys{}, err
	}
	return k, nil
}

// add parses identities. The library's errors may quote a line of the file, so they are not passed on.
func (k Keys) add(text []byte) error {
	ids, err := age.ParseIdentities(bytes.NewReader(text))
	if err != nil {
		return errors.New("not a list of age identities (AGE-SECRET-KEY-1..., one a line; comments begin with #)")
	}
	for _, id := range ids {
		switch id := id.(type) {
		case *age.X25519Identity:
			k.ring.push(id, id.String(), id.Recipient().String())
		case *age.HybridIdentity:
			k.ring.push(id, id.String(), id.Recipient().String())
		default:
			return fmt.Errorf("age identity of type %T is not supported", id)
		}
	}
	return nil
}

func (k *ring) push(id age.Identity, text, recipient string) {
	for _, r := range k.recipients {
		if r == recipient {
			return
		}
	}
	k.ids = append(k.ids, id)
	k.texts = append(k.texts, secret.FromString(text))
	k.recipients = append(k.recipients, recipient)
}

// Empty tells whether there is no identity.
func (k Keys) Empty() bool { return k.ring == nil || len(k.ring.ids) == 0 }

// Recipients are the public keys of the identities, in order. They may be printed.
func (k Keys) Recipients() []string {
	if k.Empty() {
		return nil
	}
	return append([]string(nil), k.ring.recipients...)
}

// MACKeys derives one 32-byte key per identity for a purpose ("inventory", "fingerprint"; HKDF-SHA-256). What
// was made with any of them is accepted, what is made uses the first: so that an identity can be rotated.
func (k Keys) MACKeys(purpose string) [][]byte {
	if k.Empty() {
		return nil
	}
	out := make([][]byte, 0, len(k.ring.texts))
	for _, t := range k.ring.texts {
		key, err := hkdf.Key(sha256.New, t.Reveal(), nil, "ichor.maesh.dev/"+purpose, 32)
		if err != nil {
			// hkdf.Key only fails for a length above 255 hashes.
			panic("derive key: " + err.Error())
		}
		out = append(out, key)
	}
	return out
}

// String gives the marker.
func (k Keys) String() string { return secret.Redacted }

// GoString gives the marker (for %#v).
func (k Keys) GoString() string { return secret.Redacted }

// Format gives the marker for every verb.
func (k Keys) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(secret.Redacted)) }
