package render

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	talos "github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	yaml4 "go.yaml.in/yaml/v4"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// Marks stand in the places of hostname and endpoint while a group is rendered. They are plain YAML scalars and
// valid host names.
const (
	markPrefix   = "ichor-mark-7d1f0c-"
	markHostname = markPrefix + "hostname"
	markAddress  = markPrefix + "address"
)

// marked tells whether a text holds a mark, which then could not be told from Ichor's own.
func marked(text []byte) bool { return bytes.Contains(text, []byte(markPrefix)) }

// sharedGroup renders a group once and fills each machine's identity in. It gives false where that can't be
// done with certainty; then each machine is rendered by itself. TestSharedIsTheSame holds the two equal.
func (j *job) sharedGroup(ctx context.Context, g *group) ([]Result, bool) {
	marks := identity{address: markAddress}
	first := identityOf(g.machines[0])
	if first.hostname != "" {
		marks.hostname = markHostname
	}
	if first.address == j.spec.Endpoint.Address {
		marks.address = first.address
	}
	f, fail := j.form(g.machines[0], marks, g.entries)
	if fail != nil && marked([]byte(fail.Talos+fail.Hint)) {
		return nil, false
	}
	for _, w := range f.warnings {
		if marked([]byte(w.Talos)) {
			return nil, false
		}
	}
	var t template
	if fail == nil {
		var ok bool
		if t, ok = newTemplate(f); !ok {
			return nil, false
		}
	}
	out := make([]Result, 0, len(g.machines))
	for _, m := range g.machines {
		if ctx.Err() != nil {
			return nil, true
		}
		res := Result{Machine: m, Patches: slices.Clone(f.uses), Err: fail.at(m.Pos)}
		for _, w := range f.warnings {
			res.Warnings = append(res.Warnings, w.at(m.Pos))
		}
		if fail == nil {
			id := identityOf(m)
			docs, _ := fillDocs(f.docs, id)
			if _, err := validate(docs); (err == nil) != t.valid {
				// The identity itself does not pass, or what failed was the mark.
				res = j.machine(m, g.entries)
			} else if !t.fill(&res, id, !j.in.WithoutConfig) {
				return nil, false
			}
		}
		out = append(out, res)
	}
	return out, true
}

// template is a group's render in the forms that identities are filled into.
type template struct {
	form
	json  []byte
	valid bool
}

// newTemplate checks that marks stand alone wherever they occur: in the text, in the masked form, and in the
// documents as often as in both.
func newTemplate(f form) (template, bool) {
	t := template{form: f, json: f.masked.JSON()}
	_, verr := validate(f.docs)
	t.valid = verr == nil
	_, inDocs := fillDocs(f.docs, identity{hostname: markHostname, address: markAddress})
	inText := 0
	for _, mark := range []string{markHostname, markAddress} {
		for _, before := range []string{"- ", ": "} {
			inText += bytes.Count(f.text, []byte(before+mark+"\n"))
		}
	}
	all := bytes.Count(f.text, []byte(markPrefix))
	inJSON := bytes.Count(t.json, []byte(`:"`+markPrefix)) + bytes.Count(t.json, []byte(`["`+markPrefix)) + bytes.Count(t.json, []byte(`,"`+markPrefix))
	return t, inDocs == all && inText == all && inJSON == all && bytes.Count(t.json, []byte(markPrefix)) == all
}

// fill makes a machine's result.
func (t template) fill(res *Result, id identity, withConfig bool) bool {
	canonical, text := t.json, t.text
	for _, x := range [][2]string{{markHostname, id.hostname}, {markAddress, id.address}} {
		mark, value := x[0], x[1]
		quoted, err := json.Marshal(value)
		if err != nil || !plainJSON(quoted) {
			return false
		}
		canonical = bytes.ReplaceAll(canonical, []byte(`"`+mark+`"`), quoted)
		if !withConfig {
			continue
		}
		scalar, err := yaml4.Marshal(value)
		scalar = bytes.TrimSuffix(scalar, []byte("\n"))
		if err != nil || bytes.ContainsRune(scalar, '\n') {
			return false
		}
		text = bytes.ReplaceAll(text, []byte(mark+"\n"), append(scalar, '\n'))
	}
	res.Masked = fillMasked(t.masked, id)
	res.Digest = mask.DigestJSON(canonical)
	if withConfig {
		res.Config = secret.New(text)
	}
	return true
}

// plainJSON tells whether a JSON string needed no escape (json.Marshal escapes more than the canonical form does).
func plainJSON(quoted []byte) bool { return !bytes.ContainsRune(quoted, '\\') }

// fillDocs gives the documents with marks replaced, sharing all else, and how many there were.
func fillDocs(docs []config.Document, id identity) ([]config.Document, int) {
	out := slices.Clone(docs)
	n := 0
	for i, d := range docs {
		switch d := d.(type) {
		case *network.HostnameConfigV1Alpha1:
			if d.ConfigHostname == markHostname {
				c := *d
				c.ConfigHostname = id.hostname
				out[i] = &c
				n++
			}
		case *talos.Config:
			c, found := fillV1Alpha1(d, id)
			out[i] = c
			n += found
		}
	}
	return out, n
}

func fillV1Alpha1(d *talos.Config, id identity) (*talos.Config, int) {
	if d.MachineConfig == nil {
		return d, 0
	}
	n := 0
	c, mc := *d, *d.MachineConfig
	c.MachineConfig = &mc
	mc.MachineCertSANs = slices.Clone(mc.MachineCertSANs)
	for i, san := range mc.MachineCertSANs {
		if san == markAddress {
			mc.MachineCertSANs[i] = id.address
			n++
		}
	}
	if nw := mc.MachineNetwork; nw != nil && nw.NetworkHostname == markHostname { //nolint:staticcheck // contracts up to 1.11
		filled := *nw
		filled.NetworkHostname = id.hostname //nolint:staticcheck // as above
		mc.MachineNetwork = &filled          //nolint:staticcheck // as above
		n++
	}
	return &c, n
}

// fillMasked copies what leads to a mark and shares the rest.
func fillMasked(r mask.Render, id identity) mask.Render {
	out := mask.Render{Documents: slices.Clone(r.Documents)}
	for i, d := range out.Documents {
		if v, changed := fillValue(d.Fields, id); changed {
			out.Documents[i].Fields, _ = v.(map[string]any)
		}
	}
	return out
}

func fillValue(v any, id identity) (any, bool) {
	switch v := v.(type) {
	case string:
		if !strings.HasPrefix(v, markPrefix) {
			return v, false
		}
		if v == markHostname {
			return id.hostname, true
		}
		return id.address, true
	case map[string]any:
		var out map[string]any
		for k, x := range v {
			if y, changed := fillValue(x, id); changed {
				if out == nil {
					out = make(map[string]any, len(v))
					for k2, x2 := range v {
						out[k2] = x2
					}
				}
				out[k] = y
			}
		}
		if out != nil {
			return out, true
		}
	case []any:
		var out []any
		for i, x := range v {
			if y, changed := fillValue(x, id); changed {
				if out == nil {
					out = slices.Clone(v)
				}
				out[i] = y
			}
		}
		if out != nil {
			return out, true
		}
	}
	return v, false
}
