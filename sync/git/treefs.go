package git

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"
)

// errBadTree: a tree that no honest Git writes.
var errBadTree = errors.New("tree is malformed")

// treeFS is the tree of a commit as an fs.FS. It follows no symlink: one is an entry of mode fs.ModeSymlink whose
// content can't be opened, as a submodule's (fs.ModeIrregular) can't. Sizes are read when asked for, contents only on
// ReadFile or Open. FileInfo.Sys gives the object's hash as a string, a key for caches. Safe for concurrent use.
type treeFS struct {
	store *store
	root  plumbing.Hash
	when  time.Time

	mu    sync.Mutex
	trees map[plumbing.Hash][]object.TreeEntry
}

// Ensure that what readers like to use is there.
var (
	_ fs.ReadFileFS = (*treeFS)(nil)
	_ fs.ReadDirFS  = (*treeFS)(nil)
	_ fs.StatFS     = (*treeFS)(nil)
	_ fs.ReadLinkFS = (*treeFS)(nil)
)

func newTreeFS(s *store, commit string) (fs.FS, error) {
	c, err := commitOf(s, opf("open tree of %s", short(commit)), commit)
	if err != nil {
		return nil, err
	}
	return &treeFS{store: s, root: c.TreeHash, when: c.Committer.When.UTC(), trees: map[plumbing.Hash][]object.TreeEntry{}}, nil
}

// commitOf reads a commit; one that isn't there is ErrUnknownRevision, not a broken store.
func commitOf(s *store, op, sha string) (*object.Commit, error) {
	if !plumbing.IsHash(sha) {
		return nil, failAs(op, ClassUnknownRevision, fmt.Errorf("%w: %q is not a full commit hash", ErrUnknownRevision, clip(sha, 60)))
	}
	var out *object.Commit
	err := s.view(op, func(st storage.Storer) error {
		c, err := object.GetCommit(st, plumbing.NewHash(sha))
		if errors.Is(err, plumbing.ErrObjectNotFound) {
			return fmt.Errorf("%w: %s", ErrUnknownRevision, sha)
		}
		out = c
		return err
	})
	return out, err
}

