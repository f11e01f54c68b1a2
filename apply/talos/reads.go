package talos

import (
	"context"
	"io"
	"sort"
	"strings"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"ichor.maesh.dev/ichor/apply/plan"
)

// get reads one resource. Missing is (nil, nil): whether that is an error depends on what is read.
func get[T resource.Resource](ctx context.Context, c *Client, what string, md resource.Metadata) (T, error) {
	var out T
	err := c.call(ctx, options{op: "reading " + what}, func(ctx context.Context) (err error) {
		out, err = safe.StateGet[T](ctx, c.api.COSI, md)
		if state.IsNotFoundError(err) {
			var none T
			out, err = none, nil
		}
		return err
	})
	return out, err
}

func md(ns resource.Namespace, typ resource.Type, id resource.ID) resource.Metadata {
	return resource.NewMetadata(ns, typ, id, resource.VersionUndefined)
}

// Version gives the node's Talos version, as "v1.13.5".
func (c *Client) Version(ctx context.Context) (string, error) {
	var tag string
	err := c.call(ctx, options{op: "reading the version"}, func(ctx context.Context) error {
		reply, err := c.api.Version(ctx)
		if err != nil {
			return err
		}
		for _, m := range reply.GetMessages() {
			tag = m.GetVersion().GetTag()
		}
		return nil
	})
	return tag, err
}

// MachineStatus is the stage with the conditions that are not met.
type MachineStatus struct {
	Stage string
	Ready bool
	Unmet []string
}

// MachineStatus reads the stage; nil where the node has none yet.
func (c *Client) MachineStatus(ctx context.Context) (*MachineStatus, error) {
	r, err := get[*runtime.MachineStatus](ctx, c, "the machine status", md(runtime.NamespaceName, runtime.MachineStatusType, runtime.MachineStatusID))
	if err != nil || r == nil {
		return nil, err
	}
	s := r.TypedSpec()
	out := &MachineStatus{Stage: s.Stage.String(), Ready: s.Status.Ready}
	for _, u := range s.Status.UnmetConditions {
		out.Unmet = append(out.Unmet, u.Name)
	}
	sort.Strings(out.Unmet)
	return out, nil
}

// Services gives the services by id.
func (c *Client) Services(ctx context.Context) (map[string]plan.ServiceFact, error) {
	var out map[string]plan.ServiceFact
	err := c.call(ctx, options{op: "listing the services"}, func(ctx context.Context) error {
		reply, err := c.api.ServiceList(ctx)
		if err != nil {
			return err
		}
		out = map[string]plan.ServiceFact{}
		for _, m := range reply.GetMessages() {
			for _, s := range m.GetServices() {
				f := plan.ServiceFact{State: s.GetState(), Running: s.GetState() == "Running"}
				if h := s.GetHealth(); h != nil && !h.GetUnknown() {
					healthy := h.GetHealthy()
					f.Healthy = &healthy
				}
				out[s.GetId()] = f
			}
		}
		return nil
	})
	return out, err
}

// BootID of this boot. From 1.14 it is a resource that a reader may read; before, NotSupported: see ReadBootID.
func (c *Client) BootID(ctx context.Context) (string, error) {
	r, err := get[*runtime.BootID](ctx, c, "the boot ID", md(runtime.NamespaceName, runtime.BootIDType, runtime.BootIDID))
	if Is(err, PermissionDenied) {
		// An unregistered type is answered so (talos.md 1.4).
		return "", &Error{Kind: NotSupported, Op: "reading the boot ID", Endpoint: c.endpoint, Text: "this version has no such resource"}
	}
	if err != nil || r == nil {
		return "", err
	}
	return r.TypedSpec().BootID, nil
}

// bootIDFile is the kernel's own.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// ReadBootID reads it from the kernel's file, as talosctl does. Reading a file needs the role Admin.
func (c *Client) ReadBootID(ctx context.Context) (string, error) {
	var out string
	err := c.call(ctx, options{op: "reading the boot ID"}, func(ctx context.Context) error {
		r, err := c.api.Read(ctx, bootIDFile)
		if err != nil {
			return err
		}
		defer r.Close() //nolint:errcheck // only read
		data, err := io.ReadAll(io.LimitReader(r, 128))
		out = strings.TrimSpace(string(data))
		return err
	})
	return out, err
}

// UUID of the system (SMBIOS), "" where there is none (containers).
func (c *Client) UUID(ctx context.Context) (string, error) {
	r, err := get[*hardware.SystemInformation](ctx, c, "the system information", md(hardware.NamespaceName, hardware.SystemInformationType, hardware.SystemInformationID))
	if err != nil || r == nil {
		return "", err
	}
	return r.TypedSpec().UUID, nil
}

