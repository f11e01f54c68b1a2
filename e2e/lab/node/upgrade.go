package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// bootVersion is the Talos version that the machine boots from its disk, or from its boot media
// while nothing is installed.
func (n *Node) bootVersion(d disks) string {
	n.mu.Lock()
	media := n.rec.media()
	n.mu.Unlock()
	if !d.installed() {
		return media
	}
	if v := d.readBoot().Default; v != "" {
		return v
	}
	return media
}

// runs notes the version that the machine runs now, for those who ask for its Spec.
func (n *Node) runs(version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rec.Spec.TalosVersion == version {
		return
	}
	n.rec.Spec.TalosVersion = version
	if err := n.disks.writeRecord(n.rec); err != nil {
		n.emit("error", err.Error())
	}
}

var versionTag = regexp.MustCompile(`:(v1\.\d+\.\d+(?:-[0-9a-z.]+)?)(?:@sha256:[0-9a-f]{64})?$`)

// installerVersion is the version of an installer's image by its tag; empty when it has none.
func installerVersion(ref string) string {
	if m := versionTag.FindStringSubmatch(ref); m != nil {
		return m[1]
	}
	return ""
}

// isInstaller tells whether an image is a Talos installer: ghcr.io/siderolabs/installer, the Image
// Factory's, or a mirror's copy of one of them.
func isInstaller(ref string) bool {
	name, _, _ := strings.Cut(ref, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	base := path.Base(name)
	return strings.HasSuffix(base, "installer") || strings.Contains(name, "installer/") || strings.HasSuffix(base, "installer-base")
}

// installVersion is what the installer does in its container: the pre-flight checks, then the
// new version beside the old one. It returns the exit code and what it prints.
func (b *boot) installVersion(ref string, upgrade bool) (int32, []string) {
	disk, err := b.installDisk()
	if err != nil {
		return 1, []string{err.Error()}
	}
	target := installerVersion(ref)
	if target == "" {
		target = b.version
	}
	out := []string{"running Talos installer " + target}
	if upgrade {
		out = append(out, "running pre-flight checks", "host Talos version: "+b.version)
		if err := upgradeable(b.version, target); err != nil {
			return 1, append(out, fmt.Sprintf("pre-flight checks failed: %v", err))
		}
		out = append(out, "all pre-flight checks successful")
	}
	if err := b.disks.format(); err != nil {
		return 1, append(out, err.Error())
	}
	entries := bootEntries{Default: target, Disk: disk}
	if upgrade {
		entries.Fallback = b.version
	}
	if err := b.disks.writeBoot(entries); err != nil {
		return 1, append(out, err.Error())
	}
	b.node.emit("install", target)
	return 0, append(out, "installing "+target+" to /dev/"+disk, "installation of "+target+" complete")
}

// upgradeable says no where the installer's pre-flight checks do.
func upgradeable(host, target string) error {
	h, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: host})
	if err != nil {
		return fmt.Errorf("error parsing host Talos version: %w", err)
	}
	t, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: target})
	if err != nil {
		return fmt.Errorf("error parsing installer Talos version: %w", err)
	}
	return t.UpgradeableFrom(h)
}

// runInstaller is the task install: onto a blank disk, or the upgrade that was staged.
func (b *boot) runInstaller(ctx context.Context) error {
	entries := b.disks.readBoot()
	ref, upgrade := "", entries.Staged != ""
	if upgrade {
		ref = entries.Staged
		entries.Staged = ""
		if err := b.disks.writeBoot(entries); err != nil {
			return err
		}
	} else {
		cfg, err := b.machineConfig()
		if err != nil {
			return err
		}
		if cfg.Machine().Install() != nil {
			ref = cfg.Machine().Install().Image()
		}
		if _, err := b.installDisk(); err != nil {
			return err
		}
	}
	if !sleep(ctx, b.node.opts.Timings.Install) {
		return ctx.Err()
	}
	if ref != "" {
		if _, err := b.resolve(ref); err != nil {
			return err
		}
	}
	if code, out := b.installVersion(ref, upgrade); code != 0 {
		return fmt.Errorf("task %q failed: exit code %d (%s)", "upgrade", code, out[len(out)-1])
	}
	if err := b.persistOnDisk(); err != nil {
		return err
	}
	b.showVolumes()
	return nil
}

