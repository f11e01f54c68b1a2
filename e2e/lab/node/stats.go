package node

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The simulated machine: two cores and 4 GiB.
const (
	cpuCount  = 2
	memoryKiB = 4 << 20
	// idleShare is how much of the time a core has nothing to do.
	idleShare = 0.9
)

// uptime is how long the boot has run.
func (b *boot) uptime() time.Duration { return time.Since(b.poweredOn) }

// ticks is a counter that grows at a rate per second from the boot on.
func (b *boot) ticks(rate float64) uint64 { return uint64(b.uptime().Seconds() * rate) }

// cpuTimes are the cores' seconds since the boot.
func (b *boot) cpuTimes() []*machine.CPUStat {
	up := b.uptime().Seconds()
	out := make([]*machine.CPUStat, cpuCount)
	for i := range out {
		out[i] = &machine.CPUStat{User: up * 0.05, System: up * 0.04, Idle: up * idleShare, Iowait: up * 0.002, SoftIrq: up * 0.008}
	}
	return out
}

// SystemStat implements machine.MachineService.
func (a *api) SystemStat(context.Context, *emptypb.Empty) (*machine.SystemStatResponse, error) {
	b := a.boot
	cpus, total := b.cpuTimes(), &machine.CPUStat{}
	for _, c := range cpus {
		total.User, total.System, total.Idle = total.User+c.User, total.System+c.System, total.Idle+c.Idle
		total.Iowait, total.SoftIrq = total.Iowait+c.Iowait, total.SoftIrq+c.SoftIrq
	}
	return &machine.SystemStatResponse{Messages: []*machine.SystemStat{{
		BootTime: uint64(b.poweredOn.Unix()), CpuTotal: total, Cpu: cpus, IrqTotal: b.ticks(700), Irq: []uint64{b.ticks(100), 9, 0, 0, b.ticks(5)},
		ContextSwitches: b.ticks(2500), ProcessCreated: b.ticks(4) + 500, ProcessRunning: 1,
		SoftIrqTotal: b.ticks(600), SoftIrq: &machine.SoftIRQStat{Timer: b.ticks(200), NetRx: b.ticks(150), NetTx: b.ticks(10), Sched: b.ticks(120), Rcu: b.ticks(120)},
	}}}, nil
}

// LoadAvg implements machine.MachineService.
func (a *api) LoadAvg(context.Context, *emptypb.Empty) (*machine.LoadAvgResponse, error) {
	l := a.boot.load()
	return &machine.LoadAvgResponse{Messages: []*machine.LoadAvg{{Load1: l[0], Load5: l[1], Load15: l[2]}}}, nil
}

// load are the load averages: high at the boot, then what an idle node has.
func (b *boot) load() [3]float64 {
	up := b.uptime().Minutes()
	fade := func(window float64) float64 { return 0.2 + 1.5*min(1, up/window)*max(0, 1-up/(4*window)) }
	return [3]float64{fade(1), fade(5), fade(15)}
}

// CPUInfo implements machine.MachineService.
func (a *api) CPUInfo(context.Context, *emptypb.Empty) (*machine.CPUInfoResponse, error) {
	out := &machine.CPUsInfo{}
	for i := range uint32(cpuCount) {
		out.CpuInfo = append(out.CpuInfo, &machine.CPUInfo{
			Processor: i, VendorId: "GenuineIntel", CpuFamily: "6", Model: "85", ModelName: "Intel Xeon Processor (Cascadelake)", Stepping: "6",
			Microcode: "0x1", CpuMhz: 2000, CacheSize: "16384 KB", PhysicalId: fmt.Sprint(i), Siblings: 1, CoreId: "0",
			ApicId: fmt.Sprint(i), InitialApicId: fmt.Sprint(i), Fpu: "yes", FpuException: "yes", CpuIdLevel: 13, Wp: "yes",
			Flags:    []string{"fpu", "vme", "sse", "sse2", "ssse3", "sse4_1", "sse4_2", "popcnt", "aes", "avx", "avx2", "hypervisor"},
			BogoMips: 4000, ClFlushSize: 64, CacheAlignment: 64, AddressSizes: "46 bits physical, 48 bits virtual",
		})
	}
	return &machine.CPUInfoResponse{Messages: []*machine.CPUsInfo{out}}, nil
}

// CPUFreqStats implements machine.MachineService: a virtual machine sees no frequencies.
func (a *api) CPUFreqStats(context.Context, *emptypb.Empty) (*machine.CPUFreqStatsResponse, error) {
	out := &machine.CPUsFreqStats{}
	for range cpuCount {
		out.CpuFreqStats = append(out.CpuFreqStats, &machine.CPUFreqStats{})
	}
	return &machine.CPUFreqStatsResponse{Messages: []*machine.CPUsFreqStats{out}}, nil
}

// NetworkDeviceStats implements machine.MachineService.
func (a *api) NetworkDeviceStats(context.Context, *emptypb.Empty) (*machine.NetworkDeviceStatsResponse, error) {
	b := a.boot
	dev := func(name string, rate float64) *machine.NetDev {
		return &machine.NetDev{
			Name: name, RxBytes: b.ticks(rate * 900), RxPackets: b.ticks(rate), TxBytes: b.ticks(rate * 700), TxPackets: b.ticks(rate),
		}
	}
	list := []*machine.NetDev{dev("eth0", 40), dev("lo", 25), {Name: "dummy0"}}
	total := &machine.NetDev{Name: "total"}
	for _, d := range list {
		total.RxBytes, total.RxPackets = total.RxBytes+d.RxBytes, total.RxPackets+d.RxPackets
		total.TxBytes, total.TxPackets = total.TxBytes+d.TxBytes, total.TxPackets+d.TxPackets
	}
	return &machine.NetworkDeviceStatsResponse{Messages: []*machine.NetworkDeviceStats{{Devices: list, Total: total}}}, nil
}

