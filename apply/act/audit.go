package act

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// maxAudit is the size in bytes at which the file is put aside; one that was put aside before is kept beside it.
const maxAudit = 64 << 20

// AuditFile is the name of the audit log in the state folder: JSON lines, appended and synced.
const AuditFile = "audit.log"

// Audit is the log of every act on a node: who merged, commit, machine, act, result. One line announces an act before
// its call, one tells its outcome.
type Audit struct {
	log  *slog.Logger
	path string
	now  func() time.Time

	mu   sync.Mutex
	file *os.File
}

// OpenAudit appends to the file in dir and says the same through log.
func OpenAudit(dir string, log *slog.Logger, now func() time.Time) (*Audit, error) {
	a := &Audit{log: log, path: filepath.Join(dir, AuditFile), now: now}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	return a, nil
}

func (a *Audit) open() (err error) {
	a.file, err = os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return err
}

// Close closes the file.
func (a *Audit) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
}

type entry struct {
	At       time.Time `json:"at"`
	Phase    string    `json:"phase"`
	Cluster  string    `json:"cluster"`
	Machine  string    `json:"machine"`
	Endpoint string    `json:"endpoint,omitempty"`
	UUID     string    `json:"uuid,omitempty"`
	Act      string    `json:"act"`
	Send     string    `json:"send,omitempty"`
	Commit   string    `json:"commit,omitempty"`
	MergedBy string    `json:"mergedBy,omitempty"`
	Digest   string    `json:"digest,omitempty"`
	Intent   string    `json:"intent,omitempty"`
	Outcome  Outcome   `json:"outcome,omitempty"`
	Kind     Kind      `json:"kind,omitempty"`
	Message  string    `json:"message,omitempty"`
}

func (a *Audit) begin(e entry) error {
	e.Phase = "begin"
	if err := a.write(e); err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	return nil
}

// end can't undo the act where the file fails: then the line is in the process's log alone, with the failure.
func (a *Audit) end(e entry, r Result) {
	e.Phase, e.Outcome, e.Kind, e.Message = "end", r.Outcome, r.Kind, r.Message
	if err := a.write(e); err != nil {
		a.log.Error("write the audit log", "error", err)
	}
	level := slog.LevelInfo
	if r.Outcome != Done {
		level = slog.LevelWarn
	}
	a.log.Log(context.Background(), level, "act", "cluster", e.Cluster, "machine", e.Machine, "act", e.Act, "send", e.Send, "commit", e.Commit, "mergedBy", e.MergedBy,
		"digest", e.Digest, "intent", e.Intent, "outcome", e.Outcome, "kind", e.Kind, "message", e.Message)
}

func (a *Audit) write(e entry) error {
	e.At = a.now().UTC()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if st, err := a.file.Stat(); err == nil && st.Size() > maxAudit {
		if err := a.rotate(); err != nil {
			return err
		}
	}
	if _, err := a.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return a.file.Sync()
}

// rotate leaves the file open where it fails, so that the next line tries again.
func (a *Audit) rotate() error {
	if err := os.Rename(a.path, a.path+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	old := a.file
	if err := a.open(); err != nil {
		a.file = old
		return err
	}
	return old.Close()
}
