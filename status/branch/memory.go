package branch

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// memory is what the state file holds: without it nobody could tell a branch that was rewritten from one that was
// never seen.
type memory struct {
	// ID of this state folder; it signs the commits.
	ID string `json:"id"`
	// Tip and Root as last pushed or taken over by us.
	Tip  string `json:"tip,omitempty"`
	Root string `json:"root,omitempty"`
	// HadInventory: the branch held an inventory once.
	HadInventory bool `json:"hadInventory,omitempty"`
	// Acknowledged foreign root.
	Acknowledged string `json:"acknowledged,omitempty"`
	// Finding as in Health.
	Finding   string    `json:"finding,omitempty"`
	FindingAt time.Time `json:"findingAt,omitzero"`
	Detail    string    `json:"detail,omitempty"`
	// CompactAt is when to try again after a server forbade it.
	CompactAt int `json:"compactAt,omitempty"`
}

// loadMemory reads the state file. A broken one is a lost one: the branch itself says whose it is.
func loadMemory(path string) (memory, error) {
	m := memory{}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	if err == nil && json.Unmarshal(b, &m) != nil {
		m = memory{}
	}
	if m.ID == "" {
		id := make([]byte, 8)
		_, _ = rand.Read(id)
		m.ID = hex.EncodeToString(id)
		return m, m.save(path)
	}
	return m, nil
}

// save writes by temp, fsync and rename.
func (m memory) save(path string) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("remember status branch: %w", err)
	}
	return nil
}

// remember saves a tip that is ours or that we took over.
func (w *Writer) remember(tip, root string) error {
	return w.change(func(m *memory) { m.Tip, m.Root = tip, root })
}

// change changes the memory and saves it when that made a difference.
func (w *Writer) change(fn func(*memory)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.mem
	fn(&w.mem)
	w.health.Finding, w.health.FindingAt, w.health.Detail = w.mem.Finding, w.mem.FindingAt, w.mem.Detail
	if w.mem == old {
		return nil
	}
	return w.mem.save(w.o.StateFile)
}