// tree gives a tree's entries, checked and sorted by name.
func (f *treeFS) tree(h plumbing.Hash) ([]object.TreeEntry, error) {
	f.mu.Lock()
	entries, ok := f.trees[h]
	f.mu.Unlock()
	if ok {
		return entries, nil
	}
	err := f.store.view(opf("read tree %s", short(h.String())), func(st storage.Storer) error {
		t, err := getTree(st, h)
		if err == nil {
			entries = append([]object.TreeEntry(nil), t.Entries...)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
	for i, e := range entries {
		if err := checkName(e.Name); err != nil {
			return nil, err
		}
		if i > 0 && entries[i-1].Name == e.Name {
			return nil, fmt.Errorf("%w: name %q is there twice", errBadTree, e.Name)
		}
	}
	f.mu.Lock()
	f.trees[h] = entries
	f.mu.Unlock()
	return entries, nil
}

// getTree reads a tree. One that can't be parsed is bad content, not a broken store: its hash was right.
func getTree(st storage.Storer, h plumbing.Hash) (*object.Tree, error) {
	t, err := object.GetTree(st, h)
	if errors.Is(err, object.ErrMalformedTree) {
		return nil, fmt.Errorf("%w: %w", errBadTree, err)
	}
	return t, err
}

// checkName refuses names that mean something else to some file system or tool.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.EqualFold(name, ".git"),
		strings.ContainsAny(name, "/\\\x00"):
		return fmt.Errorf("%w: name %q is not allowed", errBadTree, name)
	}
	return nil
}

// find walks to a name without following anything. The hash is the object's; the root is a folder.
func (f *treeFS) find(op, name string) (object.TreeEntry, error) {
	at := object.TreeEntry{Name: ".", Mode: filemode.Dir, Hash: f.root}
	if !fs.ValidPath(name) {
		return at, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if name == "." {
		return at, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		if at.Mode != filemode.Dir {
			return at, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		entries, err := f.tree(at.Hash)
		if err != nil {
			return at, &fs.PathError{Op: op, Path: name, Err: err}
		}
		i := sort.Search(len(entries), func(i int) bool { return entries[i].Name >= part })
		if i == len(entries) || entries[i].Name != part {
			return at, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		at = entries[i]
	}
	return at, nil
}

func (f *treeFS) info(e object.TreeEntry) *treeInfo { return &treeInfo{fs: f, e: e} }

// Stat describes a file without following symlinks.
func (f *treeFS) Stat(name string) (fs.FileInfo, error) {
	e, err := f.find("stat", name)
	if err != nil {
		return nil, err
	}
	return f.sized("stat", name, e)
}

func (f *treeFS) sized(op, name string, e object.TreeEntry) (fs.FileInfo, error) {
	i := f.info(e)
	if e.Mode == filemode.Dir || e.Mode == filemode.Submodule {
		return i, nil
	}
	var err error
	if i.size, err = f.store.size("read size of "+name, e.Hash); err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return i, nil
}

// Lstat is Stat: nothing is followed anyway.
func (f *treeFS) Lstat(name string) (fs.FileInfo, error) { return f.Stat(name) }

// ReadLink gives a symlink's text.
func (f *treeFS) ReadLink(name string) (string, error) {
	e, err := f.find("readlink", name)
	if err != nil {
		return "", err
	}
	if e.Mode != filemode.Symlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	b, err := f.blob("readlink", name, e)
	return string(b), err
}

// ReadDir lists a folder, sorted by name.
func (f *treeFS) ReadDir(name string) ([]fs.DirEntry, error) {
	e, err := f.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if e.Mode != filemode.Dir {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	entries, err := f.tree(e.Hash)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	out := make([]fs.DirEntry, len(entries))
	for i, c := range entries {
		out[i] = &treeDirEntry{treeInfo: treeInfo{fs: f, e: c}, path: path.Join(name, c.Name)}
	}
	return out, nil
}

// ReadFile gives a regular file's content.
func (f *treeFS) ReadFile(name string) ([]byte, error) {
	e, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	if !e.Mode.IsRegular() && e.Mode != filemode.Executable {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	return f.blob("open", name, e)
}

func (f *treeFS) blob(op, name string, e object.TreeEntry) ([]byte, error) {
	var out []byte
	err := f.store.view(opf("read %s", name), func(st storage.Storer) (err error) {
		out, err = readBlob(st, e.Hash)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return out, nil
}

func readBlob(st storage.Storer, h plumbing.Hash) ([]byte, error) {
	o, err := st.EncodedObject(plumbing.BlobObject, h)
	if err != nil {
		return nil, err
	}
	r, err := o.Reader()
	if err != nil {
		return nil, err
	}
	out := make([]byte, o.Size())
	_, err = io.ReadFull(r, out)
	return out, errors.Join(err, r.Close())
}

// Open opens a file or folder.
func (f *treeFS) Open(name string) (fs.File, error) {
	e, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	if e.Mode == filemode.Dir {
		entries, err := f.ReadDir(name)
		if err != nil {
			return nil, err
		}
		return &treeDir{info: f.info(e), entries: entries}, nil
	}
	b, err := f.ReadFile(name)
	if err != nil {
		return nil, err
	}
	i := f.info(e)
	i.size = int64(len(b))
	return &treeFile{info: i, Reader: strings.NewReader(string(b))}, nil
}

// treeInfo is a FileInfo. Its time is the commit's: Git keeps none per file.
type treeInfo struct {
	fs   *treeFS
	e    object.TreeEntry
	size int64
}

func (i *treeInfo) Name() string       { return i.e.Name }
func (i *treeInfo) Size() int64        { return i.size }
func (i *treeInfo) ModTime() time.Time { return i.fs.when }
func (i *treeInfo) IsDir() bool        { return i.e.Mode == filemode.Dir }

// Sys gives the object's hash as a string.
func (i *treeInfo) Sys() any { return i.e.Hash.String() }

// Mode gives read-only permissions and the type.
func (i *treeInfo) Mode() fs.FileMode {
	switch i.e.Mode {
	case filemode.Dir:
		return fs.ModeDir | 0o555
	case filemode.Symlink:
		return fs.ModeSymlink | 0o444
	case filemode.Submodule:
		return fs.ModeIrregular | 0o444
	case filemode.Executable:
		return 0o555
	}
	return 0o444
}

type treeDirEntry struct {
	treeInfo
	path string
}

func (d *treeDirEntry) Type() fs.FileMode { return d.Mode().Type() }
func (d *treeDirEntry) Info() (fs.FileInfo, error) {
	return d.fs.sized("stat", d.path, d.e)
}

type treeFile struct {
	info *treeInfo
	*strings.Reader
}

func (f *treeFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *treeFile) Close() error               { return nil }

type treeDir struct {
	info    *treeInfo
	entries []fs.DirEntry
	at      int
}

func (d *treeDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *treeDir) Close() error               { return nil }
func (d *treeDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.info.Name(), Err: errors.New("is a directory")}
}

func (d *treeDir) ReadDir(n int) ([]fs.DirEntry, error) {
	rest := d.entries[d.at:]
	if n > 0 {
		if len(rest) == 0 {
			return nil, io.EOF
		}
		rest = rest[:min(n, len(rest))]
	}
	d.at += len(rest)
	return append([]fs.DirEntry{}, rest...), nil
}
