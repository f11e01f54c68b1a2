package rules

import (
	"sync"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/validate/secretscan"
)

// ScanCache keeps what the secret scan found in a file, and what can be seen of an encrypted one, from one check to the next. Files are told by being the very
// same bytes in memory, as fleet.Cache hands them out for a file that did not change. It is safe for concurrent use; the
// zero value is ready, and nil keeps nothing.
type ScanCache struct {
	mu      sync.Mutex
	entries map[scanKey]*scanEntry
	shapes  map[scanKey]*shapeEntry
	// scans counts whole scans.
	scans int
}

// scanKey holds on to the bytes, so that no others come to lie there.
type scanKey struct {
	first *byte
	size  int
	talos bool
}

type scanEntry struct {
	found []secretscan.Finding
	used  int
}

type shapeEntry struct {
	shape
	used int
}

// keepScans is how many scans an entry outlives that nobody asks for.
const keepScans = 16

// begin starts a scan of a fleet: what was not asked for in a while is let go.
func (c *ScanCache) begin() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scans++
	for k, e := range c.entries {
		if c.scans-e.used > keepScans {
			delete(c.entries, k)
		}
	}
	for k, e := range c.shapes {
		if c.scans-e.used > keepScans {
			delete(c.shapes, k)
		}
	}
}

// shape looks at an encrypted file.
func (c *ScanCache) shape(data []byte) shape {
	look := func() (s shape) {
		s.info, s.err = bundle.Shape(data)
		return s
	}
	if c == nil || len(data) == 0 {
		return look()
	}
	k := keyOfScan(data, false)
	c.mu.Lock()
	e := c.shapes[k]
	if e != nil {
		e.used = c.scans
	}
	c.mu.Unlock()
	if e != nil {
		return e.shape
	}
	s := look()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shapes == nil {
		c.shapes = map[scanKey]*shapeEntry{}
	}
	c.shapes[k] = &shapeEntry{s, c.scans}
	return s
}

func keyOfScan(data []byte, talos bool) scanKey { return scanKey{&data[0], len(data), talos} }

func (c *ScanCache) get(data []byte, talos bool) ([]secretscan.Finding, bool) {
	if c == nil || len(data) == 0 {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[keyOfScan(data, talos)]
	if e == nil {
		return nil, false
	}
	e.used = c.scans
	return e.found, true
}

func (c *ScanCache) put(data []byte, talos bool, found []secretscan.Finding) {
	if c == nil || len(data) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[scanKey]*scanEntry{}
	}
	c.entries[keyOfScan(data, talos)] = &scanEntry{found, c.scans}
}
