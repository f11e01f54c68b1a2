package node

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// metaSize is the room for values in the META partition (a quarter of a MiB, less its headers).
const metaSize = 256<<10 - 1024

func (d disks) metaKeys() string { return filepath.Join(d.meta(), "keys.json") }

// metaValues are the values in META by tag. Without the partition they last until the next boot.
func (b *boot) metaValues() map[uint8][]byte {
	b.metaMu.Lock()
	defer b.metaMu.Unlock()
	return maps.Clone(b.loadMeta())
}

// loadMeta reads the values once a boot; metaMu is held.
func (b *boot) loadMeta() map[uint8][]byte {
	if b.metaTags == nil {
		b.metaTags = map[uint8][]byte{}
		if data, err := os.ReadFile(b.disks.metaKeys()); err == nil {
			if err := json.Unmarshal(data, &b.metaTags); err != nil {
				b.node.emit("error", "read META: "+err.Error())
			}
		}
	}
	return b.metaTags
}

// changeMeta changes the values and writes them down where there is a partition.
func (b *boot) changeMeta(key uint32, change func(map[uint8][]byte, uint8) error) error {
	if key > 255 {
		return status.Error(codes.InvalidArgument, "key must be a uint8")
	}
	b.metaMu.Lock()
	err := change(b.loadMeta(), uint8(key))
	if err == nil && b.disks.installed() {
		var data []byte
		if data, err = json.Marshal(b.metaTags); err == nil {
			err = b.disks.write(b.disks.metaKeys(), data)
		}
	}
	b.metaMu.Unlock()
	if err == nil {
		b.refreshDetails()
	}
	return err
}

// MetaWrite implements machine.MachineService.
func (a *api) MetaWrite(_ context.Context, in *machine.MetaWriteRequest) (*machine.MetaWriteResponse, error) {
	err := a.boot.changeMeta(in.Key, func(all map[uint8][]byte, key uint8) error {
		used := len(in.Value)
		for k, v := range all {
			if k != key {
				used += len(v) + 8
			}
		}
		if used > metaSize {
			return status.Error(codes.ResourceExhausted, "meta write failed")
		}
		all[key] = in.Value
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machine.MetaWriteResponse{Messages: []*machine.MetaWrite{{}}}, nil
}

// MetaDelete implements machine.MachineService.
func (a *api) MetaDelete(_ context.Context, in *machine.MetaDeleteRequest) (*machine.MetaDeleteResponse, error) {
	err := a.boot.changeMeta(in.Key, func(all map[uint8][]byte, key uint8) error {
		if _, ok := all[key]; !ok {
			return status.Error(codes.NotFound, "meta key not found")
		}
		delete(all, key)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machine.MetaDeleteResponse{Messages: []*machine.MetaDelete{{}}}, nil
}
