package rules

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// talosAPIPort is where a machine's Talos API listens when its endpoint names no port.
const talosAPIPort = 50000

// kubernetesAPIPort is the default port of a cluster's endpoint.
const kubernetesAPIPort = 6443

func uniqueRule() Rule {
	return Rule{
		ID: "unique",
		Doc: "No name twice in a kind; no two machines with the same endpoint, UUID or fingerprint, or of one cluster " +
			"with the same hostname; no two clusters with the same endpoint.",
		Check: checkUnique,
	}
}

// claim is one use of a value that must be unique.
type claim struct {
	object *fleet.Object
	path   string
	// scope, within and value must not come together twice. within is a cluster, "" the fleet.
	scope, within, value string
	// what and shown name the value in the message: `endpoint `, `10.0.0.1:50000`.
	what, shown string
}

func (c *claim) key() claimKey { return claimKey{c.scope, c.within, c.value} }

type claimKey struct{ scope, within, value string }

func checkUnique(c *Context) []fleet.Problem {
	if !anyTwice(c.Head) {
		return nil
	}
	var claims []claim
	eachClaim(c.Head, func(cl claim) bool {
		claims = append(claims, cl)
		return true
	})
	return duplicates(claims)
}

// anyTwice tells whether two claims may be the same: hardly ever in a fleet, which has tens of thousands of them. It
// keeps their hashes only; that two different ones have the same costs the work of the comparison.
func anyTwice(f *fleet.Fleet) bool {
	n := 0
	for _, cl := range f.Clusters {
		n += 4*len(cl.Machines) + len(cl.Patches) + 8
	}
	seed, seen := maphash.MakeSeed(), make(map[uint64]struct{}, n)
	var h maphash.Hash
	h.SetSeed(seed)
	twice := false
	eachClaim(f, func(c claim) bool {
		h.Reset()
		for _, part := range [...]string{c.scope, c.within, c.value} {
			_, _ = h.WriteString(part) // it never fails
			_ = h.WriteByte(0)
		}
		before := len(seen)
		seen[h.Sum64()] = struct{}{}
		twice = len(seen) == before
		return !twice
	})
	return twice
}

// eachClaim gives every claim of a fleet to yield, until that says false.
func eachClaim(f *fleet.Fleet, yield func(claim) bool) {
	for _, cl := range f.Clusters {
		if !eachName(cl, yield) {
			return
		}
		if e, claimed := clusterEndpointClaim(cl); claimed && !yield(e) {
			return
		}
		for _, m := range cl.Machines {
			if !eachOfMachine(m, yield) {
				return
			}
		}
	}
	for _, p := range f.Policies {
		if !yield(nameClaim(&p.Object)) {
			return
		}
	}
}

// duplicates reports every claim but the first of each value, at its own place, naming the first.
func duplicates(claims []claim) []fleet.Problem {
	slices.SortStableFunc(claims, func(a, b claim) int {
		return comparePlaces(a.object.Pos, b.object.Pos)
	})
	first := make(map[claimKey]*claim, len(claims))
	var problems []fleet.Problem
	for i := range claims {
		cl := &claims[i]
		f := first[cl.key()]
		if f == nil {
			first[cl.key()] = cl
			continue
		}
		msg := cl.what + cl.shown + " is taken by " + f.object.ID()
		if f.object.Cluster != cl.object.Cluster && f.object.Kind != v1alpha1.KindTalosCluster {
			msg += " of cluster " + f.object.Cluster
		}
		p := problemAt(*cl.object, cl.path, msg+" at "+place(f.object.At(f.path)))
		p.Hint = "change one of the two, or delete the one that is too many"
		problems = append(problems, p)
	}
	return problems
}

func nameClaim(o *fleet.Object) claim {
	c := claim{object: o, path: "metadata.name", scope: o.Kind, value: o.Name, what: "the name ", shown: o.Name}
	if o.Kind != v1alpha1.KindTalosCluster {
		c.within = o.Cluster
	}
	return c
}

// eachName gives the names of a cluster and of all that is in it; false where yield said so.
func eachName(cl *fleet.Cluster, yield func(claim) bool) bool {
	if cl.Manifest != nil && !yield(nameClaim(&cl.Object)) {
		return false
	}
	for _, m := range cl.Machines {
		if !yield(nameClaim(&m.Object)) {
			return false
		}
	}
	for _, p := range cl.Patches {
		if !yield(nameClaim(&p.Object)) {
			return false
		}
	}
	for _, b := range cl.Backups {
		if !yield(nameClaim(&b.Object)) {
			return false
		}
	}
	for _, p := range cl.Policies {
		if !yield(nameClaim(&p.Object)) {
			return false
		}
	}
	for _, o := range cl.Operations {
		if !yield(nameClaim(&o.Object)) {
			return false
		}
	}
	return true
}

// clusterEndpointClaim is a cluster's endpoint; false where it has none.
func clusterEndpointClaim(cl *fleet.Cluster) (claim, bool) {
	if cl.Manifest == nil || cl.Manifest.Spec.Endpoint.Address == "" {
		return claim{}, false
	}
	e := cl.Manifest.Spec.Endpoint
	port := e.Port
	if port == 0 {
		port = kubernetesAPIPort
	}
	return claim{
		object: &cl.Object, path: "spec.endpoint.address", scope: "cluster endpoint",
		value: canonicalHost(e.Address) + " port " + strconv.Itoa(port),
		what:  "the endpoint ", shown: e.Address + " port " + strconv.Itoa(port),
	}, true
}

// eachOfMachine gives a machine's own claims; a rejected one has none. It is false where yield said so.
func eachOfMachine(m *fleet.Machine, yield func(claim) bool) bool {
	if isRejected(m) {
		return true
	}
	s := &m.Manifest.Spec
	uuid := ""
	if !repeatedUUID(s.UUID) {
		uuid = canonicalUUID(s.UUID)
	}
	for _, c := range [...]claim{
		{path: "spec.endpoint", scope: "endpoint", value: canonicalEndpoint(s.Endpoint), what: "the endpoint ", shown: s.Endpoint},
		{path: "spec.uuid", scope: "uuid", value: uuid, what: "the UUID ", shown: s.UUID},
		{
			path: "spec.certFingerprint", scope: "fingerprint", value: s.CertFingerprint, what: "the certificate fingerprint ",
			shown: s.CertFingerprint,
		},
		{
			path: "spec.hostname", scope: "hostname", within: m.Cluster,
			value: strings.ToLower(strings.TrimSuffix(s.Hostname, ".")), what: "the hostname ", shown: s.Hostname,
		},
	} {
		c.object = &m.Object
		if c.value != "" && !yield(c) {
			return false
		}
	}
	return true
}

// canonicalEndpoint makes `ip`, `ip:50000` and other spellings of one address the same. What is no address stays as
// it is: the schema rule speaks about that.
func canonicalEndpoint(s string) string {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(a.Unmap(), talosAPIPort).String()
	}
	return s
}

// canonicalHost makes spellings of one address or name the same.
func canonicalHost(s string) string {
	s = strings.Trim(s, "[]")
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(s, "."))
}
