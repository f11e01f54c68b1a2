package check

import (
	"context"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
)

// renders makes the renders of one fleet with stand-in secrets, each machine once. It implements rules.Renders.
type renders struct {
	ctx   context.Context
	fleet *fleet.Fleet
	// rendered may be shared with other checks of the same commit, and cache has those of other commits.
	*rendered
	cache *Cache
}

// clusterRenders is what is known of one cluster. bundle is made when something is rendered. err is the commit's fault, or ctx is done.
type clusterRenders struct {
	bundle *bundle.Bundle
	err    error
	// key is inputsKey of the cluster, "" not known.
	key string
	// whole: every machine was rendered, and all has the results, sorted.
	whole bool
	all   []render.Result
	// byName has those of machines that were asked for one by one, before all were.
	byName map[string][]render.Result
	// cluster is what key was made of.
	cluster *fleet.Cluster
}

// named gives the results of a machine, which was asked for before. Of two machines with one name the last counts.
func (k *clusterRenders) named(name string) []render.Result {
	if !k.whole {
		return k.byName[name]
	}
	i, found := slices.BinarySearchFunc(k.all, name, func(r render.Result, name string) int {
		return strings.Compare(r.Machine.Name, name)
	})
	if !found {
		return nil
	}
	for i+1 < len(k.all) && k.all[i+1].Machine.Name == name {
		i++
	}
	return k.all[i : i+1 : i+1]
}

func newRenders(ctx context.Context, s *side, cache *Cache) *renders {
	return &renders{ctx: ctx, fleet: s.fleet, rendered: s.renders, cache: cache}
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
	all, err := r.all(cl, k)
	if err != nil {
		return nil, r.failed(k, err)
	}
	k.whole, k.all, k.byName = true, all, nil
	return all, nil
}

func (r *renders) some(cl *fleet.Cluster, k *clusterRenders, machines []string) ([]render.Result, error) {
	var missing []string
	for _, m := range machines {
		if _, ok := k.byName[m]; !ok && !k.whole && !slices.Contains(missing, m) {
			missing = append(missing, m)
		}
	}
	if len(missing) > 0 {
		found, err := r.render(cl, k, missing)
		if err != nil {
			return nil, r.failed(k, err)
		}
		for _, m := range missing {
			k.byName[m] = nil
		}
		for _, res := range found {
			k.byName[res.Machine.Name] = append(k.byName[res.Machine.Name], res)
		}
	}
	var out []render.Result
	for _, m := range machines {
		out = append(out, k.named(m)...)
	}
	return out, nil
}

// failed notes why a cluster does not render. A context that is done is no reason: another check may go on.
func (r *renders) failed(k *clusterRenders, err error) error {
	if r.ctx.Err() == nil {
		k.err = err
	}
	return err
}

// all renders a cluster whole, but for what other commits have already.
func (r *renders) all(cl *fleet.Cluster, k *clusterRenders) ([]render.Result, error) {
	if r.cache == nil {
		return r.render(cl, k, nil)
	}
	known, left := reuse(cl, k, r.cache.others(r.rendered))
	if len(known) == 0 {
		return r.render(cl, k, nil)
	}
	var fresh []render.Result
	if len(left) > 0 {
		var err error
		if fresh, err = r.render(cl, k, left); err != nil {
			return nil, err
		}
	}
	all := append(known, fresh...)
	slices.SortFunc(all, func(a, b render.Result) int { return strings.Compare(a.Machine.Name, b.Machine.Name) })
	return all, nil
}

func (r *renders) render(cl *fleet.Cluster, k *clusterRenders, machines []string) ([]render.Result, error) {
	if k.bundle == nil {
		var err error
		if k.bundle, err = standIn(cl); err != nil {
			return nil, err
		}
	}
	return render.Cluster(r.ctx, render.Input{Cluster: cl, Bundle: k.bundle, Machines: machines})
}
