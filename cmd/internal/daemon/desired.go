package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/state"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// target is what a cluster is to be brought to: a commit whose part for it passed its check, or a head that did not
// where there is no such commit.
type target struct {
	commit  string
	cluster *fleet.Cluster
	fleet   *fleet.Fleet
	passed  bool
	// digests that the check reported, by machine.
	digests map[string]string
	// head is the commit at the tip; headNote says why it is not the target, "" where it is.
	head, headNote string
	// holds found in the history (force push, mass deletion, gone from the head).
	holds []plan.Hold
	// acked commits that the head's manifests acknowledge.
	acks     []string
	mergedBy string
	// suspend and observe are what the head says where it is not the target: whoever stops Ichor is heard though the
	// rest of the commit is not good.
	suspend, observe bool
	// skipUsed: the annotation that skips the Kubernetes gates was there before this commit; it is good for the one that
	// brought it.
	skipUsed bool
}

// prepared is a target with its secrets opened and its configurations rendered for sending.
type prepared struct {
	target  *target
	bundle  *bundle.Bundle
	results map[string]render.Result
	// fingerprint of bundle and of the encrypted patch values under each MAC key, the first being the newest.
	bundleFPs, valueFPs []string
	holds               []plan.Hold
}

// prepare opens the secrets and renders. What can't be done becomes a hold with a sentence that names files, never
// values.
func prepare(ctx context.Context, t *target, keys bundle.Keys) *prepared {
	p := &prepared{target: t, results: map[string]render.Result{}}
	if t.cluster.Manifest == nil {
		return p
	}
	if t.cluster.Secrets == nil {
		p.hold(state.ReasonSecretsBundleUnavailable, "the secrets bundle %s is not in the repository",
			t.cluster.Manifest.Spec.SecretsRef.Path)
		return p
	}
	b, err := bundle.Open(t.cluster.Secrets.Data, t.cluster.Secrets.Path, keys)
	if err != nil {
		p.hold(state.ReasonSecretsBundleUnavailable, "%s", err)
		return p
	}
	p.bundle = b
	values, err := render.EncryptedValues(t.cluster, keys)
	if err != nil {
		p.hold(state.ReasonSecretsBundleUnavailable, "%s", err)
		return p
	}
	for _, key := range keys.MACKeys("fingerprint") {
		p.bundleFPs = append(p.bundleFPs, b.Fingerprint(key))
		p.valueFPs = append(p.valueFPs, bundle.FingerprintValues(key, values))
	}
	results, err := render.Cluster(ctx, render.Input{Cluster: t.cluster, Bundle: b, Values: keys})
	if err != nil {
		p.hold(state.ReasonFailed, "the cluster does not render with its real secrets (%s)", place(err))
		return p
	}
	for _, r := range results {
		p.results[r.Machine.Name] = r
		// All of a cluster's machines are validated before one is touched. Talos's text is left out: it may quote a value.
		if r.Err != nil && t.passed && r.Machine.Manifest.Spec.ApprovalState == v1alpha1.ApprovalApproved {
			p.hold(state.ReasonFailed, "machine %s does not render with the real secrets, though it does with stand-ins (%s)",
				r.Machine.Name, position(r.Err.Pos))
		}
	}
	return p
}

