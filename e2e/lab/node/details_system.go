package node

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/cri"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/perf"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
)

// kernelVersion is the kernel of the simulated machines.
const kernelVersion = constants.DefaultKernelVersion

var systemDetails = []detail{
	{[]string{hardware.ProcessorType, hardware.MemoryModuleType, hardware.PCIDeviceType}, (*boot).detailHardware},
	{[]string{runtime.KernelCmdlineType, runtime.KernelParamStatusType, runtime.KernelParamSpecType, runtime.KernelParamDefaultSpecType, runtime.LoadedKernelModuleType, runtime.KernelModuleSpecType}, (*boot).detailKernel},
	{[]string{runtime.DevicesStatusType, runtime.BootedEntryType, runtime.UniqueMachineTokenType, runtime.SBOMItemType, runtime.ServicePIDType}, (*boot).detailRuntime},
	{[]string{runtime.MetaKeyType, runtime.MetaLoadedType}, (*boot).detailMeta},
	{[]string{runtime.MaintenanceServiceConfigType, runtime.MaintenanceServiceRequestType, v1alpha1.AcquireConfigSpecType, v1alpha1.AcquireConfigStatusType}, (*boot).detailMaintenance},
	{[]string{perf.CPUType, perf.MemoryType}, (*boot).detailPerf},
	{[]string{cri.SeccompProfileType, cri.RegistriesConfigType, cri.ImageCacheConfigType}, (*boot).detailCRI},
}

func (b *boot) detailHardware(l *detailList) {
	for i := range cpuCount {
		l.add("hardware.SystemInfoController", with(hardware.NewProcessorInfo(fmt.Sprintf("CPU-%d", i)), hardware.ProcessorSpec{
			Socket: fmt.Sprintf("CPU %d", i), Manufacturer: "QEMU", ProductName: "pc-i440fx-7.2", MaxSpeed: 2000, BootSpeed: 2000,
			Status: 65, CoreCount: 1, CoreEnabled: 1, ThreadCount: 1,
		}))
	}
	l.add("hardware.SystemInfoController", with(hardware.NewMemoryModuleInfo("DIMM-0"), hardware.MemoryModuleSpec{
		Size: memoryKiB / 1024, DeviceLocator: "DIMM 0", Manufacturer: "QEMU",
	}))
	for _, p := range []struct{ id, class, sub, vendor, product, cid, scid, vid, pid, driver string }{
		{"0000:00:00.0", "Bridge", "Host bridge", "Intel Corporation", "440FX - 82441FX PMC [Natoma]", "0x06", "0x00", "0x8086", "0x1237", ""},
		{"0000:00:01.0", "Bridge", "ISA bridge", "Intel Corporation", "82371SB PIIX3 ISA [Natoma/Triton II]", "0x06", "0x01", "0x8086", "0x7000", ""},
		{"0000:00:02.0", "Mass storage controller", "SCSI storage controller", "Red Hat, Inc.", "Virtio block device", "0x01", "0x00", "0x1af4", "0x1001", "virtio-pci"},
		{"0000:00:03.0", "Network controller", "Ethernet controller", "Red Hat, Inc.", "Virtio network device", "0x02", "0x00", "0x1af4", "0x1000", "virtio-pci"},
	} {
		l.add("hardware.PCIDevicesController", with(hardware.NewPCIDeviceInfo(p.id), hardware.PCIDeviceSpec{
			Class: p.class, Subclass: p.sub, Vendor: p.vendor, Product: p.product, ClassID: p.cid, SubclassID: p.scid,
			VendorID: p.vid, ProductID: p.pid, Driver: p.driver,
		}))
	}
}

// cmdline is the kernel's command line.
func (b *boot) cmdline() string {
	return "talos.platform=metal console=tty0 console=ttyS0 init_on_alloc=1 slab_nomerge pti=on consoleblank=0 nvme_core.io_timeout=4294967295 printk.devkmsg=on selinux=1"
}

