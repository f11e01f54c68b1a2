package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/diff"
	"ichor.maesh.dev/ichor/render/effect"
	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
	"ichor.maesh.dev/ichor/validate/rules"
)

// machines renders every cluster and says what changes on each machine.
func (s *session) machines() error {
	for _, cl := range s.head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		results, err := s.headRenders.Cluster(cl.Name)
		if s.ctx.Err() != nil {
			return s.fault()
		}
		if err != nil {
			// The render rule reports it: nothing is known of the cluster's machines.
			continue
		}
		s.keep(cl.Name, results)
		if err := s.clusterMachines(cl, results); err != nil {
			return err
		}
	}
	s.removedMachines()
	slices.SortStableFunc(s.report.Machines, func(a, b Machine) int {
		if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return nil
}

// keep notes the digests, and the renders where they are wanted.
func (s *session) keep(cluster string, results []render.Result) {
	digests := make(map[string]string, len(results))
	for _, r := range results {
		if r.Err == nil {
			digests[r.Machine.Name] = r.Digest
		}
	}
	s.detail.Digests[cluster] = digests
	if s.detail.Renders == nil {
		return
	}
	masked := make(map[string]mask.Render, len(results))
	for _, r := range results {
		if r.Err == nil {
			masked[r.Machine.Name] = r.Masked
		}
	}
	s.detail.Renders[cluster] = masked
}

// clusterMachines compares a cluster's machines with base, rendering there only what may differ.
func (s *session) clusterMachines(cl *fleet.Cluster, results []render.Result) error {
	was := s.baseCluster(cl.Name)
	olds := make([]*fleet.Machine, len(results))
	var names []string
	if was != nil {
		same, before := sameInputs(was, cl), rules.NewPredecessors(was, cl)
		for i, r := range results {
			olds[i] = before.Of(r.Machine)
			if olds[i] != nil && !(same && sameMachine(olds[i], r.Machine)) {
				names = append(names, olds[i].Name)
			}
		}
	}
	before, err := s.baseResults(cl.Name, names)
	if err != nil {
		return err
	}
	secrets := newSecretChanges(was, cl)
	s.report.Machines = slices.Grow(s.report.Machines, len(results))
	for i, r := range results {
		s.report.Machines = append(s.report.Machines, machineEntry(cl, olds[i], r, before, secrets))
	}
	return nil
}

func (s *session) baseCluster(name string) *fleet.Cluster {
	if s.base == nil {
		return nil
	}
	if was := s.base.Cluster(name); was != nil && was.Manifest != nil {
		return was
	}
	return nil
}

// baseResults renders the named machines on base. A base that does not render gives nothing to compare with.
func (s *session) baseResults(cluster string, names []string) (map[string]render.Result, error) {
	out := map[string]render.Result{}
	if len(names) == 0 {
		return out, nil
	}
	found, err := s.baseRenders.Cluster(cluster, names...)
	if s.ctx.Err() != nil {
		return nil, s.fault()
	}
	if err != nil {
		return out, nil
	}
	for _, r := range found {
		out[r.Machine.Name] = r
	}
	return out, nil
}

// machineEntry says what changes on one machine. old is the machine on base, nil for a new one; before has base's
// render of it where something about it changed.
func machineEntry(cl *fleet.Cluster, old *fleet.Machine, r render.Result, before map[string]render.Result, secrets *secretChanges) Machine {
	m := Machine{
		Cluster: cl.Name, Name: r.Machine.Name, Role: r.Machine.Manifest.Spec.Role, Change: ChangeNone,
		Effect: string(effect.None), Paths: []PathChange{},
	}
	if r.Err == nil {
		m.Digest = r.Digest
	}
	if old == nil || (approved(r.Machine) && !approved(old)) {
		m.Change, m.Effect = ChangeNew, string(effect.Install)
		return m
	}
	b, compared := before[old.Name]
	switch {
	case !compared || r.Err != nil:
		// Nothing that goes into the render changed, or there is no render to compare.
	case b.Err != nil:
		m.Change, m.Effect = ChangeUpdate, string(effect.Reboot)
		m.Paths = append(m.Paths, PathChange{
			Document: "v1alpha1", Effect: string(effect.Reboot), Before: "(base does not render)", After: "(renders)",
		})
	case b.Digest != r.Digest:
		m.Paths = append(m.Paths, pathChanges(minorOf(cl), m.Role, b.Masked, r.Masked)...)
	}
	m.Paths = append(m.Paths, secrets.of(r)...)
	if len(m.Paths) > 0 {
		m.Change = ChangeUpdate
		m.Effect = worst(m.Paths)
	}
	return m
}

func approved(m *fleet.Machine) bool {
	return m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalApproved
}

// pathChanges compares two masked renders leaf by leaf.
func pathChanges(minor int, role string, before, after mask.Render) []PathChange {
	changes := diff.Between(before, after)
	out := make([]PathChange, 0, len(changes))
	for _, c := range changes {
		e, service := effect.OfRole(minor, role, c.Document, c.Path)
		out = append(out, PathChange{
			Document: c.Document, Path: c.Path, Effect: string(e), Service: service, Before: c.Before, After: c.After,
		})
	}
	return out
}

// worst is the most disruptive effect: reboot, restart, live, install.
func worst(paths []PathChange) string {
	all := make([]effect.Effect, len(paths))
	for i, p := range paths {
		all[i] = effect.Effect(p.Effect)
	}
	return string(effect.Worst(all...))
}

// minorOf is the minor of a cluster's Talos version: 13 for v1.13.5; 0 where it can't be read.
func minorOf(cl *fleet.Cluster) int {
	parts := strings.Split(strings.TrimPrefix(cl.Manifest.Spec.TalosVersion, "v"), ".")
	if len(parts) < 2 {
		return 0
	}
	minor, err := strconv.Atoi(parts[1])
	if err != nil {
		return 0
	}
	return minor
}

// removedMachines adds the machines that were approved on base and are gone, or rejected. What may stand in a manifest
// that does not parse is unknown, not gone; a released cluster's machines are not touched.
func (s *session) removedMachines() {
	if s.base == nil {
		return
	}
	for _, m := range rules.Removals(s.context()) {
		s.report.Machines = append(s.report.Machines, Machine{
			Cluster: m.Cluster, Name: m.Name, Role: m.Manifest.Spec.Role, Change: ChangeRemove,
			Effect: string(effect.None), Paths: []PathChange{},
		})
	}
}

// sameInputs tells whether everything that goes into all renders of a cluster is the same on both sides.
func sameInputs(a, b *fleet.Cluster) bool {
	if !sameJSON(a.Manifest.Spec, b.Manifest.Spec) || len(a.Patches) != len(b.Patches) || !sameFile(a.Secrets, b.Secrets) {
		return false
	}
	for i := range a.Patches {
		x, y := a.Patches[i], b.Patches[i]
		if x.Name != y.Name || !sameJSON(x.Manifest.Spec.Selector, y.Manifest.Spec.Selector) || len(x.Entries) != len(y.Entries) {
			return false
		}
		for j := range x.Entries {
			if !bytes.Equal(x.Entries[j].Raw, y.Entries[j].Raw) || x.Entries[j].JSON != y.Entries[j].JSON {
				return false
			}
		}
	}
	return true
}

func sameFile(a, b *fleet.File) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(a.Data, b.Data)
}

// sameMachine tells whether a machine's own part of its render is the same.
func sameMachine(a, b *fleet.Machine) bool {
	// A file that did not change gives the same object, see fleet.Cache.
	return a.Name == b.Name && (a.Manifest == b.Manifest || sameJSON(a.Manifest, b.Manifest))
}

// sameJSON compares plain data by its JSON form, which sorts maps.
func sameJSON(a, b any) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// secretMark is what stands for a secret value that changed.
var secretMark = fmt.Sprintf("%s (changed)", mask.Marker)
