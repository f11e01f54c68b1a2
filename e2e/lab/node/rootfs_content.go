package node

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// fill adds the files that a node of Talos has in the places that people look at.
func (r *rootfs) fill() {
	for _, dir := range []string{
		"/boot", "/etc/cni", "/etc/kubernetes", "/etc/ssl/certs", "/opt", "/run/containerd", "/run/lock", "/system/run/containerd", "/system/state",
		"/tmp", "/usr/bin", "/usr/lib", "/usr/libexec/kubernetes", "/usr/local/bin", "/usr/sbin", "/var", "/sys/fs/cgroup", "/proc", "/dev/shm",
	} {
		r.put(dir, inode{mode: fs.ModeDir | 0o755})
	}
	r.put("/tmp", inode{mode: fs.ModeDir | fs.ModeSticky | 0o777})
	for link, to := range map[string]string{"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/usr/sbin/init": "../bin/init", "/dev/stdin": "/proc/self/fd/0"} {
		r.put(link, inode{mode: fs.ModeSymlink | 0o777, link: to})
	}
	for name, size := range map[string]int64{"/usr/bin/init": 96 * mib, "/usr/bin/containerd": 42 * mib, "/usr/bin/containerd-shim-runc-v2": 9 * mib, "/usr/bin/runc": 11 * mib, "/usr/bin/udevd": 2 * mib} {
		r.put(name, inode{mode: 0o755, size: size})
	}
	r.fillEtc()
	r.fillProc()
	r.fillSys()
	r.fillVar()
}

func (r *rootfs) fillEtc() {
	b := r.b
	v := b.node.Spec().TalosVersion
	r.file("/etc/os-release", fmt.Sprintf("NAME=\"Talos\"\nID=talos\nVERSION_ID=%[1]s\nPRETTY_NAME=\"Talos (%[1]s)\"\nHOME_URL=\"https://www.talos.dev/\"\n"+
		"BUG_REPORT_URL=\"https://github.com/siderolabs/talos/issues\"\nVENDOR_NAME=\"Sidero Labs\"\nVENDOR_URL=\"https://www.siderolabs.com/\"\n", v))
	for name, content := range b.etcFiles() {
		r.file("/etc/"+name, content)
	}
	r.file("/etc/extensions.yaml", "layers: []\n")
	r.file("/etc/localtime", "UTC0\n")
	if !b.complete() {
		return
	}
	r.file("/etc/cri/containerd.toml", "version = 3\nimports = [\"/etc/cri/conf.d/cri.toml\"]\n")
	if up, _ := b.svc.is("kubelet"); up {
		r.file("/etc/kubernetes/kubelet.yaml", yamlText(b.kubeletConfiguration()))
		if ca := b.config().Cluster().IssuingCA(); ca != nil {
			r.file("/etc/kubernetes/pki/ca.crt", string(ca.Crt))
		}
	}
}

func (r *rootfs) fillProc() {
	b := r.b
	up := b.uptime().Seconds()
	l := b.load()
	m := b.meminfo()
	for name, content := range map[string]string{
		"cmdline":                   b.cmdline() + "\n",
		"version":                   "Linux version " + kernelVersion + " (@buildkitsandbox) #1 SMP PREEMPT_DYNAMIC\n",
		"uptime":                    fmt.Sprintf("%.2f %.2f\n", up, up*cpuCount*idleShare),
		"loadavg":                   fmt.Sprintf("%.2f %.2f %.2f 1/%d 3000\n", l[0], l[1], l[2], 100+len(b.processes())),
		"meminfo":                   fmt.Sprintf("MemTotal:       %8d kB\nMemFree:        %8d kB\nMemAvailable:   %8d kB\nBuffers:        %8d kB\nCached:         %8d kB\n", m.Memtotal, m.Memfree, m.Memavailable, m.Buffers, m.Cached),
		"sys/kernel/random/boot_id": b.id + "\n",
		"sys/kernel/hostname":       b.hostname() + "\n",
		"sys/kernel/osrelease":      kernelVersion + "\n",
		"sys/kernel/ostype":         "Linux\n",
	} {
		r.file("/proc/"+name, content)
	}
	params := maps.Clone(kernelParams)
	maps.Copy(params, b.sysctls())
	for k, v := range params {
		r.file("/"+strings.ReplaceAll(k, ".", "/"), v+"\n")
	}
	for _, p := range b.processes() {
		dir := fmt.Sprintf("/proc/%d/", p.pid)
		r.file(dir+"comm", p.command+"\n")
		r.file(dir+"cmdline", strings.ReplaceAll(p.args, " ", "\x00")+"\x00")
	}
}

