package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrLocked: another process uses this state folder.
var ErrLocked = errors.New("lock the state folder: another Ichor uses it")

const (
	lockFile   = "lock"
	copyFile   = "inventory.yaml"
	holderFile = "holder"
	baseFile   = "inventory.base"
)

// dir is the state folder. All files are written by temp, fsync, rename.
type dir struct {
	path string
	lock *os.File
}

// openDir makes the folder where it is missing and takes its lock, which the system frees with the process.
func openDir(path string) (*dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state folder: %w", err)
	}
	if err := lockFileNow(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &dir{path: path, lock: f}, nil
}

func (d *dir) close() { _ = d.lock.Close() }

// read gives the content of a file, nil where there is none.
func (d *dir) read(name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(d.path, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of the state folder: %w", name, err)
	}
	return data, nil
}

func (d *dir) write(name string, data []byte) error {
	err := d.replace(name, data)
	if err != nil {
		return fmt.Errorf("write %s of the state folder: %w", name, err)
	}
	return nil
}

// remove takes a file away; one that is not there is fine.
func (d *dir) remove(name string) error {
	if err := os.Remove(filepath.Join(d.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s of the state folder: %w", name, err)
	}
	return nil
}

func (d *dir) replace(name string, data []byte) error {
	f, err := os.CreateTemp(d.path, "."+name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is gone after the rename
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(d.path, name)); err != nil {
		return err
	}
	parent, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // only read
	return parent.Sync()
}

// holder is the ID under which this folder's process last held the inventory, "" where it never did. Whoever has the
// folder's lock knows that that process is gone.
func (d *dir) holder() (string, error) {
	data, err := d.read(holderFile)
	return strings.TrimSpace(string(data)), err
}
