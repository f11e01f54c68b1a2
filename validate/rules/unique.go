package rules

import (
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
	object fleet.Object
	path   string
	// scope and value must not come together twice.
	scope, value string
	// what names the value in the message: `endpoint 10.0.0.1:50000`.
	what string
}

func checkUnique(c *Context) []fleet.Problem {
	n := 0
	for _, cl := range c.Head.Clusters {
		n += 5*len(cl.Machines) + len(cl.Patches) + 8
	}
	claims := make([]claim, 0, n)
	for _, cl := range c.Head.Clusters {
		claims = append(claims, nameClaims(cl)...)
		claims = append(claims, clusterEndpointClaim(cl)...)
		for _, m := range cl.Machines {
			claims = append(claims, machineClaims(m)...)
		}
	}
	for _, p := range c.Head.Policies {
		claims = append(claims, nameClaim(p.Object))
	}
	return duplicates(claims)
}

// duplicates reports every claim but the first of each value, at its own place, naming the first.
func duplicates(claims []claim) []fleet.Problem {
	claims = contested(claims)
	slices.SortStableFunc(claims, func(a, b claim) int {
		return comparePlaces(a.object.Pos, b.object.Pos)
	})
	first := make(map[claimKey]claim, len(claims))
	var problems []fleet.Problem
	for _, cl := range claims {
		k := claimKey{cl.scope, cl.value}
		f, taken := first[k]
		if !taken {
			first[k] = cl
			continue
		}
		msg := cl.what + " is taken by " + f.object.ID() + " at " + place(f.object.At(f.path))
		if f.object.Cluster != cl.object.Cluster && f.object.Kind != v1alpha1.KindTalosCluster {
			msg = cl.what + " is taken by " + f.object.ID() + " of cluster " + f.object.Cluster + " at " + place(f.object.At(f.path))
		}
		p := problemAt(cl.object, cl.path, msg)
		p.Hint = "change one of the two, or delete the one that is too many"
		problems = append(problems, p)
	}
	return problems
}

type claimKey struct{ scope, value string }

// contested are the claims of values that are claimed more than once, in their order: hardly ever any of a fleet's tens
// of thousands.
func contested(claims []claim) []claim {
	times := make(map[claimKey]int, len(claims))
	twice := false
	for i := range claims {
		k := claimKey{claims[i].scope, claims[i].value}
		times[k]++
		twice = twice || times[k] > 1
	}
	if !twice {
		return nil
	}
	return slices.DeleteFunc(claims, func(c claim) bool { return times[claimKey{c.scope, c.value}] == 1 })
}

func nameClaim(o fleet.Object) claim {
	scope := "name of " + o.Kind
	if o.Cluster != "" && o.Kind != v1alpha1.KindTalosCluster {
		scope += " in " + o.Cluster
	}
	return claim{object: o, path: "metadata.name", scope: scope, value: o.Name, what: "the name " + o.Name}
}

func nameClaims(cl *fleet.Cluster) []claim {
	var out []claim
	if cl.Manifest != nil {
		out = append(out, nameClaim(cl.Object))
	}
	for _, m := range cl.Machines {
		out = append(out, nameClaim(m.Object))
	}
	for _, p := range cl.Patches {
		out = append(out, nameClaim(p.Object))
	}
	for _, b := range cl.Backups {
		out = append(out, nameClaim(b.Object))
	}
	for _, p := range cl.Policies {
		out = append(out, nameClaim(p.Object))
	}
	for _, o := range cl.Operations {
		out = append(out, nameClaim(o.Object))
	}
	return out
}

func clusterEndpointClaim(cl *fleet.Cluster) []claim {
	if cl.Manifest == nil || cl.Manifest.Spec.Endpoint.Address == "" {
		return nil
	}
	e := cl.Manifest.Spec.Endpoint
	port := e.Port
	if port == 0 {
		port = kubernetesAPIPort
	}
	v := canonicalHost(e.Address) + " port " + strconv.Itoa(port)
	return []claim{{
		object: cl.Object, path: "spec.endpoint.address", scope: "cluster endpoint", value: v,
		what: "the endpoint " + e.Address + " port " + strconv.Itoa(port),
	}}
}

// machineClaims are a machine's own; a rejected one has none.
func machineClaims(m *fleet.Machine) []claim {
	if isRejected(m) {
		return nil
	}
	s := m.Manifest.Spec
	var out []claim
	add := func(path, scope, value, what string) {
		if value != "" {
			out = append(out, claim{object: m.Object, path: path, scope: scope, value: value, what: what})
		}
	}
	add("spec.endpoint", "endpoint", canonicalEndpoint(s.Endpoint), "the endpoint "+s.Endpoint)
	if !repeatedUUID(s.UUID) {
		add("spec.uuid", "uuid", canonicalUUID(s.UUID), "the UUID "+s.UUID)
	}
	add("spec.certFingerprint", "fingerprint", s.CertFingerprint, "the certificate fingerprint "+s.CertFingerprint)
	add("spec.hostname", "hostname in "+m.Cluster, strings.ToLower(strings.TrimSuffix(s.Hostname, ".")), "the hostname "+s.Hostname)
	return out
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
