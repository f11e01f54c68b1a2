package outbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// record is what is known of one commit and context. It is replaced, never changed, so that a copy stays true.
type record struct {
	SHA     string `json:"sha"`
	Context string `json:"context"`
	// Want is queued, nil when there is nothing to do.
	Want *state.CommitStatus `json:"want,omitempty"`
	// Posted is what the forge is known to show.
	Posted *state.CommitStatus `json:"posted,omitempty"`
	// Unsure: an attempt is open whose outcome is not known. Written before each request.
	Unsure  bool      `json:"unsure,omitempty"`
	Count   int       `json:"count"`
	Seq     int64     `json:"seq"`
	Prio    Priority  `json:"prio"`
	Changed time.Time `json:"changed"`
	// Dead is why nothing more is posted for this commit and context.
	Dead string `json:"dead,omitempty"`

	// Tries of Want that failed, and when the next one may be. A new process begins afresh.
	Tries     int `json:"-"`
	notBefore time.Time
}

func (r *record) last() *state.CommitStatus {
	if r.Want != nil {
		return r.Want
	}
	return r.Posted
}

// key of a record. Contexts are compared without case, as GitHub does.
func key(sha, context string) string { return sha + "\n" + strings.ToLower(context) }

func (b *Outbox) path(k string) string {
	sum := sha256.Sum256([]byte(k))
	return filepath.Join(b.dir, hex.EncodeToString(sum[:16])+".json")
}

// load reads all records. One that can't be read is set aside: a status too few is better than no Ichor.
func (b *Outbox) load(now time.Time) error {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := filepath.Join(b.dir, e.Name())
		if strings.HasPrefix(e.Name(), ".tmp-") {
			_ = os.Remove(p)
			continue
		}
		if filepath.Ext(p) != ".json" {
			continue
		}
		raw, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		r := &record{}
		if err := json.Unmarshal(raw, r); err != nil || r.SHA == "" || r.Context == "" {
			b.o.Log.Warn("set unreadable status record aside", "file", p, "error", err)
			if err := os.Rename(p, p+".bad"); err != nil {
				return err
			}
			continue
		}
		if r.Want == nil && now.Sub(r.Changed) > b.o.Keep {
			_ = os.Remove(p)
			continue
		}
		b.records[key(r.SHA, r.Context)] = r
	}
	return nil
}

// prune forgets old records. The lock is held.
func (b *Outbox) prune(now time.Time) {
	for k, r := range b.records {
		if r.Want == nil && now.Sub(r.Changed) > b.o.Keep {
			if err := os.Remove(b.path(k)); err == nil || errors.Is(err, fs.ErrNotExist) {
				delete(b.records, k)
			}
		}
	}
}

// save writes a record by temp, fsync and rename. The lock is held.
func (b *Outbox) save(k string, r *record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(b.dir, ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), b.path(k))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
