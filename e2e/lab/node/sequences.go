package node

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// The sequences, phase by phase, as Talos v1.13.5 has them
// (internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_sequencer.go) for a metal machine.

// initializePhases are those before a configuration is looked for.
func (b *boot) initializePhases() []phase {
	return []phase{
		{name: "systemRequirements", task: "enforceKSPPRequirements"},
		{name: "earlyServices", task: "startMachined", run: func(context.Context) error {
			b.svc.up("machined", "auditd", "syslogd", "udevd", "containerd")
			if b.release.multiDoc {
				b.svc.set("cri", stWaiting, `Waiting for volumes /var/lib, /var/lib/cni, CRI, /var/run, /var/run/lock, /opt to be mounted, /etc files ["machine-id" "cri/conf.d/cri.toml" "cri/conf.d/base-spec.json"] to be ready`)
			}
			return nil
		}},
		{name: "usb", task: "waitForUSB"},
		{name: "meta", task: "reloadMeta"},
	}
}

// installPhases write Talos to the disk and reboot. On an installed machine the sequence is empty.
func (b *boot) installPhases() []phase {
	return []phase{
		{name: "env", task: "setUserEnvVars"},
		{name: "install", task: "install", run: b.runInstaller},
		{name: "meta", task: "reloadMeta"},
		{name: "saveMeta", task: "flushMeta"},
		{name: "volumeFinalize", task: "teardownVolumeLifecycle"},
		b.stopEverythingPhase(),
		{name: "kexec", task: "kexecPrepare"},
		b.rebootPhase(),
	}
}

// bootPhases start the machine for its type; a control plane waits in the last for its etcd.
func (b *boot) bootPhases() []phase {
	return []phase{
		{name: "memorySizeCheck", task: "memorySizeCheck"},
		{name: "diskSizeCheck", task: "diskSizeCheck"},
		{name: "env", task: "setUserEnvVars", run: b.takeEnvironment},
		{name: "dbus", task: "startDBus"},
		{name: "ephemeral", task: "mountEphemeralPartition", run: b.mountVolumes},
		{name: "udevSetup", task: "writeUdevRules", run: b.takeUdevRules},
		{name: "userDisks", task: "mountUserDisks"},
		{name: "userSetup", task: "writeUserFiles", run: b.takeFiles},
		{name: "startEverything", task: "startAllServices", run: b.startAllServices},
	}
}

// rebootPhases are the reboot sequence. Nothing is drained, and etcd's leadership is not handed
// over but by etcd itself as it stops. FORCE skips the orderly stop.
func (b *boot) rebootPhases(mode machine.RebootRequest_Mode) []phase {
	if mode == machine.RebootRequest_FORCE {
		return []phase{b.rebootPhase()}
	}
	list := []phase{
		{name: "cleanup", task: "stopAllPods", run: b.removePods},
		{name: "dbus", task: "stopDBus"},
	}
	return append(append(list, b.stopPhases(mode == machine.RebootRequest_DEFAULT)...), b.rebootPhase())
}

// shutdownPhases leave the machine off.
func (b *boot) shutdownPhases(force bool) []phase {
	list := []phase{{name: "storeShutdown", task: "storeShutdownEmergency"}}
	if !force && !b.skipsRegistration() {
		list = append(list, b.drainPhase(false))
	}
	list = append(list,
		phase{name: "cleanup", task: "stopAllPods", run: b.removePods},
		phase{name: "dbus", task: "stopDBus"})
	return append(append(list, b.stopPhases(false)...), b.offPhase())
}

// resetPhases leave etcd if asked to be graceful, stop, wipe, and reboot or stay off.
func (b *boot) resetPhases(in *machine.ResetRequest, labels []string) []phase {
	var list []phase
	if in.Graceful && !b.skipsRegistration() {
		list = append(list, b.drainPhase(true))
	}
	if in.Graceful {
		list = append(list, phase{name: "cleanup", task: "removeAllPods", run: b.removePods, lenient: true})
	} else {
		list = append(list, phase{name: "cleanup", task: "stopAllPods", run: b.removePods, lenient: true})
	}
	list = append(list, phase{name: "dbus", task: "stopDBus"})
	if in.Graceful && b.machineType().IsControlPlane() {
		list = append(list, phase{name: "leave", task: "leaveEtcd", run: func(ctx context.Context) error {
			if err := b.leaveForReset(ctx); err != nil {
				return fmt.Errorf("failed to leave cluster: %w", err)
			}
			return nil
		}})
	}
	list = append(list, phase{name: "preReset", task: "sendResetSignal"})
	for _, p := range b.stopPhases(len(in.SystemPartitionsToWipe) > 0) {
		p.lenient = true
		list = append(list, p)
	}
	list = append(list, phase{name: "forceCleanup", task: "forceCleanup"})
	if in.Mode != machine.ResetRequest_USER_DISKS {
		wipe := phase{name: "reset", task: "resetSystemDisk", run: func(context.Context) error { return b.wipe() }}
		if len(labels) > 0 {
			wipe = phase{name: "resetSpec", task: "resetSystemDiskSpec", run: func(context.Context) error { return b.wipe(labels...) }}
		}
		// Partitions that are named and not to be wiped leave nothing to do.
		if len(labels) > 0 || len(in.SystemPartitionsToWipe) == 0 {
			list = append(list, wipe)
		}
	}
	if len(in.UserDisksToWipe) > 0 && in.Mode != machine.ResetRequest_SYSTEM_DISK {
		list = append(list, phase{name: "resetUserDisks", task: "resetUserDisks"})
	}
	if in.Reboot {
		return append(list, b.rebootPhase())
	}
	return append(list, b.offPhase())
}

