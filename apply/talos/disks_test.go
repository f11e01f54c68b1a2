package talos

import (
	"errors"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"ichor.maesh.dev/ichor/schemas/secret"
)

func disk(dev string, edit func(*block.DiskSpec)) Disk {
	r := block.NewDisk(block.NamespaceName, strings.TrimPrefix(dev, "/dev/"))
	s := r.TypedSpec()
	s.DevPath, s.Transport = dev, "sata"
	s.SetSize(100e9)
	if edit != nil {
		edit(s)
	}
	return Disk{DevPath: s.DevPath, Model: s.Model, Serial: s.Serial, Size: s.Size, ReadOnly: s.Readonly, CDROM: s.CDROM, Symlinks: s.Symlinks, resource: r}
}

func TestMatchInstallDisk(t *testing.T) {
	sda := disk("/dev/sda", func(s *block.DiskSpec) { s.Model = "SAMSUNG MZ7"; s.Symlinks = []string{"/dev/disk/by-id/ata-1"} })
	nvme := disk("/dev/nvme0n1", func(s *block.DiskSpec) { s.Transport = "nvme"; s.SetSize(500e9); s.Model = "WD" })
	cd := disk("/dev/sr0", func(s *block.DiskSpec) { s.CDROM = true; s.Readonly = true; s.SetSize(1e9) })
	loop := disk("/dev/loop0", func(s *block.DiskSpec) { s.Transport = ""; s.Readonly = true; s.SetSize(5e7) })
	all := []Disk{cd, loop, nvme, sda}
	for _, c := range []struct {
		name, install string
		disks         []Disk
		want          string
	}{
		{"path", "disk: /dev/sda", all, "/dev/sda"},
		{"symlink", "disk: /dev/disk/by-id/ata-1", all, "/dev/sda"},
		{"absent", "disk: /dev/vda", all, ""},
		{"read-only", "disk: /dev/sr0", all, ""},
		{"no disks", "disk: /dev/sda", nil, ""},
		{"size", "diskSelector: {size: '>= 400GB'}", all, "/dev/nvme0n1"},
		{"model glob", "diskSelector: {model: 'SAMSUNG*'}", all, "/dev/sda"},
		{"type", "diskSelector: {type: nvme}", all, "/dev/nvme0n1"},
		{"two match", "diskSelector: {size: '>= 10GB'}", all, ""},
		{"none matches", "diskSelector: {model: 'X*'}", all, ""},
		{"small matches no loop device", "diskSelector: {size: '< 10GB'}", all, ""},
		{"selector beats path, as in Talos", "disk: /dev/sda\n    diskSelector: {type: nvme}", all, "/dev/nvme0n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := "version: v1alpha1\nmachine:\n  type: worker\n  install:\n    " + c.install + "\ncluster:\n  controlPlane: {endpoint: 'https://10.0.0.1:6443'}\n"
			got, err := MatchInstallDisk(secret.FromString(cfg), c.disks)
			if got.DevPath != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrDisk) {
				t.Fatalf("got %q, %v", got.DevPath, err)
			}
		})
	}
	if _, err := MatchInstallDisk(secret.FromString("version: v1alpha1\nmachine: {type: worker}\ncluster: {}\n"), all); !errors.Is(err, ErrDisk) {
		t.Errorf("no install section: %v", err)
	}
	if _, err := MatchInstallDisk(secret.FromString("machine: {token: verysecret, nosuchkey: 1}"), all); err == nil || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("a broken configuration: %v", err)
	}
}
