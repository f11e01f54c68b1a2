package talos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/cosi-project/runtime/pkg/safe"
	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/proto"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"ichor.maesh.dev/ichor/schemas/secret"
)

// Disk of a node.
type Disk struct {
	DevPath, Model, Serial, WWID, UUID, Transport, BusPath string
	// Size in bytes.
	Size     uint64
	ReadOnly bool
	CDROM    bool
	Symlinks []string

	resource *block.Disk
}

// Disks lists the disks, sorted by device path. It works in maintenance mode.
func (c *Client) Disks(ctx context.Context) ([]Disk, error) {
	var out []Disk
	err := c.call(ctx, options{op: "listing the disks"}, func(ctx context.Context) error {
		list, err := safe.StateListAll[*block.Disk](ctx, c.api.COSI)
		if err != nil {
			return err
		}
		for d := range list.All() {
			s := d.TypedSpec()
			out = append(out, Disk{
				DevPath: s.DevPath, Model: s.Model, Serial: s.Serial, WWID: s.WWID, UUID: s.UUID, Transport: s.Transport, BusPath: s.BusPath,
				Size: s.Size, ReadOnly: s.Readonly, CDROM: s.CDROM, Symlinks: s.Symlinks, resource: d,
			})
		}
		return nil
	})
	sort.Slice(out, func(i, j int) bool { return out[i].DevPath < out[j].DevPath })
	return out, err
}

// ErrDisk: the install disk of a configuration does not match exactly one disk. Its text says what there is.
var ErrDisk = errors.New("match the install disk")

// MatchInstallDisk gives the one disk on which the configuration would install Talos. The selector is evaluated by
// Talos's own expression; a path matches a device path or one of its symlinks. Read-only disks and CD-ROMs never
// match. Talos itself takes the first of several: Ichor refuses (ErrDisk), for the first may be someone's data.
func MatchInstallDisk(config secret.Bytes, disks []Disk) (Disk, error) {
	cfg, err := configloader.NewFromBytes(config.Reveal())
	if err != nil {
		return Disk{}, errors.New("load the rendered configuration: it does not parse")
	}
	if cfg.Machine() == nil || cfg.Machine().Install() == nil {
		return Disk{}, fmt.Errorf("%w: the configuration names none", ErrDisk)
	}
	install := cfg.Machine().Install()
	expr, err := install.DiskMatchExpression()
	if err != nil {
		return Disk{}, fmt.Errorf("%w: the disk selector is invalid", ErrDisk)
	}
	var match []Disk
	what := "disk " + install.Disk()
	for _, d := range disks {
		if d.ReadOnly || d.CDROM {
			continue
		}
		ok := d.DevPath == install.Disk() || slices.Contains(d.Symlinks, install.Disk())
		if expr != nil {
			what = "disk selector " + expr.String()
			if ok, err = evaluate(expr, d); err != nil {
				return Disk{}, fmt.Errorf("%w: the disk selector can't be evaluated on %s", ErrDisk, d.DevPath)
			}
		}
		if ok {
			match = append(match, d)
		}
	}
	if len(match) != 1 {
		return Disk{}, fmt.Errorf("%w: %s matches %d of the node's disks (%s)", ErrDisk, what, len(match), describe(disks))
	}
	return match[0], nil
}

// evaluate runs the expression as Talos does (block/blockhelpers.MatchDisks).
func evaluate(expr *cel.Expression, d Disk) (bool, error) {
	pb := &blockpb.DiskSpec{}
	if err := proto.ResourceSpecToProto(d.resource, pb); err != nil {
		return false, err
	}
	return expr.EvalBool(celenv.DiskLocator(), map[string]any{"disk": pb, "system_disk": false})
}

func describe(disks []Disk) string {
	if len(disks) == 0 {
		return "it shows none"
	}
	var out []string
	for _, d := range disks {
		s := fmt.Sprintf("%s %d GB", d.DevPath, d.Size/1e9)
		if d.Model != "" {
			s += " " + d.Model
		}
		if d.ReadOnly || d.CDROM {
			s += " read-only"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}
