package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Modes, shortened.
const (
	modeReboot   = machine.ApplyConfigurationRequest_REBOOT
	modeAuto     = machine.ApplyConfigurationRequest_AUTO
	modeNoReboot = machine.ApplyConfigurationRequest_NO_REBOOT
	modeStaged   = machine.ApplyConfigurationRequest_STAGED
	modeTry      = machine.ApplyConfigurationRequest_TRY
)

// Texts of the answers.
const (
	textReboot   = "Applied configuration with a reboot"
	textNoReboot = "Applied configuration without a reboot"
	textStaged   = "Staged configuration to be applied after the next reboot"
)

// metal is the validation mode of a metal machine; installed masks the need for an install section.
type metal struct{ installed bool }

func (metal) String() string          { return "metal" }
func (m metal) RequiresInstall() bool { return !m.installed }
func (metal) InContainer() bool       { return false }

// ApplyConfiguration implements machine.MachineService, in the order in which Talos does it.
func (a *api) ApplyConfiguration(ctx context.Context, in *machine.ApplyConfigurationRequest) (*machine.ApplyConfigurationResponse, error) {
	b := a.boot
	if !b.applyMu.TryLock() {
		return nil, status.Error(codes.FailedPrecondition, "another apply configuration is already in progress")
	}
	defer b.applyMu.Unlock()
	if b.rebooting.Load() {
		return nil, status.Error(codes.FailedPrecondition,
			"configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot")
	}
	maintenance := !b.complete()
	if !maintenance && !rolesOf(ctx).Includes(role.Admin) {
		return nil, errNotAuthorized
	}
	rel := b.release
	if maintenance && rel.oldMaintenance && (in.Mode == modeNoReboot || in.Mode == modeStaged) {
		return nil, status.Errorf(codes.Unimplemented,
			"apply configuration --mode='%s' is not supported in maintenance mode", modeWord(in.Mode))
	}
	if in.Mode != modeTry {
		b.cancelRevert() // whatever becomes of this call, a dry run too
	}
	if reason := b.node.refusal(); reason != "" {
		return nil, status.Error(codes.InvalidArgument, reason)
	}
	cfg, warnings, err := b.vet(ctx, in, maintenance)
	if err != nil {
		return nil, err
	}
	mode, details, suffix, err := b.decideMode(in.Mode, cfg, maintenance)
	if err != nil {
		return nil, err
	}
	if in.DryRun {
		return b.dryRun(mode, details, cfg, maintenance)
	}
	if mode == modeTry {
		timeout := constants.ConfigTryTimeout
		if in.TryModeTimeout != nil {
			timeout = in.TryModeTimeout.AsDuration()
		}
		details += fmt.Sprintf("\nThe config is applied in 'try' mode and will be automatically reverted back in %s", timeout)
		b.apply(mode, cfg, timeout)
	} else if err := b.applyLasting(mode, cfg); err != nil {
		return nil, err
	}
	b.node.count(func(c *Counters) { c.ApplyConfiguration++ })
	b.node.emit("apply", mode.String())
	return &machine.ApplyConfigurationResponse{Messages: []*machine.ApplyConfiguration{
		{Mode: mode, Warnings: warnings, ModeDetails: details + suffix},
	}}, nil
}

