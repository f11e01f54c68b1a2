package node

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lifecycleAPI is machine.LifecycleService (since 1.13): it runs the installer and tells what it
// prints, and does nothing else: no drain, no look at etcd, no reboot.
type lifecycleAPI struct {
	machine.UnimplementedLifecycleServiceServer
	boot *boot
}

const installerBusy = "another installation/upgrade is already in progress"

// Install implements machine.LifecycleService.
func (s *lifecycleAPI) Install(in *machine.LifecycleServiceInstallRequest, srv machine.LifecycleService_InstallServer) error {
	b := s.boot
	if !b.installMu.TryLock() {
		return status.Error(codes.FailedPrecondition, installerBusy)
	}
	defer b.installMu.Unlock()
	if b.disks.installed() {
		return status.Error(codes.AlreadyExists, "machine is already installed")
	}
	ref, disk := in.GetSource().GetImageName(), in.GetDestination().GetDisk()
	switch {
	case ref == "":
		return status.Error(codes.InvalidArgument, "installer image name is required")
	case disk == "":
		return status.Error(codes.InvalidArgument, "destination disk is required")
	case !b.hasDisk(disk):
		return status.Errorf(codes.InvalidArgument, "invalid disk path: lstat %s: no such file or directory", disk)
	}
	err := b.runInstallerImage(srv.Context(), in.Containerd, ref, false, func(p *machine.LifecycleServiceInstallProgress) error {
		return srv.Send(&machine.LifecycleServiceInstallResponse{Progress: p})
	})
	if err != nil {
		return wrapStatus("installation failed", err)
	}
	return nil
}

// Upgrade implements machine.LifecycleService.
func (s *lifecycleAPI) Upgrade(in *machine.LifecycleServiceUpgradeRequest, srv machine.LifecycleService_UpgradeServer) error {
	b := s.boot
	if !b.installMu.TryLock() {
		return status.Error(codes.FailedPrecondition, installerBusy)
	}
	defer b.installMu.Unlock()
	if !b.disks.installed() {
		return status.Error(codes.FailedPrecondition, "machine is not installed")
	}
	ref := in.GetSource().GetImageName()
	if ref == "" {
		return status.Error(codes.InvalidArgument, "installer image name is required")
	}
	err := b.runInstallerImage(srv.Context(), in.Containerd, ref, true, func(p *machine.LifecycleServiceInstallProgress) error {
		return srv.Send(&machine.LifecycleServiceUpgradeResponse{Progress: p})
	})
	if err != nil {
		return wrapStatus("upgrade failed", err)
	}
	b.node.count(func(c *Counters) { c.Upgrade++ })
	return nil
}

// wrapStatus makes every error Internal, with the words of the one inside (status and code too), as
// the service does.
func wrapStatus(what string, err error) error {
	return status.Error(codes.Internal, fmt.Sprintf("%s: %v", what, err))
}

func (b *boot) hasDisk(path string) bool {
	for _, d := range b.node.Spec().Disks {
		if path == "/dev/"+d.Name {
			return true
		}
	}
	return false
}

// runInstallerImage runs an installer that was pulled before. Its exit code is a message like any
// other: a failed installation ends without an error.
func (b *boot) runInstallerImage(ctx context.Context, c *common.ContainerdInstance, ref string, upgrade bool, send func(*machine.LifecycleServiceInstallProgress) error) error {
	instance, err := b.instance(c)
	if err != nil {
		return err
	}
	img, ok := b.findImage(instance, ref)
	if !ok {
		return fmt.Errorf("installer image %q not found in containerd store: image %q: not found", ref, ref)
	}
	ref = b.tagged(instance, img)
	if !isInstaller(ref) {
		return fmt.Errorf("failed to start task: exec: %q: stat /bin/installer: no such file or directory", "/bin/installer")
	}
	if !sleep(ctx, b.node.opts.Timings.Upgrade) {
		return ctx.Err()
	}
	code, lines := b.installVersion(ref, upgrade)
	for _, line := range lines {
		err := send(&machine.LifecycleServiceInstallProgress{Response: &machine.LifecycleServiceInstallProgress_Message{Message: line + "\n"}})
		if err != nil {
			return fmt.Errorf("failed to send message: %w", err)
		}
	}
	if upgrade {
		b.showVolumes()
	}
	return send(&machine.LifecycleServiceInstallProgress{Response: &machine.LifecycleServiceInstallProgress_ExitCode{ExitCode: code}})
}
