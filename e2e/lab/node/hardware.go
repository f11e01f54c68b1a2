package node

import (
	"net"
	"net/netip"

	"github.com/dustin/go-humanize"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
)

// prefixBits is the length of the node's network prefix, as NodeAddress shows it.
const prefixBits = 24

// populate writes what a machine shows from its first second: hardware, links, addresses, time.
func (b *boot) populate() {
	spec := b.node.Spec()
	if mask := b.node.getMask(); mask.UUID != "" {
		spec.UUID = mask.UUID
	}
	put(b, "hardware.SystemInfoController", hardware.NewSystemInformation(hardware.SystemInformationID), func(r *hardware.SystemInformation) {
		*r.TypedSpec() = hardware.SystemInformationSpec{
			Manufacturer: "QEMU", ProductName: "lab", Version: "pc-i440fx-7.2",
			SerialNumber: spec.Name, UUID: spec.UUID, WakeUpType: "Power Switch",
		}
	})
	put(b, "runtime.VersionController", runtime.NewVersion(), func(r *runtime.Version) {
		*r.TypedSpec() = runtime.VersionSpec{Name: "Talos", Version: spec.TalosVersion}
	})
	put(b, "network.PlatformConfigApplyController", runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID), func(r *runtime.PlatformMetadata) {
		*r.TypedSpec() = runtime.PlatformMetadataSpec{Platform: "metal", InstanceID: spec.UUID}
	})
	put(b, "runtime.SecurityStateController", runtime.NewSecurityStateSpec(runtime.NamespaceName), func(*runtime.SecurityState) {})
	if b.release.newResources {
		put(b, "runtime.BootIDController", runtime.NewBootID(), func(r *runtime.BootID) { r.TypedSpec().BootID = b.id })
	}
	b.node.mu.Lock()
	synced := !b.node.badTime
	b.node.mu.Unlock()
	b.showTime(synced)
	b.populateNetwork(spec)
	b.populateDisks(spec)
}

func (b *boot) showTime(synced bool) {
	disabled := false
	if cfg := b.config(); cfg != nil && cfg.NetworkTimeSyncConfig() != nil {
		disabled = cfg.NetworkTimeSyncConfig().Disabled()
	}
	put(b, "time.SyncController", timeres.NewStatus(), func(r *timeres.Status) {
		r.TypedSpec().Synced, r.TypedSpec().SyncDisabled = synced, disabled
	})
}

func (b *boot) populateNetwork(spec Spec) {
	put(b, "network.LinkStatusController", network.NewLinkStatus(network.NamespaceName, "lo"), func(r *network.LinkStatus) {
		*r.TypedSpec() = network.LinkStatusSpec{
			Index: 1, Type: nethelpers.LinkLoopbck, MTU: 65536, QueueDisc: "noqueue",
			Flags:        nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkLoopback | nethelpers.LinkRunning | nethelpers.LinkLowerUp),
			HardwareAddr: make(nethelpers.HardwareAddr, 6), BroadcastAddr: make(nethelpers.HardwareAddr, 6),
			OperationalState: nethelpers.OperStateUnknown, LinkState: true, Port: nethelpers.Other, Duplex: nethelpers.Unknown,
		}
	})
	mac := nethelpers.HardwareAddr(spec.mac())
	put(b, "network.LinkStatusController", network.NewLinkStatus(network.NamespaceName, "eth0"), func(r *network.LinkStatus) {
		*r.TypedSpec() = network.LinkStatusSpec{
			Index: 2, Type: nethelpers.LinkEther, MTU: 1500, QueueDisc: "fq_codel",
			AltNames: []string{"enp0s3", "ens3", "enx" + plainMAC(spec.mac())},
			Flags: nethelpers.LinkFlags(nethelpers.LinkUp | nethelpers.LinkBroadcast | nethelpers.LinkRunning |
				nethelpers.LinkMulticast | nethelpers.LinkLowerUp),
			HardwareAddr: mac, PermanentAddr: mac, BroadcastAddr: nethelpers.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			OperationalState: nethelpers.OperStateUp, BusPath: "0000:00:03.0", Driver: "virtio_net", DriverVersion: "1.0.0",
			ProductID: "0x1000", VendorID: "0x1af4", Product: "Virtio network device", Vendor: "Red Hat, Inc.",
			LinkState: true, SpeedMegabits: 4294967295, Port: nethelpers.Other, Duplex: nethelpers.Unknown,
		}
	})
	prefix := netip.PrefixFrom(spec.Address, prefixBits)
	b.putAddress("eth0", 2, prefix, nethelpers.ScopeGlobal)
	b.putAddress("lo", 1, netip.MustParsePrefix("127.0.0.1/8"), nethelpers.ScopeHost)
	for _, id := range []string{network.NodeAddressDefaultID, network.NodeAddressCurrentID, network.NodeAddressAccumulativeID, network.NodeAddressRoutedID} {
		b.putNodeAddress(id, prefix)
	}
}