// upgradePhases are the legacy Upgrade call's: the installer runs with everything stopped but apid.
func (b *boot) upgradePhases(in *machine.UpgradeRequest) []phase {
	var list []phase
	if !b.skipsRegistration() {
		list = append(list, b.drainPhase(false))
	}
	list = append(list,
		phase{name: "cleanup", task: "stopAllPods", run: b.removePods},
		phase{name: "dbus", task: "stopDBus"},
		phase{name: "stopServices", task: "stopServicesEphemeral", run: b.stopServices},
		phase{name: "unmount", task: "unmountPodMounts"},
		phase{name: "unmountBind", task: "unmountSystemDiskBindMounts"},
		phase{name: "unmountSystem", task: "unmountEphemeralPartition"},
		phase{name: "volumeFinalize", task: "teardownVolumeLifecycle"},
		phase{name: "upgrade", task: "upgrade", run: func(ctx context.Context) error {
			if !sleep(ctx, b.node.opts.Timings.Upgrade) {
				return ctx.Err()
			}
			if code, _ := b.installVersion(in.Image, true); code != 0 {
				return fmt.Errorf("task %q failed: exit code %d", "upgrade", code)
			}
			return nil
		}},
		phase{name: "meta", task: "reloadMeta"})
	if in.RebootMode == machine.UpgradeRequest_DEFAULT {
		list = append(list, phase{name: "kexec", task: "kexecPrepare"})
	}
	return append(list, b.stopEverythingPhase(), b.rebootPhase())
}

// stageUpgradePhases reboot into the installation that META asks for.
func (b *boot) stageUpgradePhases(in *machine.UpgradeRequest) []phase {
	list := []phase{
		{name: "cleanup", task: "stopAllPods", run: b.removePods},
		{name: "dbus", task: "stopDBus"},
	}
	return append(append(list, b.stopPhases(in.RebootMode == machine.UpgradeRequest_DEFAULT)...), b.rebootPhase())
}

// stopPhases stop the services, unmount, and stop what is left, apid last.
func (b *boot) stopPhases(kexec bool) []phase {
	list := []phase{
		{name: "stopServices", task: "stopServicesEphemeral", run: b.stopServices},
		{name: "umount", task: "unmountPodMounts"},
		{name: "unmountBind", task: "unmountSystemDiskBindMounts"},
		{name: "unmountSystem", task: "unmountEphemeralPartition"},
		{name: "volumeFinalize", task: "teardownVolumeLifecycle"},
	}
	if kexec {
		list = append(list, phase{name: "kexec", task: "kexecPrepare"})
	}
	return append(list, b.stopEverythingPhase())
}

func (b *boot) stopEverythingPhase() phase {
	return phase{name: "stopEverything", task: "stopAllServices", run: b.stopEverything}
}

func (b *boot) rebootPhase() phase {
	return phase{name: "reboot", task: "reboot", run: func(ctx context.Context) error {
		b.finish(outcome{down: b.node.opts.Timings.Down})
		<-b.ctx.Done()
		return ctx.Err()
	}}
}

func (b *boot) offPhase() phase {
	return phase{name: "shutdown", task: "shutdown", run: func(ctx context.Context) error {
		b.finish(outcome{off: true})
		<-b.ctx.Done()
		return ctx.Err()
	}}
}

// drainPhase evicts the pods through the API server that the node knows.
func (b *boot) drainPhase(lenient bool) phase {
	return phase{name: "drain", task: "cordonAndDrainNode", lenient: lenient}
}

func (b *boot) removePods(context.Context) error {
	b.stopPods()
	return nil
}

// skipsRegistration tells whether the node is not to be in Kubernetes.
func (b *boot) skipsRegistration() bool {
	cfg := b.config()
	return cfg == nil || cfg.Machine() == nil || !kubernetes(cfg) || cfg.Machine().Kubelet().SkipNodeRegistration()
}
