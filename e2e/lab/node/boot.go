package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// outcome is how a boot ended: the machine comes back after a while, or is off.
type outcome struct {
	off  bool
	down time.Duration
}

// boot is one run of the operating system, from power on to reboot or power off. What is in it
// is lost at the end; what must last is on the disks.
type boot struct {
	node  *Node
	id    string // boot_id
	disks disks

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // what must end before the next boot

	state  state.State
	events *stream
	svc    *services
	seq    sequencer

	applyMu      sync.Mutex  // held while a configuration is being applied
	rebooting    atomic.Bool // a configuration was applied that reboots the node
	machinedGone atomic.Bool // apid still answers, machined no longer does

	endpointMu sync.Mutex
	statusMu   sync.Mutex
	lastStatus string

	mu         sync.Mutex
	stage      runtime.MachineStage
	active     config.Provider
	rollback   *time.Timer
	wake       chan struct{} // closed when the active configuration changes
	server     *server
	etcd       *etcdService
	dead       bool              // a rollback to no configuration: port 50000 stays closed
	members    string            // the hostname last shown
	sections   map[string]string // parts of the configuration, to see what changed
	nodeID     string            // the identity on STATE, once read
	announced  peerInfo          // what the others were told
	cluster    *affiliates       // who was discovered; nil before the node announced itself
	registered bool              // the kubelet registered the Node
	podsUp     bool              // the static pods came up
	apiDown    bool              // the API server is not ready: its etcd does not answer
	podVersion int
	cancelPods context.CancelFunc // ends the static pods where Kubernetes is real

	exit chan outcome
}

