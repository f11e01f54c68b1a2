package rules

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

func plaintextSecretRule() Rule {
	return Rule{
		ID:    "plaintext-secret",
		Doc:   "No secret lies in plain text in any text file of the repository.",
		Check: checkPlaintextSecret,
	}
}

// hintPlaintext says what to do; a secret that was pushed is known.
const hintPlaintext = "encrypt it with SOPS and age; what was pushed in plain text must be replaced, because the history keeps it"

// finding is one secret in plain text.
type finding struct {
	// what it is, for people; never the value.
	what string
	// path of the field, "" where it was found in text.
	path         string
	line, column int
	// digest of the value without white space, to tell one secret from another.
	digest string
	// value itself; it must not reach an output.
	value string
}

func checkPlaintextSecret(c *Context) []fleet.Problem {
	files, found := scanFleet(c.Ctx, c.Head)
	owners := fileOwners(c.Head)
	var problems []fleet.Problem
	for i, list := range found {
		if files[i].SkipScan {
			problems = append(problems, fleet.Problem{
				Severity: fleet.Warning, Cluster: owners[files[i].Path], File: files[i].Path,
				Message: "not scanned for secrets: Ichor's configuration leaves this file out",
			})
		}
		for _, f := range list {
			problems = append(problems, fleet.Problem{
				Severity: fleet.Error, Cluster: owners[files[i].Path], File: files[i].Path, Line: f.line, Column: f.column,
				Path: f.path, Message: "secret in plain text: " + f.what, Hint: hintPlaintext, Fingerprint: f.digest,
			})
		}
	}
	return problems
}

// scanFleet scans every file, on all cores; found is parallel to files.
func scanFleet(ctx context.Context, f *fleet.Fleet) (files []fleet.File, found [][]finding) {
	files, talos := scannedFiles(f)
	found = make([][]finding, len(files))
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				found[i] = scanFile(files[i].Data, talos[files[i].Path])
			}
		})
	}
	for i := range files {
		if files[i].SkipScan {
			continue
		}
		if ctx != nil && ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return files, found
}

// SecretValues gives the values that lie in plain text, in files that the scan leaves out too, so that no output
// repeats them. The values are secret material.
func SecretValues(f *fleet.Fleet) []string {
	seen := *f
	seen.Files = slices.Clone(f.Files)
	for i := range seen.Files {
		seen.Files[i].SkipScan = false
	}
	_, found := scanFleet(nil, &seen)
	var out []string
	for _, list := range found {
		for _, x := range list {
			out = append(out, x.value)
		}
	}
	return out
}

// scannedFiles lists every text file once, those outside of the path that manifests name too. talos holds those that
// are Talos configuration or a bundle because a manifest says so.
func scannedFiles(f *fleet.Fleet) (files []fleet.File, talos map[string]bool) {
	seen := make(map[string]bool, len(f.Files))
	talos = map[string]bool{}
	files = slices.Clone(f.Files)
	for _, file := range f.Files {
		seen[file.Path] = true
	}
	add := func(file *fleet.File) {
		if file != nil && !seen[file.Path] {
			seen[file.Path] = true
			files = append(files, *file)
		}
	}
	for _, cl := range f.Clusters {
		if cl.Secrets != nil {
			talos[cl.Secrets.Path] = true
			add(cl.Secrets)
		}
		for _, b := range cl.Backups {
			add(b.Credentials)
		}
		for _, p := range cl.Patches {
			for _, e := range p.Entries {
				if e.Pos.File == p.Pos.File {
					continue
				}
				talos[e.Pos.File] = true
				add(&fleet.File{Path: e.Pos.File, Data: e.Raw})
			}
		}
	}
	return files, talos
}

