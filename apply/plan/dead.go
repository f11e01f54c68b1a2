package plan

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Death is what is known of a control plane that may be dead (SPEC section 4, "Except").
type Death struct {
	Now time.Time
	// Grace after which silence counts; MaxAge of a fact that counts at all.
	Grace, MaxAge time.Duration
	// Pinned identity of the machine. Its MemberID is the member in question.
	Pinned state.Identity
	Facts  MachineFacts
	// Siblings are the facts of the other control planes whose identity is proved, by name.
	Siblings map[string]MachineFacts
}

// Dead says whether a control plane is proved dead: Yes with the proof, No with what speaks for its life, Unknown with what
// is missing for a proof. A healthy sibling's etcd must list its member. It is the one place where that is decided: the
// decision core asks it, and act asks it again with new facts just before the call.
func Dead(d Death) Verdict {
	member, from, v := d.listed()
	if v.Is != Yes {
		return v
	}
	if d.Facts.Reach == ReachUnknown {
		return unknown("it was not looked at")
	}
	if age := d.Now.Sub(d.Facts.At); age > d.MaxAge || age < 0 {
		return unknown("it must be read again")
	}
	switch {
	case d.Facts.Reach == ReachUnreachable:
		return d.silent(from)
	case d.Facts.Mode == ModeMaintenance:
		return d.replaced(member, "a box waits in maintenance mode in its place")
	case d.Facts.Mode == ModeConfigured:
		return d.answers(member)
	}
	return unknown("who answers at " + d.Facts.Endpoint + " is not known")
}

// listed finds the member as a healthy sibling lists it.
func (d Death) listed() (Member, string, Verdict) {
	if d.Pinned.MemberID == "" {
		return Member{}, "", unknown("no etcd member is known to be its own, and a name alone proves nothing")
	}
	var names []string
	for name, f := range d.Siblings {
		age := d.Now.Sub(f.At)
		if f.Reach == ReachOK && f.Mode == ModeConfigured && age <= d.MaxAge && age >= 0 && HealthyMember(f).Is == Yes {
			names = append(names, name)
		}
	}
	if names == nil {
		return Member{}, "", unknown("no healthy control plane can be asked about it")
	}
	sort.Strings(names)
	for _, name := range names {
		for _, m := range d.Siblings[name].Etcd.Members {
			if m.ID == d.Pinned.MemberID {
				return m, name, Verdict{Is: Yes}
			}
		}
	}
	return Member{}, "", unknown("etcd does not list its member " + d.Pinned.MemberID + ", which proves nothing about the machine")
}

// silent: it does not answer, for longer than the grace, neither Ichor nor through a sibling, and no kubelet of it is seen.
func (d Death) silent(from string) Verdict {
	f := d.Facts
	if k := f.Kube; k != nil && k.Answers && !k.LeaseRenewed.IsZero() && d.Now.Sub(k.LeaseRenewed) <= max(d.Grace, leaseDuration) {
		return no("its kubelet renewed its lease " + roundAge(max(0, d.Now.Sub(k.LeaseRenewed))) + " ago")
	}
	if p := f.Proxy; p != nil && p.Reach == ReachOK && d.Now.Sub(p.At) <= d.MaxAge {
		return no("it answers through " + p.Via + ", though not Ichor")
	}
	if left := d.Grace - d.Now.Sub(f.Since); left >= 0 {
		return unknown("it has not been silent for longer than the grace of " + d.Grace.String())
	}
	if p := f.Proxy; p == nil || p.Reach != ReachUnreachable || d.Now.Sub(p.At) > d.MaxAge || d.Now.Before(p.At) {
		return unknown("whether it answers through a sibling was not seen just now")
	}
	return Verdict{Is: Yes, Why: fmt.Sprintf("it has not answered for longer than the grace of %s, neither Ichor nor through %s, and %s lists its member %s",
		d.Grace, f.Proxy.Via, from, d.Pinned.MemberID)}
}

// leaseDuration is for how long Kubernetes takes a kubelet's lease for a sign of life.
const leaseDuration = 40 * time.Second

// answers: a configured machine is in its place.
func (d Death) answers(member Member) Verdict {
	f := d.Facts
	if id := f.Identity; (id.UUID != "" && d.Pinned.UUID != "" && !strings.EqualFold(id.UUID, d.Pinned.UUID)) ||
		(id.NodeID != "" && d.Pinned.NodeID != "" && id.NodeID != d.Pinned.NodeID) {
		return d.replaced(member, "another installation answers in its place")
	}
	e := f.Etcd
	if e != nil && e.MemberID != "" && e.Leader != "" && e.MemberID == d.Pinned.MemberID {
		return no("its member " + e.MemberID + " answers and sees a leader: it is healthy")
	}
	if f.EtcdFailingSince.IsZero() {
		return unknown("it answers, and its etcd was not seen to fail")
	}
	if d.Now.Sub(f.EtcdFailingSince) <= d.Grace {
		return unknown("its etcd has not failed for longer than the grace of " + d.Grace.String())
	}
	return Verdict{Is: Yes, Why: "its etcd has failed, or has seen no leader, for longer than the grace of " + d.Grace.String()}
}

// replaced: the box is another or was wiped. The same box no longer runs the member; another one stands where the member's
// peers would have to find it.
func (d Death) replaced(member Member, what string) Verdict {
	id := d.Facts.Identity
	switch {
	case id.UUID == "":
		return unknown(what + ", and its UUID is not known")
	case d.Pinned.UUID != "" && strings.EqualFold(id.UUID, d.Pinned.UUID):
		return Verdict{Is: Yes, Why: what + ": the same box, without the installation that was member " + member.ID}
	}
	host := hostOf(d.Facts.Endpoint)
	for _, peer := range member.PeerURLs {
		if host != "" && hostOf(strings.TrimPrefix(peer, "https://")) == host {
			return Verdict{Is: Yes, Why: what + ", at the address where member " + member.ID + " would have to be"}
		}
	}
	return unknown(what + ", but the machine that was member " + member.ID + " may run elsewhere")
}

// hostOf an endpoint, with or without a port; an IPv6 address with one stands in brackets.
func hostOf(endpoint string) string {
	if strings.HasPrefix(endpoint, "[") {
		host, _, _ := strings.Cut(endpoint[1:], "]")
		return host
	}
	if strings.Count(endpoint, ":") == 1 {
		host, _, _ := strings.Cut(endpoint, ":")
		return host
	}
	return endpoint
}
