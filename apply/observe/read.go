package observe

import (
	"context"
	"errors"
	"fmt"

	"ichor.maesh.dev/ichor/apply/plan"
	"ichor.maesh.dev/ichor/apply/talos"
)

var errNoBundle = errors.New("read the nodes: the secrets bundle can't be opened")

// read is one look at one machine.
type read struct {
	observer *Observer
	cluster  *cluster
	spec     *Cluster
	machine  *Machine
	before   machine

	facts    plan.MachineFacts
	indexes  []sample
	compared comparison
	// minor of the node's Talos version, 0 unknown.
	minor int
}

// run fills the facts. It asks the secure API first where the machine was configured at the look before, so that a pass
// over nodes at rest makes no handshake; else, and where that failed, a bare handshake tells the mode.
func (r *read) run(ctx context.Context) {
	r.indexes, r.compared = r.before.indexes, r.before.compared
	if r.before.facts.Mode == plan.ModeConfigured && r.before.facts.Reach == plan.ReachOK {
		r.begin()
		err := r.configured(ctx)
		if err == nil {
			return
		}
		if talos.Is(err, talos.Timeout) {
			// A handshake would wait as long once more.
			r.unreachable(err)
			return
		}
	}
	r.begin()
	p, err := r.cluster.talos.Probe(ctx, r.machine.Endpoint)
	if err != nil {
		r.unreachable(err)
		return
	}
	r.facts.Mode, r.facts.Fingerprint = p.Mode, p.Fingerprint
	switch p.Mode {
	case plan.ModeConfigured:
		if err := r.configured(ctx); err != nil {
			if p.Expired {
				err = fmt.Errorf("its certificate is not valid now (check its clock): %w", err)
			}
			r.unreachable(err)
		}
	case plan.ModeMaintenance:
		if err := r.maintenance(ctx, p.Fingerprint); err != nil {
			r.unreachable(err)
		}
	default:
		r.facts.Reach = plan.ReachOK
		r.facts.Error = "another certificate authority signed what it presents (CN " + p.CommonName + ")"
	}
}

// begin starts over. At is the time before the first call, so that a fact is never taken for younger than it is.
func (r *read) begin() {
	r.facts = plan.MachineFacts{At: r.observer.opt.Now(), Endpoint: r.machine.Endpoint}
}

// unreachable keeps nothing but the error: what was seen before is not known any more.
func (r *read) unreachable(err error) {
	r.facts = plan.MachineFacts{At: r.facts.At, Endpoint: r.machine.Endpoint, Reach: plan.ReachUnreachable, Error: err.Error()}
}

// maintenance reads what a reader may in maintenance mode, on a connection pinned to the certificate that was seen.
func (r *read) maintenance(ctx context.Context, pinned string) error {
	c, err := r.cluster.talos.Maintenance(r.machine.Endpoint, pinned)
	if err != nil {
		return err
	}
	defer c.Close()
	f := &r.facts
	// Talos 1.12 answers Version in maintenance mode with Unimplemented.
	if f.TalosVersion, err = optional(c.Version(ctx)); err != nil {
		return err
	}
	if f.Identity.UUID, err = optional(c.UUID(ctx)); err != nil {
		return err
	}
	if f.Hostname, err = optional(c.Hostname(ctx)); err != nil {
		return err
	}
	if err := r.status(ctx, c); err != nil {
		return err
	}
	installed, err := c.Installed(ctx)
	if talos.IsUnreachable(err) {
		return err
	}
	if err == nil {
		f.SystemDisk = &installed
	}
	f.Mode, f.Reach = plan.ModeMaintenance, plan.ReachOK
	return nil
}

// optional lets an error pass only where the node does not answer at all: one value that can't be read hides no other.
func optional[T any](v T, err error) (T, error) {
	if talos.IsUnreachable(err) {
		return v, err
	}
	return v, nil
}

// status reads MachineStatus into the facts.
func (r *read) status(ctx context.Context, c *talos.Client) error {
	st, err := optional(c.MachineStatus(ctx))
	if err != nil {
		return err
	}
	if st == nil {
		return nil
	}
	f := &r.facts
	f.Stage, f.Ready, f.Unmet = st.Stage, &st.Ready, st.Unmet
	if st.Stage == "booting" || st.Stage == "running" {
		// The conditions are looked at in these stages only (talos.md 5).
		ready := true
		for _, u := range st.Unmet {
			ready = ready && u != "nodeReady"
		}
		f.NodeReady = &ready
	}
	return nil
}

// configured reads everything over the secure API. It fails only where the node does not answer.
func (r *read) configured(ctx context.Context) error {
	c, err := r.cluster.talos.Secure(r.machine.Endpoint, talos.Reader)
	if err != nil {
		return err
	}
	f := &r.facts
	// The first call proves the connection; one that is refused here means that the node does not take our certificate.
	if f.TalosVersion, err = c.Version(ctx); err != nil {
		return err
	}
	f.Mode = plan.ModeConfigured
	r.minor = minorOf(f.TalosVersion)
	for _, step := range []func(context.Context, *talos.Client) error{r.status, r.services, r.bootID, r.identity, r.config} {
		if err := step(ctx, c); err != nil {
			return err
		}
	}
	if r.machine.Role == plan.RoleControlPlane {
		if f.APIServerReady, err = optional(c.APIServerReady(ctx)); err != nil {
			return err
		}
		if err := r.etcd(ctx, c); err != nil {
			return err
		}
	}
	f.Reach = plan.ReachOK
	return nil
}

func (r *read) services(ctx context.Context, c *talos.Client) (err error) {
	r.facts.Services, err = optional(c.Services(ctx))
	return err
}

// bootID: up to 1.13 it is only in a file, which takes the role admin to read.
func (r *read) bootID(ctx context.Context, c *talos.Client) (err error) {
	if r.minor == 0 || r.minor >= 14 {
		r.facts.BootID, err = c.BootID(ctx)
		if !talos.Is(err, talos.NotSupported) {
			_, err = optional("", err)
			return err
		}
	}
	admin, err := r.cluster.talos.Secure(r.machine.Endpoint, talos.Admin)
	if err != nil {
		return err
	}
	r.facts.BootID, err = optional(admin.ReadBootID(ctx))
	return err
}

func (r *read) identity(ctx context.Context, c *talos.Client) (err error) {
	f := &r.facts
	for _, one := range []struct {
		into *string
		read func(context.Context) (string, error)
	}{
		{&f.Identity.UUID, c.UUID},
		{&f.Identity.NodeID, c.NodeID},
		{&f.Hostname, c.Hostname},
		{&f.Identity.NodeName, c.Nodename},
	} {
		if *one.into, err = optional(one.read(ctx)); err != nil {
			return err
		}
	}
	installed, err := c.Installed(ctx)
	if talos.IsUnreachable(err) {
		return err
	}
	if err == nil {
		f.SystemDisk = &installed
	}
	return nil
}
