package node

import (
	"fmt"
	"slices"

	"github.com/cosi-project/runtime/pkg/safe"
	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/proto"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
)

// installDisk is the disk that the installer writes to: the one it was installed on, else what the
// configuration names or selects. A disk that is not there passes the validation, as on a node: the
// installation fails.
func (b *boot) installDisk() (string, error) {
	if d := b.disks.readBoot().Disk; d != "" {
		return d, nil
	}
	disks := b.node.Spec().Disks
	cfg := b.config()
	if b.disks.installed() || cfg == nil || cfg.Machine() == nil || cfg.Machine().Install() == nil {
		return disks[0].Name, nil
	}
	expr, err := diskSelector(cfg)
	if err != nil {
		return "", err
	}
	if expr != nil {
		return b.matchDisk(*expr)
	}
	path := cfg.Machine().Install().Disk()
	for i, d := range disks {
		if path == "/dev/"+d.Name || slices.Contains(diskLinks(i, d), path) {
			return d.Name, nil
		}
	}
	return "", fmt.Errorf("lstat %s: no such file or directory", path)
}

// diskSelector is the expression by which the configuration looks for its disk; nil when it names one.
func diskSelector(cfg config.Provider) (*cel.Expression, error) {
	var doc fields
	if newerDocument(cfg, "UnattendedInstallConfig", &doc) {
		expr, err := cel.ParseBooleanExpression(doc.Provisioning.DiskSelector.Match, celenv.DiskLocator())
		return &expr, err
	}
	expr, err := cfg.Machine().Install().DiskMatchExpression()
	if err != nil {
		return nil, fmt.Errorf("failed to get disk match expression: %w", err)
	}
	return expr, nil
}

func (b *boot) matchDisk(expr cel.Expression) (string, error) {
	list, err := safe.StateListAll[*block.Disk](b.ctx, b.state)
	if err != nil {
		return "", err
	}
	for d := range list.All() {
		var spec blockpb.DiskSpec
		if err := proto.ResourceSpecToProto(d, &spec); err != nil {
			return "", err
		}
		ok, err := expr.EvalBool(celenv.DiskLocator(), map[string]any{"disk": &spec, "system_disk": false})
		if err != nil {
			return "", fmt.Errorf("error evaluating disk locator: %w", err)
		}
		if ok && !d.TypedSpec().Readonly {
			return d.Metadata().ID(), nil
		}
	}
	return "", fmt.Errorf("no disks matched the expression: %s", expr)
}
