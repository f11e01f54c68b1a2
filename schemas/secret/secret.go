// Package secret has the type of a value that never prints. It isn't repaired afterwards by regular
// expressions: every form that Go has for printing a value gives the same fixed marker.
package secret

import (
	"fmt"
	"log/slog"
)

// Redacted is what a secret prints as, everywhere.
const Redacted = "[redacted]"

// Bytes is secret material. The zero value is an empty secret. Reveal is the only way to it, so that a
// search for Reveal finds every use.
//
// The material is held behind a pointer: for the verb %p package fmt asks no Formatter and prints the fields
// themselves, and of a pointer it prints the address alone.
type Bytes struct{ p *[]byte }

// New takes the bytes over; the caller must not change them afterwards.
func New(b []byte) Bytes { return Bytes{p: &b} }

// FromString copies s.
func FromString(s string) Bytes { return New([]byte(s)) }

// Reveal gives the material itself. It must not reach an output.
func (s Bytes) Reveal() []byte {
	if s.p == nil {
		return nil
	}
	return *s.p
}

// Empty tells whether there is any material.
func (s Bytes) Empty() bool { return len(s.Reveal()) == 0 }

// String gives the marker.
func (s Bytes) String() string { return Redacted }

// GoString gives the marker (for %#v).
func (s Bytes) GoString() string { return Redacted }

// Format gives the marker for every verb.
func (s Bytes) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Redacted)) }

// MarshalText gives the marker (encoding/json, YAML, flags).
func (s Bytes) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON gives the marker.
func (s Bytes) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// MarshalYAML gives the marker.
func (s Bytes) MarshalYAML() (any, error) { return Redacted, nil }

// LogValue gives the marker (log/slog).
func (s Bytes) LogValue() slog.Value { return slog.StringValue(Redacted) }
