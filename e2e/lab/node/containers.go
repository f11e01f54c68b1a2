package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// process is one that runs on the machine.
type process struct {
	pid, ppid int32
	name      string // of the service or the pod's container
	service   bool
	command   string
	args      string
	threads   int32
	memory    uint64 // resident bytes
}

// serviceCommands are the programs behind the services.
var serviceCommands = []process{
	{name: "machined", command: "init", args: "/sbin/init", threads: 14, memory: 95 * mib, pid: 1},
	{name: "containerd", command: "containerd", args: "/bin/containerd --address /system/run/containerd/containerd.sock --state /system/run/containerd --root /system/var/lib/containerd", threads: 11, memory: 45 * mib},
	{name: "udevd", command: "systemd-udevd", args: "/usr/bin/udevd --resolve-names=never", threads: 1, memory: 9 * mib},
	{name: "auditd"},
	{name: "syslogd"}, // goroutines of machined
	{name: "apid", command: "apid", args: "/apid", threads: 9, memory: 40 * mib},
	{name: "trustd", command: "trustd", args: "/trustd", threads: 8, memory: 32 * mib},
	{name: "cri", command: "containerd", args: "/bin/containerd --address /run/containerd/containerd.sock --config /etc/cri/containerd.toml", threads: 14, memory: 70 * mib},
	{name: "etcd", command: "etcd", args: "/usr/local/bin/etcd --advertise-client-urls=https://%[1]s:2379 --data-dir=/var/lib/etcd --name=%[2]s", threads: 13, memory: 60 * mib},
	{name: "kubelet", command: "kubelet", args: "/usr/local/bin/kubelet --config=/etc/kubernetes/kubelet.yaml --hostname-override=%[2]s --node-ip=%[1]s", threads: 16, memory: 90 * mib},
}

// firstPID is where the services' processes begin.
const firstPID = 1200

// processes are those of the services and pods that run, by pid.
func (b *boot) processes() []process {
	out := []process{{pid: 2, name: "kthreadd", command: "kthreadd", threads: 1}}
	for i, p := range serviceCommands {
		if up, _ := b.svc.is(p.name); !up || p.command == "" {
			continue
		}
		p.service, p.ppid = true, 1
		if p.pid == 0 {
			p.pid = int32(firstPID + 40*i)
		} else {
			p.ppid = 0
		}
		if strings.Contains(p.args, "%[") {
			p.args = fmt.Sprintf(p.args, b.node.Spec().Address, b.hostname())
		}
		out = append(out, p)
	}
	for i, name := range b.runningPods() {
		out = append(out, process{pid: int32(2000 + 40*i), ppid: 1, name: name, command: name, args: "/usr/local/bin/" + name, threads: 10, memory: 120 * mib})
	}
	slices.SortFunc(out, func(x, y process) int { return int(x.pid - y.pid) })
	return out
}

// runningPods are the control plane's pods that run.
func (b *boot) runningPods() []string {
	list, err := safe.StateListAll[*k8s.StaticPodStatus](b.ctx, b.state)
	if err != nil {
		return nil
	}
	var out []string
	for p := range list.All() {
		if p.TypedSpec().PodStatus["phase"] != "Running" {
			continue
		}
		name := strings.TrimPrefix(p.Metadata().ID(), "kube-system/")
		out = append(out, strings.TrimSuffix(name, "-"+b.hostname()))
	}
	slices.Sort(out)
	return out
}

// Processes implements machine.MachineService.
func (a *api) Processes(context.Context, *emptypb.Empty) (*machine.ProcessesResponse, error) {
	out := &machine.Process{}
	up := a.boot.uptime().Seconds()
	for _, p := range a.boot.processes() {
		out.Processes = append(out.Processes, &machine.ProcessInfo{
			Pid: p.pid, Ppid: p.ppid, State: "S", Threads: p.threads, CpuTime: up * 0.01, VirtualMemory: p.memory * 20, ResidentMemory: p.memory,
			Command: p.command, Executable: strings.SplitN(p.args, " ", 2)[0], Args: p.args, Label: "system_u:system_r:" + p.command + "_t:s0",
		})
	}
	return &machine.ProcessesResponse{Messages: []*machine.Process{out}}, nil
}

// task is one of containerd's, or a pod's sandbox.
type task struct {
	id, internal, pod, name, image, status string
	pid                                    uint32
	memory                                 uint64
}

