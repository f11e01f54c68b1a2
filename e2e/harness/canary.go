package harness

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/bundle"
)

// Canary knows secrets in every form in which they might leak, and looks for them. Findings name secret and place,
// never the value.
type Canary struct{ forms map[string]string }

// NewCanary without secrets.
func NewCanary() *Canary { return &Canary{forms: map[string]string{}} }

// shortest form that is looked for: anything shorter turns up by chance.
const shortest = 9

// Add a secret. Its base64 and hex, what it is the base64 of, and the lines and DER of a PEM block are looked for too.
func (c *Canary) Add(name, value string) {
	c.form(name, value)
	c.form(name+" (base64)", base64.StdEncoding.EncodeToString([]byte(value)))
	c.form(name+" (hex)", hex.EncodeToString([]byte(value)))
	if raw, err := base64.StdEncoding.DecodeString(value); err == nil {
		c.form(name+" (decoded)", string(raw))
		c.form(name+" (hex of decoded)", hex.EncodeToString(raw))
		c.pem(name, raw)
	}
	c.pem(name, []byte(value))
}

func (c *Canary) pem(name string, text []byte) {
	block, _ := pem.Decode(text)
	if block == nil {
		return
	}
	c.form(name+" (DER)", string(block.Bytes))
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); len(line) > 30 && !strings.HasPrefix(line, "-----") {
			c.form(name+" (line of PEM)", line)
		}
	}
}

func (c *Canary) form(name, value string) {
	if value = strings.TrimSpace(value); len(value) >= shortest {
		c.forms[value] = name
	}
}

// AddBundle adds every value of a secrets bundle.
func (c *Canary) AddBundle(cluster string, b *bundle.Bundle) error {
	text, err := yaml.Marshal(b.Secrets())
	if err != nil {
		return fmt.Errorf("list the secrets of cluster %s: %w", cluster, err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("list the secrets of cluster %s: %w", cluster, err)
	}
	c.walk(cluster, &doc)
	return nil
}

func (c *Canary) walk(path string, n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			c.walk(path+"."+n.Content[i].Value, n.Content[i+1])
		}
	case yaml.ScalarNode:
		c.Add(path, n.Value)
	default:
		for _, child := range n.Content {
			c.walk(path, child)
		}
	}
}

// Len is how many forms are known.
func (c *Canary) Len() int { return len(c.forms) }

// Find gives the names of the secrets that occur in data, each with the place.
func (c *Canary) Find(place string, data []byte) []string {
	var out []string
	for value, name := range c.forms {
		if bytes.Contains(data, []byte(value)) {
			out = append(out, fmt.Sprintf("%s occurs in %s", name, place))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// FindInFolder looks through every file below dir, and through the objects of a Git repository among them, which are
// compressed.
func (c *Canary) FindInFolder(ctx context.Context, dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if isGitDir(path) {
				objects, err := gitObjects(ctx, path)
				if err != nil {
					return err
				}
				out = append(out, c.Find("the objects of "+path, objects)...)
			}
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		out = append(out, c.Find(path, data)...)
		return nil
	})
	return out, err
}

func isGitDir(path string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Stat(filepath.Join(path, name)); err != nil {
			return false
		}
	}
	return true
}
