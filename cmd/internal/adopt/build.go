package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/cmd/internal/scaffold"
	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// builder makes manifests out of a source.
type builder struct {
	src     *Source
	facts   map[string]*facts
	spec    v1alpha1.TalosClusterSpec
	patches []patch
	proof   bundle.Keys
	proofTo []string
	lost    []string
}

// newBuilder reads the originals.
func newBuilder(src *Source) (*builder, error) {
	b := &builder{src: src, facts: map[string]*facts{}}
	var first *facts
	var addresses []string
	for i := range src.Originals {
		o := &src.Originals[i]
		f, err := readFacts(o.Config)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.File, err)
		}
		if !valid(o.Config) {
			b.lost = append(b.lost, o.File+": Talos itself refuses this configuration; talosctl validate --mode metal --config FILE says why")
		}
		o.Role, b.facts[o.Name] = f.role, f
		if f.role == v1alpha1.RoleControlPlane {
			if ap, err := v1alpha1.NormalizeEndpoint(o.Address); err == nil {
				addresses = append(addresses, ap.Addr().String())
			}
			if first == nil {
				first = f
			}
		}
	}
	if first == nil {
		return nil, errors.New("no configuration of a control plane is there: it alone has what makes the cluster")
	}
	return b, b.cluster(first, addresses)
}

// cluster fills in the cluster's fields from its first control plane.
func (b *builder) cluster(f *facts, controlPlanes []string) error {
	b.src.Cluster = cmp.Or(b.src.Cluster, f.cluster)
	b.src.TalosVersion, b.src.KubernetesVersion = cmp.Or(b.src.TalosVersion, f.talos), cmp.Or(b.src.KubernetesVersion, f.kubernetes)
	switch {
	case b.src.Cluster == "":
		return errors.New("the cluster has no name: give it with --cluster")
	case b.src.TalosVersion == "":
		return errors.New("the Talos version is not known from machine.install.image: give it with --talos-version")
	case b.src.KubernetesVersion == "":
		return errors.New("the Kubernetes version is not known from the kubelet's image: give it with --kubernetes-version")
	}
	endpoint, err := f.endpointOf(controlPlanes)
	if err != nil {
		return err
	}
	count := len(controlPlanes)
	b.spec = v1alpha1.TalosClusterSpec{
		TalosVersion: b.src.TalosVersion, KubernetesVersion: b.src.KubernetesVersion, Endpoint: endpoint,
		ControlPlane: v1alpha1.ControlPlaneSpec{Count: count + 1 - count%2}, SecretsRef: v1alpha1.PathRef{Path: "./secrets.sops.yaml"},
		Network: v1alpha1.NetworkSpec{PodSubnets: f.pods, ServiceSubnets: f.services, DNSDomain: f.domain},
		Install: v1alpha1.InstallSpec{Disk: f.disk, DiskSelector: f.selector},
		// Nothing is written to a running cluster until somebody means it.
		Rollout: v1alpha1.RolloutSpec{Mode: v1alpha1.ModeObserve},
	}
	b.spec.Install.Image, b.spec.Install.Schematic = imageOf(&b.spec, f.image)
	b.spec.Network = withoutDefaults(b.spec.Network)
	b.spec.ControlPlane.Count = min(max(b.spec.ControlPlane.Count, 1), 5)
	if f.cni != v1alpha1.CNIFlannel {
		b.spec.Network.CNI.Preset = f.cni
	}
	if !f.kubeProxy {
		off := false
		b.spec.Network.KubeProxy = &off
	}
	return nil
}

// factoryImage is an image of the Image Factory that a schematic says as well.
var factoryImage = regexp.MustCompile(`^factory\.talos\.dev/metal-installer/([0-9a-f]{64}):(.*)$`)

// imageOf says an installer image in the form that follows talosVersion where there is one: nothing for Talos's own, a
// schematic for one of the Image Factory.
func imageOf(spec *v1alpha1.TalosClusterSpec, image string) (plain, schematic string) {
	if image == render.Image(spec, v1alpha1.InstallSpec{}) {
		return "", ""
	}
	if m := factoryImage.FindStringSubmatch(image); m != nil && render.Image(spec, v1alpha1.InstallSpec{Schematic: m[1]}) == image {
		return "", m[1]
	}
	return image, ""
}

