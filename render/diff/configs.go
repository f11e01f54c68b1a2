package diff

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/mask"
)

// Configs compares the configuration that a node runs with the one it is to have, by meaning and secrets included:
// documents in any order, comments and layout left aside, a document that the library knows through its own decoder
// and encoder (so that omitted and empty are one), any other as plain YAML. What it gives is masked on both sides;
// a secret that differs shows as the marker before and after. equal is true exactly where there is no change.
// Errors don't quote the input.
func Configs(running, wish []byte) (changes []Change, equal bool, err error) {
	if bytes.Equal(running, wish) {
		return nil, true, nil
	}
	before, err := normal(running)
	if err != nil {
		return nil, false, fmt.Errorf("read running configuration: %w", err)
	}
	after, err := normal(wish)
	if err != nil {
		return nil, false, fmt.Errorf("read wanted configuration: %w", err)
	}
	plain := Between(mask.Render{Documents: before}, mask.Render{Documents: after})
	if len(plain) == 0 {
		return nil, true, nil
	}
	return masked(plain, mask.Documents(before), mask.Documents(after)), false, nil
}

// masked puts the masked values into changes that were found in the plain ones.
func masked(changes []Change, before, after mask.Render) []Change {
	out := make([]Change, len(changes))
	for i, c := range changes {
		if !c.Added {
			c.Before = show(at(before, c.Document, c.Path))
		}
		if !c.Removed {
			c.After = show(at(after, c.Document, c.Path))
		}
		out[i] = c
	}
	return out
}

// at finds a value by document and path.
func at(r mask.Render, document, path string) any {
	for _, d := range r.Documents {
		if d.ID != document {
			continue
		}
		var v any = d.Fields
		for _, s := range mask.Steps(path) {
			switch x := v.(type) {
			case map[string]any:
				v = x[s.Key]
			case []any:
				if s.Index >= len(x) {
					return nil
				}
				v = x[s.Index]
			default:
				return nil
			}
		}
		return v
	}
	return nil
}

// normal decodes a configuration after it went through the library: whole where it knows every document, else those
// that it knows.
func normal(config []byte) ([]mask.Document, error) {
	if text, ok := encoded(config); ok {
		return mask.Decode(text)
	}
	var buf bytes.Buffer
	dec := yaml.NewDecoder(bytes.NewReader(config))
	for i := 0; ; i++ {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, fmt.Errorf("decode document %d: not YAML", i)
		}
		text, err := yaml.Marshal(&doc)
		if err != nil {
			return nil, fmt.Errorf("decode document %d: not YAML", i)
		}
		if known, ok := encoded(text); ok {
			text = known
		}
		buf.WriteString("---\n")
		buf.Write(text)
	}
	return mask.Decode(buf.Bytes())
}

// encoded writes a configuration as the library does, where it knows it.
func encoded(config []byte) ([]byte, bool) {
	p, err := configloader.NewFromBytes(config)
	if err != nil {
		return nil, false
	}
	text, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	return text, err == nil
}
