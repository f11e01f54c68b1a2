package node

import (
	"context"
	"strconv"

	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

type storageAPI struct {
	storage.UnimplementedStorageServiceServer
	boot *boot
}

// Disks implements storage.StorageService.
func (s *storageAPI) Disks(context.Context, *emptypb.Empty) (*storage.DisksResponse, error) {
	b := s.boot
	out := &storage.Disks{Disks: []*storage.Disk{{
		DeviceName: "/dev/loop0", Size: rootImageSize, BusPath: "/virtual", Subsystem: "/sys/class/block", Readonly: true,
	}}}
	for i, d := range b.node.Spec().Disks {
		kind := storage.Disk_UNKNOWN
		switch d.Transport {
		case "":
		case "nvme":
			kind = storage.Disk_NVME
		case "mmc":
			kind = storage.Disk_SD
		case "virtio": // a virtio disk says that it rotates
			kind = storage.Disk_HDD
		default:
			kind = storage.Disk_SSD
		}
		out.Disks = append(out.Disks, &storage.Disk{
			DeviceName: "/dev/" + d.Name, Size: d.Size, Model: d.Model, Serial: d.Serial, Wwid: d.WWID, Readonly: d.ReadOnly, Modalias: modalias(d),
			BusPath: diskPath(i, d), SystemDisk: b.disks.installed() && d.Name == b.systemDisk(), Subsystem: "/sys/class/block", Type: kind,
		})
	}
	return &storage.DisksResponse{Messages: []*storage.Disks{out}}, nil
}

func modalias(d Disk) string {
	if d.Transport == "virtio" {
		return "virtio:d00000002v00001AF4"
	}
	return ""
}

// BlockDeviceWipe implements storage.StorageService. Nothing of the lab's disks but the system's
// partitions has contents, and those are in use, so that a wipe that is allowed changes nothing.
func (s *storageAPI) BlockDeviceWipe(ctx context.Context, in *storage.BlockDeviceWipeRequest) (*storage.BlockDeviceWipeResponse, error) {
	if s.boot.complete() && !rolesOf(ctx).Includes(role.Admin) {
		return nil, errNotAuthorized // readers may in maintenance only
	}
	for _, d := range in.Devices {
		if err := s.wipeable(d); err != nil {
			return nil, err
		}
		s.boot.node.emit("wipe-device", d.Device)
	}
	return &storage.BlockDeviceWipeResponse{Messages: []*storage.BlockDeviceWipe{{}}}, nil
}

// wipeable refuses devices that aren't there, can't be written, or are in use by a volume.
func (s *storageAPI) wipeable(in *storage.BlockDeviceWipeDescriptor) error {
	b, dev := s.boot, in.Device
	if in.Method != storage.BlockDeviceWipeDescriptor_FAST && in.Method != storage.BlockDeviceWipeDescriptor_ZEROES {
		return status.Errorf(codes.InvalidArgument, "unsupported wipe method %s", in.Method)
	}
	if dev == "loop0" {
		return status.Errorf(codes.FailedPrecondition, "blockdevice %q is read-only", dev)
	}
	for _, d := range b.node.Spec().Disks {
		var parts []partition
		if d.Name == b.systemDisk() {
			parts = b.partitions(d.Size)
		}
		volume := func(label string) bool { return label == "META" || label == "STATE" || label == "EPHEMERAL" }
		if dev == d.Name {
			if d.ReadOnly {
				return status.Errorf(codes.FailedPrecondition, "blockdevice %q is read-only", dev)
			}
			for _, p := range parts {
				if volume(p.label) && !in.SkipVolumeCheck {
					return status.Errorf(codes.FailedPrecondition, "blockdevice %q is in use by volume %q", dev, p.label)
				}
			}
			if len(parts) > 0 {
				return status.Errorf(codes.FailedPrecondition, "block device %q is mounted or in use", dev)
			}
			return nil
		}
		for _, p := range parts {
			if dev != d.Name+strconv.Itoa(p.number) {
				continue
			}
			if volume(p.label) && !in.SkipVolumeCheck {
				return status.Errorf(codes.FailedPrecondition, "blockdevice %q is in use by volume %q", dev, p.label)
			}
			if volume(p.label) {
				return status.Errorf(codes.FailedPrecondition, "block device %q is mounted or in use", dev)
			}
			return nil
		}
	}
	return status.Errorf(codes.NotFound, "blockdevice %q not found", dev)
}
