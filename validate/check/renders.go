package check

import (
	"context"
	"sync"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// renders makes the renders of one fleet with stand-in secrets, each machine once. It implements rules.Renders.
type renders struct {
	ctx   context.Context
	fleet *fleet.Fleet

	mu    sync.Mutex
	known map[string]*clusterRenders
}

// clusterRenders is what is known of one cluster. err is the commit's fault, or ctx is done.
type clusterRenders struct {
	bundle *bundle.Bundle
	err    error
	// whole: every machine was rendered, and all has the results, sorted.
	whole bool
	all   []render.Result
	// byName has those of machines that were asked for one by one.
	byName map[string][]render.Result
}

func newRenders(ctx context.Context, f *fleet.Fleet) *renders {
	return &renders{ctx: ctx, fleet: f, known: map[string]*clusterRenders{}}
}

// Cluster implements rules.Renders.
func (r *renders) Cluster(name string, machines ...string) ([]render.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cl := r.fleet.Cluster(name)
	if cl == nil || cl.Manifest == nil {
		return nil, nil
	}
	k := r.known[name]
	if k == nil {
		k = &clusterRenders{byName: map[string][]render.Result{}}
		k.bundle, k.err = standIn(cl)
		r.known[name] = k
	}
	if k.err != nil {
		return nil, k.err
	}
	if len(machines) == 0 {
		return r.whole(cl, k)
	}
	return r.some(cl, k, machines)
}

func standIn(cl *fleet.Cluster) (*bundle.Bundle, error) {
	var ciphertext []byte
	if cl.Secrets != nil {
		ciphertext = cl.Secrets.Data
	}
	return bundle.StandIn(cl.Name, ciphertext)
}

func (r *renders) whole(cl *fleet.Cluster, k *clusterRenders) ([]render.Result, error) {
	if k.whole {
		return k.all, nil
	}
	all, err := r.render(cl, k, nil)
	if err != nil {
		k.err = err
		return nil, err
	}
	k.whole, k.all = true, all
	for _, res := range all {
		k.byName[res.Machine.Name] = append(k.byName[res.Machine.Name][:0:0], res)
	}
	return all, nil
}

func (r *renders) some(cl *fleet.Cluster, k *clusterRenders, machines []string) ([]render.Result, error) {
	var missing []string
	for _, m := range machines {
		if _, ok := k.byName[m]; !ok && !k.whole {
			missing = append(missing, m)
			k.byName[m] = nil
		}
	}
	if len(missing) > 0 {
		found, err := r.render(cl, k, missing)
		if err != nil {
			k.err = err
			return nil, err
		}
		for _, res := range found {
			k.byName[res.Machine.Name] = append(k.byName[res.Machine.Name], res)
		}
	}
	var out []render.Result
	for _, m := range machines {
		out = append(out, k.byName[m]...)
	}
	return out, nil
}

func (r *renders) render(cl *fleet.Cluster, k *clusterRenders, machines []string) ([]render.Result, error) {
	return render.Cluster(r.ctx, render.Input{Cluster: cl, Bundle: k.bundle, Machines: machines})
}
