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
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
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
	node    *Node
	id      string // boot_id
	disks   disks
	version string // of Talos, such as "v1.13.5"
	release release

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // what must end before the next boot

	state  state.State
	events *stream
	svc    *services
	seq    sequencer

	poweredOn time.Time
	details   detailState // resources that somebody asked for
	etcdLog   *textLog
	apidLog   *textLog
	metaMu    sync.Mutex
	metaTags  map[uint8][]byte // the values in META, once read

	applyMu      sync.Mutex  // held while a configuration is being applied
	rebooting    atomic.Bool // a configuration was applied that reboots the node
	persisting   atomic.Bool // a configuration waits for room on STATE
	machinedGone atomic.Bool // apid still answers, machined no longer does

	endpointMu sync.Mutex
	pkiMu      sync.Mutex // the files of etcd's certificates

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

	bootType mtype.Type // what the services were started for
	started  bool       // the services were started

	kubeletStarted bool // once in this boot

	env       []string          // machine.env, as the boot found it
	files     map[string][]byte // machine.files, as the boot found them
	udev      string            // the rules, as the boot found them
	isolation bool              // the security profile that the boot found wants sandboxd
	pulled    map[string]image  // of the system's container runtime, by instance and reference
	installMu sync.Mutex        // held while an installer runs for the LifecycleService

	exit chan outcome
}

func newBoot(n *Node) (*boot, error) {
	b := &boot{
		node: n, id: uuid.New().String(), disks: n.currentDisks(), pulled: map[string]image{},
		events: newStream(), wake: make(chan struct{}), exit: make(chan outcome, 1),
		poweredOn: time.Now(), etcdLog: newTextLog(), apidLog: newTextLog(),
	}
	b.version = n.bootVersion(b.disks)
	var err error
	if b.release, err = releaseOf(b.version); err != nil {
		return nil, err
	}
	n.runs(b.version)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.svc = newServices(b)
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
	b.thawed()
	select {
	case b.exit <- out:
	default:
	}
}

// life is the path from power on to running: the sequences initialize, install and boot, and
// maintenance mode in the first of them.
func (b *boot) life() {
	ctx, release, err := b.seq.take(b.ctx, seqInitialize, false)
	if err != nil {
		return
	}
	b.publishSequence(seqInitialize, "", machine.SequenceEvent_START, nil)
	ok := b.runPhases(ctx, seqInitialize, "", b.initializePhases()) == nil && b.findConfig(ctx)
	if ok {
		b.publishSequence(seqInitialize, "", machine.SequenceEvent_STOP, nil)
	}
	release()
	if !ok {
		return
	}
	b.goDo(b.serveConfigured)
	if b.unattended(b.ctx) {
		return // it ends with a reboot
	}
	var install []phase
	if !b.disks.installed() || b.disks.readBoot().Staged != "" {
		install = b.installPhases()
	}
	b.sequence(seqInstall, "", false, install)
	if len(install) == 0 && b.ctx.Err() == nil {
		b.sequence(seqBoot, "", false, b.bootPhases())
	}
}

// findConfig is the task loadConfig: a complete configuration from STATE, or one that maintenance
// mode brings. Without it the sequence never ends.
func (b *boot) findConfig(ctx context.Context) bool {
	b.publishPhase(seqInitialize, "", "config", machine.PhaseEvent_START)
	b.publishTask("", "loadConfig", machine.TaskEvent_START)
	for {
		err := b.loadConfig()
		if err == nil {
			break
		}
		// A configuration that this version can't read: the node never opens its API.
		b.node.emit("error", fmt.Sprintf("controller failed: config.AcquireController: failed to load %q from STATE: %v", "config.yaml", err))
		if !sleep(ctx, max(2*time.Second, b.node.opts.Timings.FailurePause)) {
			return false
		}
	}
	if !b.complete() && !b.maintenance(ctx) {
		return false
	}
	b.publishTask("", "loadConfig", machine.TaskEvent_STOP)
	b.publishPhase(seqInitialize, "", "config", machine.PhaseEvent_STOP)
	return true
}

