package plan

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/schemas/state"
)

// identity is what is known of who answers at a machine's endpoint.
type identity struct {
	is  Tri
	why string
	// first: proved by the manifest or by nothing but the address and the CA, not by pinned values.
	first bool
}

func (i identity) proved() bool   { return i.is == Yes }
func (i identity) mismatch() bool { return i.is == No }

// identify compares who answers with who it should be (SPEC section 4, "Identity"). What could not be read proves
// nothing and is no mismatch.
func (w *world) identify(m *machine) {
	switch m.mode() {
	case ModeUnknown:
		m.ident = identity{why: "who answers is not known"}
	case ModeForeign:
		m.ident = mismatch("the endpoint %s presents a certificate of another authority, not of this cluster", m.facts.Endpoint)
	case ModeMaintenance:
		m.ident = w.identifyMaintenance(m)
	case ModeConfigured:
		m.ident = w.identifyConfigured(m)
	}
}

func mismatch(format string, args ...any) identity {
	return identity{is: No, why: fmt.Sprintf(format, args...)}
}

const seemsNew = "; if the box was exchanged or reinstalled, a replaceMachine operation says so"

// identifyMaintenance: only a machine that was never configured may wait in maintenance mode, and only the one meant.
func (w *world) identifyMaintenance(m *machine) identity {
	f := m.facts
	seen := f.Identity.UUID
	if m.known() {
		return mismatch("it is in maintenance mode, where the configured machine %s is expected (seen UUID %s)%s",
			describe(m.inv.Identity), orNone(seen), seemsNew)
	}
	if m.want == nil {
		return identity{why: "no manifest says who it should be"}
	}
	if member := w.listedMember(m.want.Hostname); m.controlPlane() && member != "" {
		return mismatch("it is in maintenance mode, but etcd lists its name %s as member %s%s", m.want.Hostname, member, seemsNew)
	}
	if want := m.want.CertFingerprint; want != "" && f.Fingerprint != want {
		if f.Fingerprint == "" {
			return identity{why: "the fingerprint of its certificate is not known"}
		}
		return mismatch("its maintenance certificate has fingerprint %s, the manifest says %s", f.Fingerprint, want)
	}
	if want := w.expectedUUID(m); want != "" {
		if seen == "" {
			return identity{why: "its UUID is not known"}
		}
		if !strings.EqualFold(seen, want) {
			return mismatch("the box has UUID %s, expected is %s%s", seen, want, seemsNew)
		}
	}
	if other := w.pinnedElsewhere(m, f.Identity); other != "" {
		return mismatch("the box is pinned as machine %s (UUID %s)", other, seen)
	}
	return identity{is: Yes, first: true}
}

// expectedUUID is the manifest's, else the one that was pinned at the install.
func (w *world) expectedUUID(m *machine) string {
	if m.want != nil && m.want.UUID != "" {
		return m.want.UUID
	}
	if m.inv != nil {
		return m.inv.Identity.UUID
	}
	return ""
}

// identifyConfigured: the certificate is of the cluster's CA (else the mode is foreign); here it is who it was.
func (w *world) identifyConfigured(m *machine) identity {
	seen := m.facts.Identity
	var pin state.Identity
	if m.inv != nil {
		pin = m.inv.Identity
	}
	if other := w.pinnedElsewhere(m, seen); other != "" {
		return mismatch("the endpoint answers as machine %s (%s)", other, describe(seen))
	}
	if want := w.expectedUUID(m); want != "" {
		if seen.UUID == "" {
			return identity{why: "its UUID is not known"}
		}
		if !strings.EqualFold(seen.UUID, want) {
			return mismatch("the endpoint answers as %s, expected is UUID %s%s", describe(seen), want, seemsNew)
		}
	}
	if pin.NodeID == "" {
		return w.identifyFirst(m, seen)
	}
	if seen.NodeID == "" {
		return identity{why: "its Talos node ID is not known"}
	}
	if seen.NodeID != pin.NodeID {
		return mismatch("the endpoint answers as %s, pinned is %s%s", describe(seen), describe(pin), seemsNew)
	}
	if pin.NodeName != "" && seen.NodeName != "" && seen.NodeName != pin.NodeName && !m.renamed(seen.NodeName) {
		return mismatch("the endpoint answers as node %s, pinned is node %s", seen.NodeName, pin.NodeName)
	}
	if pin.MemberID != "" && seen.MemberID != "" && seen.MemberID != pin.MemberID {
		return mismatch("its etcd member is %s, pinned is %s%s", seen.MemberID, pin.MemberID, seemsNew)
	}
	return identity{is: Yes}
}

// identifyFirst: before anything is pinned the manifest's hostname is compared where it has no UUID, else nothing but
// the address and the CA.
func (w *world) identifyFirst(m *machine, seen state.Identity) identity {
	if m.want == nil {
		return identity{why: "no manifest says who it should be"}
	}
	if m.want.UUID != "" || m.want.Hostname == "" || m.sentAny() {
		return identity{is: Yes, first: true}
	}
	if m.facts.Hostname == "" {
		return identity{why: "its hostname is not known"}
	}
	if m.facts.Hostname != m.want.Hostname {
		return mismatch("the endpoint answers as %s, expected is hostname %s", m.facts.Hostname, m.want.Hostname)
	}
	return identity{is: Yes, first: true}
}

// sentAny: Ichor itself sent this machine a configuration at its install, so that it was proved then.
func (m *machine) sentAny() bool {
	return m.inv != nil && m.inv.SentDigest != "" && m.inv.Identity.UUID != ""
}

// renamed tells whether a node name is explained by a hostname that was applied or is wished.
func (m *machine) renamed(name string) bool {
	if m.inv != nil && name == m.inv.Hostname {
		return true
	}
	return m.want != nil && (m.want.Hostname == "" || name == m.want.Hostname)
}

// pinnedElsewhere names another machine that is pinned to what is seen here.
func (w *world) pinnedElsewhere(m *machine, seen state.Identity) string {
	list := w.index.nodeIDs[seen.NodeID]
	if seen.NodeID == "" && seen.UUID != "" {
		list = w.index.goneUUIDs[seen.UUID]
	}
	if o := other(list, m); o != nil {
		return o.name
	}
	return ""
}

// listedMember is the ID of the etcd member of that name, as any control plane lists it, "" none.
func (w *world) listedMember(name string) string {
	if name == "" {
		return ""
	}
	for _, c := range w.cps {
		if c.mode() != ModeConfigured || c.facts.Etcd == nil {
			continue
		}
		for _, e := range c.facts.Etcd.Members {
			if e.Name == name {
				return e.ID
			}
		}
	}
	return ""
}

func describe(id state.Identity) string {
	return fmt.Sprintf("UUID %s, node ID %s, node name %s", orNone(id.UUID), orNone(id.NodeID), orNone(id.NodeName))
}

func orNone(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