func (b *boot) putAddress(link string, index uint32, prefix netip.Prefix, scope nethelpers.Scope) {
	put(b, "network.AddressStatusController", network.NewAddressStatus(network.NamespaceName, link+"/"+prefix.String()), func(r *network.AddressStatus) {
		*r.TypedSpec() = network.AddressStatusSpec{
			Address: prefix, LinkIndex: index, LinkName: link, Family: nethelpers.FamilyInet4,
			Scope: scope, Flags: nethelpers.AddressFlags(nethelpers.AddressPermanent),
		}
	})
}

func (b *boot) putNodeAddress(id string, prefixes ...netip.Prefix) {
	put(b, "network.NodeAddressController", network.NewNodeAddress(network.NamespaceName, id), func(r *network.NodeAddress) {
		r.TypedSpec().Addresses = prefixes
		r.TypedSpec().SortAlgorithm = nethelpers.AddressSortAlgorithmV1
	})
}

func (b *boot) populateDisks(spec Spec) {
	for i, d := range spec.Disks {
		put(b, "block.DisksController", block.NewDisk(block.NamespaceName, d.Name), func(r *block.Disk) {
			*r.TypedSpec() = block.DiskSpec{
				DevPath: "/dev/" + d.Name, Size: d.Size, PrettySize: humanize.Bytes(d.Size), IOSize: 512, SectorSize: 512,
				Readonly: d.ReadOnly, Model: d.Model, Serial: d.Serial, WWID: d.WWID, Transport: d.Transport, Modalias: modalias(d),
				SubSystem: "/sys/class/block", BusPath: diskPath(i, d), Symlinks: diskLinks(i, d), Rotational: d.Transport == "virtio",
			}
		})
	}
	b.showVolumes()
}

// showVolumes writes the system disk and volumes as far as they exist.
func (b *boot) showVolumes() {
	d, disk := b.node.disks, b.systemDisk()
	if d.installed() {
		put(b, "block.SystemDiskController", block.NewSystemDisk(block.NamespaceName, block.SystemDiskID), func(r *block.SystemDisk) {
			*r.TypedSpec() = block.SystemDiskSpec{DiskID: disk, DevPath: "/dev/" + disk}
		})
	}
	for _, v := range []struct {
		id    string
		there bool
		index int
		size  uint64
	}{
		{"META", d.installed(), 4, 1 << 20},
		{"STATE", exists(d.state()), 5, 100 << 20},
		{"EPHEMERAL", exists(d.ephemeral()), 6, b.ephemeralBytes()},
	} {
		if v.id == "EPHEMERAL" && b.config() == nil {
			continue // only configured nodes look for it
		}
		put(b, "block.VolumeManagerController", block.NewVolumeStatus(block.NamespaceName, v.id), func(r *block.VolumeStatus) {
			r.Metadata().Labels().Set("talos.dev/system-volume", "")
			*r.TypedSpec() = block.VolumeStatusSpec{Phase: block.VolumePhaseMissing, Type: block.VolumeTypePartition, MountSpec: systemMounts[v.id]}
			if v.there {
				dev := "/dev/" + disk
				part := dev + string(rune('0'+v.index))
				*r.TypedSpec() = block.VolumeStatusSpec{
					Phase: block.VolumePhaseReady, Type: block.VolumeTypePartition, Location: part, MountLocation: part,
					PartitionIndex: v.index, ParentLocation: dev, Size: v.size, PrettySize: humanize.Bytes(v.size),
					PartitionUUID: b.stableUUID(v.id), MountSpec: systemMounts[v.id],
				}
			}
		})
	}
}

// systemDisk is the disk that Talos is installed on: the one the configuration names, else the first.
func (b *boot) systemDisk() string {
	disks := b.node.Spec().Disks
	if d := b.disks.readBoot().Disk; d != "" {
		return d
	}
	if cfg := b.config(); cfg != nil && cfg.Machine() != nil && cfg.Machine().Install() != nil {
		for _, d := range disks {
			if cfg.Machine().Install().Disk() == "/dev/"+d.Name {
				return d.Name
			}
		}
	}
	return disks[0].Name
}

func plainMAC(mac net.HardwareAddr) string {
	const hex = "0123456789abcdef"
	out := make([]byte, 0, 2*len(mac))
	for _, x := range mac {
		out = append(out, hex[x>>4], hex[x&15])
	}
	return string(out)
}
