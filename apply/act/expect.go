package act

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/apply/observe"
	"ichor.maesh.dev/ichor/apply/plan"
)

// expected reads the machine, and those that Expect names, once more, and compares. Facts older than this call don't
// count.
func (t *task) expected(ctx context.Context) error {
	e := t.action.Expect
	which := append([]string{t.action.Machine}, e.OthersHealthy...)
	which = append(which, e.EtcdEmptyOn...)
	began := t.Now()
	all, err := t.Observer.Observe(ctx, t.cluster.Nodes, which)
	if err != nil {
		return fmt.Errorf("%w: %w", errPrecondition, err)
	}
	fresh := func(name string) (plan.MachineFacts, error) {
		f, ok := all[name]
		if !ok || f.At.Before(began) {
			return f, fmt.Errorf("%w: %s could not be read just now", errPrecondition, name)
		}
		return f, nil
	}
	f, err := fresh(t.action.Machine)
	if err != nil {
		return err
	}
	t.facts = f
	if err := itself(e, f); err != nil && !e.Dead {
		return fmt.Errorf("%w: %s %w", errPrecondition, t.action.Machine, err)
	}
	others := map[string]plan.MachineFacts{}
	for _, name := range e.OthersHealthy {
		f, err := fresh(name)
		if err != nil {
			return err
		}
		if err := t.healthy(name, f); err != nil {
			return err
		}
		others[name] = f
	}
	if e.Dead {
		if err := t.stillDead(f, others); err != nil {
			return err
		}
	}
	if err := oneLeader(e.OthersHealthy, others); err != nil {
		return err
	}
	if err := members(e, others); err != nil {
		return err
	}
	for _, name := range e.EtcdEmptyOn {
		f, err := fresh(name)
		if err != nil {
			return err
		}
		if why := notEmpty(f); why != "" {
			return fmt.Errorf("%w: %s %s", errPrecondition, name, why)
		}
	}
	return nil
}

// oneLeader: what takes several machines to see. A machine that is to be touched while the others disagree is not.
func oneLeader(names []string, others map[string]plan.MachineFacts) error {
	for _, name := range names {
		if others[name].Etcd == nil || others[names[0]].Etcd == nil || others[name].Etcd.Leader != others[names[0]].Etcd.Leader {
			return fmt.Errorf("%w: %s and %s see different leaders", errPrecondition, names[0], name)
		}
	}
	return nil
}

// itself compares the machine with what is expected of it. An action on a node needs an answer from it in any case.
func itself(e plan.Expect, f plan.MachineFacts) error {
	if f.Reach != plan.ReachOK {
		return fmt.Errorf("does not answer: %s", f.Error)
	}
	if e.Mode != "" && f.Mode != e.Mode {
		return fmt.Errorf("is in mode %s, not %s", mode(f.Mode), e.Mode)
	}
	for _, c := range []struct{ what, want, got string }{
		{"UUID", strings.ToLower(e.UUID), strings.ToLower(f.Identity.UUID)},
		{"node ID", e.NodeID, f.Identity.NodeID},
		{"node name", e.NodeName, f.Identity.NodeName},
		{"etcd member", e.MemberID, f.Identity.MemberID},
		{"certificate fingerprint", e.Fingerprint, f.Fingerprint},
		{"boot ID", e.BootID, f.BootID},
	} {
		if c.want != "" && c.want != c.got {
			return fmt.Errorf("has %s %s, not %s", c.what, orNone(c.got), c.want)
		}
	}
	if e.EtcdDown && !plan.EtcdDown(f) {
		return errors.New("was to be touched because its etcd member was down, and is not seen to be down any more")
	}
	return nil
}

func mode(m plan.Mode) string {
	if m == plan.ModeUnknown {
		return "unknown"
	}
	return string(m)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// node gives a machine of the cluster, nil none.
func (t *task) node(name string) *observe.Machine {
	for i := range t.cluster.Nodes.Machines {
		if m := &t.cluster.Nodes.Machines[i]; m.Name == name {
			return m
		}
	}
	return nil
}

// deathMaxAge of a fact that proves a death just before the call: it was read for it.
const deathMaxAge = 10 * time.Second

func (t *task) healthy(name string, f plan.MachineFacts) error {
	for i := range t.cluster.Nodes.Machines {
		m := &t.cluster.Nodes.Machines[i]
		if m.Name != name {
			continue
		}
		if plan.SeenWell(f, m.Role, m.NodeReadySeen) {
			return nil
		}
		if t.action.Expect.SkipKubernetes && f.Reach == plan.ReachOK && f.Mode == plan.ModeConfigured {
			// The head's annotation leaves readiness out, never etcd.
			v := plan.HealthyMember(f)
			if v.Is == plan.Yes {
				return nil
			}
			return fmt.Errorf("%w: %s is not a healthy member: %s", errPrecondition, name, v.Why)
		}
		return fmt.Errorf("%w: %s is not healthy: %s", errPrecondition, name, unwell(f, m.Role, m.NodeReadySeen))
	}
	return fmt.Errorf("%w: there is no machine %s", errPrecondition, name)
}

func unwell(f plan.MachineFacts, role string, nodeReadySeen bool) string {
	switch {
	case f.Reach != plan.ReachOK:
		return "it does not answer: " + f.Error
	case f.Mode != plan.ModeConfigured:
		return "it is in mode " + mode(f.Mode)
	}
	if v := plan.Ready(f, role, nodeReadySeen); v.Is != plan.Yes {
		return v.Why
	}
	return plan.HealthyMember(f).Why
}

// notEmpty says why a control plane is not seen waiting without etcd data, "" where it is.
func notEmpty(f plan.MachineFacts) string {
	switch {
	case f.Reach != plan.ReachOK:
		return "does not answer, so it may have etcd data: " + f.Error
	case f.Mode != plan.ModeConfigured:
		return "is in mode " + mode(f.Mode)
	case f.Etcd == nil:
		return "does not say what its etcd does"
	case f.Etcd.State != "Preparing":
		return "is not waiting for bootstrap: its etcd is " + orNone(f.Etcd.State)
	case f.Etcd.MemberID != "" || len(f.Etcd.Members) > 0:
		return "is an etcd member already"
	}
	return ""
}
