package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/cluster"
	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"google.golang.org/grpc/status"
)

type clusterAPI struct {
	cluster.UnimplementedClusterServiceServer
	api *api
}

// errSkipped is the outcome of a check that has nothing to look at.
var errSkipped = errors.New("SKIP")

// health is one run of the cluster's checks, seen from this node and through its API as any client.
type health struct {
	a               *api
	planes, workers []string // addresses
	send            func(string) error
}

type healthCheck struct {
	name string
	run  func(*health, context.Context) error
}

// healthChecks are Talos's, in its order and words. Those from "all k8s nodes to report" on ask Kubernetes.
var healthChecks = []healthCheck{
	{"etcd to be healthy", func(h *health, ctx context.Context) error { return h.serviceHealthy(ctx, "etcd") }},
	{"etcd members to be consistent across nodes", (*health).etcdConsistent},
	{"etcd members to be control plane nodes", (*health).etcdPlanes},
	{"apid to be ready", (*health).apidReady},
	{"all nodes memory sizes", (*health).memorySizes},
	{"all nodes disk sizes", (*health).diskSizes},
	{"no diagnostics", (*health).noDiagnostics},
	{"kubelet to be healthy", func(h *health, ctx context.Context) error { return h.serviceHealthy(ctx, "kubelet") }},
	{"all nodes to finish boot sequence", (*health).booted},
}

var kubernetesChecks = []healthCheck{
	{"all k8s nodes to report", (*health).nodesReport},
	{"all control plane static pods to be running", (*health).podsRunning},
	{"all control plane components to be ready", (*health).podsRunning},
	{"all k8s nodes to report ready", (*health).nodesReady},
	{"kube-proxy to report ready", func(*health, context.Context) error { return errSkipped }},
	{"coredns to report ready", func(*health, context.Context) error { return errSkipped }},
	{"all k8s nodes to report schedulable", (*health).nodesSchedulable},
}

// HealthCheck implements cluster.ClusterService: it waits for each of Talos's checks in turn. Where
// the lab runs no Kubernetes, it ends before the checks that ask it, and says so.
func (c *clusterAPI) HealthCheck(in *cluster.HealthCheckRequest, srv cluster.ClusterService_HealthCheckServer) error {
	if err := c.api.checkControlPlane("cluster health check"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(srv.Context(), in.WaitTimeout.AsDuration())
	defer cancel()
	h := &health{a: c.api, send: func(s string) error { return srv.Send(&cluster.HealthCheckProgress{Message: strings.TrimSpace(s)}) }}
	if info := in.ClusterInfo; len(info.GetControlPlaneNodes())+len(info.GetWorkerNodes()) > 0 {
		h.planes, h.workers = info.GetControlPlaneNodes(), info.GetWorkerNodes()
	} else if err := h.discover(ctx); err != nil {
		return err
	}
	if err := h.send(fmt.Sprintf("discovered nodes: %q", h.all())); err != nil {
		return err
	}
	for _, check := range healthChecks {
		if err := h.wait(ctx, check); err != nil {
			return err
		}
	}
	if c.api.boot.node.opts.Kubernetes == nil {
		return h.send("the lab runs no Kubernetes: its checks are skipped")
	}
	for _, check := range kubernetesChecks {
		if err := h.wait(ctx, check); err != nil {
			return err
		}
	}
	return nil
}

// discover takes the nodes that discovery knows, control planes first.
func (h *health) discover(ctx context.Context) error {
	list, err := safe.StateListAll[*clusterres.Member](ctx, h.a.boot.state)
	if err != nil {
		return err
	}
	for m := range list.All() {
		spec := m.TypedSpec()
		if len(spec.Addresses) == 0 {
			return fmt.Errorf("no IP address found for member: %s", m.Metadata().ID())
		}
		if addr := spec.Addresses[0].String(); spec.MachineType.IsControlPlane() {
			h.planes = append(h.planes, addr)
		} else {
			h.workers = append(h.workers, addr)
		}
	}
	if len(h.planes) == 0 {
		// Talos asks Kubernetes for the nodes then.
		h.planes = []string{h.a.boot.node.Spec().Address.String()}
	}
	return nil
}

func (h *health) all() []string { return append(append([]string{}, h.planes...), h.workers...) }

// wait repeats a check until it is met or the call's time is over, telling each change.
func (h *health) wait(ctx context.Context, c healthCheck) error {
	last := ""
	say := func(what string) error {
		line := "waiting for " + c.name + ": " + what
		if line == last {
			return nil
		}
		last = line
		return h.send(line)
	}
	if err := say("..."); err != nil {
		return err
	}
	period := h.a.boot.node.opts.Timings.HealthPeriod
	for {
		try, cancel := context.WithTimeout(ctx, max(period, minCheck))
		err := c.run(h, try)
		cancel()
		switch {
		case err == nil:
			return say("OK")
		case errors.Is(err, errSkipped):
			return say("SKIP")
		}
		if serr := say(err.Error()); serr != nil {
			return serr
		}
		if !sleep(ctx, period) {
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}
