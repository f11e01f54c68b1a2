package fleet

import "sync"

// Cache keeps text files and what they gave, so that a load of a commit that changes one file of 10,000 reads and
// parses that one. It may be shared by loads that run at the same time, with the same limits in their Options. What
// loads hand out is shared through it: nobody may change a manifest that was loaded. The zero value is ready.
type Cache struct {
	mu      sync.Mutex
	entries map[cacheKey]*cacheEntry
	// generation counts loads.
	generation int
}

// cacheKey names a content at its path: places in it hold the path.
type cacheKey struct{ path, hash string }

type cacheEntry struct {
	data   []byte
	parsed *parsed
	// used is the generation of the last load that asked for it.
	used int
}

// keepGenerations is how many loads an entry outlives that nobody asks for: base and head of some pull requests.
const keepGenerations = 16

// get gives an entry, nil where there is none.
func (c *Cache) get(path, hash string) *cacheEntry {
	if c == nil || hash == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[cacheKey{path, hash}]
	if e != nil {
		e.used = c.generation
	}
	return e
}

// put keeps a file's content and, for a manifest, what it gave.
func (c *Cache) put(path, hash string, data []byte, p *parsed) {
	if c == nil || hash == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[cacheKey]*cacheEntry{}
	}
	c.entries[cacheKey{path, hash}] = &cacheEntry{data: data, parsed: p, used: c.generation}
}

// sweep ends a load: what was not asked for in a while is let go.
func (c *Cache) sweep() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	for k, e := range c.entries {
		if c.generation-e.used > keepGenerations {
			delete(c.entries, k)
		}
	}
}

// openCached is open, from the cache where it has the file. Only whole text files are kept.
func (l *loader) openCached(name string) (data []byte, whole bool, err error) {
	hash := l.hashes[name]
	if e := l.opt.Cache.get(name, hash); e != nil {
		return e.data, true, nil
	}
	data, whole, err = l.open(name)
	if err == nil && whole && isText(data) && !isYAML(name) && !l.opt.CacheReadOnly {
		l.opt.Cache.put(name, hash, data, nil)
	}
	return data, whole, err
}

// parseCached is parseFile, from the cache where it has the result.
func (l *loader) parseCached(f *File) *parsed {
	hash := l.hashes[f.Path]
	if e := l.opt.Cache.get(f.Path, hash); e != nil && e.parsed != nil {
		return e.parsed
	}
	p := parseFile(f.Path, f.Data, l.opt.MaxDepth)
	if !l.opt.CacheReadOnly {
		l.opt.Cache.put(f.Path, hash, f.Data, p)
	}
	return p
}
