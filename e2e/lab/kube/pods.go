package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Annotations with which a pod says how its container behaves in the lab.
const (
	// AnnotationStopAfter is how long the container takes to stop once it was told to, such as "2s". Without it the pod
	// uses up its whole grace period, as a container does that does not hear SIGTERM.
	AnnotationStopAfter = "lab.ichor.maesh.dev/stop-after"
	// AnnotationExitCode ends a pod that does not restart with this code; 0 without it.
	AnnotationExitCode = "lab.ichor.maesh.dev/exit-code"
	// AnnotationNotReady keeps the pod from getting ready.
	AnnotationNotReady = "lab.ichor.maesh.dev/not-ready"
)

// pods plays the containers' part on a node: a pod that is bound to it starts and gets ready, one that is deleted stops
// within its grace period and goes away.
type pods struct {
	l *kubelet

	mu   sync.Mutex
	cidr netip.Prefix
	next uint32
	live map[string]*livePod // by UID
}

// livePod is a pod that the kubelet knows.
type livePod struct {
	stop     context.CancelFunc // of the start
	deadline time.Time          // when it is gone, once it was deleted
	kick     chan struct{}      // the deadline came nearer
}

func newPods(l *kubelet) *pods { return &pods{l: l, live: map[string]*livePod{}} }

// setCIDR is told the Node's range of pod addresses.
func (ps *pods) setCIDR(p netip.Prefix) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.cidr = p
}

// address for a pod: of the Node's range, else one of the lab's invention.
func (ps *pods) address() string {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.next++
	base := ps.cidr
	if !base.IsValid() || !base.Addr().Is4() {
		base = netip.MustParsePrefix("10.244.255.0/24")
	}
	a := base.Masked().Addr().As4()
	n := ps.next%253 + 1
	return netip.AddrFrom4([4]byte{a[0], a[1], a[2], byte(n)}).String()
}

func (ps *pods) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	on := func(obj json.RawMessage, gone bool) {
		p, err := readPod(obj)
		if err != nil || ctx.Err() != nil || p.mirrored() {
			return
		}
		ps.handle(ctx, &wg, p, gone)
	}
	ps.l.c.follow(ctx, "/api/v1/pods", "spec.nodeName="+ps.l.name, func(list []json.RawMessage) {
		for _, o := range list {
			on(o, false)
		}
	}, on)
}

// handle looks at a pod as it is now.
func (ps *pods) handle(ctx context.Context, wg *sync.WaitGroup, p pod, gone bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	lp := ps.live[p.Metadata.UID]
	switch {
	case gone:
		if lp != nil {
			lp.stop()
		}
		delete(ps.live, p.Metadata.UID)
	case p.Metadata.DeletionTimestamp != "":
		deadline := time.Now().Add(graceOf(p))
		if lp != nil && !lp.deadline.IsZero() {
			if deadline.Before(lp.deadline) { // deleted again with less grace
				lp.deadline = deadline
				select {
				case lp.kick <- struct{}{}:
				default:
				}
			}
			return
		}
		if lp != nil {
			lp.stop()
		}
		lp = &livePod{stop: func() {}, deadline: deadline, kick: make(chan struct{}, 1)}
		ps.live[p.Metadata.UID] = lp
		wg.Go(func() { ps.terminate(ctx, p, lp) })
	case lp == nil:
		sctx, stop := context.WithCancel(ctx)
		ps.live[p.Metadata.UID] = &livePod{stop: stop, kick: make(chan struct{}, 1)}
		wg.Go(func() { ps.start(sctx, p) })
	}
}

// graceOf is how long a deleted pod takes to go.
func graceOf(p pod) time.Duration {
	grace := 30 * time.Second
	if s := p.Metadata.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	if d, err := time.ParseDuration(p.Metadata.Annotations[AnnotationStopAfter]); err == nil && d < grace {
		return d
	}
	return grace
}

// start brings a pod to where it belongs: running, or run to its end.
func (ps *pods) start(ctx context.Context, p pod) {
	if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return
	}
	restarts, ready := 0, p.Metadata.Annotations[AnnotationNotReady] == ""
	running := false // it goes on over a restart of the kubelet
	if st := p.Status.ContainerStatuses; len(st) > 0 && p.Status.Phase == "Running" {
		restarts = st[0].RestartCount
		if running = st[0].ContainerID == ps.containerID(p, 0); !running { // the machine was away: its containers are new
			restarts++
			if ps.patch(ctx, p, ps.running(p, restarts, false)) != nil {
				return
			}
		}
	}
	if !running || p.ready() != ready {
		sleep(ctx, ps.l.k.timing.podStart)
		if ctx.Err() != nil || ps.patch(ctx, p, ps.running(p, restarts, ready)) != nil {
			return
		}
	}
	if p.Spec.RestartPolicy == "Always" || p.Spec.RestartPolicy == "" {
		return
	}
	sleep(ctx, ps.l.k.timing.podRun)
	if ctx.Err() == nil {
		ps.patch(ctx, p, ps.ended(p, p.Metadata.Annotations[AnnotationExitCode])) //nolint:errcheck // told by patch
	}
}