// NodeID is Talos's random identity, kept over reboots and upgrades and lost with a wipe; "" where there is none.
func (c *Client) NodeID(ctx context.Context) (string, error) {
	r, err := get[*cluster.Identity](ctx, c, "the cluster identity", md(cluster.NamespaceName, cluster.IdentityType, cluster.LocalIdentity))
	if err != nil || r == nil {
		return "", err
	}
	return r.TypedSpec().NodeID, nil
}

// Hostname of the node, "" where it has none yet.
func (c *Client) Hostname(ctx context.Context) (string, error) {
	r, err := get[*network.HostnameStatus](ctx, c, "the hostname", md(network.NamespaceName, network.HostnameStatusType, network.HostnameID))
	if err != nil || r == nil {
		return "", err
	}
	return r.TypedSpec().Hostname, nil
}

// Nodename is the Kubernetes node name, "" where there is none yet.
func (c *Client) Nodename(ctx context.Context) (string, error) {
	r, err := get[*k8s.Nodename](ctx, c, "the node name", md(k8s.NamespaceName, k8s.NodenameType, k8s.NodenameID))
	if err != nil || r == nil {
		return "", err
	}
	return r.TypedSpec().Nodename, nil
}

// MemberID of the local etcd member as 16 hex digits; it is there only while the etcd service is healthy, else "".
func (c *Client) MemberID(ctx context.Context) (string, error) {
	r, err := get[*etcd.Member](ctx, c, "the etcd member", md(etcd.NamespaceName, etcd.MemberType, etcd.LocalMemberID))
	if err != nil || r == nil {
		return "", err
	}
	return r.TypedSpec().MemberID, nil
}

// Installed tells whether there is a system disk.
func (c *Client) Installed(ctx context.Context) (bool, error) {
	r, err := get[*block.SystemDisk](ctx, c, "the system disk", md(block.NamespaceName, block.SystemDiskType, block.SystemDiskID))
	return r != nil, err
}

// APIServerReady tells whether the node's own Kubernetes API server is up: its static pod is ready. nil: the node
// shows no such pod.
func (c *Client) APIServerReady(ctx context.Context) (*bool, error) {
	var out *bool
	err := c.call(ctx, options{op: "reading the static pods"}, func(ctx context.Context) error {
		list, err := safe.StateListAll[*k8s.StaticPodStatus](ctx, c.api.COSI)
		if err != nil {
			return err
		}
		for pod := range list.All() {
			if ready, is := apiServerReady(pod.TypedSpec().PodStatus, pod.Metadata().ID()); is {
				out = &ready
			}
		}
		return nil
	})
	return out, err
}

// apiServerReady reads the Ready condition of a pod whose id is namespace/name (kube-system/kube-apiserver-cp1).
func apiServerReady(status map[string]any, id string) (ready, is bool) {
	const prefix = "kube-system/kube-apiserver-"
	if len(id) < len(prefix) || id[:len(prefix)] != prefix {
		return false, false
	}
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Ready" {
			return m["status"] == "True", true
		}
	}
	return false, true
}

// NodeReady is what Talos sees of the Kubernetes node; nil where it sees none.
func (c *Client) NodeReady(ctx context.Context, nodename string) (*bool, error) {
	r, err := get[*k8s.NodeStatus](ctx, c, "the node status", md(k8s.NamespaceName, k8s.NodeStatusType, nodename))
	if err != nil || r == nil {
		return nil, err
	}
	ready := r.TypedSpec().NodeReady
	return &ready, nil
}

// Link is one network link, for discovery.
type Link struct{ Name, HardwareAddr, Type, State string }

// Links lists the physical links, sorted by name.
func (c *Client) Links(ctx context.Context) ([]Link, error) {
	var out []Link
	err := c.call(ctx, options{op: "listing the links"}, func(ctx context.Context) error {
		list, err := safe.StateListAll[*network.LinkStatus](ctx, c.api.COSI)
		if err != nil {
			return err
		}
		for l := range list.All() {
			s := l.TypedSpec()
			if s.Physical() {
				out = append(out, Link{Name: l.Metadata().ID(), HardwareAddr: s.HardwareAddr.String(), Type: s.Type.String(), State: s.OperationalState.String()})
			}
		}
		return nil
	})
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, err
}

// Addresses lists the node's addresses (prefixes), sorted.
func (c *Client) Addresses(ctx context.Context) ([]string, error) {
	r, err := get[*network.NodeAddress](ctx, c, "the addresses", md(network.NamespaceName, network.NodeAddressType, network.NodeAddressCurrentID))
	if err != nil || r == nil {
		return nil, err
	}
	var out []string
	for _, a := range r.TypedSpec().Addresses {
		out = append(out, a.String())
	}
	sort.Strings(out)
	return out, nil
}

// rawState is the COSI service without decoding: a document that this library does not know must not hide the rest.
func (c *Client) rawState() cosi.StateClient { return cosi.NewStateClient(c.api.Conn()) }

const configType = config.MachineConfigType