// kernelParams are the settings that Talos makes by default on metal.
var kernelParams = map[string]string{
	"proc.sys.net.ipv4.ip_forward":                        "1",
	"proc.sys.net.ipv4.icmp_ignore_bogus_error_responses": "1",
	"proc.sys.net.ipv4.icmp_echo_ignore_broadcasts":       "1",
	"proc.sys.net.ipv4.ip_local_reserved_ports":           "50000,50001",
	"proc.sys.net.bridge.bridge-nf-call-iptables":         "1",
	"proc.sys.net.bridge.bridge-nf-call-ip6tables":        "1",
	"proc.sys.net.ipv6.conf.default.forwarding":           "1",
	"proc.sys.net.ipv6.conf.default.accept_ra":            "2",
	"proc.sys.net.ipv4.tcp_keepalive_time":                "600",
	"proc.sys.net.ipv4.tcp_keepalive_intvl":               "60",
	"proc.sys.kernel.panic":                               "10",
	"proc.sys.kernel.pid_max":                             "262144",
	"proc.sys.vm.overcommit_memory":                       "1",
	"proc.sys.fs.inotify.max_user_instances":              "8192",
	"proc.sys.fs.aio-max-nr":                              "1048576",
}

// sysctls are the settings of the configuration, as kernel parameters.
func (b *boot) sysctls() map[string]string {
	out := map[string]string{}
	cfg := b.config()
	if cfg == nil {
		return out
	}
	for k, v := range cfg.SysctlConfig() {
		out["proc.sys."+strings.ReplaceAll(k, "/", ".")] = v
	}
	if cfg.Machine() != nil {
		for k, v := range cfg.Machine().Sysctls() {
			out["proc.sys."+strings.ReplaceAll(k, "/", ".")] = v
		}
	}
	return out
}

func (b *boot) detailKernel(l *detailList) {
	l.add("runtime.KernelCmdlineController", with(runtime.NewKernelCmdline(), runtime.KernelCmdlineSpec{Cmdline: b.cmdline()}))
	own := b.sysctls()
	for k, v := range kernelParams {
		l.add("runtime.KernelParamDefaultsController", with(runtime.NewKernelParamDefaultSpec(runtime.NamespaceName, k), runtime.KernelParamDefaultSpecSpec{Value: v}))
	}
	for k, v := range own {
		l.add("runtime.KernelParamConfigController", with(runtime.NewKernelParamSpec(runtime.NamespaceName, k), runtime.KernelParamSpecSpec{Value: v}))
	}
	all := maps.Clone(kernelParams)
	maps.Copy(all, own)
	for k, v := range all {
		l.add("runtime.KernelParamSpecController", with(runtime.NewKernelParamStatus(runtime.NamespaceName, k), runtime.KernelParamStatusSpec{
			Current: v, Default: kernelParams[k],
		}))
	}
	for name, size := range map[string]int{"virtio_net": 118784, "virtio_pci": 57344, "virtio_blk": 45056, "xfs": 2232320} {
		l.add("runtime.LoadedKernelModuleController", with(runtime.NewLoadedKernelModule(runtime.NamespaceName, name), runtime.LoadedKernelModuleSpec{
			Size: size, State: "Live", Address: "0x0000000000000000", Dependencies: []string{},
		}))
	}
}

func (b *boot) detailRuntime(l *detailList) {
	l.add("runtime.DevicesStatusController", with(runtime.NewDevicesStatus(runtime.NamespaceName, runtime.DevicesID), runtime.DevicesStatusSpec{Ready: true}))
	l.add("runtime.UniqueMachineTokenController", with(runtime.NewUniqueMachineToken(), runtime.UniqueMachineTokenSpec{}))
	for name, item := range map[string]runtime.SBOMItemSpec{
		"kernel": {Version: strings.TrimSuffix(kernelVersion, "-talos"), License: "GPL-2.0-only"},
		"talos":  {Version: b.node.Spec().TalosVersion, License: "MPL-2.0"},
	} {
		item.Name = name
		l.add("runtime.SBOMItemController", with(runtime.NewSBOMItemSpec(runtime.NamespaceName, name), item))
	}
	for _, p := range b.processes() {
		if p.service {
			l.add("runtime.ServicePIDController", with(runtime.NewServicePID(p.name), runtime.ServicePIDSpec{PID: p.pid}))
		}
	}
}

