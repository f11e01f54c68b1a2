package mask

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// Path is the place of a value in a configuration: a document ID and a field path in it.
type Path struct{ Document, Path string }

// Config masks a configuration that Ichor rendered: what comes from the bundle and the known secret fields, by
// path. extra are further places, those of encrypted patch values; they hold the marker in the result even where
// the configuration has nothing there (an encrypted false is left out of it), so that the masked form does not
// depend on the values.
func Config(config []byte, extra []Path) (Render, error) {
	docs, err := Decode(config)
	if err != nil {
		return Render{}, err
	}
	for i := range docs {
		docs[i].Fields, _ = maskValue(kindOf(docs[i].ID), nil, docs[i].Fields, false).(map[string]any)
	}
	r := Render{Documents: docs}
	for _, p := range extra {
		r.mark(p)
	}
	return r, nil
}

// Raw masks a configuration that was read from a node: kinds that the library does not know too, and free text
// (files, inline manifests, environments), which may hold what the repository has encrypted. Errors don't quote
// the input.
func Raw(config []byte) (Render, error) {
	docs, err := Decode(config)
	if err != nil {
		return Render{}, err
	}
	return Documents(docs), nil
}

// Documents masks decoded documents as Raw does. They are not changed.
func Documents(docs []Document) Render {
	out := make([]Document, len(docs))
	for i, d := range docs {
		fields, _ := maskValue(kindOf(d.ID), nil, d.Fields, true).(map[string]any)
		out[i] = Document{ID: d.ID, Fields: fields}
	}
	return Render{Documents: out}
}

// mark puts the marker at a place, making the mappings on the way. A list is not made longer.
func (r *Render) mark(p Path) {
	steps := Steps(p.Path)
	if len(steps) == 0 {
		return
	}
	for i := range r.Documents {
		if r.Documents[i].ID == p.Document {
			markIn(r.Documents[i].Fields, steps)
			return
		}
	}
}

func markIn(v any, steps []Step) any {
	if len(steps) == 0 {
		return Marker
	}
	s := steps[0]
	if s.List {
		if list, ok := v.([]any); ok && s.Index < len(list) && s.Index >= 0 {
			list[s.Index] = markIn(list[s.Index], steps[1:])
		}
		return v
	}
	m, ok := v.(map[string]any)
	if !ok {
		if v != nil {
			return v
		}
		m = map[string]any{}
	}
	if len(steps) > 1 && steps[1].List && m[s.Key] == nil {
		return m
	}
	m[s.Key] = markIn(m[s.Key], steps[1:])
	return m
}

// JSON is the canonical form: keys sorted, no white space.
func (r Render) JSON() []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		// Decode makes nothing that JSON can't hold.
		panic("encode masked render: " + err.Error())
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// Digest is "sha256:" and the hex SHA-256 of the canonical form.
func (r Render) Digest() string { return DigestJSON(r.JSON()) }

// DigestJSON is the digest of a canonical form.
func DigestJSON(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// YAML shows a masked render as a configuration file.
func (r Render) YAML() []byte {
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	for _, d := range r.Documents {
		if err := enc.Encode(d.Fields); err != nil {
			panic("encode masked render: " + err.Error())
		}
	}
	_ = enc.Close()
	return buf.Bytes()
}
