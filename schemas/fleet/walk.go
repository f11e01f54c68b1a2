package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// gitDir is skipped wherever it stands.
const gitDir = ".git"

var errTooManyEntries = errors.New("too many entries")

// walk finds the files under the path. Nothing is followed and nothing is opened.
func (l *loader) walk() error {
	if l.opt.Path != "." && !fs.ValidPath(l.opt.Path) {
		return fmt.Errorf("read folder %q: it is no path within the repository", l.opt.Path)
	}
	if _, err := fs.Stat(l.fsys, l.opt.Path); errors.Is(err, fs.ErrNotExist) && l.opt.Path != "." {
		l.add(Problem{
			Rule: ruleReference, Severity: Error, File: l.opt.Path,
			Message: "the folder that Ichor is to read is not in the repository", Hint: "see path in Ichor's configuration (--path)",
		})
		l.fleet.Unknown = append(l.fleet.Unknown, Unknown{})
		return nil
	}
	entries := 0
	err := fs.WalkDir(l.fsys, l.opt.Path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return wrapFS("read", name, err)
		}
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if entries++; entries > maxEntriesPerFile*l.opt.MaxFiles {
			return errTooManyEntries
		}
		if entries == 1 && entry.IsDir() {
			return nil // the folder itself
		}
		return l.visit(name, entry)
	})
	if errors.Is(err, errTooManyEntries) {
		l.limit(Error, "", fmt.Sprintf("more than %d files and folders", maxEntriesPerFile*l.opt.MaxFiles), "narrow the folder with --path")
		l.fleet.Unknown = append(l.fleet.Unknown, Unknown{})
		err = nil
	}
	slices.Sort(l.paths)
	l.paths = slices.Compact(l.paths) // a broken Git tree may hold a name twice
	return err
}

// visit takes one entry of the walk.
func (l *loader) visit(name string, entry fs.DirEntry) error {
	mode := entry.Type()
	switch {
	case strings.ContainsAny(entry.Name(), "/") || !fs.ValidPath(entry.Name()) || entry.Name() == ".":
		// A crafted Git tree can hold .. and the like; joined with its folder, the walk would go in circles.
		l.limit(Error, path.Dir(name), "the folder holds an entry named "+quoted(entry.Name())+"; it is not read", "rename it: no checkout can hold such a name")
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	case entry.Name() == gitDir:
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	case badName(name):
		l.limit(Error, name, "the name holds a backslash or a control character; it is not read", "rename it")
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	case mode&^fs.ModeDir != 0:
		l.odd[name] = mode
		l.limit(Warning, name, oddName(mode)+"; it is left alone", "put the file itself there if Ichor is to read it")
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	case entry.IsDir():
		if strings.Count(name, "/") >= l.opt.MaxDepth {
			l.limit(Error, name, fmt.Sprintf("folders are nested more than %d deep", l.opt.MaxDepth), "move what is below further up")
			return fs.SkipDir
		}
		return nil
	}
	l.paths = append(l.paths, name)
	if h, ok := entry.(interface{ Sys() any }); ok && l.opt.Cache != nil {
		l.hashes[name], _ = h.Sys().(string)
	}
	return nil
}

// oddName says what an entry is that is neither file nor folder.
func oddName(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "this is a symlink"
	case mode&fs.ModeIrregular != 0:
		return "this is a submodule"
	}
	return "this is no regular file"
}