// fileOwners gives the cluster of each file that holds objects of one cluster alone.
func fileOwners(f *fleet.Fleet) map[string]string {
	owners := map[string]string{}
	own := func(file, cluster string) {
		if was, ok := owners[file]; ok && was != cluster {
			cluster = ""
		}
		owners[file] = cluster
	}
	for _, cl := range f.Clusters {
		if cl.Manifest != nil {
			own(cl.Pos.File, cl.Name)
		}
		if cl.Secrets != nil {
			own(cl.Secrets.Path, cl.Name)
		}
		for _, m := range cl.Machines {
			own(m.Pos.File, cl.Name)
		}
		for _, p := range cl.Patches {
			own(p.Pos.File, cl.Name)
			for _, e := range p.Entries {
				own(e.Pos.File, cl.Name)
			}
		}
		for _, b := range cl.Backups {
			own(b.Pos.File, cl.Name)
			if b.Credentials != nil {
				own(b.Credentials.Path, cl.Name)
			}
		}
		for _, p := range cl.Policies {
			own(p.Pos.File, cl.Name)
		}
		for _, o := range cl.Operations {
			own(o.Pos.File, cl.Name)
		}
	}
	return owners
}

// scanFile finds the secrets of one file. talos: a manifest says that it is Talos configuration or a bundle, so that
// weak field names count too.
func scanFile(data []byte, talos bool) []finding {
	var out []finding
	if mayHoldFields(data) {
		out = scanTree(data, talos)
		out = appendNew(out, scanLines(data))
	}
	out = appendNew(out, scanText(data))
	slices.SortStableFunc(out, func(a, b finding) int {
		if a.line != b.line {
			return a.line - b.line
		}
		return strings.Compare(a.path+a.what, b.path+b.what)
	})
	return out
}

// appendNew adds what was found in another way, unless it is the same secret at the same place: the structured find
// says more. A block scalar begins a line below its key.
func appendNew(have, more []finding) []finding {
	type near struct {
		digest string
		line   int
	}
	lines, values := map[int]bool{}, map[near]bool{}
	for _, h := range have {
		lines[h.line] = true
		for below := range 3 {
			values[near{h.digest, h.line + below}] = true
		}
	}
	for _, m := range more {
		if !lines[m.line] && !values[near{m.digest, m.line}] {
			have = append(have, m)
		}
	}
	return have
}

// digestOf makes the fingerprint of a value: the same whatever its indentation.
func digestOf(value string) string {
	stripped := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, value)
	sum := sha256.Sum256([]byte(stripped))
	return hex.EncodeToString(sum[:])
}

// placeholder tells whether a value only stands for a secret: empty, encrypted, a template, an example.
func placeholder(v string) bool {
	v = strings.TrimSpace(v)
	switch {
	case v == "" || v == "null" || v == "~":
		return true
	case strings.HasPrefix(v, "ENC[") && strings.HasSuffix(v, "]"):
		return true
	case strings.HasPrefix(v, "<") && strings.HasSuffix(v, ">"):
		return true
	case strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]"):
		return true
	case strings.Contains(v, "...") || strings.Contains(v, "…"):
		return true
	case strings.Contains(v, "${") || strings.Contains(v, "$(") || strings.Contains(v, "{{"):
		return true
	case strings.EqualFold(v, "redacted"):
		return true
	}
	return strings.Trim(v, v[:1]) == "" && strings.ContainsAny(v[:1], "*xX-._")
}

// lineIndex finds line numbers without counting from the start each time; offsets must not go down.
type lineIndex struct {
	data       []byte
	at, number int
}

func newLineIndex(data []byte) *lineIndex { return &lineIndex{data: data, number: 1} }

// place gives line and column (bytes, from 1) of an offset.
func (l *lineIndex) place(offset int) (line, column int) {
	if offset < l.at {
		l.at, l.number = 0, 1
	}
	l.number += bytes.Count(l.data[l.at:offset], []byte{'\n'})
	l.at = offset
	return l.number, offset - bytes.LastIndexByte(l.data[:offset], '\n')
}