// terminate stops a deleted pod and takes it out of the API.
func (ps *pods) terminate(ctx context.Context, p pod, lp *livePod) {
	for {
		ps.mu.Lock()
		left := time.Until(lp.deadline)
		ps.mu.Unlock()
		if left <= 0 {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-lp.kick:
		case <-time.After(left):
		}
	}
	if p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
		if ps.patch(ctx, p, ps.ended(p, "")) != nil {
			return
		}
	}
	ps.untilDone(ctx, p, func(ctx context.Context) error {
		return ps.l.c.do(ctx, http.MethodDelete, p.path(), "", map[string]any{
			"gracePeriodSeconds": 0, "preconditions": map[string]any{"uid": p.Metadata.UID},
		}, nil)
	})
}

// patch writes a pod's status; an error means that there is nothing more to do for it.
func (ps *pods) patch(ctx context.Context, p pod, status map[string]any) error {
	return ps.untilDone(ctx, p, func(ctx context.Context) error {
		return ps.l.c.do(ctx, http.MethodPatch, p.path()+"/status", strategicPatch, map[string]any{
			"metadata": map[string]any{"uid": p.Metadata.UID}, "status": status,
		}, nil)
	})
}

// untilDone tries until it worked, the pod is another or gone, or ctx ended.
func (ps *pods) untilDone(ctx context.Context, p pod, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil || ctx.Err() != nil || answered(err, http.StatusNotFound, http.StatusConflict) {
			return err
		}
		ps.l.trouble("pod "+p.Metadata.Namespace+"/"+p.Metadata.Name, err)
		sleep(ctx, ps.l.k.timing.retry)
	}
}

// containerID is stable as long as the pod's container is: until the machine boots again.
func (ps *pods) containerID(p pod, i int) string {
	h := fnv.New128a()
	fmt.Fprint(h, p.Metadata.UID, ps.l.h.BootID(), i)
	sum := h.Sum(nil)
	return fmt.Sprintf("containerd://%x%x", sum, sum)
}

func (ps *pods) running(p pod, restarts int, ready bool) map[string]any {
	now, yes := stamp(), map[bool]string{true: "True", false: "False"}[ready]
	host := ps.l.h.Spec().Address.String()
	ip := p.Status.PodIP
	switch {
	case p.Spec.HostNetwork:
		ip = host
	case ip == "" || restarts > 0:
		ip = ps.address()
	}
	var containers, inits []any
	for i, c := range p.Spec.Containers {
		containers = append(containers, map[string]any{
			"name": c.Name, "image": c.Image, "imageID": c.Image, "containerID": ps.containerID(p, i), "ready": ready, "started": true,
			"restartCount": restarts, "state": map[string]any{"running": map[string]any{"startedAt": now}},
		})
	}
	for i, c := range p.Spec.InitContainers {
		inits = append(inits, map[string]any{
			"name": c.Name, "image": c.Image, "imageID": c.Image, "ready": true, "restartCount": restarts,
			"containerID": ps.containerID(p, 1000+i), "state": terminated(0, "Completed", now),
		})
	}
	start := p.Status.StartTime
	if start == "" {
		start = now
	}
	return map[string]any{
		"phase": "Running", "startTime": start, "hostIP": host, "hostIPs": ips(host), "podIP": ip, "podIPs": append([]map[string]string{{"$patch": "replace"}}, ips(ip)...),
		"containerStatuses": containers, "initContainerStatuses": inits,
		"conditions": ps.podConditions(p, map[string]string{
			"PodReadyToStartContainers": "True", "Initialized": "True", "ContainersReady": yes, "Ready": yes, "PodScheduled": "True",
		}, now),
	}
}

// ended is the status of a pod whose containers stopped: by themselves with a code, or because they were told to.
func (ps *pods) ended(p pod, code string) map[string]any {
	now, phase, reason, exit := stamp(), "Succeeded", "Completed", 0
	if code != "" && code != "0" {
		fmt.Sscan(code, &exit) //nolint:errcheck // 0 then
		phase, reason = "Failed", "Error"
	}
	var containers []any
	for i, c := range p.Spec.Containers {
		containers = append(containers, map[string]any{
			"name": c.Name, "image": c.Image, "imageID": c.Image, "containerID": ps.containerID(p, i), "ready": false, "started": false,
			"restartCount": 0, "state": terminated(exit, reason, now),
		})
	}
	return map[string]any{
		"phase": phase, "containerStatuses": containers,
		"conditions": ps.podConditions(p, map[string]string{"PodReadyToStartContainers": "False", "ContainersReady": "False", "Ready": "False"}, now),
	}
}

func terminated(code int, reason, at string) map[string]any {
	return map[string]any{"terminated": map[string]any{"exitCode": code, "reason": reason, "startedAt": at, "finishedAt": at}}
}

func ips(ip string) []map[string]string { return []map[string]string{{"ip": ip}} }

// podConditions keep the time of a transition that did not happen.
func (ps *pods) podConditions(p pod, want map[string]string, now string) []podCondition {
	var res []podCondition
	for _, name := range []string{"PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled"} {
		status, ok := want[name]
		if !ok {
			continue
		}
		c := podCondition{Type: name, Status: status, LastTransitionTime: now}
		for _, b := range p.Status.Conditions {
			if b.Type == name && b.Status == status && b.LastTransitionTime != "" {
				c.LastTransitionTime = b.LastTransitionTime
			}
		}
		res = append(res, c)
	}
	return res
}