func (b *boot) detailMeta(l *detailList) {
	l.add("runtime.MetaController", with(runtime.NewMetaLoaded(), runtime.MetaLoadedSpec{Done: true}))
	for tag, value := range b.metaValues() {
		l.add("runtime.MetaController", with(runtime.NewMetaKey(runtime.NamespaceName, runtime.MetaKeyTagToID(tag)), runtime.MetaKeySpec{Value: string(value)}))
	}
}

func (b *boot) detailMaintenance(l *detailList) {
	l.add("v1alpha1.AcquireController", v1alpha1.NewAcquireConfigSpec())
	if b.complete() {
		l.add("config.AcquireController", v1alpha1.NewAcquireConfigStatus())
		return
	}
	l.add("config.AcquireController", runtime.NewMaintenanceServiceRequest())
	l.add("runtime.MaintenanceConfigController", with(runtime.NewMaintenanceServiceConfig(), runtime.MaintenanceServiceConfigSpec{
		ListenAddress: ":50000", ReachableAddresses: []netip.Addr{b.node.Spec().Address},
	}))
}

func (b *boot) detailPerf(l *detailList) {
	cpu, total := b.cpuTimes(), perf.CPUStat{}
	var each []perf.CPUStat
	for _, c := range cpu {
		s := perf.CPUStat{User: c.User, System: c.System, Idle: c.Idle, Iowait: c.Iowait, SoftIrq: c.SoftIrq}
		each = append(each, s)
		total.User, total.System, total.Idle = total.User+s.User, total.System+s.System, total.Idle+s.Idle
		total.Iowait, total.SoftIrq = total.Iowait+s.Iowait, total.SoftIrq+s.SoftIrq
	}
	l.add("perf.StatsController", with(perf.NewCPU(), perf.CPUSpec{
		CPU: each, CPUTotal: total, IRQTotal: b.ticks(700), ContextSwitches: b.ticks(2500), ProcessCreated: b.ticks(4) + 500, ProcessRunning: 1,
	}))
	m := b.meminfo()
	l.add("perf.StatsController", with(perf.NewMemory(), perf.MemorySpec{
		MemTotal: m.Memtotal, MemUsed: m.Memtotal - m.Memfree, MemAvailable: m.Memavailable, Buffers: m.Buffers, Cached: m.Cached,
		Active: m.Active, Inactive: m.Inactive, AnonPages: m.Anonpages, Mapped: m.Mapped, Shmem: m.Shmem, Slab: m.Slab,
		CommitLimit: m.Commitlimit, CommittedAS: m.Committedas, Hugepagesize: m.Hugepagesize,
	}))
}

func (b *boot) detailCRI(l *detailList) {
	if !b.complete() {
		return
	}
	l.add("cri.ImageCacheConfigController", with(cri.NewImageCacheConfig(), cri.ImageCacheConfigSpec{Status: cri.ImageCacheStatusDisabled, CopyStatus: cri.ImageCacheCopyStatusSkipped}))
	for _, p := range b.config().Machine().SeccompProfiles() {
		l.add("cri.SeccompProfileController", with(cri.NewSeccompProfile(p.Name()), cri.SeccompProfileSpec{Name: p.Name(), Value: p.Value()}))
	}
	mirrors := map[string]*cri.RegistryMirrorConfig{}
	for name, m := range b.config().RegistryMirrorConfigs() {
		mirror := &cri.RegistryMirrorConfig{MirrorSkipFallback: m.SkipFallback()}
		for _, e := range m.Endpoints() {
			mirror.MirrorEndpoints = append(mirror.MirrorEndpoints, cri.RegistryEndpointConfig{EndpointEndpoint: e.Endpoint(), EndpointOverridePath: e.OverridePath()})
		}
		mirrors[name] = mirror
	}
	l.add("cri.RegistriesConfigController", with(cri.NewRegistriesConfig(), cri.RegistriesConfigSpec{RegistryMirrors: mirrors}))
}

// digestID is an identifier in base64 that follows from a thing of this machine.
func (b *boot) digestID(thing string) string {
	sum := sha256.Sum256([]byte(b.node.Spec().UUID + "/" + thing))
	return base64.StdEncoding.EncodeToString(sum[:])
}
