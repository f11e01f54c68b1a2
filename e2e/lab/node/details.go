package node

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
)

// Most resources of a node are looked at by hardly anyone. They are worked out when somebody first
// asks for their type, and from then on kept in line with the node: a lab of a thousand nodes pays
// nothing for what nobody reads.

// detail is a group of resource types whose contents follow from the same things.
type detail struct {
	types []resource.Type
	list  func(*boot, *detailList)
}

// detailList collects what a group's resources are now.
type detailList struct {
	items []detailItem
}

type detailItem struct {
	owner string
	res   resource.Resource
	label string // a label without a value, "" for none
}

// add adds a resource of the named controller.
func (l *detailList) add(owner string, r resource.Resource) {
	l.items = append(l.items, detailItem{owner: owner, res: r})
}

// with fills a resource's spec.
func with[R interface {
	resource.Resource
	TypedSpec() *S
}, S any](r R, spec S) R {
	*r.TypedSpec() = spec
	return r
}

// allDetails are the groups, and byType finds a type's.
var allDetails = sync.OnceValue(func() []detail {
	var all []detail
	for _, list := range [][]detail{networkDetails, blockDetails, systemDetails, clusterDetails, kubernetesDetails, secretDetails} {
		all = append(all, list...)
	}
	return all
})

var detailByType = sync.OnceValue(func() map[resource.Type]int {
	m := map[resource.Type]int{}
	for i, d := range allDetails() {
		for _, t := range d.types {
			m[t] = i
		}
	}
	return m
})

// detailState is which groups were asked for in a boot, and what they wrote.
type detailState struct {
	mu    sync.Mutex
	shown map[int]map[string]detailItem
	// issued are certificates that were made for a configuration.
	issued map[string]issued
}

// detailed is an access rule that works out what is asked for, once the rule before it allowed the access.
func (b *boot) detailed(rule state.FilteringRule) state.FilteringRule {
	return func(ctx context.Context, access state.Access) error {
		if err := rule(ctx, access); err != nil {
			return err
		}
		b.showDetail(access.ResourceType)
		return nil
	}
}

func (b *boot) showDetail(t resource.Type) {
	i, ok := detailByType()[t]
	if !ok {
		return
	}
	b.details.mu.Lock()
	defer b.details.mu.Unlock()
	if b.details.shown == nil {
		b.details.shown = map[int]map[string]detailItem{}
	}
	if _, done := b.details.shown[i]; !done {
		b.writeDetail(i)
	}
}

// refreshDetails brings the groups that somebody asked for in line with the node.
func (b *boot) refreshDetails() {
	b.details.mu.Lock()
	defer b.details.mu.Unlock()
	for i := range b.details.shown {
		b.writeDetail(i)
	}
}

// writeDetail writes a group and destroys what is no longer part of it; details.mu is held.
func (b *boot) writeDetail(i int) {
	var list detailList
	allDetails()[i].list(b, &list)
	now := make(map[string]detailItem, len(list.items))
	for _, it := range list.items {
		now[it.res.Metadata().String()] = it
		b.putItem(it)
	}
	for key, it := range b.details.shown[i] {
		if _, still := now[key]; !still {
			remove(b, it.owner, it.res.Metadata())
		}
	}
	b.details.shown[i] = now
}

// putItem creates a resource or gives it the new spec; an unchanged one keeps its version.
func (b *boot) putItem(it detailItem) {
	err := b.state.Modify(b.ctx, it.res.DeepCopy(), func(r resource.Resource) error {
		if it.label != "" {
			r.Metadata().Labels().Set(it.label, "")
		}
		reflect.ValueOf(r.Spec()).Elem().Set(reflect.ValueOf(it.res.DeepCopy().Spec()).Elem())
		return nil
	}, state.WithUpdateOwner(it.owner))
	if err != nil && b.ctx.Err() == nil {
		b.node.emit("error", fmt.Sprintf("put resource %s: %v", it.res.Metadata(), err))
	}
}
