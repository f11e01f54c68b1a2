package backupstore

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/publicsuffix"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// addrVerdict tells where an address lies. host is how it was written, which the message repeats.
func addrVerdict(cl *fleet.Cluster, host string, a netip.Addr) Verdict {
	shown := a.String()
	if shown != host {
		shown = host + " (" + shown + ")"
	}
	inside := func(format string, args ...any) Verdict {
		return Verdict{Where: Inside, Host: host, Address: true, Why: shown + " " + fmt.Sprintf(format, args...)}
	}
	n := NetworkOf(cl)
	for _, p := range n.Pods {
		if p.Contains(a) {
			return inside("is within the pod subnet %s", p)
		}
	}
	for _, p := range n.Services {
		if p.Contains(a) {
			return inside("is within the service subnet %s", p)
		}
	}
	for _, m := range cl.Machines {
		if !rejected(m) && machineAddr(m) == a {
			return inside("is the address of the cluster's machine %s", m.Name)
		}
	}
	if v, ok := endpointVerdict(cl, host, shown, a); ok {
		return v
	}
	if a.IsLoopback() || a.IsUnspecified() {
		return Verdict{
			Where: Unclear, Host: host, Address: true, Fixed: true,
			Why: shown + " is a loopback address, which is another host for everyone who reads it",
		}
	}
	return Verdict{Where: Outside, Host: host, Address: true}
}

// endpointVerdict compares with the cluster's endpoint: the host's addresses, or the name itself where a is invalid.
func endpointVerdict(cl *fleet.Cluster, host, shown string, a netip.Addr) (Verdict, bool) {
	if cl.Manifest == nil {
		return Verdict{}, false
	}
	e := cl.Manifest.Spec.Endpoint
	same := canonicalName(strings.Trim(e.Address, "[]")) == host
	if a.IsValid() {
		same = false
		for _, own := range hostAddrs(canonicalName(strings.Trim(e.Address, "[]"))) {
			same = same || own == a
		}
	}
	if !same || host == "" {
		return Verdict{}, false
	}
	v := Verdict{Where: Inside, Host: host, Address: a.IsValid(), Fixed: true}
	v.Why = fmt.Sprintf("%s is the cluster's own endpoint (type %s)", shown, e.Type)
	if frontsOtherThings(e) {
		v.Where = Unclear
		v.Why += ", which may front other things"
	}
	return v, true
}

// nameVerdict tells where a name lies, as far as its text says.
func nameVerdict(cl *fleet.Cluster, host string) Verdict {
	inside := func(format string, args ...any) Verdict {
		return Verdict{Where: Inside, Host: host, Fixed: true, Why: host + " " + fmt.Sprintf(format, args...)}
	}
	domain := NetworkOf(cl).Domain
	switch {
	case host == "svc" || strings.HasSuffix(host, ".svc"):
		return inside("is a Kubernetes service name (*.svc)")
	case domain != "" && (host == "svc."+domain || strings.HasSuffix(host, ".svc."+domain)):
		return inside("is a Kubernetes service name (*.svc.%s)", domain)
	case domain != "" && (host == domain || strings.HasSuffix(host, "."+domain)):
		return inside("is under the cluster's DNS domain %s", domain)
	}
	for _, m := range cl.Machines {
		if h := m.Manifest.Spec.Hostname; h != "" && !rejected(m) && canonicalName(h) == host {
			return inside("is the host name of the cluster's machine %s", m.Name)
		}
	}
	if v, ok := endpointVerdict(cl, host, host, netip.Addr{}); ok {
		return v
	}
	return unclearName(host)
}

// unclearName warns about names that mean something only to a resolver: they can't be told from outside.
func unclearName(host string) Verdict {
	v := Verdict{Where: Unclear, Host: host}
	labels := strings.Split(host, ".")
	switch {
	case loopbackName(labels):
		v.Fixed = true
		v.Why = host + " is a loopback name, which is another host for everyone who looks it up"
	case len(labels) == 1:
		v.Why = host + " is a single label, which a cluster's search list may complete"
	case len(labels) == 2 && !publicTLD(labels[1]):
		v.Why = host + " has two labels and no public top-level domain, as a Kubernetes service.namespace has"
	default:
		return Verdict{Where: Outside, Host: host}
	}
	return v
}

// loopbackName: localhost and what is under it (RFC 6761), and the names that distributions give ::1.
func loopbackName(labels []string) bool {
	last := labels[len(labels)-1]
	first := labels[0]
	return last == "localhost" || (first == "localhost" && last == "localdomain") ||
		(first == "localhost6" && last == "localdomain6") ||
		(len(labels) == 1 && (first == "ip6-localhost" || first == "ip6-loopback" || first == "localhost6"))
}

// publicTLD tells whether a label is a top-level domain that ICANN lists.
func publicTLD(label string) bool {
	_, icann := publicsuffix.PublicSuffix("x." + label)
	return icann
}

// rejected machines are none of the cluster's.
func rejected(m *fleet.Machine) bool {
	return m.Manifest.Spec.ApprovalState == v1alpha1.ApprovalRejected
}

// machineAddr is the address of a machine's endpoint; invalid where it is none.
func machineAddr(m *fleet.Machine) netip.Addr {
	s := m.Manifest.Spec.Endpoint
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().WithZone("").Unmap()
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil {
		return netip.Addr{}
	}
	return a.WithZone("").Unmap()
}
