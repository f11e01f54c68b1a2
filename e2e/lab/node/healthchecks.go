package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	cosiclient "github.com/cosi-project/runtime/pkg/state/protobuf/client"
	"github.com/dustin/go-humanize"
	"github.com/hashicorp/go-multierror"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	// minCheck is the least time that one try of a check gets.
	minCheck = 2 * time.Second
	// The least that Talos wants, in bytes: memory of a control plane and a worker, and EPHEMERAL
	// (6 GiB of disk less what the other partitions take).
	minPlaneMemory, minWorkerMemory = 1848*mib - 150*mib, 1024*mib - 150*mib
	minEphemeral                    = 6*gib - 2200*mib
)

// problems puts the errors of several nodes together as multierror does.
func problems(list []string) error {
	if len(list) == 0 {
		return nil
	}
	var all *multierror.Error
	for _, p := range list {
		all = multierror.Append(all, errors.New(p))
	}
	return all
}

// machines calls a node's machine service.
func (h *health) machines(ctx context.Context, addr string, f func(context.Context, machine.MachineServiceClient) error) error {
	conn, ctx, err := h.a.dial(ctx, addr)
	if err != nil {
		return err
	}
	return f(ctx, machine.NewMachineServiceClient(conn))
}

// states gives access to a node's resources.
func (h *health) states(ctx context.Context, addr string) (context.Context, state.State, error) {
	conn, ctx, err := h.a.dial(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	return ctx, state.WrapCore(cosiclient.NewAdapter(cosi.NewStateClient(conn))), nil
}

// serviceHealthy looks at a service of the control planes.
func (h *health) serviceHealthy(ctx context.Context, id string) error {
	var bad []string
	found := 0
	for _, addr := range slices.Sorted(slices.Values(h.planes)) {
		err := h.machines(ctx, addr, func(ctx context.Context, c machine.MachineServiceClient) error {
			r, err := c.ServiceList(ctx, &emptypb.Empty{})
			if err != nil {
				return err
			}
			for _, s := range r.Messages[0].Services {
				if s.Id != id {
					continue
				}
				found++
				events := s.Events.GetEvents()
				if len(events) == 0 {
					bad = append(bad, fmt.Sprintf("%s: no events recorded yet for service %q", addr, id))
				} else if last := events[len(events)-1]; last.State != stRunning {
					bad = append(bad, fmt.Sprintf("%s: service %q not in expected state %q: current state [%s] %s", addr, id, stRunning, last.State, last.Msg))
				} else if !s.Health.GetHealthy() {
					bad = append(bad, fmt.Sprintf("%s: service is not healthy: %s", addr, id))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if found != len(h.planes) {
		return fmt.Errorf("expected a response with %d node(s), got %d", len(h.planes), found)
	}
	return problems(bad)
}

func (h *health) members(ctx context.Context, addr string) (out []*machine.EtcdMember, err error) {
	err = h.machines(ctx, addr, func(ctx context.Context, c machine.MachineServiceClient) error {
		r, err := c.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{})
		if err == nil {
			out = r.Messages[0].Members
		}
		return err
	})
	return out, err
}

func (h *health) etcdConsistent(ctx context.Context) error {
	type member struct {
		name    string
		id      uint64
		learner bool
	}
	known := map[member]bool{}
	var names []string
	for i, addr := range slices.Sorted(slices.Values(h.planes)) {
		list, err := h.members(ctx, addr)
		if err != nil {
			return err
		}
		var here []string
		for _, m := range list {
			here = append(here, m.Hostname)
			key := member{m.Hostname, m.Id, m.IsLearner}
			if i == 0 {
				known[key] = true
			}
		}
		if i == 0 {
			names = here
		}
		if len(list) != len(known) {
			return fmt.Errorf("%s: expected to have %v members, got %v", addr, names, here)
		}
		for _, m := range list {
			if !known[member{m.Hostname, m.Id, m.IsLearner}] {
				return fmt.Errorf("%s: found unexpected etcd member %s", addr, m.Hostname)
			}
		}
	}
	return nil
}

func (h *health) etcdPlanes(ctx context.Context) error {
	list, err := h.members(ctx, h.a.boot.node.Spec().Address.String())
	if err != nil {
		return err
	}
	var ips []string
	for _, m := range list {
		for _, p := range m.PeerUrls {
			u, err := url.Parse(p)
			if err != nil {
				return err
			}
			ips = append(ips, u.Hostname())
		}
	}
	for _, ip := range ips {
		if !slices.Contains(h.planes, ip) {
			return fmt.Errorf("etcd member ips %q are not subset of control plane node ips %q", ips, h.planes)
		}
	}
	return nil
}

func (h *health) apidReady(ctx context.Context) error {
	for _, addr := range h.all() {
		if err := h.machines(ctx, addr, func(ctx context.Context, c machine.MachineServiceClient) error {
			_, err := c.Version(ctx, &emptypb.Empty{})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (h *health) memorySizes(ctx context.Context) error {
	var bad []string
	for _, addr := range h.all() {
		least := uint64(minWorkerMemory)
		if slices.Contains(h.planes, addr) {
			least = minPlaneMemory
		}
		if err := h.machines(ctx, addr, func(ctx context.Context, c machine.MachineServiceClient) error {
			r, err := c.Memory(ctx, &emptypb.Empty{})
			if err != nil {
				return fmt.Errorf("error getting nodes memory: %w", err)
			}
			if total := r.Messages[0].Meminfo.Memtotal * 1024; total < least {
				bad = append(bad, fmt.Sprintf("node %q does not meet memory requirements: expected at least %d MiB, actual %d MiB", addr, least/mib, total/mib))
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return problems(bad)
}

func (h *health) diskSizes(ctx context.Context) error {
	var bad []string
	for _, addr := range slices.Sorted(slices.Values(h.all())) {
		cctx, st, err := h.states(ctx, addr)
		if err != nil {
			return err
		}
		vs, err := safe.StateGetByID[*block.VolumeStatus](cctx, st, "EPHEMERAL")
		if err != nil {
			bad = append(bad, fmt.Sprintf("error getting volume status for node %q: %s", addr, err))
		} else if v := vs.TypedSpec(); v.Size < minEphemeral {
			bad = append(bad, fmt.Sprintf("ephemeral partition %q for node %q is too small, expected at least %s, actual %s",
				v.Location, addr, humanize.IBytes(minEphemeral), humanize.IBytes(v.Size)))
		}
	}
	return problems(bad)
}

func (h *health) noDiagnostics(ctx context.Context) error {
	var bad []string
	for _, addr := range h.all() {
		cctx, st, err := h.states(ctx, addr)
		if err != nil {
			return err
		}
		list, err := safe.StateListAll[*runtime.Diagnostic](cctx, st)
		if err != nil {
			return err
		}
		for d := range list.All() {
			bad = append(bad, addr+": "+d.TypedSpec().Message)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("active diagnostics: %s", strings.Join(bad, ", "))
	}
	return nil
}

func (h *health) booted(ctx context.Context) error {
	stages := map[string][]string{}
	for _, addr := range h.all() {
		cctx, st, err := h.states(ctx, addr)
		if err != nil {
			return err
		}
		ms, err := safe.StateGetByID[*runtime.MachineStatus](cctx, st, runtime.MachineStatusID)
		if err != nil {
			return fmt.Errorf("error watching machine %s status: %w", addr, err)
		}
		if s := ms.TypedSpec().Stage; s != runtime.MachineStageRunning {
			stages[s.String()] = append(stages[s.String()], addr)
		}
	}
	var bad []string
	for s, nodes := range stages {
		slices.Sort(nodes)
		bad = append(bad, fmt.Sprintf("%s: %v", s, nodes))
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return fmt.Errorf("nodes are not running: %s", strings.Join(bad, ", "))
}

// kubeNode is what the checks need of a Node.
type kubeNode struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool `json:"unschedulable"`
	} `json:"spec"`
	Status struct {
		Addresses  []struct{ Type, Address string }
		Conditions []struct{ Type, Status string }
	} `json:"status"`
}

// kubeNodes asks the API server, as the cluster's admin.
func (h *health) kubeNodes(ctx context.Context) ([]kubeNode, error) {
	cfg := h.a.boot.config()
	if cfg == nil || cfg.Cluster().IssuingCA() == nil {
		return nil, errors.New("k8s API server CA config is not set")
	}
	admin := cfg.Cluster().AdminKubeconfig()
	pair := leafCert{cn: admin.CommonName(), org: admin.CertOrganization(), usage: clientUse, ttl: time.Hour}.sign(cfg.Cluster().IssuingCA())
	if pair == nil {
		return nil, errors.New("error generating Kubernetes client certificate")
	}
	cert, err := tls.X509KeyPair(pair.Crt, pair.Key)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool(cfg.Cluster().IssuingCA().Crt), Certificates: []tls.Certificate{cert},
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Cluster().Endpoint().JoinPath("api/v1/nodes").String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	var list struct{ Items []kubeNode }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("list nodes: %s: %w", resp.Status, err)
	}
	return list.Items, nil
}

func (h *health) nodesReport(ctx context.Context) error {
	nodes, err := h.kubeNodes(ctx)
	if err != nil {
		return err
	}
	var have []string
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			if a.Type == "InternalIP" {
				have = append(have, a.Address)
			}
		}
	}
	for _, addr := range h.all() {
		if !slices.Contains(have, addr) {
			return fmt.Errorf("can't find expected node with IPs [%q]", addr)
		}
	}
	for _, addr := range have {
		if !slices.Contains(h.all(), addr) {
			return fmt.Errorf("unexpected nodes with IPs [%q]", addr)
		}
	}
	return nil
}

func (h *health) nodesReady(ctx context.Context) error {
	nodes, err := h.kubeNodes(ctx)
	var bad []string
	for _, n := range nodes {
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" && c.Status != "True" {
				bad = append(bad, n.Metadata.Name)
			}
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("some nodes are not ready: %v", bad)
	}
	return err
}

func (h *health) nodesSchedulable(ctx context.Context) error {
	nodes, err := h.kubeNodes(ctx)
	var bad []string
	for _, n := range nodes {
		if n.Spec.Unschedulable {
			bad = append(bad, n.Metadata.Name)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("some nodes are not schedulable: %v", bad)
	}
	return err
}

// podsRunning looks at the static pods as the nodes' kubelets report them.
func (h *health) podsRunning(ctx context.Context) error {
	for _, addr := range slices.Sorted(slices.Values(h.planes)) {
		cctx, st, err := h.states(ctx, addr)
		if err != nil {
			return err
		}
		list, err := safe.StateListAll[*k8s.StaticPodStatus](cctx, st)
		if err != nil {
			return fmt.Errorf("error listing static pods on node %s: %w", addr, err)
		}
		var missing []string
		for _, want := range staticPods {
			up := false
			for p := range list.All() {
				if strings.HasPrefix(p.Metadata().ID(), "kube-system/"+want+"-") && podReady(p.TypedSpec().PodStatus) {
					up = true
				}
			}
			if !up {
				missing = append(missing, "kube-system/"+want)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("missing static pods on node %s: %v", addr, missing)
		}
	}
	return nil
}
