// Command gen-github-openapi cuts GitHub's published OpenAPI description down to the operations that Ichor and
// its lab use, so that tests can check every exchange against it without carrying 13 MB.
//
//	npm pack @octokit/openapi@23.0.2 && tar xzf octokit-openapi-23.0.2.tgz package/generated/api.github.com.json
//	go run ./hack/gen-github-openapi package/generated/api.github.com.json e2e/lab/forge/testdata/github-openapi.json
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// source is written into the result; the package is under the MIT license.
const source = "npm package @octokit/openapi 23.0.2 (MIT), generated/api.github.com.json, cut down by hack/gen-github-openapi"

// keep lists the operations by path and method.
var keep = map[string][]string{
	"/rate_limit":                    {"get"},
	"/user":                          {"get"},
	"/repos/{owner}/{repo}":          {"get"},
	"/repos/{owner}/{repo}/branches": {"get"},
	"/repos/{owner}/{repo}/branches/{branch}":          {"get"},
	"/repos/{owner}/{repo}/commits/{ref}":              {"get"},
	"/repos/{owner}/{repo}/commits/{ref}/status":       {"get"},
	"/repos/{owner}/{repo}/commits/{ref}/statuses":     {"get"},
	"/repos/{owner}/{repo}/commits/{commit_sha}/pulls": {"get"},
	"/repos/{owner}/{repo}/git/trees/{tree_sha}":       {"get"},
	"/repos/{owner}/{repo}/pulls":                      {"get", "post"},
	"/repos/{owner}/{repo}/pulls/{pull_number}":        {"get", "patch"},
	"/repos/{owner}/{repo}/pulls/{pull_number}/merge":  {"put"},
	"/repos/{owner}/{repo}/statuses/{sha}":             {"post"},
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gen-github-openapi FULL.json OUT.json")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	data, err := os.ReadFile(in)
	if err != nil {
		return fmt.Errorf("read description: %w", err)
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("parse description: %w", err)
	}
	paths, err := keepPaths(doc["paths"].(map[string]any))
	if err != nil {
		return err
	}
	all := doc["components"].(map[string]any)
	components := map[string]any{}
	collect(paths, all, components)
	strip(paths)
	strip(components)
	res := map[string]any{
		"openapi": doc["openapi"], "info": map[string]any{"title": "GitHub REST API, cut down", "version": "23.0.2", "description": source},
		"paths": paths, "components": components,
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(res); err != nil {
		return fmt.Errorf("write description: %w", err)
	}
	return os.WriteFile(out, buf.Bytes(), 0o644)
}

func keepPaths(all map[string]any) (map[string]any, error) {
	res := map[string]any{}
	for path, methods := range keep {
		item, ok := all[path].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("find path %s: the description has none", path)
		}
		kept := map[string]any{}
		for _, m := range methods {
			if item[m] == nil {
				return nil, fmt.Errorf("find operation %s %s: the description has none", m, path)
			}
			kept[m] = item[m]
		}
		res[path] = kept
	}
	return res, nil
}

// collect copies every component that is referred to, and what that refers to.
func collect(v any, all, into map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			// examples are not needed, and they refer to much
			if k == "examples" || k == "example" {
				continue
			}
			if ref, ok := x.(string); ok && k == "$ref" {
				copyRef(ref, all, into)
			}
			collect(x, all, into)
		}
	case []any:
		for _, x := range v {
			collect(x, all, into)
		}
	}
}

func copyRef(ref string, all, into map[string]any) {
	parts := strings.Split(strings.TrimPrefix(ref, "#/components/"), "/")
	if len(parts) != 2 {
		return
	}
	section, ok := into[parts[0]].(map[string]any)
	if !ok {
		section = map[string]any{}
		into[parts[0]] = section
	}
	if _, done := section[parts[1]]; done {
		return
	}
	target := all[parts[0]].(map[string]any)[parts[1]]
	section[parts[1]] = target
	collect(target, all, into)
}

// strip takes out what no validation needs. A key of "properties" is a field's name, not a keyword.
func strip(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range []string{"examples", "example", "x-github", "externalDocs", "tags"} {
			delete(v, k)
		}
		for _, k := range []string{"description", "summary", "title"} {
			if _, text := v[k].(string); text {
				delete(v, k)
			}
		}
		if _, status := v["content"]; status {
			v["description"] = ""
		}
		for k, x := range v {
			if props, ok := x.(map[string]any); ok && k == "properties" {
				for _, p := range props {
					strip(p)
				}
				continue
			}
			strip(x)
		}
		if r, ok := v["responses"].(map[string]any); ok {
			for _, x := range r {
				if m, ok := x.(map[string]any); ok && m["$ref"] == nil {
					m["description"] = ""
				}
			}
		}
	case []any:
		for _, x := range v {
			strip(x)
		}
	}
}