func newBoot(n *Node) (*boot, error) {
	b := &boot{
		node: n, id: uuid.New().String(), disks: n.currentDisks(),
		events: newStream(), wake: make(chan struct{}), exit: make(chan outcome, 1),
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.svc = newServices(b)
	var err error
	if b.state, err = newState(b.ctx, b); err != nil {
		b.cancel()
		return nil, fmt.Errorf("make resource state: %w", err)
	}
	return b, nil
}

// run goes through the boot until it ends by itself or ctx takes the power away.
func (b *boot) run(ctx context.Context) outcome {
	defer b.powerOff()
	b.populate()
	if err := b.loadConfig(); err != nil {
		// A configuration that this version can't read: the node never opens its API.
		b.node.emit("error", fmt.Sprintf("load configuration from STATE: %v", err))
		<-ctx.Done()
		return outcome{}
	}
	b.publishSequence("initialize", "", machine.SequenceEvent_START, nil)
	b.setStage(runtime.MachineStageBooting)
	b.svc.up("machined", "auditd", "syslogd", "udevd", "containerd")
	b.publishSequence("initialize", "", machine.SequenceEvent_STOP, nil)
	b.goDo(b.life)
	select {
	case out := <-b.exit:
		return out
	case <-ctx.Done():
		return outcome{}
	}
}

// goDo runs f as part of the boot: the next one does not begin before it ended.
func (b *boot) goDo(f func()) {
	b.wg.Add(1)
	go func() {
		defer b.wg.Done()
		f()
	}()
}

// powerOff ends everything at once, as a power loss does.
func (b *boot) powerOff() {
	b.mu.Lock()
	if b.rollback != nil {
		b.rollback.Stop()
	}
	etcd := b.etcd
	b.mu.Unlock()
	b.cancel()
	if a := b.affiliates(); a != nil {
		a.leave(b)
	}
	b.closeAPI(0)
	if etcd != nil {
		etcd.kill()
	}
	b.wg.Wait()
}

// finish ends the boot.
func (b *boot) finish(out outcome) {
	select {
	case b.exit <- out:
	default:
	}
}

// life is the path from power on to running.
func (b *boot) life() {
	if !b.complete() {
		if !b.maintenance() {
			return
		}
	}
	b.goDo(b.serveConfigured)
	if !b.disks.installed() {
		b.sequence("install", "", false, b.install)
		return
	}
	b.sequence("boot", "", false, b.bootUp)
}

// maintenance serves the maintenance API until a complete configuration is there.
func (b *boot) maintenance() bool {
	b.publishTask("runningMaintenance", machine.TaskEvent_START)
	b.setStage(runtime.MachineStageMaintenance)
	if err := b.openAPI(true); err != nil {
		b.node.emit("error", err.Error())
		return false
	}
	for !b.complete() {
		select {
		case <-b.ctx.Done():
			return false
		case <-b.configChanged():
		}
	}
	b.publishTask("runningMaintenance", machine.TaskEvent_STOP)
	b.setStage(runtime.MachineStageBooting)
	// For a moment the API still answers as before. The reply to the call that brought the
	// configuration gets through; then the listener goes away and connections break.
	if !sleep(b.ctx, b.node.opts.Timings.Transition/4) {
		return false
	}
	b.closeAPI(max(b.node.opts.Timings.Transition, time.Second))
	return sleep(b.ctx, b.node.opts.Timings.Transition)
}

// serveConfigured opens the API with the cluster's certificates: at once on a control plane, on a
// worker when a control plane's trustd signed its certificate.
func (b *boot) serveConfigured() {
	for {
		err := b.openAPI(false)
		if err == nil || b.ctx.Err() != nil {
			return
		}
		if !sleep(b.ctx, b.node.opts.Timings.Trustd) {
			return
		}
	}
}

// install writes Talos to the disk and reboots.
func (b *boot) install(ctx context.Context) error {
	b.setStage(runtime.MachineStageInstalling)
	b.publishPhase("install", machine.PhaseEvent_START)
	if !sleep(ctx, b.node.opts.Timings.Install) {
		return ctx.Err()
	}
	if err := b.disks.format(); err != nil {
		return err
	}
	if err := b.persistOnDisk(); err != nil {
		return err
	}
	b.showVolumes()
	b.publishPhase("install", machine.PhaseEvent_STOP)
	b.setStage(runtime.MachineStageRebooting)
	b.stopAll(ctx)
	b.finish(outcome{down: b.node.opts.Timings.Down})
	return nil
}

// bootUp starts the services and waits for them; a control plane waits here for its etcd.
func (b *boot) bootUp(ctx context.Context) error {
	t := b.node.opts.Timings
	if err := b.disks.format(); err != nil {
		return err
	}
	if err := b.persistOnDisk(); err != nil {
		return err
	}
	b.showVolumes()
	b.svc.set("cri", stStarting, "Starting service")
	cp := b.machineType().IsControlPlane()
	if cp {
		b.svc.set("trustd", stWaiting, `Waiting for service "containerd" to be "up", time sync, network`)
		b.svc.set("etcd", stWaiting, `Waiting for service "cri" to be "up", time sync, network, etcd spec`)
	}
	b.svc.set("kubelet", stWaiting, `Waiting for service "cri" to be "up", time sync, network, nodename`)
	if !sleep(ctx, t.CRI) {
		return ctx.Err()
	}
	b.svc.up("cri")
	if cp {
		b.svc.up("trustd")
		b.startEtcd()
	}
	b.svc.set("kubelet", stPreparing, "Running pre state")
	b.goDo(b.kubelet)
	for _, id := range []string{"etcd", "kubelet"} {
		if id == "etcd" && !cp {
			continue
		}
		if !b.waitUp(ctx, id) {
			return ctx.Err()
		}
	}
	b.setStage(runtime.MachineStageRunning)
	return nil
}

// waitUp waits until a service is up: running and healthy, or finished (Bootstrap finishes etcd
// on purpose, which lets the boot go on).
func (b *boot) waitUp(ctx context.Context, id string) bool {
	for {
		st, healthy, wake := b.svc.state(id)
		if st == stFinished || (st == stRunning && healthy) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-wake:
		}
	}
}

// stopAll stops the services in order and closes the API. For a moment apid still answers while
// machined is gone.
func (b *boot) stopAll(ctx context.Context) {
	t := b.node.opts.Timings
	b.publishPhase("stopServices", machine.PhaseEvent_START)
	b.stopPods()
	b.stopService("kubelet")
	b.stopEtcd()
	b.stopService("cri")
	b.publishPhase("stopServices", machine.PhaseEvent_STOP)
	sleep(ctx, t.Stop)
	b.publishPhase("stopEverything", machine.PhaseEvent_START)
	b.publishTask("stopAllServices", machine.TaskEvent_START)
	b.publishTask("stopAllServices", machine.TaskEvent_STOP)
	// Watchers get the last events before the line goes dead.
	sleep(ctx, t.Stop/4)
	b.machinedGone.Store(true)
	sleep(ctx, t.Stop/4)
	b.closeAPI(t.Stop / 4)
}

func (b *boot) stopService(id string) {
	if st, _, _ := b.svc.state(id); st == "" || st == stFinished {
		return
	}
	b.svc.set(id, stStopping, "Sending SIGTERM to task "+id)
	b.svc.set(id, stFinished, "Service finished successfully")
}
