// Package secretscan finds secrets in plain text in one text file: Talos bundles and configurations, private keys,
// talosconfig and kubeconfig, age identities, S3 credentials (SPEC section 1, "Secret material").
package secretscan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode"

	"ichor.maesh.dev/ichor/schemas/secret"
)

// Finding is one secret in plain text.
type Finding struct {
	// What it is, for people; never the value.
	What string
	// Path of the field, "" where it was found in text.
	Path string
	// Line and Column begin at 1.
	Line, Column int
	// Digest of the value without white space, to tell one secret from another.
	Digest string
	// Value itself, so that outputs can be cleared of it; it must not reach one.
	Value secret.Bytes
}

// File finds the secrets of one file. talos: a manifest says that it is Talos configuration or a bundle, so that
// weak field names count too.
func File(data []byte, talos bool) []Finding {
	var out []Finding
	if mayHoldFields(data) {
		out = scanTree(data, talos)
		out = appendNew(out, scanLines(data))
	}
	out = appendNew(out, scanText(data))
	slices.SortStableFunc(out, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.Path+a.What, b.Path+b.What)
	})
	return out
}

// appendNew adds what was found in another way, unless it is the same secret at the same place: the structured find
// says more. A block scalar begins a line below its key.
func appendNew(have, more []Finding) []Finding {
	type near struct {
		digest string
		line   int
	}
	lines, values := map[int]bool{}, map[near]bool{}
	for _, h := range have {
		lines[h.Line] = true
		for below := range 3 {
			values[near{h.Digest, h.Line + below}] = true
		}
	}
	for _, m := range more {
		if !lines[m.Line] && !values[near{m.Digest, m.Line}] {
			have = append(have, m)
		}
	}
	return have
}

// digestOf makes the fingerprint of a value: the same whatever its indentation.
func digestOf(value string) string {
	stripped := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, value)
	sum := sha256.Sum256([]byte(stripped))
	return hex.EncodeToString(sum[:])
}

// placeholder tells whether a value only stands for a secret: empty, encrypted, a template, an example.
func placeholder(v string) bool {
	v = strings.TrimSpace(v)
	switch {
	case v == "" || v == "null" || v == "~":
		return true
	case strings.HasPrefix(v, "ENC[") && strings.HasSuffix(v, "]"):
		return true
	case strings.HasPrefix(v, "<") && strings.HasSuffix(v, ">"):
		return true
	case strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]"):
		return true
	case strings.Contains(v, "...") || strings.Contains(v, "…"):
		return true
	case strings.Contains(v, "${") || strings.Contains(v, "$(") || strings.Contains(v, "{{"):
		return true
	case strings.EqualFold(v, "redacted"):
		return true
	}
	return strings.Trim(v, v[:1]) == "" && strings.ContainsAny(v[:1], "*xX-._")
}

// lineIndex finds line numbers without counting from the start each time; it is cheap as long as offsets go up.
type lineIndex struct {
	data []byte
	// at is the last offset, number its line, start where that line begins.
	at, number, start int
}

func newLineIndex(data []byte) *lineIndex { return &lineIndex{data: data, number: 1} }

// place gives line and column (bytes, from 1) of an offset.
func (l *lineIndex) place(offset int) (line, column int) {
	if offset < l.at {
		l.at, l.number, l.start = 0, 1, 0
	}
	passed := l.data[l.at:offset]
	if n := bytes.Count(passed, []byte{'\n'}); n > 0 {
		l.number += n
		l.start = l.at + bytes.LastIndexByte(passed, '\n') + 1
	}
	l.at = offset
	return l.number, offset - l.start + 1
}