// maintenance serves the maintenance API until a complete configuration is there.
func (b *boot) maintenance(ctx context.Context) bool {
	b.publishTask("", "runningMaintenance", machine.TaskEvent_START)
	b.setStage(runtime.MachineStageMaintenance)
	if err := b.openAPI(true); err != nil {
		b.node.emit("error", err.Error())
		return false
	}
	for !b.complete() {
		select {
		case <-ctx.Done():
			return false
		case <-b.configChanged():
		}
	}
	b.publishTask("", "runningMaintenance", machine.TaskEvent_STOP)
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

// mountVolumes makes what is missing on the system disk, and takes the configuration there.
func (b *boot) mountVolumes(context.Context) error {
	if err := b.disks.format(); err != nil {
		return err
	}
	if err := b.persistOnDisk(); err != nil {
		return err
	}
	b.showIdentity()
	b.showVolumes()
	// A machine that names itself takes its name from the identity, which on a new disk is there only now.
	b.mu.Lock()
	shown := b.members
	b.mu.Unlock()
	if b.hostname() != shown {
		b.showConfig()
	}
	return nil
}

// startAllServices starts the services for the machine's type and waits for them; a control plane
// waits here for its etcd. A later change of the type starts and stops none (seen on 1.14).
func (b *boot) startAllServices(ctx context.Context) error {
	t := b.node.opts.Timings
	b.mu.Lock()
	b.bootType, b.started = machineTypeOf(b.active), true
	isolation := b.isolation
	b.mu.Unlock()
	cp := b.bootType.IsControlPlane()
	if isolation {
		b.svc.set("sandboxd", stPreparing, "Creating service runner")
	}
	b.svc.set("cri", stStarting, "Starting service")
	if cp {
		b.svc.set("trustd", stWaiting, `Waiting for service "containerd" to be "up", time sync, network`)
		if b.etcdConfigured() {
			b.svc.set("etcd", stWaiting, `Waiting for service "cri" to be "up", time sync, network, etcd spec`)
		}
	}
	if kubernetes(b.config()) {
		b.svc.set("kubelet", stWaiting, `Waiting for service "cri" to be "up", time sync, network, nodename`)
	}
	if !sleep(ctx, t.CRI) {
		return ctx.Err()
	}
	if isolation {
		b.svc.up("sandboxd")
	}
	b.svc.up("cri")
	if !b.waitTime(ctx) {
		return ctx.Err()
	}
	if cp {
		b.svc.up("trustd")
	}
	b.startKubernetes()
	for _, id := range []string{"etcd", "kubelet"} {
		if st, _, _ := b.svc.state(id); st == "" {
			continue
		}
		if !b.waitUp(ctx, id) {
			return ctx.Err()
		}
	}
	return nil
}

// startKubernetes starts etcd and the kubelet as far as the configuration has them and they don't
// run: at boot, and on 1.14 when a node without Kubernetes gets it.
func (b *boot) startKubernetes() {
	b.mu.Lock()
	started, cp := b.started, b.bootType.IsControlPlane()
	b.mu.Unlock()
	if up, _ := b.svc.is("cri"); !started || !up || b.stopping() {
		return
	}
	if cp && b.etcdConfigured() && b.getEtcd() == nil {
		b.startEtcd()
	}
	b.mu.Lock()
	start := kubernetes(b.active) && !b.kubeletStarted
	b.kubeletStarted = b.kubeletStarted || start
	b.mu.Unlock()
	if start {
		b.svc.set("kubelet", stPreparing, "Running pre state")
		b.goDo(b.kubelet)
	}
}

// etcdConfigured says whether the configuration has what etcd needs.
func (b *boot) etcdConfigured() bool {
	cfg := b.config()
	return cfg != nil && cfg.Cluster() != nil && cfg.Cluster().Etcd().CA() != nil
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

// stopServices stops what uses the EPHEMERAL partition.
func (b *boot) stopServices(ctx context.Context) error {
	b.stopPods()
	b.stopService("kubelet")
	b.stopEtcd()
	b.stopService("trustd")
	b.stopService("cri")
	b.stopService("sandboxd")
	sleep(ctx, b.node.opts.Timings.Stop)
	return nil
}

// stopEverything stops the rest and closes the API. For a moment apid still answers while
// machined is gone.
func (b *boot) stopEverything(ctx context.Context) error {
	t := b.node.opts.Timings
	// Watchers get the last events before the line goes dead.
	sleep(ctx, t.Stop/4)
	b.machinedGone.Store(true)
	sleep(ctx, t.Stop/4)
	b.closeAPI(t.Stop / 4)
	return nil
}

func (b *boot) stopService(id string) {
	if st, _, _ := b.svc.state(id); st == "" || st == stFinished {
		return
	}
	b.svc.set(id, stStopping, "Sending SIGTERM to task "+id)
	b.svc.set(id, stFinished, "Service finished successfully")
}
