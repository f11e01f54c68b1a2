package render

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"go.yaml.in/yaml/v3"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// withheld stands for a text of Talos that may quote a secret.
const withheld = "the render fails with the real values; Talos's text is withheld, for it may quote them"

// check is Talos's validation and what it lets pass though it should not.
func check(docs []config.Document) error {
	_, err := validate(docs)
	if err != nil {
		return err
	}
	return emptySecret(docs)
}

// blame finds the patch that broke a render: the last of the shortest run of patches, in order, with which it fails.
// A complaint that a later patch settles is not what broke it, so a run counts where it shares a complaint with the
// whole. unchecked is true where only stand-ins of encrypted values failed; then the error is a warning.
func (j *job) blame(m *fleet.Machine, id identity, entries []*entry, v variant, run outcome) (*Error, bool) {
	guilty, err := j.guilty(m, id, entries, v, run)
	e := &Error{Pos: m.Pos, Talos: withoutStandIns(err.Error(), entries, v)}
	if guilty >= 0 {
		g := entries[guilty]
		e.Patch, e.Entry, e.Pos = g.patch, g.index, g.src.Pos
		if g.src.Sops == nil && g.patch.Manifest.Spec.Path != "" {
			e.Pos = placeInFile(g.src, err.Error())
		}
	}
	e.Hint = j.hint(e, m, id, entries, guilty)
	if v == first {
		if leaves := j.unchecked(m, id, entries, run); leaves != "" {
			e.Talos = "not checked: encrypted (" + leaves + "): " + e.Talos
			e.Hint = ""
			return e, true
		}
	}
	if j.real && !j.publicText(m, id, entries, err) {
		e.Talos, e.Hint = withheld, "check the encrypted values and the secrets bundle"
	}
	return e, false
}

// withoutStandIns takes the values that stand for encrypted ones out of a text of Talos: a reader would look for them in
// the repository.
func withoutStandIns(text string, entries []*entry, v variant) string {
	if v == opened {
		return text
	}
	const short = 6 // "true" or "2001" may as well be somebody's own
	for _, e := range entries {
		for i, leaf := range e.secret {
			if value := leaf.value(v, i); len(value) >= short {
				text = strings.ReplaceAll(text, value, secret.Redacted)
			}
		}
	}
	return text
}

// guilty gives the number of the entry that broke the render, -1 where none did, and the error to quote.
func (j *job) guilty(m *fleet.Machine, id identity, entries []*entry, v variant, run outcome) (int, error) {
	docs, err := j.base(m, id)
	if err != nil {
		return -1, err
	}
	last := len(entries)
	if run.failed >= 0 {
		last = run.failed
	}
	runs := make([]error, 0, last+1)
	runs = append(runs, check(docs))
	for _, e := range entries[:last] {
		if docs, _, err = apply(docs, e.loaded[v].patch); err != nil {
			return -1, err
		}
		runs = append(runs, check(docs))
	}
	whole := runs[last]
	if whole == nil {
		return run.failed, run.err
	}
	for k, err := range runs {
		if share(err, whole) {
			return k - 1, whole
		}
	}
	return last - 1, whole
}

// share tells whether two errors of Talos have a complaint in common.
func share(a, b error) bool {
	for _, line := range complaints(a) {
		if slices.Contains(complaints(b), line) {
			return true
		}
	}
	return false
}

// unchecked names the encrypted values whose stand-ins alone make the render fail, "" where it fails without
// them too.
func (j *job) unchecked(m *fleet.Machine, id identity, entries []*entry, run outcome) string {
	var leaves []*cipherLeaf
	for _, e := range entries {
		leaves = append(leaves, e.secret...)
	}
	if len(leaves) == 0 {
		return ""
	}
	without := j.run(m, id, entries, stripped)
	if without.err == nil && without.docs != nil {
		without.err = emptySecret(without.docs)
	}
	if without.err != nil && (share(run.err, without.err) || without.docs == nil) {
		return ""
	}
	return sortedNames(leaves)
}

