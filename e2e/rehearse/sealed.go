package rehearse

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/bundle"
)

// reseal opens nothing: it puts stand-ins in the place of encrypted values, and encrypts those to the rehearsal's key.
// A value that is another than on base gets another stand-in, so that the change is rehearsed too.
func (c *copier) reseal(s *state, name string, data []byte, standIns map[string][2]string) ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	keys := map[string]bool{}
	whole, pattern := true, ""
	for _, d := range documents(data) {
		if r := field(d, "sops", "encrypted_regex"); r != nil {
			pattern = r.Value
		} else if field(d, "sops", "unencrypted_suffix") == nil {
			whole = false
		}
		drop(d, "sops")
		c.fill(d, "", s, standIns, keys)
		if err := enc.Encode(d); err != nil {
			return nil, fmt.Errorf("write stand-ins: %w", err)
		}
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("write stand-ins: %w", err)
	}
	if pattern == "" && !whole {
		pattern = keyPattern(keys)
	}
	sealed, err := c.seal(name, out.Bytes(), pattern)
	if err != nil {
		return nil, errors.Join(errors.New("encrypt stand-ins"), err)
	}
	return sealed, nil
}

// fill puts stand-ins in, and notes the keys under which there are some. Encrypted comments are dropped.
func (c *copier) fill(n *yaml.Node, key string, s *state, standIns map[string][2]string, keys map[string]bool) {
	for _, x := range []*string{&n.HeadComment, &n.LineComment, &n.FootComment} {
		if strings.Contains(*x, "ENC[") {
			*x = ""
		}
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			c.fill(n.Content[i], key, s, standIns, keys) // comments hang on keys
			c.fill(n.Content[i+1], n.Content[i].Value, s, standIns, keys)
		}
	case yaml.SequenceNode:
		n.Content = slices.DeleteFunc(n.Content, func(x *yaml.Node) bool {
			return bundle.IsEncrypted(x.Value) && bundle.EncryptedType(x.Value) == "comment"
		})
		for _, x := range n.Content {
			c.fill(x, key, s, standIns, keys)
		}
	case yaml.ScalarNode:
		if !bundle.IsEncrypted(n.Value) {
			return
		}
		keys[key] = true
		s.sealed[n.Value] = true
		i := 0
		if c.base != nil && !c.base.sealed[n.Value] {
			i = 1
		}
		text, tag := standInOf(bundle.EncryptedType(n.Value), standIns[n.Value], i)
		*n = yaml.Node{Kind: yaml.ScalarNode, Value: text, Tag: tag}
	}
}

// standInOf is the value and its YAML tag.
func standInOf(typ string, found [2]string, i int) (text, tag string) {
	text = found[i]
	if text == "" {
		text = map[string][2]string{"int": {"2001", "2002"}, "float": {"2001.5", "2002.5"}, "bool": {"true", "false"}}[typ][i]
	}
	if text == "" {
		text = []string{"stand-in", "another-stand-in"}[i]
	}
	switch typ {
	case "int", "float", "bool":
		return text, "!!" + typ
	}
	return text, "!!str"
}

// keyPattern matches just these keys.
func keyPattern(keys map[string]bool) string {
	var list []string
	for k := range keys {
		list = append(list, regexp.QuoteMeta(k))
	}
	slices.Sort(list)
	return "^(" + strings.Join(list, "|") + ")$"
}

// drop takes a key out of a mapping.
func drop(m *yaml.Node, key string) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content = slices.Delete(m.Content, i, i+2)
			return
		}
	}
}

// ciphertexts of a SOPS file, its metadata's left out: adding a reader to a file changes no value.
func ciphertexts(data []byte) []string {
	var out []string
	for _, d := range documents(data) {
		drop(d, "sops")
		bundle.WalkLeaves(d, "", func(_ string, leaf *yaml.Node) {
			if bundle.IsEncrypted(leaf.Value) {
				out = append(out, leaf.Value)
			}
		})
	}
	return out
}
