package node

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// namespaces as Talos registers them.
var namespaces = [][2]string{
	{"runtime", "Talos v1alpha1 subsystems glue resources."},
	{"cluster", "Cluster configuration and discovery resources."},
	{"cluster-raw", "Cluster unmerged raw resources."},
	{"config", "Talos node configuration."},
	{"etcd", "etcd resources."},
	{"files", "Files and file-like resources."},
	{"hardware", "Hardware resources."},
	{"k8s", "Kubernetes all node types resources."},
	{"controlplane", "Kubernetes control plane resources."},
	{"kubespan", "KubeSpan resources."},
	{"network", "Networking resources."},
	{"network-config", "Networking configuration resources."},
	{"cri", "CRI Seccomp resources."},
	{"secrets", "Resources with secret material."},
	{"security", "Security resources."},
	{"perf", "Stats resources."},
}

// newState builds the COSI state of one boot. The namespace with the types and namespaces of the release is the same
// on every node and in every boot, so all share one.
func newState(_ context.Context, b *boot) (state.State, error) {
	shared := oldTypes
	if b.release.newResources {
		shared = allTypes
	}
	types, err := shared()
	if err != nil {
		return nil, err
	}
	return state.WrapCore(namespaced.NewState(func(ns resource.Namespace) state.CoreState {
		switch ns {
		case meta.NamespaceName:
			return types
		case cluster.NamespaceName:
			return clusterCore{newCore(ns), b}
		}
		return newCore(ns)
	})), nil
}

var (
	oldTypes = sync.OnceValues(func() (state.CoreState, error) { return newTypes(oldDefs, namespaces) })
	allTypes = sync.OnceValues(func() (state.CoreState, error) {
		return newTypes(allDefs, append(append([][2]string(nil), namespaces...), [2]string{"storage", "Storage resources."}))
	})
)

// newTypes registers types and namespaces.
func newTypes(defs func() ([]resource.Resource, error), spaces [][2]string) (state.CoreState, error) {
	ctx := context.Background()
	core := newCore(meta.NamespaceName)
	st := state.WrapCore(core)
	ns := registry.NewNamespaceRegistry(st)
	if err := ns.RegisterDefault(ctx); err != nil {
		return nil, err
	}
	for _, n := range spaces {
		if err := ns.Register(ctx, n[0], n[1]); err != nil {
			return nil, err
		}
	}
	list, err := defs()
	if err != nil {
		return nil, err
	}
	for _, d := range list {
		if err := st.Create(ctx, d, state.WithCreateOwner(meta.Owner)); err != nil {
			return nil, err
		}
	}
	return core, nil
}

// The definitions are made once: working out each type's aliases costs more than all the rest of a boot.
var (
	oldDefs = sync.OnceValues(func() ([]resource.Resource, error) { return buildDefs(definitions()) })
	allDefs = sync.OnceValues(func() ([]resource.Resource, error) {
		return buildDefs(append(definitions(), newDefinitions()...))
	})
)

func buildDefs(types []meta.ResourceWithRD) ([]resource.Resource, error) {
	types = append([]meta.ResourceWithRD{&meta.ResourceDefinition{}, &meta.Namespace{}}, types...)
	out := make([]resource.Resource, 0, len(types))
	for _, t := range types {
		r, err := meta.NewResourceDefinition(t.ResourceDefinition())
		if err != nil {
			return nil, fmt.Errorf("define resource type: %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}

// accessPolicy is Talos's filter in front of the resources (internal/app/resources/access.go).
func accessPolicy(st state.State) state.FilteringRule {
	return func(ctx context.Context, access state.Access) error {
		if !access.Verb.Readonly() {
			return status.Error(codes.PermissionDenied, "write access is not allowed")
		}
		rd, err := safe.StateGet[*meta.ResourceDefinition](ctx, st, resource.NewMetadata(
			meta.NamespaceName, meta.ResourceDefinitionType, strings.ToLower(access.ResourceType), resource.VersionUndefined))
		if state.IsNotFoundError(err) {
			return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
		}
		if err != nil {
			return err
		}
		switch s := rd.TypedSpec().Sensitivity; s {
		case meta.Sensitive:
			if !rolesOf(ctx).Includes(role.Admin) {
				return errNotAuthorized
			}
		case meta.NonSensitive:
		default:
			return fmt.Errorf("unexpected sensitivity %q", s)
		}
		_, err = safe.StateGet[*meta.Namespace](ctx, st, resource.NewMetadata(
			meta.NamespaceName, meta.NamespaceType, access.ResourceNamespace, resource.VersionUndefined))
		if state.IsNotFoundError(err) {
			return status.Errorf(codes.PermissionDenied, "namespace %q is not supported", access.ResourceNamespace)
		}
		return err
	}
}

// put creates or changes a resource as the named controller; an unchanged one keeps its version.
// A boot that is over has no state left to change.
func put[T resource.Resource](b *boot, owner string, r T, fn func(T)) {
	err := safe.StateModify(b.ctx, b.state, r, func(r T) error {
		fn(r)
		return nil
	}, state.WithUpdateOwner(owner))
	if err != nil && b.ctx.Err() == nil {
		b.node.emit("error", fmt.Sprintf("put resource %s: %v", r.Metadata(), err))
	}
}

// remove destroys a resource of the named controller if it is there.
func remove(b *boot, owner string, md *resource.Metadata) {
	err := b.state.Destroy(b.ctx, md, state.WithDestroyOwner(owner))
	if err != nil && !state.IsNotFoundError(err) && b.ctx.Err() == nil {
		b.node.emit("error", fmt.Sprintf("destroy resource %s: %v", md, err))
	}
}
