package git

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// cacheBytes of inflated objects kept per store.
const cacheBytes = 16 * cache.MiByte

// store owns one bare object store on disk. Every use of go-git goes through view, under the lock.
type store struct {
	dir   string
	packs int // consolidate at that many

	mu sync.Mutex
	st storage.Storer
	// suspect: something was found broken; the next fetch makes the store anew.
	suspect bool
	// sizes of blobs by hash, which never change.
	sizes map[plumbing.Hash]int64
	// known files of objects/pack with their sizes, to notice what was cut or removed behind our back.
	known map[string]int64
}

// openStore opens or makes the store, sweeps what a killed process left, and starts anew when it is broken: the store
// is a cache of what the server has.
func openStore(dir string, packs int) (*store, error) {
	s := &store{dir: dir, packs: packs}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failAs(opf("open Git store %s", dir), ClassConfig, err)
	}
	if err := s.sweep(); err != nil {
		return nil, failAs(opf("sweep Git store %s", dir), ClassTransient, err)
	}
	s.mu.Lock()
	err := s.open()
	s.mu.Unlock()
	if err == nil {
		return s, nil
	}
	if err := s.reset(); err != nil {
		return nil, fail(opf("open Git store %s", dir), err)
	}
	return s, nil
}

// sweep removes temporary files (go-git's tmp_pack_*, tmp_obj_*, ours tmp_fetch_*): after a kill they stay for ever.
func (s *store) sweep() error {
	for _, pattern := range []string{"tmp_*", "objects/tmp_*", "objects/pack/tmp_*", "objects/pack/.tmp*", "tmp/*"} {
		found, err := filepath.Glob(filepath.Join(s.dir, filepath.FromSlash(pattern)))
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// open opens the storage and reads its refs and pack indexes once, which finds most damage. The lock is held.
func (s *store) open() (err error) {
	defer guard(&err)
	st := filesystem.NewStorageWithOptions(osfs.New(s.dir, osfs.WithBoundOS()), cache.NewObjectLRU(cacheBytes),
		filesystem.Options{KeepDescriptors: true})
	if _, err := os.Stat(filepath.Join(s.dir, "HEAD")); errors.Is(err, fs.ErrNotExist) {
		if err := initBare(st); err != nil {
			return err
		}
	}
	it, err := st.IterReferences()
	if err != nil {
		return err
	}
	refs := []*plumbing.Reference{}
	if err := it.ForEach(func(r *plumbing.Reference) error { refs = append(refs, r); return nil }); err != nil {
		return err
	}
	for _, r := range refs {
		if r.Type() != plumbing.HashReference {
			continue
		}
		if err := st.HasEncodedObject(r.Hash()); err != nil {
			return fmt.Errorf("read %s: %w", r.Name(), err)
		}
	}
	s.st, s.suspect = st, false
	s.known, err = s.listPacks()
	return err
}

func initBare(st *filesystem.Storage) error {
	if err := st.Init(); err != nil {
		return err
	}
	cfg := config.NewConfig()
	cfg.Core.IsBare = true
	if err := st.SetConfig(cfg); err != nil {
		return err
	}
	return st.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, "refs/heads/none"))
}

// reset throws the store away and makes an empty one.
func (s *store) reset() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
			return err
		}
	}
	return s.open()
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop closes the storage. The lock is held.
func (s *store) drop() {
	if c, ok := s.st.(io.Closer); ok {
		_ = c.Close()
	}
	s.st = nil
}

// view runs fn under the lock. A fault of the store marks it, so that the next fetch makes it anew.
func (s *store) view(op string, fn func(storage.Storer) error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.st == nil {
		return failAs(op, ClassTransient, errClosed)
	}
	defer func() {
		if err = storeFault(op, err); ClassOf(err) == ClassCorrupt {
			s.suspect = true
		}
	}()
	defer guard(&err)
	return fn(s.st)
}

// keptSizes bounds the memory of sizes.
const keptSizes = 200_000

// size gives a blob's size without reading it.
func (s *store) size(op string, h plumbing.Hash) (n int64, err error) {
	err = s.view(op, func(st storage.Storer) error {
		var ok bool
		if n, ok = s.sizes[h]; ok {
			return nil
		}
		if n, err = st.EncodedObjectSize(h); err != nil {
			return err
		}
		if s.sizes == nil || len(s.sizes) >= keptSizes {
			s.sizes = map[plumbing.Hash]int64{}
		}
		s.sizes[h] = n
		return nil
	})
	return n, err
}

