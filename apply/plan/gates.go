package plan

import (
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// wish is an action on a node that a rule would like; the gates say whether it may.
type wish struct {
	kind ActionKind
	m    *machine
	// disrupts says what it disrupts, "" nothing. destructive acts need their intent pushed (state.Act.Destructive).
	disrupts    string
	destructive bool
	// changes: it brings a configuration onto the node that is not there yet (install, configure).
	changes bool
}

// onMember: the wish is about a configured control plane.
func (a wish) onMember() bool {
	return a.m.controlPlane() && a.kind != DoInstall && a.kind != DoBootstrap
}

// refusal is why not: never a bool.
type refusal struct {
	reason, message string
	// look names machines whose facts are missing or too old.
	look []*machine
	// again is how soon it may be otherwise, 0 unknown.
	again time.Duration
}

func refuse(reason, format string, args ...any) *refusal {
	return &refusal{reason: reason, message: fmt.Sprintf(format, args...)}
}

// gate is one condition of an action on a node. Its name is what a test switches off to see that something falls.
type gate struct {
	name  string
	check func(w *world, a wish) *refusal
}

// allGates in their order: the first that refuses gives the reason.
func allGates() []gate {
	all := append([]gate(nil), clusterGates...)
	all = append(all, machineGates...)
	all = append(all, controlPlaneGates...)
	all = append(all, workerGates...)
	return append(all, bringUpGates...)
}

var gateList = allGates()

// refused asks every gate about a wish; nil: it may. The machine is told why not.
func (w *world) refused(a wish) *refusal {
	for _, g := range gateList {
		if g.name == w.off {
			continue
		}
		r := g.check(w, a)
		if r == nil {
			continue
		}
		for _, m := range r.look {
			w.look(m, "needed to decide on "+a.m.name)
		}
		if r.again > 0 {
			w.again(r.again)
		}
		a.m.say(r.reason, r.message)
		return r
	}
	return nil
}

// clusterGates hold a whole cluster. They are asked with a known inventory only: without one no rule wishes for anything
// (see runDone for what is said).
var clusterGates = []gate{
	{"suspend", func(w *world, _ wish) *refusal {
		if w.in.Desired.Suspend {
			return refuse(state.ReasonSuspended, "the cluster is suspended: no node of it is even read")
		}
		return nil
	}},
	{"observe-mode", func(w *world, _ wish) *refusal {
		if w.in.Desired.Observe {
			return refuse(state.ReasonObserveMode, "observe mode: it would be changed, nothing is written")
		}
		return nil
	}},
	{"check-passed", func(w *world, _ wish) *refusal {
		if !w.in.Desired.CheckPassed {
			return refuse(state.ReasonCheckFailed, "the check of the head did not pass for this cluster: the last good commit stays in force")
		}
		return nil
	}},
	{"hold", func(w *world, a wish) *refusal {
		for _, h := range w.in.Desired.Holds {
			if !h.Destructive {
				return refuse(h.Reason, "%s", h.Message)
			}
		}
		return nil
	}},
	{"hold-destructive", func(w *world, a wish) *refusal {
		for _, h := range w.in.Desired.Holds {
			if h.Destructive && a.destructive {
				return refuse(h.Reason, "%s", h.Message)
			}
		}
		return nil
	}},
	{"secrets-changed", func(w *world, _ wish) *refusal {
		was := w.in.Inventory.SecretsFingerprint
		if was != "" && was != w.in.Desired.SecretsFingerprint {
			return refuse(state.ReasonSecretsChanged, "the secrets bundle is another than the one in force, and no rotation is under way")
		}
		return nil
	}},
	{"version-change", func(w *world, _ wish) *refusal {
		if why := versionChange(w.in); why != "" {
			return refuse(state.ReasonVersionChange, "%s", why)
		}
		return nil
	}},
	{"adoption", func(w *world, _ wish) *refusal {
		if !w.in.Inventory.Adopted {
			return refuse(state.ReasonAdoptionPending, "%s", w.adoption.message)
		}
		return nil
	}},
}

// versionChange says which version the head changes, "" none.
func versionChange(in Input) string {
	for _, v := range []struct{ name, was, is string }{
		{"Talos", in.Inventory.TalosVersion, in.Desired.TalosVersion},
		{"Kubernetes", in.Inventory.KubernetesVersion, in.Desired.KubernetesVersion},
	} {
		if v.was != "" && strings.TrimPrefix(v.was, "v") != strings.TrimPrefix(v.is, "v") {
			return fmt.Sprintf("%s %s to %s: version changes are not supported yet", v.name, v.was, v.is)
		}
	}
	return ""
}

// machineGates hold one machine.
var machineGates = []gate{
	{"approved", func(_ *world, a wish) *refusal {
		if reason, why := a.m.notApproved(); why != "" {
			return refuse(reason, "%s", why)
		}
		return nil
	}},
	{"problem", func(_ *world, a wish) *refusal {
		if a.m.want.Problem != "" {
			return refuse(state.ReasonCheckFailed, "%s", a.m.want.Problem)
		}
		return nil
	}},
	{"checked-digest", func(_ *world, a wish) *refusal {
		if a.m.digest() == "" || a.m.want.CheckedDigest != a.m.digest() {
			return refuse(state.ReasonCheckFailed, "the configuration rendered for it (%s) is not the one that was checked (%s)",
				orNone(a.m.digest()), orNone(a.m.want.CheckedDigest))
		}
		return nil
	}},
	{"identity", func(w *world, a wish) *refusal {
		switch a.m.ident.is {
		case Yes:
			return nil
		case No:
			return refuse(state.ReasonEndpointIdentityMismatch, "%s", a.m.ident.why)
		}
		r := refuse(state.ReasonWaiting, "%s, and nothing is written before it is", a.m.ident.why)
		r.look = []*machine{a.m}
		return r
	}},
	{"fresh", func(w *world, a wish) *refusal {
		if !a.m.fresh(w.in.Now, w.in.Policy.FactMaxAge) {
			r := refuse(state.ReasonWaiting, "it has to be read again before it is touched")
			r.look = []*machine{a.m}
			return r
		}
		return nil
	}},
	{"intent-open", func(_ *world, a wish) *refusal {
		if len(a.m.intents) > 0 {
			return refuse(state.ReasonProgressing, "the outcome of its %s is not seen yet", a.m.intents[0].Act)
		}
		return nil
	}},
	{"machine-adoption", func(w *world, a wish) *refusal {
		if a.m.mode() == ModeConfigured && a.m.inv == nil && !w.adoption.free(a.m) {
			return refuse(state.ReasonAdoptionPending, "it is configured, but the inventory does not know it, and it differs from the head; acknowledge %s", w.adoption.digest)
		}
		return nil
	}},
	{"tool-render", func(w *world, a wish) *refusal {
		if a.changes {
			return toolChanged(w, a.m)
		}
		return nil
	}},
	{"image", func(_ *world, a wish) *refusal {
		if a.kind == DoConfigure && a.m.inv != nil && a.m.inv.InForceDigest != "" && a.m.imageDiffers() {
			return refuse(state.ReasonVersionChange, "the installer image differs, and changing it is an upgrade: upgrades are not supported yet")
		}
		return nil
	}},
	{"contract", func(w *world, a wish) *refusal {
		if !a.changes {
			return nil
		}
		want, runs := minor(w.in.Desired.Contract), minor(a.m.facts.TalosVersion)
		if want < 0 {
			return nil
		}
		if runs < 0 {
			r := refuse(state.ReasonWaiting, "the Talos version that it runs is not known")
			r.look = []*machine{a.m}
			return r
		}
		if want > runs {
			return refuse(state.ReasonNotSupported, "the contract %s is above the Talos %s that it runs: upgrade first", w.in.Desired.Contract, a.m.facts.TalosVersion)
		}
		return nil
	}},
	{"failed", func(_ *world, a wish) *refusal {
		if a.changes && a.m.failed() {
			return refuse(state.ReasonFailed, "%s", a.m.failure())
		}
		return nil
	}},
	{"try-window", func(w *world, a wish) *refusal {
		if a.kind == DoConfirm {
			return nil
		}
		if left := w.tryLeft(a.m); left > 0 {
			r := refuse(state.ReasonWaiting, "it runs a configuration on trial; nothing else is sent until that is confirmed or taken back")
			r.again = left
			return r
		}
		return nil
	}},
	{"reboot-policy", func(w *world, a wish) *refusal {
		if a.kind != DoReboot {
			return nil
		}
		if why := w.rebootHeld(); why != "" {
			return refuse(state.ReasonRebootPending, "%s", why)
		}
		return nil
	}},
	{"boot-known", func(_ *world, a wish) *refusal {
		if a.kind == DoReboot && a.m.facts.BootID == "" {
			r := refuse(state.ReasonWaiting, "its boot ID is not known, so a reboot could not be seen to have happened")
			r.look = []*machine{a.m}
			return r
		}
		return nil
	}},
}

// rebootHeld says why Ichor does not reboot machines now, "" it does.
func (w *world) rebootHeld() string {
	switch d := w.in.Desired; {
	case d.Reboot == "manual":
		return "a reboot is pending; rollout.reboot is manual: a person reboots it"
	case d.Reboot == "window" && !d.InWindow:
		return "a reboot is pending and waits for the next window"
	}
	return ""
}

// toolChanged: the render in force would be another today for the same commit (SPEC section 2, "What was checked is
// what is applied").
func toolChanged(w *world, m *machine) *refusal {
	if m.inv == nil || m.inv.InForceDigest == "" || m.inv.InForceDigest == m.digest() {
		return nil
	}
	if m.want.BaselineDigest == m.inv.InForceDigest || w.acked(m.digest()) || w.acked(w.toolDigest()) {
		return nil
	}
	if m.want.BaselineDigest == "" {
		return refuse(state.ReasonRenderChangedByTool, "what the commit in force renders to today is not known; acknowledge %s", m.digest())
	}
	return refuse(state.ReasonRenderChangedByTool, "render changed by the tool: the commit in force renders differently today; acknowledge %s", m.digest())
}

// tryLeft is how long a try may still be pending on a machine, 0 not. It goes by the inventory alone: a node that was
// rebooted since the last apply shows no stored configuration, so that a try can't be seen on it.
func (w *world) tryLeft(m *machine) time.Duration {
	if m.inv == nil || m.inv.SentMode != string(SendTry) || m.inv.SentAt.IsZero() {
		return 0
	}
	return max(0, m.inv.SentAt.Add(w.tryTimeout()).Sub(w.in.Now))
}

// tryTimeout is how long the node waits before it takes a tried configuration back: longer than settle.
func (w *world) tryTimeout() time.Duration { return w.in.Desired.Settle + w.in.Policy.TryMargin }