func (r *rootfs) fillSys() {
	spec := r.b.node.Spec()
	for name, content := range map[string]string{
		"class/dmi/id/product_uuid": spec.UUID, "class/dmi/id/sys_vendor": "QEMU", "class/dmi/id/product_name": "lab",
		"class/net/eth0/address": spec.mac().String(), "class/net/eth0/mtu": "1500", "class/net/eth0/operstate": "up", "class/net/lo/address": "00:00:00:00:00:00",
	} {
		r.file("/sys/"+name, content+"\n")
	}
	for _, d := range spec.Disks {
		r.file("/sys/block/"+d.Name+"/size", fmt.Sprintln(d.Size/512))
		r.put("/dev/"+d.Name, inode{mode: fs.ModeDevice | 0o660})
		if d.Name == r.b.systemDisk() {
			for _, p := range r.b.partitions(d.Size) {
				r.put(fmt.Sprintf("/dev/%s%d", d.Name, p.number), inode{mode: fs.ModeDevice | 0o660})
			}
		}
	}
	for _, dev := range []string{"null", "zero", "random", "urandom", "kmsg", "console"} {
		r.put("/dev/"+dev, inode{mode: fs.ModeDevice | fs.ModeCharDevice | 0o666})
	}
	r.fillCgroups()
}

// fillCgroups adds the control groups of what runs.
func (r *rootfs) fillCgroups() {
	groups := map[string][]process{"": nil, "init": nil, "system": nil, "podruntime": nil, "kubepods": nil}
	where := map[string]string{
		"machined": "init", "containerd": "system/runtime", "udevd": "system/udevd", "apid": "system/apid", "trustd": "system/trustd",
		"cri": "podruntime/runtime", "etcd": "podruntime/etcd", "kubelet": "podruntime/kubelet",
	}
	for _, p := range r.b.processes() {
		g, ok := where[p.name]
		if !ok && p.name != "kthreadd" {
			g = "kubepods/burstable/pod" + r.b.stableUUID(p.name) + "/" + plainUUID(r.b.stableUUID(p.name+r.b.id))
		}
		groups[g] = append(groups[g], p)
		for up := path.Dir(g); up != "."; up = path.Dir(up) {
			groups[up] = append([]process{}, groups[up]...)
		}
	}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		var memory, count uint64
		for other, procs := range groups {
			if g == "" || other == g || strings.HasPrefix(other, g+"/") {
				for _, p := range procs {
					memory, count = memory+p.memory, count+1
				}
			}
		}
		var pids strings.Builder
		for _, p := range groups[g] {
			fmt.Fprintln(&pids, p.pid)
		}
		cpu := r.b.uptime().Microseconds() / 100 * int64(count)
		files := map[string]string{
			"cgroup.procs": pids.String(), "cgroup.stat": "nr_descendants 0\nnr_dying_descendants 0\n",
			"cpu.stat":    fmt.Sprintf("usage_usec %d\nuser_usec %d\nsystem_usec %d\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n", cpu, cpu/2, cpu/2),
			"memory.stat": fmt.Sprintf("anon %d\nfile %d\nkernel %d\n", memory/2, memory/3, memory/6),
			"io.stat":     "254:0 rbytes=1048576 wbytes=2097152 rios=64 wios=128 dbytes=0 dios=0\n",
		}
		if g != "" {
			for name, v := range map[string]string{
				"memory.current": fmt.Sprint(memory), "memory.peak": fmt.Sprint(memory + memory/8), "memory.min": "0", "memory.low": "0", "memory.high": "max", "memory.max": "max",
				"memory.swap.current": "0", "memory.swap.peak": "0", "memory.swap.high": "max", "memory.swap.max": "max",
				"pids.current": fmt.Sprint(count * 10), "pids.peak": fmt.Sprint(count * 12), "pids.max": "max",
				"cpu.weight": "100", "cpu.weight.nice": "0", "cpu.max": "max 100000", "cpu.max.burst": "0", "cpuset.cpus": "", "cpuset.cpus.effective": "0-1",
			} {
				files[name] = v + "\n"
			}
		}
		for name, content := range files {
			r.file("/sys/fs/cgroup/"+strings.TrimPrefix(g+"/", "/")+name, content)
		}
	}
}

// fillVar adds the folders that services make on EPHEMERAL and that the lab doesn't keep.
func (r *rootfs) fillVar() {
	r.fillConfigured()
	if !r.b.complete() || !exists(r.b.disks.ephemeral()) {
		return
	}
	for _, v := range directories {
		if strings.HasPrefix(v.id, "/var/") {
			mode := v.mode
			if mode == 0 {
				mode = 0o755
			}
			r.put(v.id, inode{mode: fs.ModeDir | mode, uid: v.owner, gid: v.owner})
		}
	}
	r.put("/var/run", inode{mode: fs.ModeSymlink | 0o777, link: "/run"})
	r.put("/var/log/audit/kube", inode{mode: fs.ModeDir | 0o700, uid: 65534, gid: 65534})
}

// yamlText is a value as a YAML file.
func yamlText(v any) string {
	out, err := yaml.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// fillConfigured adds the files that the configuration makes. One outside /var lies there and is mounted over its path.
func (r *rootfs) fillConfigured() {
	if rules, ok := r.b.configuredFile(udevPath); ok {
		r.file(udevPath, string(rules))
	}
	r.b.mu.Lock()
	files := maps.Clone(r.b.files)
	r.b.mu.Unlock()
	for p, content := range files {
		r.put(path.Clean(p), inode{mode: 0o644, content: content})
		if seen := strings.TrimPrefix(p, "/var"); seen != p {
			r.put(path.Clean(seen), inode{mode: 0o644, content: content})
		}
	}
}