// guard turns a panic of the library over broken or hostile data into an error: one bad pack must not end the daemon.
func guard(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("read Git data: %v", p)
	}
}

// broken tells whether the store must be made anew: a fault was seen, or its files are not what was written.
func (s *store) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspect {
		return true
	}
	now, err := s.listPacks()
	if err != nil || len(now) != len(s.known) {
		return true
	}
	for name, size := range s.known {
		if now[name] != size {
			return true
		}
	}
	return false
}

func (s *store) listPacks() (map[string]int64, error) {
	out := map[string]int64{}
	entries, err := os.ReadDir(filepath.Join(s.dir, "objects", "pack"))
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "tmp_") {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			return nil, err
		}
		out[e.Name()] = fi.Size()
	}
	return out, err
}

// addPack takes a scanned pack in.
func (s *store) addPack(op string, src io.ReadSeeker) error {
	return s.view(op, func(st storage.Storer) error {
		if _, err := src.Seek(0, io.SeekStart); err != nil {
			return err
		}
		err := packfile.UpdateObjectStorage(st, src)
		if err != nil {
			// What came from the server was bad, not what we have.
			_ = s.sweep()
			return failAs(op, ClassTransient, err)
		}
		s.known, err = s.listPacks()
		return err
	})
}

// bytes of all files.
func (s *store) bytes() (int64, error) {
	var n int64
	err := filepath.WalkDir(s.dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			n += fi.Size()
		}
		return err
	})
	return n, err
}

// consolidate joins all packs but the largest into one when there are too many: one pack comes with each fetch.
// go-git's own repack walks into submodules and fails there (facts 3.1). Readers wait meanwhile.
func (s *store) consolidate() error {
	op := opf("repack Git store %s", s.dir)
	return s.view(op, func(st storage.Storer) error {
		small := s.smallPacks()
		if small == nil {
			return nil
		}
		before := len(s.known)
		if err := joinPacks(st, small); err != nil {
			return err
		}
		after, err := s.listPacks()
		if err != nil {
			return err
		}
		s.drop()
		if len(after) > before { // else the joined pack is one of the old ones: leave them
			if err := removePacks(small); err != nil {
				return err
			}
		}
		return s.open()
	})
}

func joinPacks(st storage.Storer, small []string) error {
	hashes, err := packHashes(small)
	if err != nil {
		return err
	}
	w, err := st.(*filesystem.Storage).PackfileWriter()
	if err != nil {
		return err
	}
	return errors.Join(writePack(w, st, hashes), w.Close())
}

// removePacks deletes packs, each before its index: an index without its pack is ignored, a pack without its index
// is an error.
func removePacks(indexes []string) error {
	for _, idx := range indexes {
		for _, f := range []string{strings.TrimSuffix(idx, ".idx") + ".pack", idx} {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// smallPacks gives the index files of all packs but the largest, nil when there are few. The lock is held.
func (s *store) smallPacks() []string {
	type pack struct {
		idx  string
		size int64
	}
	var packs []pack
	for name, size := range s.known {
		if base, ok := strings.CutSuffix(name, ".pack"); ok {
			packs = append(packs, pack{filepath.Join(s.dir, "objects", "pack", base+".idx"), size})
		}
	}
	if len(packs) < s.packs {
		return nil
	}
	sort.Slice(packs, func(i, j int) bool {
		if packs[i].size != packs[j].size {
			return packs[i].size < packs[j].size
		}
		return packs[i].idx < packs[j].idx
	})
	var out []string
	for _, p := range packs[:len(packs)-1] {
		out = append(out, p.idx)
	}
	return out
}

// packHashes lists what the indexes have, each object once, sorted.
func packHashes(indexes []string) ([]plumbing.Hash, error) {
	seen := map[plumbing.Hash]bool{}
	for _, name := range indexes {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		idx := idxfile.NewMemoryIndex()
		err = errors.Join(idxfile.NewDecoder(f).Decode(idx), f.Close())
		if err != nil {
			return nil, err
		}
		it, err := idx.Entries()
		if err != nil {
			return nil, err
		}
		for {
			e, err := it.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			seen[e.Hash] = true
		}
	}
	out := make([]plumbing.Hash, 0, len(seen))
	for h := range seen {
		out = append(out, h)
	}
	plumbing.HashesSort(out)
	return out, nil
}
