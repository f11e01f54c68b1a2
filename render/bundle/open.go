package bundle

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/getsops/sops/v3/config"
	sopsyaml "github.com/getsops/sops/v3/stores/yaml"
	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	yaml4 "go.yaml.in/yaml/v4"

	"ichor.maesh.dev/ichor/schemas/secret"
)

// Open decrypts a SOPS-encrypted Talos secrets bundle with age, checks its MAC, and checks that it is whole. Errors
// are of the kinds ErrNotEncrypted, ErrKeyService, ErrMalformed, ErrNoIdentity, ErrNoKeys and ErrTampered; they name
// the file and never a value. The bundle's clock is the system's.
func Open(ciphertext []byte, path string, keys Keys) (*Bundle, error) {
	tree, err := decrypt(ciphertext, keys)
	if err != nil {
		return nil, fmt.Errorf("open secrets bundle %s: %w", path, err)
	}
	plain, err := sopsyaml.NewStore(&config.YAMLStoreConfig{}).EmitPlainFile(tree.Branches)
	if err != nil {
		return nil, fmt.Errorf("open secrets bundle %s: %w: its content can't be written as YAML", path, ErrMalformed)
	}
	b, err := parse(plain)
	if err != nil {
		return nil, fmt.Errorf("open secrets bundle %s: %w", path, err)
	}
	return b, nil
}

// parse decodes a bundle in plain text. The decoder's errors quote values, so they are not passed on.
func parse(plain []byte) (*Bundle, error) {
	sb := &secrets.Bundle{Clock: secrets.NewClock()}
	if err := yaml4.NewDecoder(bytes.NewReader(plain)).Decode(sb); err != nil {
		return nil, fmt.Errorf("%w: not a Talos secrets bundle", ErrMalformed)
	}
	if err := Validate(sb); err != nil {
		return nil, err
	}
	return &Bundle{secrets: sb}, nil
}

// Validate runs the library's check of a bundle; its messages name fields, not values.
func Validate(sb *secrets.Bundle) error {
	if err := sb.Validate(); err != nil {
		return fmt.Errorf("%w: %s", ErrMalformed, strings.TrimSpace(err.Error()))
	}
	return nil
}

// Generate makes a new bundle, and its YAML in plain text, which the caller has to encrypt before it is stored.
// contract is a Talos minor version ("v1.13"). Certificates are valid from the clock's time.
func Generate(contract string, clock secrets.Clock) (*Bundle, []byte, error) {
	vc, err := talosconfig.ParseContractFromVersion(contract)
	if err != nil {
		return nil, nil, fmt.Errorf("generate secrets bundle: %w", err)
	}
	sb, err := secrets.NewBundle(clock, vc)
	if err != nil {
		return nil, nil, fmt.Errorf("generate secrets bundle: %w", err)
	}
	text, err := yaml4.Marshal(sb)
	if err != nil {
		return nil, nil, fmt.Errorf("generate secrets bundle: %w", err)
	}
	return &Bundle{secrets: sb}, text, nil
}

// Fingerprint is a keyed digest of the bundle's content (HMAC-SHA-256, base64): the same secrets give the same one
// however the file is written or encrypted. It says nothing without the key.
func (b *Bundle) Fingerprint(key []byte) string {
	text, err := json.Marshal(b.secrets)
	if err != nil {
		// Plain strings and byte slices always marshal.
		panic("marshal bundle: " + err.Error())
	}
	return keyed(key, "bundle", text)
}

// FingerprintValues is the keyed digest of a set of decrypted values, by name.
func FingerprintValues(key []byte, values map[string]secret.Bytes) string {
	names := make([]string, 0, len(values))
	for n := range values {
		names = append(names, n)
	}
	sort.Strings(names)
	parts := make([][]byte, 0, 2*len(names))
	for _, n := range names {
		parts = append(parts, []byte(n), values[n].Reveal())
	}
	return keyed(key, "values", parts...)
}

// keyed is HMAC-SHA-256 over parts with their lengths, so that no two lists give the same input.
func keyed(key []byte, purpose string, parts ...[]byte) string {
	mac := hmac.New(sha256.New, key)
	for _, p := range append([][]byte{[]byte(purpose)}, parts...) {
		fmt.Fprintf(mac, "%d:", len(p))
		mac.Write(p)
	}
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// newDataKey makes the key that SOPS encrypts values with.
func newDataKey() ([]byte, error) {
	key := make([]byte, 32)
	_, err := rand.Read(key)
	return key, err
}

// Format gives the marker for every verb.
func (b *Bundle) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(secret.Redacted)) }

// MarshalJSON gives the marker.
func (b *Bundle) MarshalJSON() ([]byte, error) { return []byte(`"` + secret.Redacted + `"`), nil }

// MarshalYAML gives the marker.
func (b *Bundle) MarshalYAML() (any, error) { return secret.Redacted, nil }