// publicText tells whether a check, which knows no secret, meets the same text.
func (j *job) publicText(m *fleet.Machine, id identity, entries []*entry, err error) bool {
	var cipher []byte
	if j.in.Cluster.Secrets != nil {
		cipher = j.in.Cluster.Secrets.Data
	}
	b, berr := bundle.StandIn(j.in.Cluster.Name, cipher)
	if berr != nil {
		return false
	}
	public := *j
	public.in.Bundle, public.in.Values, public.real = b, nil, false
	run := public.run(m, id, entries, first)
	if run.err == nil && run.docs != nil {
		run.err = emptySecret(run.docs)
	}
	if run.err == nil {
		return false
	}
	_, same := public.guilty(m, id, entries, first, run)
	return same != nil && same.Error() == err.Error()
}

// at gives a copy with the place of the machine's manifest, where no patch is guilty.
func (e *Error) at(pos fleet.Position) *Error {
	if e == nil {
		return nil
	}
	c := *e
	if c.Patch == nil {
		c.Pos = pos
	}
	return &c
}

var (
	lineInText  = regexp.MustCompile(`\(line (\d+)\)|at line (\d+)|\bline (\d+)\b|\bL(\d+)\.C\d+`)
	unknownKeys = regexp.MustCompile(`(?s)unknown keys found during decoding:\n(.*)`)
)

// placeInFile finds the line of a patch file that Talos's text names, or that of the unknown key in it. The entry is
// the whole file, so that its lines are the file's.
func placeInFile(src *fleet.PatchEntry, text string) fleet.Position {
	pos := src.Pos
	line := 0
	if m := lineInText.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1] + m[2] + m[3] + m[4])
	}
	if m := unknownKeys.FindStringSubmatch(text); m != nil {
		if n := lineOfKey(src.Raw, line, m[1]); n > 0 {
			line = n
		}
	}
	if line > 0 {
		pos.Line, pos.Column = line, 0
	}
	return pos
}

// lineOfKey finds the first of Talos's list of unknown keys (a YAML tree of them) in the document that begins at a
// line.
func lineOfKey(raw []byte, begin int, list string) int {
	var tree yaml.Node
	if yaml.Unmarshal([]byte(list), &tree) != nil || len(tree.Content) == 0 {
		return 0
	}
	docs, err := yamlDocs(raw)
	if err != nil {
		return 0
	}
	for _, d := range docs {
		if at := d.Content[0]; at.Line >= begin {
			return findKey(at, tree.Content[0])
		}
	}
	return 0
}

// findKey follows the first branch of tree through n to the key that Talos does not know. The tree holds what lies
// below that key too, so each step is asked of Talos's own decoder.
func findKey(n, tree *yaml.Node) int {
	head, line := documentHead(n), 0
	var path []string
	for n.Kind == yaml.MappingNode && tree.Kind == yaml.MappingNode && len(tree.Content) > 1 {
		path = append(path, tree.Content[0].Value)
		var value *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == path[len(path)-1] {
				line, value = n.Content[i].Line, n.Content[i+1]
			}
		}
		if value == nil || unknownKey(head, path) {
			break
		}
		n, tree = value, tree.Content[1]
	}
	return line
}

// documentHead gives what tells a document's kind.
func documentHead(n *yaml.Node) map[string]any {
	head := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch k := n.Content[i].Value; k {
		case "apiVersion", "kind", "name":
			head[k] = n.Content[i+1].Value
		}
	}
	return head
}

// unknownKey tells whether Talos does not know the last key of a path, in a document with nothing else in it.
func unknownKey(head map[string]any, path []string) bool {
	doc := maps.Clone(head)
	at := doc
	for _, k := range path[:len(path)-1] {
		next := map[string]any{}
		at[k], at = next, next
	}
	at[path[len(path)-1]] = nil
	text, err := yaml.Marshal(doc)
	if err != nil {
		return false
	}
	_, err = configloader.NewFromBytes(text)
	return err != nil && unknownKeys.MatchString(err.Error())
}
