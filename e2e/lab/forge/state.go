package forge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

// diskState is state.json: all but the repositories and the statuses.
type diskState struct {
	Version int           `json:"version"`
	Addr    string        `json:"addr"`
	NextID  int64         `json:"nextID"`
	Repos   []*repository `json:"repos"`
	Pulls   []*pull       `json:"pulls"`
	Hook    *hook         `json:"hook,omitempty"`
}

// repository is one bare repository: the main one, or a fork of it. ID, Name and Former are written with the
// forge's lock and its own held, so that id and name can be read with either.
type repository struct {
	own           sync.RWMutex
	ID            int64     `json:"id"`
	Owner         string    `json:"owner"`
	Name          string    `json:"name"`
	Former        []string  `json:"former,omitempty"`
	DefaultBranch string    `json:"defaultBranch"`
	Public        bool      `json:"public,omitempty"`
	Fork          bool      `json:"fork,omitempty"`
	Protected     []string  `json:"protected,omitempty"`
	Created       time.Time `json:"created"`
	Pushed        time.Time `json:"pushed"`
	// Folder below repos/, which a rename leaves alone.
	Folder string `json:"folder"`
}

// pull is a pull request against the main repository.
type pull struct {
	ID      int64      `json:"id"`
	Number  int        `json:"number"`
	Title   string     `json:"title"`
	Body    string     `json:"body,omitempty"`
	Author  string     `json:"author"`
	State   string     `json:"state"`
	Draft   bool       `json:"draft,omitempty"`
	Base    string     `json:"base"`
	BaseSHA string     `json:"baseSHA"`
	Head    string     `json:"head"`
	HeadSHA string     `json:"headSHA"`
	Created time.Time  `json:"created"`
	Updated time.Time  `json:"updated"`
	Closed  *time.Time `json:"closed,omitempty"`
	Merged  *time.Time `json:"merged,omitempty"`
	// HeadRepo is a repository ID; it may be gone (a deleted fork). HeadOwner stays.
	HeadRepo  int64  `json:"headRepo"`
	HeadOwner string `json:"headOwner"`
	MergedBy  string `json:"mergedBy,omitempty"`
	// MergeCommit is the test merge while open, the real one afterwards.
	MergeCommit string `json:"mergeCommit,omitempty"`
	// Mergeable: nil is not computed yet.
	Mergeable *bool `json:"mergeable,omitempty"`
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)

func validName(s string) bool { return nameForm.MatchString(s) }

func (f *Forge) statePath() string { return filepath.Join(f.opt.Dir, "state.json") }

func (f *Forge) loadState() error {
	data, err := os.ReadFile(f.statePath())
	if errors.Is(err, fs.ErrNotExist) {
		f.st = diskState{Version: 1, NextID: 1000}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read forge state: %w", err)
	}
	if err := json.Unmarshal(data, &f.st); err != nil {
		return fmt.Errorf("read forge state %s: %w; delete the folder to begin anew", f.statePath(), err)
	}
	if f.st.Version != 1 {
		return fmt.Errorf("read forge state %s: version %d is not known; delete the folder to begin anew", f.statePath(), f.st.Version)
	}
	return nil
}

// save writes state.json. A failure is logged: the lab goes on with what it has in memory.
func (f *Forge) save() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.saveLocked()
}

func (f *Forge) saveLocked() {
	data, err := json.MarshalIndent(&f.st, "", "  ")
	if err == nil {
		err = writeFile(f.statePath(), data)
	}
	if err != nil {
		f.log.Error("cannot save forge state", "error", err)
	}
}

// id gives a fresh numeric ID. mu is held.
func (f *Forge) id() int64 {
	f.st.NextID++
	return f.st.NextID
}

// writeFile writes by temp, fsync, rename, readable by the owner alone.
func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// lockFile takes an exclusive lock that the kernel gives back when the process dies.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }

func (r *repository) id() int64 {
	r.own.RLock()
	defer r.own.RUnlock()
	return r.ID
}

func (r *repository) name() string {
	r.own.RLock()
	defer r.own.RUnlock()
	return r.Name
}

func (r *repository) fullName() string { return r.Owner + "/" + r.name() }