// vet decodes and validates what was sent.
func (b *boot) vet(ctx context.Context, in *machine.ApplyConfigurationRequest, maintenance bool) (config.Provider, []string, error) {
	rel := b.release
	cfg, err := rel.parse(in.GetData())
	if err != nil {
		if maintenance && rel.oldMaintenance {
			return nil, nil, err // 1.12's maintenance server gives no code
		}
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !maintenance && cfg.RawV1Alpha1() == nil {
		return nil, nil, status.Error(codes.InvalidArgument, "the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?")
	}
	if in.Mode == modeReboot && !maintenance && !rel.canReboot {
		return nil, nil, status.Error(codes.Unimplemented, "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead")
	}
	warnings, err := cfg.ValidateAtRuntime(ctx, b.state, metal{installed: b.disks.installed()})
	if rel.minor >= 14 {
		err = joinErrors(err, misplaced(cfg, in.GetData())...)
		warnings = append(warnings, deprecated(cfg)...)
	} else {
		err = without(err, "etcd encryption config is required for control plane machines")
	}
	if err != nil {
		text := err.Error()
		if maintenance && rel.oldMaintenance {
			text = "configuration validation failed: " + text
		}
		return nil, nil, status.Error(codes.InvalidArgument, text)
	}
	return cfg, warnings, nil
}

// without leaves one out of the errors that the library finds: the node's own version does not have it.
func without(err error, text string) error {
	var all *multierror.Error
	if !errors.As(err, &all) {
		return err
	}
	var rest *multierror.Error
	for _, e := range all.Errors {
		if e.Error() != text {
			rest = multierror.Append(rest, e)
		}
	}
	return rest.ErrorOrNil()
}

// decideMode works out what will be done, and the words for it.
func (b *boot) decideMode(asked machine.ApplyConfigurationRequest_Mode, cfg config.Provider, maintenance bool) (mode machine.ApplyConfigurationRequest_Mode, details, suffix string, err error) {
	if maintenance && asked == modeReboot {
		asked = modeNoReboot
	}
	var needsReboot error
	if b.release.canReboot && !maintenance {
		needsReboot = canApplyImmediate(b.config(), cfg)
	}
	switch asked {
	case modeTry, modeNoReboot:
		if needsReboot != nil {
			return 0, "", "", status.Error(codes.InvalidArgument, needsReboot.Error())
		}
		return asked, textNoReboot, "", nil
	case modeStaged:
		return asked, textStaged, "", nil
	case modeAuto:
		if needsReboot != nil {
			return modeReboot, textReboot, ": " + needsReboot.Error(), nil
		}
		return modeNoReboot, textNoReboot, "", nil
	case modeReboot:
		return modeReboot, textReboot, "", nil
	}
	return 0, "", "", fmt.Errorf("incorrect mode '%s' specified for the apply config call", asked)
}

// dryRun answers with the difference to the active configuration, secrets included, as nodes do.
func (b *boot) dryRun(mode machine.ApplyConfigurationRequest_Mode, details string, cfg config.Provider, maintenance bool) (*machine.ApplyConfigurationResponse, error) {
	text := "Node is running in maintenance mode and does not have a config yet."
	if !maintenance || !b.release.oldMaintenance {
		diff, err := configdiff.DiffConfigs(b.config(), cfg)
		if err != nil {
			return nil, fmt.Errorf("failed to generate diff: %w", err)
		}
		if diff == "" {
			diff = "No changes."
		}
		text = fmt.Sprintf("Dry run summary:\n%s (skipped in dry-run).\nConfig diff:\n\n%s", details, diff)
	}
	return &machine.ApplyConfigurationResponse{Messages: []*machine.ApplyConfiguration{{Mode: mode, ModeDetails: text}}}, nil
}

// apply sets a configuration on trial.
func (b *boot) apply(_ machine.ApplyConfigurationRequest_Mode, cfg config.Provider, timeout time.Duration) {
	b.revertAfter(timeout)
	b.setActive(cfg)
}

// applyLasting sets a configuration for good.
func (b *boot) applyLasting(mode machine.ApplyConfigurationRequest_Mode, cfg config.Provider) error {
	if err := b.setPersistent(cfg); err != nil {
		return err
	}
	switch mode {
	case modeNoReboot:
		b.setActive(cfg)
	case modeReboot:
		b.rebooting.Store(true)
		b.goDo(func() { b.sequence(seqReboot, "", true, b.rebootPhases(machine.RebootRequest_DEFAULT)) })
	}
	return nil
}

func modeWord(m machine.ApplyConfigurationRequest_Mode) string {
	return map[machine.ApplyConfigurationRequest_Mode]string{
		modeReboot: "reboot", modeAuto: "auto", modeNoReboot: "no-reboot", modeStaged: "staged", modeTry: "try",
	}[m]
}
