package render

import (
	"context"
	"fmt"
	"runtime"
	"sort"
	"sync"

	talosconfig "github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Cluster renders the machines of a cluster that are not rejected, sorted by name. A machine that does not render
// has its Err set; the error is for what concerns the whole cluster: its manifest is missing, a version does not
// parse, a patch's values can't be opened, ctx is done.
//
// Machines that differ in nothing but hostname and endpoint are rendered once, with marks in these places, and
// the marks are filled in for each; Masked shares what is the same between machines, so it must not be changed.
func Cluster(ctx context.Context, in Input) ([]Result, error) {
	if in.Cluster == nil || in.Cluster.Manifest == nil {
		return nil, fmt.Errorf("render cluster: its manifest is not known")
	}
	j, err := newJob(in)
	if err != nil {
		return nil, fmt.Errorf("render cluster %s: %w", in.Cluster.Name, err)
	}
	groups := j.groups(selected(in))
	results := make([][]Result, len(groups))
	var wg sync.WaitGroup
	next := make(chan int)
	for range max(1, min(runtime.GOMAXPROCS(0), len(groups))) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range next {
				results[i] = j.group(ctx, groups[i])
			}
		}()
	}
	for i := range groups {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("render cluster %s: %w", in.Cluster.Name, err)
	}
	var out []Result
	for _, r := range results {
		out = append(out, r...)
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Machine.Name < out[b].Machine.Name })
	return out, nil
}

// selected gives the machines to render.
func selected(in Input) []*fleet.Machine {
	want := map[string]bool{}
	for _, n := range in.Machines {
		want[n] = true
	}
	var out []*fleet.Machine
	for _, m := range in.Cluster.Machines {
		if m.Manifest == nil || m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalRejected {
			continue
		}
		if in.Machines == nil || want[m.Name] {
			out = append(out, m)
		}
	}
	return out
}

// job is the render of one cluster: what its machines share. It is read-only once made.
type job struct {
	in       Input
	spec     *v1alpha1.TalosClusterSpec
	contract *talosconfig.VersionContract
	entries  []*entry
	// incomplete is why the bundle can't be rendered with, "" where it can.
	incomplete string
	// real is true where secrets are in play; then no text of Talos is passed on that a check would not have given.
	real bool
}

func newJob(in Input) (*job, error) {
	if in.Bundle == nil {
		return nil, fmt.Errorf("no secrets bundle given")
	}
	spec := &in.Cluster.Manifest.Spec
	contract, err := contractOf(spec)
	if err != nil {
		return nil, err
	}
	j := &job{in: in, spec: spec, contract: contract, real: !in.Bundle.StandIn || in.Values != nil}
	if err := bundle.Validate(in.Bundle.Secrets()); err != nil {
		j.incomplete = err.Error()
	}
	if j.entries, err = loadEntries(in, j); err != nil {
		return nil, err
	}
	return j, nil
}

// Contract gives the version contract of a cluster: its own, else the minor of its Talos version ("v1.13").
func Contract(spec *v1alpha1.TalosClusterSpec) (string, error) {
	vc, err := contractOf(spec)
	if err != nil {
		return "", err
	}
	return vc.String(), nil
}

func contractOf(spec *v1alpha1.TalosClusterSpec) (*talosconfig.VersionContract, error) {
	v := spec.Contract
	if v == "" {
		v = spec.TalosVersion
	}
	vc, err := talosconfig.ParseContractFromVersion(v)
	if err != nil {
		return nil, fmt.Errorf("parse contract %q: %w", v, err)
	}
	return vc, nil
}
