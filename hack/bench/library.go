package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
)

// libraryCalls is the processor time in each of Talos's own calls that a machine's configuration needs, one machine after the
// other and none sharing anything: what a plain loop over talosctl's library would cost.
type libraryCalls struct{ generate, patch, validate, encode time.Duration }

func (l libraryCalls) sum() time.Duration { return l.generate + l.patch + l.validate + l.encode }

func (l libraryCalls) String() string {
	return fmt.Sprintf("%s of CPU (generate %s, patch %s, validate %s, encode %s)", ms(l.sum()), ms(l.generate), ms(l.patch), ms(l.validate), ms(l.encode))
}

// metal is the mode that Ichor validates for.
type metal struct{}

func (metal) String() string        { return "metal" }
func (metal) RequiresInstall() bool { return true }
func (metal) InContainer() bool     { return false }

// callLibrary does for the n machines of a cluster, with the patches that reach each, what a check has to.
func (s size) callLibrary() (l libraryCalls, err error) {
	contract, err := config.ParseContractFromVersion("v1.13")
	if err != nil {
		return l, err
	}
	made, err := secrets.NewBundle(secrets.NewClock(), contract)
	if err != nil {
		return l, err
	}
	patches := make([]configpatcher.Patch, s.patches)
	for i := range patches {
		if patches[i], err = configpatcher.LoadPatch(fmt.Appendf(nil, "machine:\n  sysctls:\n    net.example.p%d: \"1\"\n", i)); err != nil {
			return l, err
		}
	}
	for i := range s.machines {
		if err := l.machine(i, contract, made, patches); err != nil {
			return l, fmt.Errorf("machine %d: %w", i, err)
		}
	}
	return l, nil
}

func (l *libraryCalls) machine(i int, contract *config.VersionContract, made *secrets.Bundle, patches []configpatcher.Patch) error {
	begun := cpuTime()
	lap := func(into *time.Duration) {
		now := cpuTime()
		*into += now - begun
		begun = now
	}
	in, err := generate.NewInput("c000", "https://172.31.0.0:6443", "1.36.1", generate.WithVersionContract(contract),
		generate.WithSecretsBundle(made), generate.WithInstallDisk("/dev/sda"))
	if err != nil {
		return err
	}
	role := machine.TypeWorker
	if i < 3 {
		role = machine.TypeControlPlane
	}
	cfg, err := in.Config(role)
	if err != nil {
		return err
	}
	lap(&l.generate)
	// The machine's own fields, as people write them for talosctl, and the patches for all and for its rack.
	own, err := configpatcher.LoadPatch(fmt.Appendf(nil, "machine:\n  certSANs: [192.0.2.%d]\n  nodeLabels:\n    example.com/serial: \"%d\"\n", i%250, i))
	if err != nil {
		return err
	}
	mine := []configpatcher.Patch{own}
	for p := range patches {
		if p < 2 || p == i%40 {
			mine = append(mine, patches[p])
		}
	}
	out, err := configpatcher.Apply(configpatcher.WithConfig(cfg), mine)
	if err != nil {
		return err
	}
	patched, err := out.Config()
	if err != nil {
		return err
	}
	lap(&l.patch)
	if _, err := patched.Validate(metal{}); err != nil {
		return err
	}
	lap(&l.validate)
	whole, err := container.New(patched.Documents()...)
	if err != nil {
		return err
	}
	text, err := whole.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err == nil && len(text) == 0 {
		err = errors.New("the configuration is empty")
	}
	lap(&l.encode)
	return err
}

// measureLibrary prints the library's part for one size.
func (s size) measureLibrary() error {
	l, err := s.callLibrary()
	if err != nil {
		return err
	}
	fmt.Println(l)
	return nil
}
