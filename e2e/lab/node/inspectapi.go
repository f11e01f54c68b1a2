package node

import (
	"cmp"
	"context"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/inspect"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"google.golang.org/protobuf/types/known/emptypb"
)

type inspectAPI struct {
	inspect.UnimplementedInspectServiceServer
	boot *boot
}

// controllerInputs are what the controllers that the lab plays look at, as far as it does as they do.
var controllerInputs = map[string][][2]string{
	"runtime.MachineStatusController": {
		{network.NamespaceName, network.StatusType},
		{v1alpha1.NamespaceName, v1alpha1.ServiceType},
		{v1alpha1.NamespaceName, timeres.StatusType},
		{k8s.NamespaceName, k8s.NodenameType},
		{k8s.NamespaceName, k8s.NodeStatusType},
		{k8s.NamespaceName, k8s.StaticPodStatusType},
		{config.NamespaceName, config.MachineTypeType},
	},
	"config.MachineTypeController":       {{config.NamespaceName, config.MachineConfigType}},
	"k8s.NodenameController":             {{config.NamespaceName, config.MachineConfigType}, {network.NamespaceName, network.HostnameStatusType}},
	"k8s.KubeletSpecController":          {{k8s.NamespaceName, k8s.KubeletConfigType}, {k8s.NamespaceName, k8s.NodenameType}, {k8s.NamespaceName, k8s.NodeIPType}},
	"etcd.SpecController":                {{network.NamespaceName, network.HostnameStatusType}, {network.NamespaceName, network.NodeAddressType}},
	"network.NodeAddressController":      {{network.NamespaceName, network.AddressStatusType}, {network.NamespaceName, network.LinkStatusType}},
	"network.StatusController":           {{network.NamespaceName, network.NodeAddressType}, {network.NamespaceName, network.HostnameStatusType}},
	"secrets.RootOSController":           {{config.NamespaceName, config.MachineConfigType}},
	"secrets.APICertSANsController":      {{network.NamespaceName, network.HostnameStatusType}, {network.NamespaceName, network.NodeAddressType}},
	"runtime.APIServiceConfigController": {{runtime.NamespaceName, runtime.MaintenanceServiceRequestType}},
}

// ControllerRuntimeDependencies implements inspect.InspectService: which controller writes which
// resources of this node, and for some what they read.
func (s *inspectAPI) ControllerRuntimeDependencies(ctx context.Context, _ *emptypb.Empty) (*inspect.ControllerRuntimeDependenciesResponse, error) {
	b := s.boot
	for _, d := range allDetails() {
		b.showDetail(d.types[0])
	}
	defs, err := safe.StateListAll[*meta.ResourceDefinition](ctx, b.state)
	if err != nil {
		return nil, err
	}
	type output struct{ controller, ns, typ string }
	seen := map[output]bool{}
	writers := map[string]map[string]bool{}
	for d := range defs.All() {
		typ, ns := d.TypedSpec().Type, d.TypedSpec().DefaultNamespace
		for _, space := range []string{ns, k8s.ControlPlaneNamespaceName} {
			list, err := b.state.List(ctx, resource.NewMetadata(space, typ, "", resource.VersionUndefined))
			if err != nil {
				return nil, err
			}
			for _, r := range list.Items {
				if owner := r.Metadata().Owner(); owner != "" && owner != meta.Owner {
					seen[output{owner, space, typ}] = true
					if writers[typ] == nil {
						writers[typ] = map[string]bool{}
					}
					writers[typ][owner] = true
				}
			}
		}
	}
	out := &inspect.ControllerRuntimeDependency{}
	for o := range seen {
		kind := inspect.DependencyEdgeType_OUTPUT_EXCLUSIVE
		if len(writers[o.typ]) > 1 {
			kind = inspect.DependencyEdgeType_OUTPUT_SHARED
		}
		out.Edges = append(out.Edges, &inspect.ControllerDependencyEdge{ControllerName: o.controller, EdgeType: kind, ResourceType: o.typ})
	}
	for c, inputs := range controllerInputs {
		for _, in := range inputs {
			out.Edges = append(out.Edges, &inspect.ControllerDependencyEdge{
				ControllerName: c, EdgeType: inspect.DependencyEdgeType_INPUT_WEAK, ResourceNamespace: in[0], ResourceType: in[1],
			})
		}
	}
	slices.SortFunc(out.Edges, func(x, y *inspect.ControllerDependencyEdge) int {
		return cmp.Or(cmp.Compare(x.ControllerName, y.ControllerName), cmp.Compare(x.EdgeType, y.EdgeType), cmp.Compare(x.ResourceType, y.ResourceType))
	})
	return &inspect.ControllerRuntimeDependenciesResponse{Messages: []*inspect.ControllerRuntimeDependency{out}}, nil
}