// withoutDefaults leaves out what is so anyway.
func withoutDefaults(n v1alpha1.NetworkSpec) v1alpha1.NetworkSpec {
	if slices.Equal(n.PodSubnets, []string{v1alpha1.DefaultPodSubnet}) {
		n.PodSubnets = nil
	}
	if slices.Equal(n.ServiceSubnets, []string{v1alpha1.DefaultServiceSubnet}) {
		n.ServiceSubnets = nil
	}
	if n.DNSDomain == v1alpha1.DefaultDNSDomain {
		n.DNSDomain = ""
	}
	return n
}

// settle finds the contract with which the least has to be patched, and makes the patches for the rest.
func (b *builder) settle(ctx context.Context) error {
	all, err := contracts(b.src.TalosVersion)
	if err != nil {
		return err
	}
	b.carry()
	best, fewest := "", -1
	var failure error
	for _, c := range all {
		b.spec.Contract = c
		rendered, err := b.render(ctx)
		if err != nil {
			if failure == nil {
				failure = err
			}
			continue
		}
		n := 0
		for _, o := range b.src.Originals {
			cs, err := b.changes(o, rendered[o.Name])
			if err != nil {
				return err
			}
			n += len(cs)
		}
		if fewest < 0 || n < fewest {
			best, fewest = c, n
		}
		if fewest == 0 {
			break
		}
	}
	if best == "" {
		return b.withoutCarried(ctx, failure)
	}
	b.spec.Contract = best
	return b.rest(ctx)
}

// withoutCarried tries again with no patch taken over as it is: one of them does not render on Ichor's base.
func (b *builder) withoutCarried(ctx context.Context, failure error) error {
	if len(b.src.Patches) == 0 {
		return failure
	}
	b.src.Notes = append(b.src.Notes, fmt.Sprintf("the patches are taken over by what they do, not as they are written, for with them %s", failure))
	b.src.Patches, b.patches = nil, nil
	return b.settle(ctx)
}

// rest makes patches of what still differs.
func (b *builder) rest(ctx context.Context) error {
	const rounds = 3 // a merge may need a second look: lists that append, documents that appear
	for round := range rounds {
		rendered, err := b.render(ctx)
		if err != nil {
			return err
		}
		per := map[string][]change{}
		total := 0
		for _, o := range b.src.Originals {
			cs, err := b.changes(o, rendered[o.Name])
			if err != nil {
				return err
			}
			per[o.Name] = cs
			total += len(cs)
		}
		if total == 0 {
			return nil
		}
		before := b.patches
		b.patches = slices.Concat(b.patches, b.group(per, round))
		if _, err := b.render(ctx); err != nil {
			// What can't be said as a patch shows as a difference; the render's reason is the best that is known.
			b.patches = before
			b.lost = append(b.lost, "what differs can't be said as a patch: "+err.Error())
			return nil
		}
	}
	return nil
}

// carry takes the tool's own patches over.
func (b *builder) carry() {
	for i, c := range b.src.Patches {
		b.patches = append(b.patches, patch{
			name: c.Name, about: "From " + c.File + ".", order: 10 + i, roles: c.Roles, machines: c.Machines, nodes: c.Documents, secret: c.Secret,
		})
	}
}

// files makes every file of the repository.
func (b *builder) files(recipients []string) ([]scaffold.File, error) {
	plain, err := plainBundle(b.src.Bundle)
	if err != nil {
		return nil, err
	}
	dir := "clusters/" + b.src.Cluster
	sealed, err := bundle.Encrypt(plain, dir+"/secrets.sops.yaml", recipients, "")
	clear(plain)
	if err != nil {
		return nil, err
	}
	out := []scaffold.File{{Path: dir + "/secrets.sops.yaml", Data: sealed, About: "the cluster's secrets bundle, encrypted"}}
	cluster, err := clusterManifest(dir+"/cluster.yaml", b.src.Cluster, b.spec)
	if err != nil {
		return nil, err
	}
	out = append(out, cluster)
	for _, o := range b.src.Originals {
		m, err := b.machineManifest(dir, o)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	for _, p := range b.patches {
		f, err := b.patchManifest(dir, p, recipients)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	shared, err := scaffold.Shared(recipients, b.spec.Contract)
	if err != nil {
		return nil, err
	}
	out = append(out, shared...)
	slices.SortFunc(out, func(x, y scaffold.File) int { return strings.Compare(x.Path, y.Path) })
	return out, nil
}

// sortedKeys gives the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