func (p *prepared) hold(reason, format string, args ...any) {
	p.holds = append(p.holds, plan.Hold{Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// place is all that may be said of an error of a render with real secrets.
func place(err error) string {
	if e, ok := err.(*render.Error); ok {
		return position(e.Pos)
	}
	return "see ichor check"
}

func position(pos fleet.Position) string {
	if pos.Line == 0 {
		return pos.File
	}
	return fmt.Sprintf("%s:%d", pos.File, pos.Line)
}

// desired maps a prepared target into the decision core's words.
func desired(p *prepared, inv *state.ClusterInventory, baseline func(commit string) map[string]string, observeOnly bool,
	now time.Time,
) plan.Desired {
	t := p.target
	d := plan.Desired{
		Name: t.cluster.Name, Commit: t.commit, CheckPassed: t.passed, Acks: slices.Clone(t.acks),
		Holds: append(slices.Clone(t.holds), p.holds...), Observe: observeOnly,
	}
	for _, u := range t.fleet.Unknown {
		if u.Kind == v1alpha1.KindTalosMachine && (u.Cluster == "" || u.Cluster == d.Name) && u.Name != "" {
			d.UnknownMachines = append(d.UnknownMachines, u.Name)
		}
	}
	d.SecretsFingerprint, d.EncryptedFingerprint = known(p.bundleFPs, inv, false), known(p.valueFPs, inv, true)
	d.RenewedSecrets, d.RenewedEncrypted = known(p.bundleFPs, nil, false), known(p.valueFPs, nil, true)
	if t.cluster.Manifest != nil {
		specInto(&d, t.cluster, now)
	}
	d.Suspend, d.Observe = d.Suspend || t.suspend, d.Observe || t.observe
	if t.skipUsed {
		d.SkipKubernetesGates = ""
	}
	for _, m := range t.cluster.Machines {
		d.Machines = append(d.Machines, machineWish(p, m, inv, baseline))
	}
	return d
}

// known prefers the fingerprint that the inventory has, if any key gives it: an age identity may be rotated.
func known(fps []string, inv *state.ClusterInventory, values bool) string {
	if inv != nil {
		was := inv.SecretsFingerprint
		if values {
			was = inv.EncryptedFingerprint
		}
		if slices.Contains(fps, was) {
			return was
		}
	}
	if len(fps) > 0 {
		return fps[0]
	}
	return ""
}

func specInto(d *plan.Desired, c *fleet.Cluster, now time.Time) {
	s := c.Manifest.Spec.Defaulted()
	r := s.Rollout
	d.Observe = d.Observe || r.Mode == v1alpha1.ModeObserve
	d.Suspend = s.Suspend
	d.TalosVersion, d.KubernetesVersion, d.Contract = s.TalosVersion, s.KubernetesVersion, s.Contract
	d.ControlPlaneCount = s.ControlPlane.Count
	d.SkipKubernetesGates = c.Manifest.Metadata.Annotations[v1alpha1.AnnotationSkipKubernetesGates]
	d.Settle = r.Settle.Or(v1alpha1.DefaultSettle)
	d.Grace = s.Reachability.Grace.Or(v1alpha1.DefaultGrace)
	d.Interval = s.Reachability.Interval.Or(v1alpha1.DefaultInterval)
	d.Reboot, d.InWindow = r.Reboot, inWindow(r.Windows, now)
	d.Try = *r.Try
	d.ReportDrift = r.OnDrift == v1alpha1.DriftReport
	d.Acks = append(d.Acks, ackList(c.Manifest.Metadata.Annotations)...)
	workers := 0
	for _, m := range c.Machines {
		if m.Manifest.Spec.Role == v1alpha1.RoleWorker && m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalApproved {
			workers++
		}
	}
	d.WorkerMaxUnavailable = r.WorkerMaxUnavailable.Of(workers)
}

// ackList reads the acknowledgements of an annotation: digests and commits, separated by commas or spaces.
func ackList(annotations map[string]string) []string {
	return strings.FieldsFunc(annotations[v1alpha1.AnnotationAck], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
}

func machineWish(p *prepared, m *fleet.Machine, inv *state.ClusterInventory,
	baseline func(commit string) map[string]string,
) plan.DesiredMachine {
	s := m.Manifest.Spec
	w := plan.DesiredMachine{
		Name: m.Name, Role: s.Role, Approval: s.ApprovalState, Endpoint: s.Endpoint, Hostname: s.Hostname, UUID: s.UUID,
		CertFingerprint: s.CertFingerprint, CheckedDigest: p.target.digests[m.Name],
	}
	if r, ok := p.results[m.Name]; ok && r.Err == nil {
		w.Digest = r.Digest
	}
	if inv != nil && inv.Machines[m.Name] != nil {
		if commit := inv.Machines[m.Name].InForceCommit; commit != "" {
			w.BaselineDigest = baseline(commit)[m.Name]
		}
	}
	return w
}

// inWindow tells whether a maintenance window is open; without windows it always is. The manifests' expressions were
// checked by the loader; one that does not parse keeps its window shut.
func inWindow(windows []v1alpha1.WindowSpec, now time.Time) bool {
	if len(windows) == 0 {
		return true
	}
	for _, w := range windows {
		zone := time.UTC
		if w.TimeZone != "" {
			z, err := time.LoadLocation(w.TimeZone)
			if err != nil {
				continue
			}
			zone = z
		}
		schedule, err := cron.ParseStandard(w.Start)
		if err != nil {
			continue
		}
		length := w.Duration.Or(0)
		if begin := schedule.Next(now.In(zone).Add(-length)); !begin.After(now) {
			return true
		}
	}
	return false
}

// nodes is what the observer reads for a prepared target: its approved machines, and those of the inventory that the
// head no longer has, which are looked at but have no wish.
func nodes(p *prepared, d *plan.Desired, inv *state.ClusterInventory, policy plan.Policy, fingerprintKey []byte) *observe.Cluster {
	spec := &observe.Cluster{
		Name: d.Name, Bundle: p.bundle, Interval: d.Interval, Grace: d.Grace, Retry: policy.UnreachableRetry,
		MaxIndexLag: policy.MaxIndexLag, FingerprintKey: fingerprintKey,
	}
	listed := map[string]bool{}
	for _, w := range d.Machines {
		listed[w.Name] = true
		known := inv != nil && inv.Machines[w.Name] != nil
		if w.Approval != v1alpha1.ApprovalApproved && !known {
			continue
		}
		m := observe.Machine{Name: w.Name, Role: w.Role, Endpoint: w.Endpoint}
		if r, ok := p.results[w.Name]; ok && r.Err == nil {
			m.Wish, m.Masked, m.Digest = r.Config, r.Masked, r.Digest
		}
		if known {
			m.NodeReadySeen = inv.Machines[w.Name].NodeReadySeen
		}
		spec.Machines = append(spec.Machines, m)
	}
	if inv != nil {
		for name, m := range inv.Machines {
			if !listed[name] && m.RemovedAt.IsZero() && m.Endpoint != "" {
				spec.Machines = append(spec.Machines, observe.Machine{
					Name: name, Role: m.Role, Endpoint: m.Endpoint, NodeReadySeen: m.NodeReadySeen,
				})
			}
		}
	}
	slices.SortFunc(spec.Machines, func(a, b observe.Machine) int { return strings.Compare(a.Name, b.Name) })
	return spec
}
