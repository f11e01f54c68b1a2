// Package s3 is the lab's S3 store: the real server versitygw on a folder, and faults in front of it.
//
// What is stored, listed, versioned, locked and refused is the server's own. The faults act between
// it and the client: on sockets (cut, hang, refuse, slow) and on requests and answers (half
// transfers, corrupt bytes, lost replies, errors, a wrong clock).
package s3

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"ichor.maesh.dev/ichor/e2e/lab/wire"
)

// name of the store as an end of the network.
const name = "s3"

// DefaultBucket is made when no other name is given.
const DefaultBucket = "ichor"

// Region that the store says it is in.
const Region = "us-east-1"

// Options configure a store.
type Options struct {
	// Dir holds everything: objects, versions, keys, the port. It is made if needed.
	Dir string
	// Server is the path of the versitygw binary; Find has it.
	Server string
	// Bucket that is made, with versioning and object lock; DefaultBucket when empty.
	Bucket string
	// Addr is where clients connect (loopback); a free port when not valid, the same at each start.
	Addr netip.AddrPort
	// Log of the server's own words. May be nil.
	Log *slog.Logger
	// OnEvent gets faults and what they hit. It must not block. May be nil.
	OnEvent func(kind string, fields map[string]any)
}

// Store is a running store. All methods may be called from any goroutine.
type Store struct {
	opts   Options
	keep   kept
	net    *wire.Net
	server *server
	http   *http.Server
	gate   *wire.Gate

	mu     sync.Mutex
	faults []*fault
	counts map[string]int
}

// kept is what stays the same over restarts.
type kept struct {
	AccessKey string         `json:"accessKey"`
	SecretKey string         `json:"secretKey"`
	Addr      netip.AddrPort `json:"addr"`
}

// Start starts the server, or goes on with what a folder holds.
func Start(ctx context.Context, o Options) (_ *Store, err error) {
	if o.Bucket == "" {
		o.Bucket = DefaultBucket
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnEvent == nil {
		o.OnEvent = func(string, map[string]any) {}
	}
	s := &Store{opts: o, net: wire.New(), counts: map[string]int{}}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("start the S3 store: %w", err)
	}
	if s.server, err = startServer(ctx, o, s.keep); err != nil {
		return nil, fmt.Errorf("start the S3 store: %w", err)
	}
	if s.gate, err = s.net.Listen(ctx, name, s.keep.Addr); err != nil {
		return nil, errors.Join(fmt.Errorf("start the S3 store: %w", err), s.server.stop())
	}
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Minute, ErrorLog: quiet}
	go s.http.Serve(s.gate) //nolint:errcheck // ends with Close
	if err := s.makeBucket(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// load reads or makes what is kept.
func (s *Store) load() error {
	if err := os.MkdirAll(s.opts.Dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(s.opts.Dir, "store.json")
	data, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(data, &s.keep); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if s.keep.AccessKey == "" {
		raw := make([]byte, 30)
		if _, err := rand.Read(raw); err != nil {
			return fmt.Errorf("make keys: %w", err)
		}
		s.keep.AccessKey, s.keep.SecretKey = "lab"+hex.EncodeToString(raw[:8]), hex.EncodeToString(raw[8:])
	}
	if s.opts.Addr.IsValid() {
		s.keep.Addr = s.opts.Addr
	}
	if !s.keep.Addr.IsValid() || s.keep.Addr.Port() == 0 {
		addr := s.keep.Addr.Addr()
		if !addr.IsValid() {
			addr = netip.MustParseAddr("127.0.0.1")
		}
		if s.keep.Addr, err = freePort(addr); err != nil {
			return err
		}
	}
	if data, err = json.Marshal(s.keep); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o600)
}

func freePort(addr netip.Addr) (netip.AddrPort, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

// Endpoint is the store's address for clients, such as http://127.0.0.1:40001.
func (s *Store) Endpoint() string { return "http://" + s.keep.Addr.String() }

// Host is the endpoint without its scheme.
func (s *Store) Host() string { return s.keep.Addr.String() }

// Keys of the owner of everything in the store.
func (s *Store) Keys() (access, secret string) { return s.keep.AccessKey, s.keep.SecretKey }

// Bucket that the store was started with.
func (s *Store) Bucket() string { return s.opts.Bucket }

// Requests counts the requests that came, by S3's name of the operation, faults' victims included.
func (s *Store) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for k, v := range s.counts {
		out[k] = v
	}
	return out
}

// Close ends the store; what is stored stays.
func (s *Store) Close() error {
	s.Heal()
	err := s.http.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return errors.Join(err, s.gate.Close(), s.server.stop())
}

// ObjectFile is the file in which the store has the current version of an object.
func (s *Store) ObjectFile(bucket, key string) string {
	return filepath.Join(s.opts.Dir, "data", bucket, filepath.FromSlash(key))
}

// Rot flips a bit in the middle of a stored object, as a bad disk does: nobody is told.
func (s *Store) Rot(bucket, key string) error {
	path := s.ObjectFile(bucket, key)
	if rel, err := filepath.Rel(filepath.Join(s.opts.Dir, "data"), path); err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("corrupt object %s/%s: not a name of an object", bucket, key)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("corrupt object %s/%s: the store has none of that name", bucket, key)
	}
	if err != nil {
		return fmt.Errorf("corrupt object %s/%s: %w", bucket, key, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return errors.Join(fmt.Errorf("corrupt object %s/%s: it is empty", bucket, key), err)
	}
	b := make([]byte, 1)
	at := info.Size() / 2
	if _, err := f.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("corrupt object %s/%s: %w", bucket, key, err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		return fmt.Errorf("corrupt object %s/%s: %w", bucket, key, err)
	}
	// a bad disk does not touch the time either
	if err := os.Chtimes(path, time.Time{}, info.ModTime()); err != nil {
		return fmt.Errorf("corrupt object %s/%s: %w", bucket, key, err)
	}
	s.opts.OnEvent("s3.rot", map[string]any{"bucket": bucket, "key": key})
	return nil
}

// hasXattrs says whether a folder's file system keeps extended attributes, which is where the
// server has the objects' metadata.
func hasXattrs(dir string) bool {
	probe := filepath.Join(dir, ".xattr-probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		return false
	}
	defer os.Remove(probe) //nolint:errcheck // a left-over does no harm
	return syscall.Setxattr(probe, "user.ichor-lab", []byte("x"), 0) == nil
}