// DiskStats implements machine.MachineService.
func (a *api) DiskStats(context.Context, *emptypb.Empty) (*machine.DiskStatsResponse, error) {
	b := a.boot
	out := &machine.DiskStats{Total: &machine.DiskStat{}}
	add := func(d *machine.DiskStat) {
		out.Devices = append(out.Devices, d)
		t := out.Total
		t.ReadCompleted, t.ReadSectors, t.WriteCompleted = t.ReadCompleted+d.ReadCompleted, t.ReadSectors+d.ReadSectors, t.WriteCompleted+d.WriteCompleted
		t.WriteSectors, t.IoTimeMs = t.WriteSectors+d.WriteSectors, t.IoTimeMs+d.IoTimeMs
	}
	add(&machine.DiskStat{Name: "loop0", ReadCompleted: 1200, ReadSectors: 96000, IoTimeMs: 800})
	for _, d := range b.node.Spec().Disks {
		add(&machine.DiskStat{
			Name: d.Name, ReadCompleted: 900, ReadSectors: 52000, WriteCompleted: b.ticks(12), WriteSectors: b.ticks(240), IoTimeMs: b.ticks(9),
		})
	}
	return &machine.DiskStatsResponse{Messages: []*machine.DiskStats{out}}, nil
}

// meminfo is what the memory of the machine holds (KiB), more once the services of a configured node run.
func (b *boot) meminfo() *machine.MemInfo {
	used := uint64(400 << 10)
	for _, p := range b.processes() {
		used += p.memory >> 10
	}
	cached := uint64(380 << 10)
	free := memoryKiB - used - cached
	return &machine.MemInfo{
		Memtotal: memoryKiB, Memfree: free, Memavailable: free + cached*3/4, Buffers: 2 << 10, Cached: cached,
		Active: used / 2, Inactive: used / 3, Activeanon: used / 3, Inactiveanon: used / 4, Activefile: cached / 3, Inactivefile: cached / 2,
		Dirty: 64, Anonpages: used / 2, Mapped: cached / 2, Shmem: 96 << 10, Slab: 60 << 10, Sreclaimable: 30 << 10, Sunreclaim: 30 << 10,
		Kernelstack: 4 << 10, Pagetables: 5 << 10, Commitlimit: memoryKiB / 2, Committedas: used * 2, Vmalloctotal: 34359738367, Vmallocused: 20 << 10,
		Hugepagesize: 2048, Directmap4K: 100 << 10, Directmap2M: memoryKiB,
	}
}

// Memory implements machine.MachineService.
func (a *api) Memory(context.Context, *emptypb.Empty) (*machine.MemoryResponse, error) {
	return &machine.MemoryResponse{Messages: []*machine.Memory{{Meminfo: a.boot.meminfo()}}}, nil
}

// Mounts implements machine.MachineService.
func (a *api) Mounts(context.Context, *emptypb.Empty) (*machine.MountsResponse, error) {
	b := a.boot
	out := &machine.Mounts{}
	add := func(fs string, size, free uint64, on string) {
		out.Stats = append(out.Stats, &machine.MountStat{Filesystem: fs, Size: size, Available: free, MountedOn: on})
	}
	const ram = memoryKiB << 10
	add("devtmpfs", ram/2, ram/2, "/dev")
	for _, on := range []string{"/proc", "/sys"} {
		add("none", 0, 0, on)
	}
	add("none", ram/2, ram/2, "/dev/shm")
	for _, on := range []string{"/dev/pts", "/dev/hugepages", "/sys/fs/bpf", "/sys/kernel/security", "/sys/kernel/tracing", "/sys/kernel/config", "/sys/kernel/debug"} {
		add("none", 0, 0, on)
	}
	add("/dev/loop0", 100139008, 0, "/")
	for _, on := range []string{"/run", "/system", "/tmp"} {
		add("tmpfs", ram/2, ram/2-2*mib, on)
	}
	add("none", 0, 0, "/sys/fs/cgroup")
	disk := b.systemDisk()
	if exists(b.disks.state()) {
		add("/dev/"+disk+"5", 100*mib, 93*mib, "/system/state")
	}
	if exists(b.disks.ephemeral()) && b.complete() {
		size := b.ephemeralBytes()
		add("/dev/"+disk+"6", size, size-size/12, "/var")
		for _, on := range []string{"/etc/cni", "/etc/kubernetes", "/opt", "/usr/libexec/kubernetes"} {
			add("overlay", size, size-size/12, on)
		}
	}
	return &machine.MountsResponse{Messages: []*machine.Mounts{out}}, nil
}

// ephemeralBytes is the size of the EPHEMERAL partition.
func (b *boot) ephemeralBytes() uint64 {
	for _, d := range b.node.Spec().Disks {
		if d.Name == b.systemDisk() {
			return ephemeralSize(d.Size)
		}
	}
	return mib
}
