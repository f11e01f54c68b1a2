package cli

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/dustin/go-humanize"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// disk is the one disk of a machine: the one that its manifest installs on, by path or by properties. What a selector
// says that the lab can't make up (globs, sizes it does not understand) leaves the disk as it is: then the node
// refuses to install, as a machine without such a disk does.
func (m Machine) disk() node.Disk {
	d := node.Disk{Name: "vda", Size: 10 << 30, Serial: m.Node, Transport: "virtio"}
	if name, ok := strings.CutPrefix(m.Disk, "/dev/"); ok && !strings.Contains(name, "/") {
		d.Name = name
	} else if m.Disk != "" {
		d.Symlinks = []string{m.Disk}
	}
	for key, v := range m.Selector {
		text := fmt.Sprint(v)
		switch key {
		case "size":
			d.Size = sizeFor(text, d.Size)
		case "type":
			d.Transport = map[string]string{"nvme": "nvme", "sd": "mmc", "ssd": "sata"}[text] // virtio counts as hdd
			if d.Transport == "" {
				d.Transport = "virtio"
			}
		case "model":
			d.Model = literal(text)
		case "serial":
			d.Serial = literal(text)
		case "wwid":
			d.WWID = literal(text)
		case "busPath":
			d.BusPath = literal(text)
		}
	}
	return d
}

// literal is a property that a glob takes: its stars are left out.
func literal(glob string) string { return strings.NewReplacer("*", "", "?", "0").Replace(glob) }

var sizeExpr = regexp.MustCompile(`^\s*(>=|<=|>|<|==)?\s*(\S.*?)\s*$`)

// sizeFor is a size in bytes that an expression such as ">= 100GB" takes; fallback where it is not understood.
func sizeFor(expr string, fallback uint64) uint64 {
	m := sizeExpr.FindStringSubmatch(expr)
	if m == nil {
		return fallback
	}
	n, err := humanize.ParseBytes(m[2])
	if err != nil {
		return fallback
	}
	switch m[1] {
	case ">":
		return n + n/10 + 1
	case "<":
		return n - n/10 - 1
	}
	return n
}
