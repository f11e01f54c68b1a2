package secretscan

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// sopsKey holds a SOPS file's metadata.
const sopsKey = "sops"

// maxWalk bounds the depth of a walk; an alias that refers to itself would never end.
const maxWalk = 100

// maxTreeNodes bounds the walk of one file: aliases may stand for the same nodes over and over.
const maxTreeNodes = 200_000

// scanTree finds secret fields in a file that is YAML or JSON. What does not parse gives nothing: scanLines and
// scanText see it too.
func scanTree(data []byte, talos bool) []Finding {
	w := &treeWalk{seen: map[[2]int]bool{}, values: map[*yaml.Node]bool{}, secrets: map[*yaml.Node]bool{}}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			return w.found
		}
		for _, root := range doc.Content {
			w.node(root, nil, "", talos || isTalosDocument(root), 0)
		}
	}
}

// isTalosDocument tells whether a document's root is a machine configuration, a Talos document or a secrets bundle.
func isTalosDocument(n *yaml.Node) bool {
	if scalar(n, "version") == "v1alpha1" || scalar(n, "apiVersion") == "v1alpha1" {
		return true
	}
	return child(n, "trustdinfo") != nil || (child(n, "certs") != nil && child(n, "secrets") != nil)
}

// child finds a key of a mapping whatever its case, nil where there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if strings.EqualFold(n.Content[i].Value, key) {
			return n.Content[i+1]
		}
	}
	return nil
}

func scalar(n *yaml.Node, key string) string {
	if c := child(n, key); c != nil && c.Kind == yaml.ScalarNode {
		return c.Value
	}
	return ""
}

type treeWalk struct {
	found []Finding
	nodes int
	// seen holds line and column of what was found: an alias may lead to the same value again.
	seen map[[2]int]bool
	// values are scalars that were judged as the value of a secret field.
	values map[*yaml.Node]bool
	// secrets are Kubernetes Secrets that were looked into: an alias may lead there again.
	secrets map[*yaml.Node]bool
}

// node walks one node. keys are the lower-case keys that lead to it, path the same for people.
func (w *treeWalk) node(n *yaml.Node, keys []string, path string, talos bool, depth int) {
	w.nodes++
	if depth > maxWalk || w.nodes > maxTreeNodes {
		return
	}
	switch n.Kind {
	case yaml.AliasNode:
		if n.Alias.Kind == yaml.ScalarNode {
			w.scalar(n.Alias, n, keys, path, talos)
			return
		}
		w.node(n.Alias, keys, path, talos, depth+1)
	case yaml.MappingNode:
		w.mapping(n, keys, path, talos, depth)
	case yaml.SequenceNode:
		for i, c := range n.Content {
			w.node(c, keys, clip(path, maxPath)+"["+strconv.Itoa(i)+"]", talos, depth+1)
		}
	case yaml.ScalarNode:
		w.scalar(n, n, keys, path, talos)
	}
}

func (w *treeWalk) mapping(n *yaml.Node, keys []string, path string, talos bool, depth int) {
	if kind := scalar(n, "kind"); kind != "" {
		switch kind {
		case "Secret", "SecretList":
			w.kubernetesSecret(n, path)
		case "TalosConfigPatch":
			talos = true
		}
		keys = []string{"kind:" + strings.ToLower(kind)}
	}
	w.jsonPatch(n, path, depth)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		if path == "" && key == sopsKey {
			continue
		}
		next := append(slices.Clip(keys), lowerKey(key))
		w.node(n.Content[i+1], next, joinPath(path, key), talos, depth+1)
	}
}

// jsonPatch walks the value of an RFC 6902 operation as if it stood where its path says.
func (w *treeWalk) jsonPatch(n *yaml.Node, path string, depth int) {
	pointer, value := scalar(n, "path"), child(n, "value")
	if value == nil || !strings.HasPrefix(pointer, "/") {
		return
	}
	var keys []string
	for _, k := range strings.Split(pointer[1:], "/") {
		if _, err := strconv.Atoi(k); err != nil && k != "-" {
			k = strings.NewReplacer("~1", "/", "~0", "~").Replace(k)
			keys = append(keys, lowerKey(k))
		}
	}
	w.node(value, keys, joinPath(path, "value"), true, depth+1)
}

// scalar judges one value; at is where it is used.
func (w *treeWalk) scalar(n, at *yaml.Node, keys []string, path string, talos bool) {
	if w.values[n] {
		return
	}
	if f, ok := secretFieldAt(keys, n.Value, talos); ok {
		// An alias may lead to the same value over and over, and it may be long.
		w.values[n] = true
		if !placeholder(n.Value) {
			w.add(f.what, n.Value, at, path)
		}
		return
	}
	if len(keys) > 0 && keys[len(keys)-1] == "apiurl" && strings.Contains(n.Value, "jointoken=") {
		w.values[n] = true
		u, err := url.Parse(n.Value)
		if err == nil && !placeholder(u.Query().Get("jointoken")) {
			w.add("a SideroLink token", n.Value, at, path)
		}
	}
}

// kubernetesSecret looks into the base64 of a Secret's data.
func (w *treeWalk) kubernetesSecret(n *yaml.Node, path string) {
	data := child(n, "data")
	if w.secrets[n] {
		return
	}
	w.secrets[n] = true
	if data == nil || data.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(data.Content); i += 2 {
		v := data.Content[i+1]
		if v.Kind != yaml.ScalarNode || placeholder(v.Value) {
			continue
		}
		field := joinPath(joinPath(path, "data"), data.Content[i].Value)
		if keyInBase64(v.Value) {
			w.add("a private key in the base64 of a Kubernetes Secret", v.Value, v, field)
			continue
		}
		plain, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(v.Value), ""))
		if err == nil && len(File(plain, false)) > 0 {
			w.add("a secret in the base64 of a Kubernetes Secret", v.Value, v, field)
		}
	}
}

func (w *treeWalk) add(what, value string, at *yaml.Node, path string) {
	where := [2]int{at.Line, at.Column}
	if w.seen[where] {
		return
	}
	w.seen[where] = true
	w.found = append(w.found, Finding{
		What: what, Path: path, Line: at.Line, Column: at.Column, Digest: digestOf(value), Value: secret.FromString(value),
	})
}

// Lengths of what is carried along a walk, in bytes: no field that matters has a longer name, and copying a long one to
// every value below it would cost the square of the file.
const (
	maxKey  = 64
	maxPath = 512
)

// lowerKey is a key in lower case; one that is too long to matter is none.
func lowerKey(key string) string {
	if len(key) > maxKey {
		return ""
	}
	return strings.ToLower(key)
}

// joinPath adds a key to the path that people see.
func joinPath(path, key string) string {
	return fleet.JoinPath(clip(path, maxPath), clip(key, 4*maxKey))
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
