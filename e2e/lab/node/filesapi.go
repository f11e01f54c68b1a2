package node

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// chunkSize is how much of a file one message carries.
const chunkSize = 1024

// chunked sends what is written to it in messages.
type chunked struct {
	send func(*common.Data) error
}

// Write implements io.Writer.
func (c chunked) Write(p []byte) (int, error) {
	return len(p), c.send(&common.Data{Bytes: append([]byte(nil), p...)})
}

// Read implements machine.MachineService: a regular file's contents.
func (a *api) Read(in *machine.ReadRequest, srv machine.MachineService_ReadServer) error {
	r := newRootfs(a.boot)
	p, f, err := r.resolve("stat", path.Clean(in.Path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return status.Error(codes.NotFound, "stat "+in.Path+": no such file or directory")
	case err != nil:
		return err
	case !f.mode.IsRegular():
		return errors.New("path must be a regular file")
	}
	file, err := r.open(p)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // read only
	w := bufio.NewWriterSize(chunked{srv.Send}, chunkSize)
	if _, err := io.Copy(w, file); err != nil {
		return err
	}
	return w.Flush()
}

// completePath makes the path that List and DiskUsage look at.
func completePath(p string) string {
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	if p = strings.TrimSuffix(p, "/"); p == "" {
		return "/"
	}
	return p
}

// List implements machine.MachineService.
func (a *api) List(in *machine.ListRequest, srv machine.MachineService_ListServer) error {
	depth := 0
	if in.Recurse {
		if depth = int(in.RecursionDepth); depth == 0 {
			depth = -1
		}
	}
	return newRootfs(a.boot).walk(completePath(in.Root), depth, func(p, rel string, f fileInfo) error {
		if !wanted(in.Types, f.mode) {
			return nil
		}
		return srv.Send(&machine.FileInfo{
			Name: p, RelativeName: rel, Size: f.size, Mode: uint32(f.mode), Modified: f.at.Unix(), IsDir: f.IsDir(),
			Link: f.link, Uid: uint32(f.uid), Gid: uint32(f.gid),
		})
	})
}

func wanted(types []machine.ListRequest_Type, mode fs.FileMode) bool {
	for _, t := range types {
		switch {
		case t == machine.ListRequest_REGULAR && mode&fs.ModeType == 0,
			t == machine.ListRequest_DIRECTORY && mode.IsDir(),
			t == machine.ListRequest_SYMLINK && mode&fs.ModeSymlink != 0:
			return true
		}
	}
	return len(types) == 0
}

// DiskUsage implements machine.MachineService. As Talos 1.13 does, it ends after the first path that it could walk.
func (a *api) DiskUsage(in *machine.DiskUsageRequest, srv machine.MachineService_DiskUsageServer) error {
	r := newRootfs(a.boot)
	for _, given := range in.Paths {
		p := completePath(given)
		f, err := r.lstat("lstat", p)
		if err == nil && f.mode&fs.ModeSymlink != 0 {
			p, f, err = r.resolve("lstat", p)
		}
		if err != nil {
			if err := srv.Send(&machine.DiskUsageInfo{Name: p, RelativeName: p, Error: err.Error()}); err != nil {
				return err
			}
			continue
		}
		_, err = a.usage(r, in, srv, p, ".", f, 0)
		return err
	}
	return nil
}

// usage adds up a file or folder and reports it where the request wants it.
func (a *api) usage(r *rootfs, in *machine.DiskUsageRequest, srv machine.MachineService_DiskUsageServer, p, rel string, f fileInfo, depth int32) (int64, error) {
	size := max(f.size, 0)
	if f.IsDir() {
		for _, name := range r.list(p) {
			child := path.Join(p, name)
			c, err := r.lstat("lstat", child)
			if err != nil {
				continue
			}
			n, err := a.usage(r, in, srv, child, path.Join(rel, name), c, depth+1)
			if err != nil {
				return 0, err
			}
			size += n
		}
	} else if rel == "." {
		rel = path.Base(p)
	}
	skip := (in.RecursionDepth > 0 && depth >= in.RecursionDepth) || (!f.IsDir() && !in.All) ||
		(in.Threshold > 0 && size < in.Threshold) || (in.Threshold < 0 && size > -in.Threshold)
	if skip {
		return size, nil
	}
	return size, srv.Send(&machine.DiskUsageInfo{Name: p, RelativeName: rel, Size: size})
}

// Copy implements machine.MachineService: a tar.gz of a file or folder. What could not be packed
// is told at the end, in the last message's metadata.
func (a *api) Copy(in *machine.CopyRequest, srv machine.MachineService_CopyServer) error {
	root := path.Clean(in.RootPath)
	if !path.IsAbs(root) {
		return fmt.Errorf("path is not absolute %v", root)
	}
	w := bufio.NewWriterSize(chunked{srv.Send}, 32*chunkSize)
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	r := newRootfs(a.boot)
	packErr := r.walk(root, -1, func(p, rel string, f fileInfo) error { return r.pack(tw, p, rel, f) })
	if err := errors.Join(tw.Close(), zw.Close(), w.Flush()); err != nil && packErr == nil {
		packErr = err
	}
	if srv.Context().Err() != nil {
		return srv.Context().Err()
	}
	if packErr != nil {
		return srv.Send(&common.Data{Metadata: &common.Metadata{Error: packErr.Error()}})
	}
	return nil
}

// pack writes one file into the archive.
func (r *rootfs) pack(tw *tar.Writer, p, rel string, f fileInfo) error {
	h, err := tar.FileInfoHeader(f, f.link)
	if err != nil {
		return err
	}
	h.Name = rel
	if f.IsDir() {
		h.Name += "/"
	}
	if !f.mode.IsRegular() {
		return tw.WriteHeader(h)
	}
	file, err := r.open(p)
	if err != nil {
		return nil // gone meanwhile
	}
	defer file.Close() //nolint:errcheck // read only
	if n, ok := r.nodes[p]; ok {
		h.Size = int64(len(n.content)) // files of /proc say that they are empty
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, io.LimitReader(file, h.Size))
	return err
}
