package fleet

import (
	"strconv"
	"strings"
)

// fieldIndex keeps the place of every field of one object as a flat tree: about 40 bytes a field, because a fleet
// has 10,000 machines. Entry 0 is the manifest itself. Children come after their parent.
type fieldIndex struct {
	file  string
	nodes []fieldNode
}

// fieldNode is one field (key set, index -1) or one item of a list (index from 0).
type fieldNode struct {
	key          string
	parent       int32
	index        int32
	line, column int32
}

// root is the entry of the manifest.
const root int32 = 0

// newFieldIndex starts an index with the manifest's own place.
func newFieldIndex(pos Position) *fieldIndex {
	return &fieldIndex{
		file:  pos.File,
		nodes: []fieldNode{{parent: -1, index: -1, line: int32(pos.Line), column: int32(pos.Column)}},
	}
}

// key adds a field under parent and gives its entry.
func (x *fieldIndex) key(parent int32, key string, line, column int) int32 {
	x.nodes = append(x.nodes, fieldNode{key: key, parent: parent, index: -1, line: int32(line), column: int32(column)})
	return int32(len(x.nodes) - 1)
}

// item adds a list item under parent and gives its entry.
func (x *fieldIndex) item(parent int32, i, line, column int) int32 {
	x.nodes = append(x.nodes, fieldNode{parent: parent, index: int32(i), line: int32(line), column: int32(column)})
	return int32(len(x.nodes) - 1)
}

// pos gives an entry's place.
func (x *fieldIndex) pos(i int32) Position {
	n := x.nodes[i]
	return Position{File: x.file, Line: int(n.line), Column: int(n.column)}
}

// path gives an entry's dotted path, "" for the manifest.
func (x *fieldIndex) path(i int32) string {
	if i <= root {
		return ""
	}
	n := x.nodes[i]
	up := x.path(n.parent)
	if n.index >= 0 {
		return up + "[" + strconv.Itoa(int(n.index)) + "]"
	}
	return JoinPath(up, n.key)
}

// find walks a dotted path down as far as it is known.
func (x *fieldIndex) find(path string) int32 {
	at := root
	for path != "" {
		key, index, rest := cutStep(path)
		next := int32(-1)
		for i := int(at) + 1; i < len(x.nodes); i++ {
			n := &x.nodes[i]
			if n.parent == at && n.index == index && n.key == key {
				next = int32(i)
				break
			}
		}
		if next < 0 {
			return at
		}
		at, path = next, rest
	}
	return at
}

// cutStep takes the first step off a path: a key (index -1) or an index.
func cutStep(path string) (key string, index int32, rest string) {
	if path[0] != '[' {
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			return path, -1, ""
		}
		return path[:end], -1, strings.TrimPrefix(path[end:], ".")
	}
	if quoted, err := strconv.QuotedPrefix(path[1:]); err == nil {
		key, _ = strconv.Unquote(quoted)
		rest = strings.TrimPrefix(path[1+len(quoted):], "]")
		return key, -1, strings.TrimPrefix(rest, ".")
	}
	inner, rest, _ := strings.Cut(path[1:], "]")
	n, err := strconv.ParseInt(inner, 10, 32)
	if err != nil {
		return inner, -1, strings.TrimPrefix(rest, ".")
	}
	return "", int32(n), strings.TrimPrefix(rest, ".")
}

// JoinPath adds a key to a dotted field path; a key that holds a dot, a bracket, a quote or nothing goes quoted
// into brackets: machine.sysctls["net.core.somaxconn"].
func JoinPath(path, key string) string {
	if key == "" || strings.ContainsAny(key, ".[]\"") {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