// Upgrade implements machine.MachineService: the deprecated call, which looks at the image and
// etcd before it answers, and then does everything in one sequence.
func (a *api) Upgrade(ctx context.Context, in *machine.UpgradeRequest) (*machine.UpgradeResponse, error) {
	b, actor := a.boot, uuid.New().String()
	if !b.disks.installed() {
		return nil, status.Error(codes.FailedPrecondition, "Talos is not installed")
	}
	if err := b.pullInstaller(ctx, in.Image); err != nil {
		return nil, fmt.Errorf("error validating installer image %q: %w", in.Image, err)
	}
	if b.machineType().IsControlPlane() && !in.Force && !in.Preserve {
		if err := b.checkEtcdForUpgrade(ctx); err != nil {
			return nil, err
		}
	}
	switch {
	case in.Stage:
		entries := b.disks.readBoot()
		entries.Staged = in.Image
		if err := b.disks.writeBoot(entries); err != nil {
			return nil, fmt.Errorf("error adding staged upgrade image ref tag: %w", err)
		}
		b.goDo(func() { b.sequence(seqStageUpgrade, actor, false, b.stageUpgradePhases(in)) })
	default:
		b.goDo(func() { b.sequence(seqUpgrade, actor, false, b.upgradePhases(in)) })
	}
	b.node.count(func(c *Counters) { c.Upgrade++ })
	return &machine.UpgradeResponse{Messages: []*machine.Upgrade{{Ack: "Upgrade request received", ActorId: actor}}}, nil
}

// upgradeMutex is Talos's key in etcd (constants.EtcdTalosEtcdUpgradeMutex).
const upgradeMutex = "talos:v1:etcdUpgradeMutex"

// checkEtcdForUpgrade is what the deprecated call asks of etcd: nobody else is upgrading, every
// member is started and healthy, and there are not just two.
func (b *boot) checkEtcdForUpgrade(ctx context.Context) error {
	e := b.getEtcd()
	if e == nil {
		return errors.New("failed to create etcd client: etcd is not running")
	}
	cl, err := e.clusterClient(ctx)
	if err != nil {
		return fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer cl.Close()
	session, err := concurrency.NewSession(cl, concurrency.WithContext(ctx), concurrency.WithTTL(15))
	if err != nil {
		return fmt.Errorf("failed to acquire upgrade mutex: error establishing etcd concurrency session: %w", err)
	}
	defer session.Close()
	mu := concurrency.NewMutex(session, upgradeMutex)
	if err := mu.TryLock(ctx); err != nil {
		return fmt.Errorf("failed to acquire upgrade mutex: error trying to lock etcd upgrade mutex: %w", err)
	}
	defer mu.Unlock(ctx) //nolint:errcheck // the session's lease ends it
	if err := e.validateForUpgrade(ctx, cl); err != nil {
		return fmt.Errorf("error validating etcd for upgrade: %w", err)
	}
	return nil
}

func (e *etcdService) validateForUpgrade(ctx context.Context, cl *clientv3.Client) error {
	list, err := cl.MemberList(ctx)
	if err != nil {
		return err
	}
	if len(list.Members) == 2 {
		return fmt.Errorf("etcd member count(%d) is insufficient to maintain quorum if upgrade commences", len(list.Members))
	}
	for _, m := range list.Members {
		if m.Name == "" {
			return fmt.Errorf("etcd member %016x is not started, all members must be running to perform an upgrade", m.ID)
		}
		if err := e.askHealth(ctx, m.ClientURLs); err != nil {
			return fmt.Errorf("etcd member %016x is not healthy; all members must be healthy to perform an upgrade: %w", m.ID, err)
		}
	}
	return nil
}

func (e *etcdService) askHealth(ctx context.Context, urls []string) error {
	ctx, cancel := context.WithTimeout(ctx, e.b.node.opts.Timings.MemberCheck)
	defer cancel()
	addrs := make([]string, len(urls))
	for i, u := range urls {
		addrs[i] = strings.TrimPrefix(u, "https://")
	}
	cl, err := e.client(ctx, addrs...)
	if err != nil {
		return fmt.Errorf("failed to create client to member: %w", err)
	}
	defer cl.Close()
	_, err = cl.Get(ctx, "health")
	return err
}

// Rollback implements machine.MachineService: the boot loader goes back to the version before the
// upgrade, then the machine reboots, whatever runs.
func (a *api) Rollback(context.Context, *machine.RollbackRequest) (*machine.RollbackResponse, error) {
	b := a.boot
	if !b.disks.installed() {
		return nil, status.Error(codes.FailedPrecondition, "system disk not found")
	}
	entries := b.disks.readBoot()
	if entries.Fallback == "" {
		return nil, errors.New(`cannot rollback to "", label does not exist`)
	}
	entries.Default, entries.Fallback = entries.Fallback, entries.Default
	if err := b.disks.writeBoot(entries); err != nil {
		return nil, fmt.Errorf("failed to revert bootloader: %w", err)
	}
	b.node.count(func(c *Counters) { c.Rollback++ })
	b.node.emit("rollback", entries.Default)
	b.goDo(func() { b.sequence(seqReboot, "", true, b.rebootPhases(machine.RebootRequest_DEFAULT)) })
	return &machine.RollbackResponse{Messages: []*machine.Rollback{{}}}, nil
}
