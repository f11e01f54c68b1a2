package node

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// rootfs is the machine's file tree as machined sees it: a few hundred files that are worked out
// when somebody reads, and the partitions' folders under /var and /system/state.
type rootfs struct {
	b     *boot
	nodes map[string]inode
	names map[string][]string // the names in a folder
}

// inode is a file that exists only here.
type inode struct {
	mode     fs.FileMode
	uid, gid int
	size     int64 // what stat says; files of /proc say 0
	link     string
	content  []byte
	at       time.Time
}

// fileInfo is what List and Copy need to know of a file.
type fileInfo struct {
	name     string
	mode     fs.FileMode
	size     int64
	at       time.Time
	uid, gid int
	link     string
}

// Name implements fs.FileInfo.
func (f fileInfo) Name() string { return f.name }

// Size implements fs.FileInfo.
func (f fileInfo) Size() int64 { return f.size }

// Mode implements fs.FileInfo.
func (f fileInfo) Mode() fs.FileMode { return f.mode }

// ModTime implements fs.FileInfo.
func (f fileInfo) ModTime() time.Time { return f.at }

// IsDir implements fs.FileInfo.
func (f fileInfo) IsDir() bool { return f.mode.IsDir() }

// Sys implements fs.FileInfo.
func (f fileInfo) Sys() any { return &syscall.Stat_t{Uid: uint32(f.uid), Gid: uint32(f.gid)} }

func newRootfs(b *boot) *rootfs {
	r := &rootfs{b: b, nodes: map[string]inode{}, names: map[string][]string{}}
	r.put("/", inode{mode: fs.ModeDir | 0o755})
	r.fill()
	for dir := range r.names {
		slices.Sort(r.names[dir])
	}
	return r
}

// put adds a file and the folders above it.
func (r *rootfs) put(p string, n inode) {
	if n.at.IsZero() {
		n.at = r.b.poweredOn
	}
	if n.size == 0 && n.mode.IsRegular() && !strings.HasPrefix(p, "/proc/") && !strings.HasPrefix(p, "/sys/") {
		n.size = int64(len(n.content))
	}
	_, had := r.nodes[p]
	r.nodes[p] = n
	if had || p == "/" {
		return
	}
	dir := path.Dir(p)
	if _, ok := r.nodes[dir]; !ok {
		r.put(dir, inode{mode: fs.ModeDir | 0o755})
	}
	r.names[dir] = append(r.names[dir], path.Base(p))
}

func (r *rootfs) file(p, content string) { r.put(p, inode{mode: 0o644, content: []byte(content)}) }

// hidden are files in the partitions' folders that belong to the lab, not to the machine.
var hidden = map[string]bool{"/var/lib/images.json": true, "/var/lib/etcd.log": true}

// real is the folder or file of the lab behind a path, "" where there is none.
func (r *rootfs) real(p string) string {
	d := r.b.disks
	for mount, dir := range map[string]string{"/var": d.ephemeral(), "/system/state": d.state()} {
		if (p == mount || strings.HasPrefix(p, mount+"/")) && (mount != "/var" || r.b.complete()) && exists(dir) && !hidden[p] {
			return filepath.Join(dir, filepath.FromSlash(strings.TrimPrefix(p, mount)))
		}
	}
	return ""
}

// lstat is what a path is, without following a link.
func (r *rootfs) lstat(op, p string) (fileInfo, error) {
	if n, ok := r.nodes[p]; ok {
		size := n.size
		if n.mode.IsDir() && size == 0 {
			size = 64 // a folder on a metal node, as its List shows it
		}
		return fileInfo{name: path.Base(p), mode: n.mode, size: size, at: n.at, uid: n.uid, gid: n.gid, link: n.link}, nil
	}
	if real := r.real(p); real != "" {
		if st, err := os.Lstat(real); err == nil {
			f := fileInfo{name: path.Base(p), mode: st.Mode(), size: st.Size(), at: st.ModTime()}
			if strings.HasPrefix(p, "/var/lib/etcd/") || p == "/var/lib/etcd" {
				f.uid, f.gid = 60, 60 // the user etcd
			}
			return f, nil
		}
	}
	return fileInfo{}, &fs.PathError{Op: op, Path: p, Err: syscall.ENOENT}
}

// resolve follows the links of a path's last part.
func (r *rootfs) resolve(op, p string) (string, fileInfo, error) {
	for range 8 {
		f, err := r.lstat(op, p)
		if err != nil || f.mode&fs.ModeSymlink == 0 {
			return p, f, err
		}
		if !path.IsAbs(f.link) {
			f.link = path.Join(path.Dir(p), f.link)
		}
		p = f.link
	}
	return p, fileInfo{}, &fs.PathError{Op: op, Path: p, Err: syscall.ELOOP}
}

// list are the names in a folder, sorted.
func (r *rootfs) list(dir string) []string {
	names := slices.Clone(r.names[dir])
	if real := r.real(dir); real != "" {
		entries, err := os.ReadDir(real)
		if err == nil {
			for _, e := range entries {
				if !slices.Contains(names, e.Name()) && !strings.HasPrefix(e.Name(), ".tmp-") && !hidden[path.Join(dir, e.Name())] {
					names = append(names, e.Name())
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// open reads a regular file.
func (r *rootfs) open(p string) (io.ReadCloser, error) {
	if n, ok := r.nodes[p]; ok {
		return io.NopCloser(bytes.NewReader(n.content)), nil
	}
	if real := r.real(p); real != "" {
		f, err := os.Open(real)
		if err == nil {
			return f, nil
		}
	}
	return nil, &fs.PathError{Op: "open", Path: p, Err: syscall.ENOENT}
}

// walk visits a path and what is below, folders before their contents, down to a depth (negative: all).
func (r *rootfs) walk(root string, depth int, visit func(p, rel string, f fileInfo) error) error {
	f, err := r.lstat("lstat", root)
	if err != nil {
		return err
	}
	if f.mode&fs.ModeSymlink != 0 {
		if root, f, err = r.resolve("lstat", root); err != nil {
			return err
		}
	}
	if !f.IsDir() {
		return visit(root, path.Base(root), f)
	}
	return r.walkDir(root, ".", f, depth, visit)
}

func (r *rootfs) walkDir(p, rel string, f fileInfo, depth int, visit func(p, rel string, f fileInfo) error) error {
	if err := visit(p, rel, f); err != nil {
		return err
	}
	level := strings.Count(rel, "/") + 1
	if rel == "." {
		level = 0
	}
	if !f.IsDir() || (depth >= 0 && level > 0 && level >= depth) {
		return nil
	}
	for _, name := range r.list(p) {
		child := path.Join(p, name)
		c, err := r.lstat("lstat", child)
		if err != nil {
			continue // gone meanwhile
		}
		if err := r.walkDir(child, path.Join(rel, name), c, depth, visit); err != nil {
			return err
		}
	}
	return nil
}
