package node

import (
	"crypto/sha256"
	"os"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

var blockDetails = []detail{
	{[]string{block.DiskType, block.DeviceType, block.SymlinkType, block.DiscoveredVolumeType, block.DiscoveryRefreshStatusType}, (*boot).detailDevices},
	{[]string{block.VolumeStatusType, block.VolumeConfigType, block.VolumeMountStatusType, block.VolumeMountRequestType}, (*boot).detailVolumes},
	{[]string{block.MountStatusType, runtime.MountStatusType}, (*boot).detailMounts},
}

// rootImageSize is the squashfs of the root file system, on loop0.
const rootImageSize = 100012032

// partition is one entry of an installed system disk's table, as the installer of 1.13 lays it out.
type partition struct {
	number       int
	label, kind  string
	fs           string
	offset, size uint64
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// partitions are those of the system disk; none before the installation.
func (b *boot) partitions(size uint64) []partition {
	if !b.disks.installed() {
		return nil
	}
	list := []partition{
		{1, "EFI", "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "vfat", mib, 100 * mib},
		{2, "BIOS", "21686148-6449-6e6f-744e-656564454649", "", 101 * mib, mib},
		{3, "BOOT", "0fc63daf-8483-4772-8e79-3d69d8477de4", "xfs", 102 * mib, 1000 * mib},
		{4, "META", "0fc63daf-8483-4772-8e79-3d69d8477de4", "talosmeta", 1102 * mib, mib},
		{5, "STATE", "0fc63daf-8483-4772-8e79-3d69d8477de4", "xfs", 1103 * mib, 100 * mib},
	}
	if !exists(b.disks.state()) {
		list = list[:4]
	}
	if exists(b.disks.ephemeral()) {
		start := uint64(1203 * mib)
		list = append(list, partition{6, "EPHEMERAL", "0fc63daf-8483-4772-8e79-3d69d8477de4", "xfs", start, ephemeralSize(size)})
	}
	return list
}

// ephemeralSize is what the other partitions leave, up to the backup of the partition table.
func ephemeralSize(disk uint64) uint64 {
	if disk < 1300*mib {
		return mib
	}
	return disk - 1204*mib
}

// stableUUID is an identifier that a thing of this machine keeps as long as it exists.
func (b *boot) stableUUID(thing string) string {
	sum := sha256.Sum256([]byte(b.node.Spec().UUID + "/" + thing))
	id, _ := uuid.FromBytes(sum[:16]) //nolint:errcheck // 16 bytes
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

func plainUUID(s string) string { return strings.ReplaceAll(s, "-", "") }

func (b *boot) detailDevices(l *detailList) {
	l.add("block.DisksController", with(block.NewDisk(block.NamespaceName, "loop0"), block.DiskSpec{
		DevPath: "/dev/loop0", Size: rootImageSize, PrettySize: humanize.Bytes(rootImageSize), IOSize: 512, SectorSize: 512, Readonly: true,
		BusPath: "/virtual", SubSystem: "/sys/class/block", Symlinks: []string{"/dev/disk/by-diskseq/10"},
	}))
	device := func(id string, spec block.DeviceSpec, links ...string) {
		l.add("block.DevicesController", with(block.NewDevice(block.NamespaceName, id), spec))
		if len(links) > 0 {
			l.add("block.SymlinksController", with(block.NewSymlink(block.NamespaceName, id), block.SymlinkSpec{Paths: links}))
		}
	}
	device("loop0", block.DeviceSpec{Type: block.DeviceTypeDisk, Major: 7, DevicePath: "/virtual/block/loop0", Generation: 1}, "/dev/disk/by-diskseq/10")
	l.add("block.DiscoveryController", with(block.NewDiscoveredVolume(block.NamespaceName, "loop0"), block.DiscoveredVolumeSpec{
		Type: block.DeviceTypeDisk, DevPath: "/dev/loop0", DevicePath: "/virtual/block/loop0", Size: rootImageSize, PrettySize: humanize.Bytes(rootImageSize),
		SectorSize: 512, IOSize: 512, Name: "squashfs", ProbedSize: rootImageSize,
	}))
	for i, d := range b.node.Spec().Disks {
		path := diskPath(i, d) + "/block/" + d.Name
		device(d.Name, block.DeviceSpec{Type: block.DeviceTypeDisk, Major: 254, Minor: 16 * i, DevicePath: path, Generation: 1}, diskLinks(i, d)...)
		whole := block.DiscoveredVolumeSpec{
			Type: block.DeviceTypeDisk, DevPath: "/dev/" + d.Name, DevicePath: path, Size: d.Size, PrettySize: humanize.Bytes(d.Size), SectorSize: 512, IOSize: 512,
		}
		var parts []partition
		if d.Name == b.systemDisk() {
			parts = b.partitions(d.Size)
		}
		if len(parts) > 0 {
			whole.Name, whole.UUID, whole.ProbedSize = "gpt", b.stableUUID("gpt"), d.Size
		}
		l.add("block.DiscoveryController", with(block.NewDiscoveredVolume(block.NamespaceName, d.Name), whole))
		for _, p := range parts {
			id := d.Name + strconv.Itoa(p.number)
			device(id, block.DeviceSpec{
				Type: block.DeviceTypePartition, Major: 254, Minor: 16*i + p.number, PartitionName: p.label, PartitionNumber: p.number,
				DevicePath: path + "/" + id, Generation: 1, Parent: d.Name,
			}, "/dev/disk/by-partlabel/"+p.label, "/dev/disk/by-partuuid/"+b.stableUUID(p.label))
			l.add("block.DiscoveryController", with(block.NewDiscoveredVolume(block.NamespaceName, id), block.DiscoveredVolumeSpec{
				Type: block.DeviceTypePartition, DevPath: "/dev/" + id, DevicePath: path + "/" + id, Parent: d.Name, ParentDevPath: "/dev/" + d.Name,
				Offset: p.offset, Size: p.size, PrettySize: humanize.Bytes(p.size), SectorSize: 512, IOSize: 512, Name: p.fs,
				ProbedSize: p.size, PartitionUUID: b.stableUUID(p.label), PartitionType: p.kind, PartitionLabel: p.label, PartitionIndex: uint(p.number),
			}))
		}
	}
	l.add("block.DiscoveryController", with(block.NewDiscoveryRefreshStatus(block.NamespaceName, block.RefreshID), block.DiscoveryRefreshStatusSpec{Request: 1}))
}

// diskPath is where the machine's n-th disk hangs on the bus.
func diskPath(n int, d Disk) string {
	if d.BusPath != "" {
		return d.BusPath
	}
	return "/pci0000:00/0000:00:0" + strconv.Itoa(2+n) + ".0/virtio" + strconv.Itoa(n)
}

func diskLinks(n int, d Disk) []string {
	if len(d.Symlinks) > 0 {
		return d.Symlinks
	}
	links := []string{"/dev/disk/by-diskseq/" + strconv.Itoa(1+n)}
	if d.Serial != "" && d.Transport != "" {
		links = append(links, "/dev/disk/by-id/"+d.Transport+"-"+d.Serial)
	}
	return append(links, "/dev/disk/by-path/pci-0000:00:0"+strconv.Itoa(2+n)+".0")
}

// volume is one that a configured node has beside its partitions.
type volume struct {
	id, target, label, parent string
	mode                      os.FileMode
	owner                     int
	relabel                   bool
	kind                      block.VolumeType
}

// directories are the volumes of a configured node, with the paths, labels and modes that 1.13.5 shows.
var directories = []volume{
	{"/etc/cni", "/etc/cni", "system_u:object_r:cni_conf_t:s0", "", 0, 0, false, block.VolumeTypeOverlay},
	{"/etc/kubernetes", "/etc/kubernetes", "system_u:object_r:k8s_conf_t:s0", "", 0, 0, false, block.VolumeTypeOverlay},
	{"/opt", "/opt", "system_u:object_r:opt_t:s0", "", 0, 0, false, block.VolumeTypeOverlay},
	{"/usr/libexec/kubernetes", "/usr/libexec/kubernetes", "system_u:object_r:k8s_plugin_t:s0", "", 0, 0, false, block.VolumeTypeOverlay},
	{"/var/lib", "lib", "system_u:object_r:ephemeral_t:s0", "EPHEMERAL", 0o700, 0, false, block.VolumeTypeDirectory},
	{"/var/lib/cni", "cni", "system_u:object_r:cni_state_t:s0", "/var/lib", 0o700, 0, true, block.VolumeTypeDirectory},
	{"/var/lib/containerd", "containerd", "system_u:object_r:containerd_state_t:s0", "/var/lib", 0, 0, false, block.VolumeTypeDirectory},
	{"/var/lib/kubelet", "kubelet", "system_u:object_r:kubelet_state_t:s0", "/var/lib", 0o700, 0, false, block.VolumeTypeDirectory},
	{"/var/lib/kubelet/seccomp", "seccomp", "system_u:object_r:seccomp_profile_t:s0", "/var/lib/kubelet", 0o700, 0, false, block.VolumeTypeDirectory},
	{"/var/lib/kubelet/seccomp/profiles", "profiles", "system_u:object_r:seccomp_profile_t:s0", "/var/lib/kubelet/seccomp", 0o700, 0, true, block.VolumeTypeDirectory},
	{"/var/log", "log", "system_u:object_r:var_log_t:s0", "EPHEMERAL", 0o755, 0, false, block.VolumeTypeDirectory},
	{"/var/log/audit", "audit", "system_u:object_r:audit_log_t:s0", "/var/log", 0o700, 0, false, block.VolumeTypeDirectory},
	{"/var/log/audit/kube", "kube", "system_u:object_r:kube_log_t:s0", "/var/log/audit", 0o700, 65534, true, block.VolumeTypeDirectory},
	{"/var/log/containers", "containers", "system_u:object_r:containers_log_t:s0", "/var/log", 0o755, 0, false, block.VolumeTypeDirectory},
	{"/var/log/pods", "pods", "system_u:object_r:pods_log_t:s0", "/var/log", 0o755, 0, false, block.VolumeTypeDirectory},
	{"/var/mnt", "mnt", "system_u:object_r:ephemeral_t:s0", "EPHEMERAL", 0o755, 0, false, block.VolumeTypeDirectory},
	{"/var/run", "/var/run", "", "", 0, 0, false, block.VolumeTypeSymlink},
	{"/var/run/lock", "lock", "system_u:object_r:var_lock_t:s0", "/var/run", 0o755, 0, false, block.VolumeTypeDirectory},
	{"ETCD", "etcd", "system_u:object_r:etcd_data_t:s0", "/var/lib", 0o700, 60, true, block.VolumeTypeDirectory},
}

// mountRequester is who asked for a volume to be mounted.
var mountRequester = map[string]string{"ETCD": "etcd", "/var/lib/containerd": "cri", "/var/lib/kubelet": "kubelet", "/var/lib/cni": "cri"}

func (b *boot) detailVolumes(l *detailList) {
	if !b.complete() || !exists(b.disks.ephemeral()) {
		return
	}
	system := func(owner string, it detailItem) {
		it.owner, it.label = owner, "talos.dev/system-volume"
		l.items = append(l.items, it)
	}
	for _, v := range directories {
		if v.id == "ETCD" && !b.machineType().IsControlPlane() {
			continue
		}
		mount := block.MountSpec{
			TargetPath: v.target, SelinuxLabel: v.label, ParentID: v.parent, FileMode: v.mode,
			UID: v.owner, GID: v.owner, RecursiveRelabel: v.relabel,
		}
		spec := block.VolumeStatusSpec{Phase: block.VolumePhaseReady, Type: v.kind, MountSpec: mount}
		conf := block.VolumeConfigSpec{Type: v.kind, Mount: mount}
		if v.kind == block.VolumeTypeSymlink {
			spec.SymlinkSpec = block.SymlinkProvisioningSpec{SymlinkTargetPath: "/run", Force: true}
			conf.Symlink = spec.SymlinkSpec
		}
		system("block.VolumeManagerController", detailItem{res: with(block.NewVolumeStatus(block.NamespaceName, v.id), spec)})
		system("block.VolumeConfigController", detailItem{res: with(block.NewVolumeConfig(block.NamespaceName, v.id), conf)})
		who := mountRequester[v.id]
		if who == "" {
			who = "sequencer"
		}
		target := v.id
		if v.id == "ETCD" {
			target = "/var/lib/etcd"
		}
		l.add("block.VolumeMountController", with(block.NewVolumeMountStatus(block.NamespaceName, who+"-"+v.id), block.VolumeMountStatusSpec{
			VolumeID: v.id, Requester: who, Target: target,
		}))
	}
	for _, id := range []string{"META", "STATE", "EPHEMERAL"} {
		system("block.VolumeConfigController", detailItem{res: with(block.NewVolumeConfig(block.NamespaceName, id), block.VolumeConfigSpec{
			Type: block.VolumeTypePartition, Mount: systemMounts[id],
		})})
	}
}

// systemMounts are where the system's partitions are mounted.
var systemMounts = map[string]block.MountSpec{
	"STATE":     {TargetPath: "/system/state", SelinuxLabel: "system_u:object_r:system_state_t:s0", FileMode: 0o700},
	"EPHEMERAL": {TargetPath: "/var", SelinuxLabel: "system_u:object_r:ephemeral_t:s0", FileMode: 0o755, ProjectQuotaSupport: true},
}

func (b *boot) detailMounts(l *detailList) {
	disk := b.systemDisk()
	for _, m := range []struct {
		id, part, path string
		there          bool
	}{
		{"STATE", "5", "/system/state", exists(b.disks.state())},
		{"EPHEMERAL", "6", "/var", exists(b.disks.ephemeral()) && b.complete()},
	} {
		if !m.there {
			continue
		}
		l.add("block.MountController", with(block.NewMountStatus(block.NamespaceName, m.id), block.MountStatusSpec{
			Spec:   block.MountRequestSpec{VolumeID: m.id, Requesters: []string{"sequencer"}, RequesterIDs: []string{"sequencer-" + m.id}},
			Source: "/dev/" + disk + m.part, Target: m.path, Filesystem: block.FilesystemTypeXFS, ProjectQuotaSupport: m.id == "EPHEMERAL",
		}))
		l.add("runtime.MountStatusController", with(runtime.NewMountStatus(runtime.NamespaceName, m.id), runtime.MountStatusSpec{
			Source: "/dev/" + disk + m.part, Target: m.path, FilesystemType: "xfs",
		}))
	}
}
