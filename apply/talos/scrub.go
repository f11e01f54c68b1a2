package talos

import (
	"encoding/base64"
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/render/mask"
)

// Withheld stands for a text that held a secret value.
const Withheld = "[text withheld: it holds a secret value]"

// minSecret is the shortest value that is looked for. Shorter ones occur in any text.
const minSecret = 4

// maxText bounds what a node says; more helps nobody, and a status has 140 characters.
const maxText = 2000

// Scrubber keeps texts that hold one of its values from being passed on. It is the last line, not the first: texts
// known to hold configurations are dropped before. A nil Scrubber only bounds the text.
type Scrubber struct{ values []string }

// NewScrubber looks for the values, for what they are in base64, and for their lines.
func NewScrubber(values ...string) *Scrubber {
	s := &Scrubber{}
	s.add(values...)
	return s
}

// With gives a Scrubber that looks for these values too.
func (s *Scrubber) With(values ...string) *Scrubber {
	out := &Scrubber{}
	if s != nil {
		out.values = append(out.values, s.values...)
	}
	out.add(values...)
	return out
}

func (s *Scrubber) add(values ...string) {
	seen := map[string]bool{}
	for _, v := range s.values {
		seen[v] = true
	}
	put := func(v string) {
		if v = strings.TrimSpace(v); len(v) >= minSecret && !seen[v] {
			seen[v] = true
			s.values = append(s.values, v)
		}
	}
	for _, v := range values {
		put(v)
		for _, form := range []string{v, decoded(v)} {
			if strings.Contains(form, "\n") {
				for line := range strings.Lines(form) {
					// The frame of a PEM block is no secret and occurs in harmless texts.
					if line = strings.TrimSpace(line); len(line) >= 16 && !strings.HasPrefix(line, "-----") {
						put(line)
					}
				}
			}
		}
	}
}

func decoded(v string) string {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(v))
	if err != nil {
		return ""
	}
	return string(raw)
}

// Clean gives the text, bounded, or Withheld where it holds one of the values.
func (s *Scrubber) Clean(text string) string {
	if s != nil {
		for _, v := range s.values {
			if strings.Contains(text, v) {
				return Withheld
			}
		}
	}
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + " …"
	}
	return strings.TrimSpace(text)
}

// SecretValues gives the values of a rendered configuration that its masked form hides. Where the two don't fit
// together, every string counts as secret.
func SecretValues(config []byte, masked mask.Render) []string {
	docs, err := mask.Decode(config)
	if err != nil {
		return []string{string(config)}
	}
	var out []string
	for i, d := range docs {
		if len(docs) == len(masked.Documents) && masked.Documents[i].ID == d.ID {
			hidden(d.Fields, masked.Documents[i].Fields, &out)
		} else {
			leaves(d.Fields, &out)
		}
	}
	return out
}

// hidden collects the leaves of plain at which masked has the marker.
func hidden(plain, masked any, out *[]string) {
	if masked == mask.Marker {
		leaves(plain, out)
		return
	}
	switch p := plain.(type) {
	case map[string]any:
		m, ok := masked.(map[string]any)
		for k, v := range p {
			if !ok {
				leaves(v, out)
			} else if mv, there := m[k]; there {
				hidden(v, mv, out)
			}
		}
	case []any:
		m, ok := masked.([]any)
		for i, v := range p {
			if !ok || i >= len(m) {
				leaves(v, out)
			} else {
				hidden(v, m[i], out)
			}
		}
	}
}

func leaves(v any, out *[]string) {
	switch x := v.(type) {
	case map[string]any:
		for _, e := range x {
			leaves(e, out)
		}
	case []any:
		for _, e := range x {
			leaves(e, out)
		}
	case string:
		*out = append(*out, x)
	case int, int64, uint64, float64:
		// An encrypted number is a secret too.
		*out = append(*out, fmt.Sprint(x))
	}
}