// containers are what the inspector of a namespace and driver sees. etcd and the kubelet run in
// the CRI's containerd under the namespace "system", where neither inspector looks.
func (b *boot) containers(namespace string, driver common.ContainerDriver) ([]task, error) {
	switch {
	case namespace == "":
		return nil, status.Error(codes.InvalidArgument, "namespace can't be empty")
	case driver == common.ContainerDriver_CRI && namespace != constants.K8sContainerdNamespace:
		return nil, errors.New("CRI inspector is supported only for K8s namespace")
	case driver != common.ContainerDriver_CRI && driver != common.ContainerDriver_CONTAINERD:
		return nil, status.Errorf(codes.InvalidArgument, "unsupported driver %q", driver)
	}
	pids := map[string]process{}
	for _, p := range b.processes() {
		pids[p.name] = p
	}
	var out []task
	if namespace == constants.SystemContainerdNamespace {
		for _, id := range []string{"apid", "trustd"} {
			if p, up := pids[id]; up {
				out = append(out, task{id: id, internal: id, pod: id, name: id, image: "talos/" + id, status: "RUNNING", pid: uint32(p.pid), memory: p.memory})
			}
		}
		return out, nil
	}
	if up, _ := b.svc.is("cri"); !up {
		return nil, status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix `+constants.CRIContainerdAddress+`: connect: no such file or directory"`)
	}
	if namespace != constants.K8sContainerdNamespace {
		return nil, nil
	}
	cri := driver == common.ContainerDriver_CRI
	for _, name := range b.runningPods() {
		pod := "kube-system/" + name + "-" + b.hostname()
		id, sandbox := plainUUID(b.stableUUID(name+b.id))+plainUUID(b.stableUUID(name)), plainUUID(b.stableUUID("pause"+name+b.id))+plainUUID(b.stableUUID("pause"+name))
		p := pids[name]
		pause := task{id: pod, internal: sandbox, pod: pod, name: pod, image: pauseImage, status: "SANDBOX_READY", pid: uint32(p.pid - 10)}
		work := task{id: pod + ":" + name + ":" + id[:12], internal: id, pod: pod, name: name, image: b.podImages()[name], status: "CONTAINER_RUNNING", pid: uint32(p.pid), memory: p.memory}
		if !cri {
			pause.status, work.status, work.id, pause.name = "RUNNING", "RUNNING", pod+":"+name, sandbox
		}
		out = append(out, pause, work)
	}
	return out, nil
}

const pauseImage = "registry.k8s.io/pause:3.10"

// Containers implements machine.MachineService.
func (a *api) Containers(_ context.Context, in *machine.ContainersRequest) (*machine.ContainersResponse, error) {
	list, err := a.boot.containers(in.Namespace, in.Driver)
	if err != nil {
		return nil, err
	}
	out := &machine.Container{}
	for _, c := range list {
		out.Containers = append(out.Containers, &machine.ContainerInfo{
			Namespace: in.Namespace, Id: c.id, InternalId: c.internal, PodId: c.pod, Name: c.name, Image: c.image, Pid: c.pid, Status: c.status,
		})
	}
	return &machine.ContainersResponse{Messages: []*machine.Container{out}}, nil
}

// Stats implements machine.MachineService.
func (a *api) Stats(_ context.Context, in *machine.StatsRequest) (*machine.StatsResponse, error) {
	list, err := a.boot.containers(in.Namespace, in.Driver)
	if err != nil {
		return nil, err
	}
	out := &machine.Stats{}
	for _, c := range list {
		out.Stats = append(out.Stats, &machine.Stat{
			Namespace: in.Namespace, Id: c.id, PodId: c.pod, Name: c.name, MemoryUsage: c.memory, CpuUsage: a.boot.ticks(20e6),
		})
	}
	return &machine.StatsResponse{Messages: []*machine.Stats{out}}, nil
}

// Restart implements machine.MachineService: the container gets SIGTERM. A system service's is
// started again by its supervisor, a pod's by the kubelet.
func (a *api) Restart(_ context.Context, in *machine.RestartRequest) (*machine.RestartResponse, error) {
	b := a.boot
	list, err := b.containers(in.Namespace, in.Driver)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(c task) bool { return c.id == in.Id || c.name == in.Id || c.internal == in.Id })
	if i < 0 {
		return nil, fmt.Errorf("container %q not found", in.Id)
	}
	switch name := list[i].name; {
	case slices.Contains(staticPods, name):
		b.goDo(func() { b.restartPod(name) })
	case name == "apid":
		b.goDo(b.restartAPI)
	default:
		b.goDo(func() { b.serviceAgain(name) })
	}
	return &machine.RestartResponse{Messages: []*machine.Restart{{}}}, nil
}

// serviceAgain is a service whose process ended and that is started again after a moment.
func (b *boot) serviceAgain(id string) {
	b.svc.set(id, stWaiting, fmt.Sprintf("Error running Containerd(%s), going to restart forever: task %q failed: exit code 0", id, id))
	if sleep(b.ctx, b.node.opts.Timings.Transition) && !b.stopping() {
		b.svc.up(id)
	}
}

// restartAPI is apid ending and starting again: the port is refused for a moment. The reply to the
// call gets through first.
func (b *boot) restartAPI() {
	t := b.node.opts.Timings.Transition
	if !sleep(b.ctx, t/4) || b.stopping() {
		return
	}
	b.closeAPI(t)
	if sleep(b.ctx, t) && !b.stopping() {
		b.serveConfigured()
	}
}
