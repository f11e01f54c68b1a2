package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"runtime"
	"sync"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// A batch is parsed together; what the files hold is added up between batches, in order, so that the place where a
// bound is hit does not depend on scheduling. Its size bounds what is in flight: parsed YAML is many times its text.
const (
	batchFiles = 128
	batchBytes = 2 << 20
)

// read reads all files and parses those that are YAML.
func (l *loader) read() error {
	var pending []*File
	size := 0
	wait := func() {} // finishes the batch that is being parsed
	flush := func() {
		wait()
		wait = l.parseBatch(pending)
		pending, size = nil, 0
	}
	defer func() { wait() }()
	for _, name := range l.paths {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		f, more, err := l.readListed(name)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if f == nil || !isYAML(name) {
			continue
		}
		pending, size = append(pending, f), size+len(f.Data)
		if len(pending) == batchFiles || size >= batchBytes {
			flush()
		}
	}
	flush()
	wait()
	wait = func() {}
	return l.ctx.Err()
}

// readListed reads one file that the walk found. nil is a file that is left out; more is false where a limit ends
// the reading.
func (l *loader) readListed(name string) (f *File, more bool, err error) {
	data, whole, err := l.openCached(name)
	if isNotThere(err) {
		return nil, true, nil // deleted since the walk: an editor's temporary file
	}
	if errors.Is(err, errHuge) {
		l.tooLarge(name)
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	if !isText(data) {
		l.binary(name, data)
		return nil, true, nil
	}
	if !whole {
		l.tooLarge(name)
		return nil, true, nil
	}
	if len(l.files) == l.opt.MaxFiles {
		l.stop(name, fmt.Sprintf("more than %d text files; this one and the rest are not read", l.opt.MaxFiles))
		return nil, false, nil
	}
	if l.total += int64(len(data)); l.total > l.opt.MaxTotalSize {
		l.stop(name, fmt.Sprintf("the text files are larger than %d MiB together; this one and the rest are not read", l.opt.MaxTotalSize>>20))
		return nil, false, nil
	}
	return l.keep(name, data), true, nil
}

// keep adds a file to the fleet's.
func (l *loader) keep(name string, data []byte) *File {
	f := &File{Path: name, Data: data, SkipScan: l.opt.excluded(name)}
	l.files[name] = f
	return f
}

// stop reports the limit that ends the reading. What was not read is unknown.
func (l *loader) stop(name, message string) {
	l.limit(Error, name, message, "narrow the folder with --path, or raise the limit")
	l.fleet.Unknown = append(l.fleet.Unknown, Unknown{})
}

// binary leaves a file out. A manifest that an editor saved as UTF-16 must not vanish without a word.
func (l *loader) binary(name string, data []byte) {
	l.skipped[name] = "is no text file"
	if isYAML(name) && namesGroup(bytes.ReplaceAll(data, []byte{0}, nil)) {
		l.add(Problem{
			Rule: ruleSchema, Severity: Error, File: name, Line: 1, Column: 1,
			Message: "the file is no UTF-8 text", Hint: "save it as UTF-8",
		})
		l.fleet.Unknown = append(l.fleet.Unknown, Unknown{File: name})
	}
}

// tooLarge reports a file over the size limit: YAML that names our group may hold manifests, anything else (a bundle of
// somebody's custom resource definitions, for example) is only not scanned.
func (l *loader) tooLarge(name string) {
	l.skipped[name] = "is too large"
	message := fmt.Sprintf("larger than %s; it is not read", size(l.opt.MaxFileSize))
	if !isYAML(name) || l.foreign(name) {
		l.limit(Warning, name, message, "it is not scanned for secrets")
		return
	}
	l.limit(Error, name, message, "split it, or raise the limit")
	l.fleet.Unknown = append(l.fleet.Unknown, Unknown{File: name})
}

// foreign tells whether a large file is seen not to name our group, to its end. A file that is too large to be opened,
// or can't be read, may name it.
func (l *loader) foreign(name string) bool {
	if info, err := fs.Lstat(l.fsys, name); err != nil || !info.Mode().IsRegular() || info.Size() > maxSniff {
		return false
	}
	f, err := l.fsys.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	const step = 64 << 10
	keep := len(v1alpha1.Group) - 1 // the name may lie across two reads
	buf := make([]byte, 0, keep+step)
	for {
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case namesGroup(buf):
			return false
		case err == io.EOF:
			return true
		case err != nil || l.ctx.Err() != nil:
			return false
		}
		if drop := len(buf) - keep; drop > 0 {
			buf = buf[:copy(buf, buf[drop:])]
		}
	}
}

