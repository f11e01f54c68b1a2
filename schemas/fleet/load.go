package fleet

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Options of Load. The zero value has the documented defaults.
type Options struct {
	// Path narrows the load to a folder. Places in problems stay relative to the repository root.
	Path string
	// MaxFiles bounds the number of text files read. Default 20,000.
	MaxFiles int
	// MaxFileSize bounds one file, in bytes. Default 1 MiB.
	MaxFileSize int64
	// MaxTotalSize bounds all files together, in bytes, because they are held in memory. Default 128 MiB.
	MaxTotalSize int64
	// MaxDepth bounds the nesting of YAML and of folders. Default 100.
	MaxDepth int
	// MaxValues bounds the values of all manifests together, with YAML aliases expanded, because places and contents
	// are held in memory; a fleet of 10,000 machines has half a million. Default 2,000,000.
	MaxValues int
	// SecretScanExclude are globs (path.Match; a pattern that ends in /** takes the whole folder) of files that are
	// marked SkipScan.
	SecretScanExclude []string
	// Cache keeps files and what they gave from one load to the next, by the hash that the file system has of them
	// (FileInfo.Sys, a string, as sync/git gives it). nil keeps nothing.
	Cache *Cache
	// CacheReadOnly puts nothing into Cache: what a stranger sends must not stay in memory.
	CacheReadOnly bool
}

// Defaults of Options.
const (
	DefaultMaxFiles     = 20_000
	DefaultMaxFileSize  = 1 << 20
	DefaultMaxTotalSize = 128 << 20
	DefaultMaxDepth     = 100
	DefaultMaxValues    = 2_000_000
	// maxEntriesPerFile bounds the walk: a Git tree can name itself so often that it never ends.
	maxEntriesPerFile = 10
	// maxFleetBytes bounds the text that YAML aliases add over all files.
	maxFleetBytes = 32 << 20
	// maxFleetProblems bounds what a load says.
	maxFleetProblems = 10_000
)

func (o Options) withDefaults() Options {
	o.MaxFiles = cmp.Or(o.MaxFiles, DefaultMaxFiles)
	o.MaxFileSize = cmp.Or(o.MaxFileSize, DefaultMaxFileSize)
	o.MaxTotalSize = cmp.Or(o.MaxTotalSize, DefaultMaxTotalSize)
	o.MaxDepth = cmp.Or(o.MaxDepth, DefaultMaxDepth)
	o.MaxValues = cmp.Or(o.MaxValues, DefaultMaxValues)
	o.Path = path.Clean(cmp.Or(o.Path, "."))
	return o
}

// Load reads a fleet. Everything that is wrong with the content is a Problem (rules schema, reference, limits),
// sorted; the error is for a file system that can't be read and for a context that is done. The files are read one
// after the other in the order of their names, and parsed in parallel; the result does not depend on either.
func Load(ctx context.Context, fsys fs.FS, opt Options) (*Fleet, []Problem, error) {
	l := &loader{
		ctx: ctx, fsys: fsys, opt: opt.withDefaults(), fleet: &Fleet{}, files: map[string]*File{},
		odd: map[string]fs.FileMode{}, skipped: map[string]string{},
		hashes: map[string]string{},
	}
	if err := l.walk(); err != nil {
		return nil, nil, err
	}
	if err := l.read(); err != nil {
		return nil, nil, err
	}
	if err := l.assemble(); err != nil {
		return nil, nil, err
	}
	if !l.opt.CacheReadOnly {
		l.opt.Cache.sweep()
	}
	l.fleet.bytes, l.fleet.values = l.total, l.nodes
	SortProblems(l.problems)
	return l.fleet, l.problems, nil
}

// SortProblems sorts problems by place, then by what they say.
func SortProblems(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Object, b.Object),
			cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message),
			cmp.Compare(a.Hint, b.Hint))
	})
}

// loader is the state of one Load.
type loader struct {
	ctx      context.Context
	fsys     fs.FS
	opt      Options
	fleet    *Fleet
	problems []Problem
	// paths are the regular files under the path, sorted.
	paths []string
	// odd are entries that are neither file nor folder: symlinks, submodules, devices.
	odd map[string]fs.FileMode
	// files are the text files read, by path; skipped says why another was not.
	files   map[string]*File
	skipped map[string]string
	total   int64
	docs    []parsedDoc
	// nodes and expandedBytes add up what the files gave.
	nodes, expandedBytes int
	// hashes are the object IDs of files, where the file system knows them; cached are those not read anew.
	hashes map[string]string
}

// limit reports a problem of rule limits.
func (l *loader) limit(severity Severity, file, message, hint string) {
	l.add(Problem{Rule: ruleLimits, Severity: severity, File: file, Message: message, Hint: hint})
}

// add takes problems, up to a bound; one past it says that there are more.
func (l *loader) add(problems ...Problem) {
	for _, p := range problems {
		switch n := len(l.problems); {
		case n < maxFleetProblems:
			l.problems = append(l.problems, p)
		case n == maxFleetProblems:
			l.problems = append(l.problems, Problem{
				Rule: ruleLimits, Severity: Error,
				Message: fmt.Sprintf("more than %d problems; the rest is left out", maxFleetProblems),
			})
		default:
			return
		}
	}
}

// isYAML tells whether a file is read for manifests.
func isYAML(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")
}

// isText tells text from binary as Git does: by a NUL in the first 8 KiB. Text in another encoding than UTF-8 counts
// as text: it is scanned for secrets too.
func isText(data []byte) bool {
	const sniff = 8 << 10
	return bytes.IndexByte(data[:min(len(data), sniff)], 0) < 0
}

// excluded tells whether a file is left out of the secret scan.
func (o Options) excluded(name string) bool {
	for _, g := range o.SecretScanExclude {
		if folder, ok := strings.CutSuffix(g, "/**"); ok && strings.HasPrefix(name, folder+"/") {
			return true
		}
		if ok, err := path.Match(g, name); err == nil && ok {
			return true
		}
	}
	return false
}

// wrapFS names the file in an infrastructure error.
func wrapFS(verb, name string, err error) error { return fmt.Errorf("%s %s: %w", verb, name, err) }
