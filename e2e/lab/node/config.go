package node

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
)

// config is the active configuration; nil when there is none.
func (b *boot) config() config.Provider {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.active
}

// machineConfig is the active configuration for a sequence: a trial that ends in the middle of one
// takes it away.
func (b *boot) machineConfig() (config.Provider, error) {
	cfg := b.config()
	if cfg == nil || cfg.Machine() == nil {
		return nil, errors.New("the machine has no configuration any more")
	}
	return cfg, nil
}

// complete says whether the node leaves maintenance mode: the active configuration has a v1alpha1 document.
func (b *boot) complete() bool {
	cfg := b.config()
	return cfg != nil && cfg.CompleteForBoot()
}

// configChanged is closed at the next change of the active configuration.
func (b *boot) configChanged() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wake
}

// loadConfig reads the configuration from STATE at boot. Only the active resource exists then,
// until the next apply makes the persistent one again.
func (b *boot) loadConfig() error {
	data, err := b.disks.readConfig()
	if err != nil || data == nil {
		b.showConfig()
		return err
	}
	cfg, err := b.release.parse(data)
	if err != nil {
		return err
	}
	b.setActive(cfg)
	return nil
}

// setActive makes a configuration the running one; nil takes it away.
func (b *boot) setActive(cfg config.Provider) {
	b.mu.Lock()
	b.active = cfg
	close(b.wake)
	b.wake = make(chan struct{})
	b.mu.Unlock()
	b.storeResource(configres.ActiveID, cfg)
	b.showConfig()
}

// setPersistent keeps a configuration for the next boot. Without a system disk it lives in
// memory only, until the installer writes it.
func (b *boot) setPersistent(cfg config.Provider) error {
	b.storeResource(configres.PersistentID, cfg)
	return b.persistSoon(b.persistOnDisk())
}

// persistOnDisk writes the persistent configuration to STATE, if both are there.
func (b *boot) persistOnDisk() error {
	if !b.disks.installed() {
		return nil
	}
	r, err := b.state.Get(b.ctx, resource.NewMetadata(configres.NamespaceName, configres.MachineConfigType, configres.PersistentID, resource.VersionUndefined))
	if state.IsNotFoundError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	data, err := r.(*configres.MachineConfig).Provider().Bytes()
	if err != nil {
		return err
	}
	if err := b.disks.write(b.disks.config(), data); err != nil {
		return fmt.Errorf("write configuration to STATE: %w", err)
	}
	return nil
}

// storeResource writes a MachineConfig resource; its version rises even if nothing changed.
func (b *boot) storeResource(id string, cfg config.Provider) {
	md := resource.NewMetadata(configres.NamespaceName, configres.MachineConfigType, id, resource.VersionUndefined)
	if cfg == nil {
		remove(b, "", &md)
		return
	}
	r := configres.NewMachineConfigWithID(cfg, id)
	old, err := b.state.Get(b.ctx, md)
	if state.IsNotFoundError(err) {
		err = b.state.Create(b.ctx, r)
	} else if err == nil {
		r.Metadata().SetVersion(old.Metadata().Version())
		err = b.state.Update(b.ctx, r)
	}
	if err != nil && b.ctx.Err() == nil {
		b.node.emit("error", fmt.Sprintf("store machine config %s: %v", id, err))
	}
}

// revertAfter goes back to the configuration that is active now, after d. A timer that runs is replaced.
func (b *boot) revertAfter(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.active
	if b.rollback != nil {
		b.rollback.Stop()
	}
	b.rollback = time.AfterFunc(d, func() {
		if b.ctx.Err() != nil {
			return
		}
		b.node.emit("config-rollback", "")
		b.setActive(old)
		if old == nil {
			// Seen on 1.13.5 and 1.14: port 50000 stays refused until a restart.
			b.mu.Lock()
			b.dead = true
			b.mu.Unlock()
			b.closeAPI(0)
		}
	})
}

// cancelRevert confirms what is active.
func (b *boot) cancelRevert() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rollback != nil {
		b.rollback.Stop()
		b.rollback = nil
	}
}

// canApplyImmediate is Talos 1.13's rule for what needs a reboot: only the v1alpha1 document
// counts, and in it everything but the fields copied over here
// (internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_runtime.go, v1.13.5).
func canApplyImmediate(active, next config.Provider) error {
	if active == nil {
		return errors.New("no current config")
	}
	cur := active.RawV1Alpha1()
	if cur == nil {
		return errors.New("current config is not v1alpha1")
	}
	if next.RawV1Alpha1() == nil {
		return errors.New("new config is not v1alpha1")
	}
	nw := next.RawV1Alpha1().DeepCopy()
	nw.ConfigDebug, nw.ClusterConfig = cur.ConfigDebug, cur.ClusterConfig
	if n, c := nw.MachineConfig, cur.MachineConfig; n != nil && c != nil {
		n.MachineCA, n.MachineAcceptedCAs = c.MachineCA, c.MachineAcceptedCAs
		n.MachineTime = c.MachineTime //nolint:staticcheck // as Talos does
		n.MachineCertSANs = c.MachineCertSANs
		n.MachineInstall = c.MachineInstall
		n.MachineNetwork = c.MachineNetwork //nolint:staticcheck // as Talos does
		n.MachineSysfs, n.MachineSysctls = c.MachineSysfs, c.MachineSysctls
		n.MachineLogging = c.MachineLogging
		n.MachineControlPlane = c.MachineControlPlane
		n.MachineKubelet = c.MachineKubelet
		n.MachineKernel = c.MachineKernel
		n.MachineRegistries = c.MachineRegistries //nolint:staticcheck // as Talos does
		n.MachinePods = c.MachinePods
		n.MachineSeccompProfiles = c.MachineSeccompProfiles
		n.MachineNodeAnnotations, n.MachineNodeLabels = c.MachineNodeAnnotations, c.MachineNodeLabels
		n.MachineNodeTaints = c.MachineNodeTaints
		if nf, cf := n.MachineFeatures, c.MachineFeatures; nf != nil && cf != nil {
			nf.KubernetesTalosAPIAccessConfig = cf.KubernetesTalosAPIAccessConfig
			nf.KubePrismSupport = cf.KubePrismSupport
			nf.HostDNSSupport = cf.HostDNSSupport
			nf.ImageCacheSupport = cf.ImageCacheSupport
			nf.FeatureNodeAddressSortAlgorithm = cf.FeatureNodeAddressSortAlgorithm
		}
	}
	if reflect.DeepEqual(cur, nw) {
		return nil
	}
	diff, err := configdiff.DiffConfigs(container.NewV1Alpha1(cur), container.NewV1Alpha1(nw))
	if err != nil {
		return fmt.Errorf("error calculating diff: %w", err)
	}
	return fmt.Errorf("this config change can't be applied in immediate mode\ndiff:\n%s", diff)
}