// size prints a number of bytes.
func size(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// maxSniff is how large a file may be to be opened at all: a Git object is inflated as a whole, if only to see that
// it is binary.
const maxSniff = 16 << 20

var errHuge = errors.New("the file is very large")

// open reads a file, at most one byte more than the limit; whole is false where there is more.
func (l *loader) open(name string) (data []byte, whole bool, err error) {
	// The walk, or regular, has seen what it is; once more, because a folder can change under our hands.
	info, err := fs.Lstat(l.fsys, name)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, false, wrapFS("read", name, err)
	}
	limit := l.opt.MaxFileSize
	if info.Size() > max(maxSniff, limit) {
		return nil, false, errHuge
	}
	f, err := l.fsys.Open(name)
	if err != nil {
		return nil, false, wrapFS("open", name, err)
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 0, min(max(info.Size(), 0), limit)+1)
	for r := io.LimitReader(f, limit+1); ; {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, int64(len(buf)) <= limit, nil
		}
		if err != nil {
			return nil, false, wrapFS("read", name, err)
		}
	}
}

// parseBatch parses files in the background and gives a function that waits for them and takes what they gave, in
// order.
func (l *loader) parseBatch(files []*File) func() {
	results := make([]*parsed, len(files))
	var wg sync.WaitGroup
	next := make(chan int, len(files))
	for i := range files {
		next <- i
	}
	close(next)
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		wg.Go(func() {
			for i := range next {
				results[i] = l.parseCached(files[i])
			}
		})
	}
	return func() {
		wg.Wait()
		for i, r := range results {
			l.take(files[i], r)
		}
	}
}

// take adds what a file gave, as long as the fleet stays within bounds.
func (l *loader) take(f *File, r *parsed) {
	f.Manifest = r.manifest
	if !r.manifest {
		return
	}
	if l.nodes+r.nodes > l.opt.MaxValues || l.expandedBytes+r.expandedBytes > maxFleetBytes {
		l.limit(Error, f.Path, fmt.Sprintf("the manifests hold more than %d values together, YAML aliases expanded; this file is not used", l.opt.MaxValues),
			"narrow the folder with --path, or raise the limit")
		l.fleet.Unknown = append(l.fleet.Unknown, Unknown{File: f.Path})
		return
	}
	l.nodes += r.nodes
	l.expandedBytes += r.expandedBytes
	l.add(r.problems...)
	l.fleet.Unknown = append(l.fleet.Unknown, r.unknown...)
	l.docs = append(l.docs, r.docs...)
}

// notThere is the reason of a path that leads nowhere.
const notThere = "is not there"

// regular tells whether a path outside of the walk is a regular file that no symlink leads to; reason says why not.
func (l *loader) regular(name string) (reason string, err error) {
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		info, err := lstat(l.fsys, name[:i])
		switch {
		case isNotThere(err):
			return notThere, nil
		case err != nil:
			return "", wrapFS("read", name, err)
		case info.Mode().Type()&^fs.ModeDir != 0:
			return "passes through a symlink or submodule", nil
		case i == len(name) && info.IsDir():
			return "is a folder", nil
		case i < len(name) && !info.IsDir():
			return notThere, nil
		}
	}
	return "", nil
}

// lstat looks at an entry without following it. fs.Lstat follows where the file system has no Lstat; there the
// folder's listing tells.
func lstat(fsys fs.FS, name string) (fs.FileInfo, error) {
	if _, ok := fsys.(fs.ReadLinkFS); ok {
		return fs.Lstat(fsys, name)
	}
	entries, err := fs.ReadDir(fsys, path.Dir(name))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == path.Base(name) {
			return e.Info()
		}
	}
	return nil, fs.ErrNotExist
}
