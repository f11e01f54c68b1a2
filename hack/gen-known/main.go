// Command gen-known writes validate/rules/known/known.txt: which kinds and fields of Talos's configuration came with
// which minor version, from the JSON Schemas of the machinery library. It is run by hand when a library comes out:
//
//	go run ./hack/gen-known 1.11=DIR 1.12=DIR 1.13=DIR 1.14=DIR > validate/rules/known/known.txt
//
// where each DIR is that version's folder of github.com/siderolabs/talos/pkg/machinery in the module cache.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// node is what is needed of a JSON Schema.
type node struct {
	Ref        string          `json:"$ref"`
	Properties map[string]node `json:"properties"`
	Items      *node           `json:"items"`
	Pattern    map[string]node `json:"patternProperties"`
	Enum       []any           `json:"enum"`
	OneOf      []node          `json:"oneOf"`
	AnyOf      []node          `json:"anyOf"`
	Defs       map[string]node `json:"$defs"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen-known:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	first := map[string]string{}
	var oldest string
	for i, arg := range args {
		version, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want VERSION=DIR", arg)
		}
		if i == 0 {
			oldest = version
		}
		fields, err := read(filepath.Join(dir, "config/schemas/config.schema.json"))
		if err != nil {
			return err
		}
		for f := range fields {
			if first[f] == "" {
				first[f] = version
			}
		}
	}
	fmt.Printf("# Made by hack/gen-known from the machinery library's JSON Schemas, oldest %s. Kind, path, first version.\n", oldest)
	for _, f := range slices.Sorted(maps.Keys(first)) {
		kind, path, _ := strings.Cut(f, " ")
		parent := kind
		if at := strings.LastIndexByte(path, '.'); at >= 0 {
			parent += " " + path[:at]
		} else if path == "" {
			parent = ""
		}
		// What came with its parent needs no line of its own.
		if first[f] != oldest && first[f] != first[parent] {
			fmt.Println(strings.TrimSpace(f), first[f])
		}
	}
	return nil
}

// read lists the fields of every document: "Kind path", lists left out, * for the keys of a free mapping.
func read(file string) (map[string]bool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var root node
	if err := json.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	out := map[string]bool{}
	for _, doc := range root.OneOf {
		n := root.follow(doc)
		kind := "v1alpha1"
		if k, ok := n.Properties["kind"]; ok && len(k.Enum) == 1 {
			kind = fmt.Sprint(k.Enum[0])
		}
		out[kind] = true
		root.walk(n, kind, nil, 0, out)
	}
	return out, nil
}

func (root node) follow(n node) node {
	for n.Ref != "" {
		n = root.Defs[strings.TrimPrefix(n.Ref, "#/$defs/")]
	}
	return n
}

func (root node) walk(n node, kind string, path []string, depth int, out map[string]bool) {
	const deep = 12 // the schema may name itself
	if depth > deep {
		return
	}
	n = root.follow(n)
	for _, alt := range slices.Concat(n.OneOf, n.AnyOf) {
		root.walk(alt, kind, path, depth+1, out)
	}
	if n.Items != nil {
		root.walk(*n.Items, kind, path, depth+1, out)
	}
	for _, v := range n.Pattern {
		root.walk(v, kind, append(slices.Clone(path), "*"), depth+1, out)
	}
	for name, v := range n.Properties {
		next := append(slices.Clone(path), name)
		out[kind+" "+strings.Join(next, ".")] = true
		root.walk(v, kind, next, depth+1, out)
	}
}
