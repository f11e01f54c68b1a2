package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// record is what the lab keeps of a machine beside its disks: the hardware, its power switch,
// and what was asked of it.
type record struct {
	Spec Spec `json:"spec"`
	// Media is the Talos version of what the machine boots while nothing is installed.
	Media    string   `json:"media,omitempty"`
	Off      bool     `json:"off,omitempty"`
	Counters Counters `json:"counters"`
	// InitialCluster are the members that form etcd together with this one, until this one has data.
	InitialCluster string `json:"initialCluster,omitempty"`
}

// media is the version of the boot media; records of an older lab have the one that ran.
func (r record) media() string {
	if r.Media != "" {
		return r.Media
	}
	return r.Spec.TalosVersion
}

// disks are the machine's partitions as folders: META (Talos is installed), STATE (configuration
// and identity) and EPHEMERAL (etcd). They survive reboots and a kill of the lab.
type disks struct {
	dir string
	// lazy leaves out fsync: the state survives a kill of the lab, not a crash of the host.
	lazy bool
	// room fails when the partition that a path lies on is full; nil when none ever is.
	room func(d disks, path string) error
}

func (d disks) record() string    { return filepath.Join(d.dir, "machine.json") }
func (d disks) meta() string      { return filepath.Join(d.dir, "META") }
func (d disks) boot() string      { return filepath.Join(d.meta(), "boot.json") }
func (d disks) images() string    { return filepath.Join(d.ephemeral(), "lib", "images.json") }
func (d disks) state() string     { return filepath.Join(d.dir, "STATE") }
func (d disks) config() string    { return filepath.Join(d.state(), "config.yaml") }
func (d disks) identity() string  { return filepath.Join(d.state(), "node-identity.yaml") }
func (d disks) ephemeral() string { return filepath.Join(d.dir, "EPHEMERAL") }
func (d disks) etcd() string      { return filepath.Join(d.ephemeral(), "lib", "etcd") }
func (d disks) snapshot() string  { return filepath.Join(d.ephemeral(), "lib", "etcd.snapshot") }
func (d disks) run() string       { return filepath.Join(d.dir, "run") }

func (d disks) installed() bool { return exists(d.meta()) }

// format makes the partitions, as the installer and the first boot do.
func (d disks) format() error {
	for _, dir := range []string{d.meta(), d.state(), filepath.Dir(d.etcd())} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("format disks: %w", err)
		}
	}
	return nil
}

// wipe removes partitions by label; no label means all of them.
func (d disks) wipe(labels ...string) error {
	if len(labels) == 0 {
		labels = []string{"META", "STATE", "EPHEMERAL"}
	}
	for _, label := range labels {
		if err := os.RemoveAll(filepath.Join(d.dir, label)); err != nil {
			return fmt.Errorf("wipe partition %s: %w", label, err)
		}
	}
	return nil
}

// etcdEmpty says whether etcd has no data, as Talos decides it: an absent or empty folder.
func (d disks) etcdEmpty() bool {
	entries, err := os.ReadDir(d.etcd())
	return err != nil || len(entries) == 0
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (d disks) readRecord() (record, error) {
	var r record
	b, err := os.ReadFile(d.record())
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read record of machine %s: %w", d.dir, err)
	}
	return r, nil
}

func (d disks) writeRecord(r record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return d.write(d.record(), b)
}

// bootEntries are what the boot loader has: the version that boots, the one that a rollback goes
// back to (empty before the first upgrade), and the image that the next boot is to install.
type bootEntries struct {
	Default  string `json:"default"`
	Fallback string `json:"fallback,omitempty"`
	Staged   string `json:"staged,omitempty"`
	// Disk is the system disk, such as "vda".
	Disk string `json:"disk,omitempty"`
}

// readBoot returns the boot entries; zero when nothing is installed.
func (d disks) readBoot() bootEntries {
	var e bootEntries
	b, err := os.ReadFile(d.boot())
	if err != nil || json.Unmarshal(b, &e) != nil {
		return bootEntries{}
	}
	return e
}

func (d disks) writeBoot(e bootEntries) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return d.write(d.boot(), b)
}

// readConfig returns the configuration on STATE; nil when there is none.
func (d disks) readConfig() ([]byte, error) {
	b, err := os.ReadFile(d.config())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// write writes by temp, fsync, rename, readable by the owner only: configurations hold secrets.
func (d disks) write(path string, b []byte) error {
	if d.room != nil {
		if err := d.room(d, path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // gone after the rename
	_, err = f.Write(b)
	if err == nil && !d.lazy {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
