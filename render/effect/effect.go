package effect

import (
	"slices"
	"strings"
)

// Names of services and static pods that restarts name.
const (
	Etcd              = "etcd"
	Kubelet           = "kubelet"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Proxy             = "kube-proxy"
	CNI               = "cni"
	CoreDNS           = "coredns"
	CRI               = "cri"
	APID              = "apid"
	Trustd            = "trustd"
	Containerd        = "containerd"
)

// Of gives what a change of one path does on a node that runs Talos 1.<minor>, and the service that restarts.
// document is v1alpha1, Kind or Kind/name; path is dotted. A path that the table does not know counts as Reboot. A
// document kind beside v1alpha1 that has no row of its own is live up to 1.13, where only v1alpha1 is looked at
// before an apply (talos.md 3.4), and Reboot from 1.14 unless the table knows it.
func Of(minor int, document, path string) (Effect, string) {
	r, ok := Find(minor, document, path)
	if !ok {
		return Reboot, ""
	}
	return r.Effect, r.Service
}

// planeServices run on control planes alone: a change of their configuration does nothing on a worker.
var planeServices = []string{APIServer, ControllerManager, Scheduler, Etcd, Trustd}

// OfRole is Of for a machine of a role (controlplane or worker): a worker runs no service of the control plane, but its
// kubelet trusts the cluster's authority.
func OfRole(minor int, role, document, path string) (Effect, string) {
	e, service := Of(minor, document, path)
	if role != "worker" || e != Restart || !slices.Contains(planeServices, service) {
		return e, service
	}
	if steps := splitPath(path); document == "v1alpha1" && len(steps) > 1 && steps[0] == "cluster" && (steps[1] == "ca" || steps[1] == "acceptedCAs") {
		return Restart, Kubelet // talos.md 9.2: rotating the Kubernetes CA waits for a kubelet restart on every node
	}
	return Live, ""
}

// Find gives the row that decides: of those that fit, the one with the longest pattern.
func Find(minor int, document, path string) (Row, bool) {
	kind, _, _ := strings.Cut(document, "/")
	steps := splitPath(path)
	var best *Row
	for i := range table {
		r := &table[i]
		if r.Document != kind && (r.Document != "*" || kind == "v1alpha1") || minor < r.From || r.To != 0 && minor > r.To || !r.fits(steps) {
			continue
		}
		if best == nil || r.longer(best) {
			best = r
		}
	}
	if best == nil {
		return Row{}, false
	}
	return *best, true
}

// longer: a row for the kind beats one for all kinds, then the longer pattern wins.
func (r *Row) longer(o *Row) bool {
	if (r.Document == "*") != (o.Document == "*") {
		return o.Document == "*"
	}
	return len(splitPath(r.Path)) > len(splitPath(o.Path))
}

// fits tells whether the row's pattern is a prefix of the path. A * step stands for any.
func (r *Row) fits(steps []string) bool {
	pattern := splitPath(r.Path)
	if len(pattern) > len(steps) {
		return false
	}
	for i, p := range pattern {
		if p != "*" && p != steps[i] {
			return false
		}
	}
	return true
}

// splitPath takes a path apart; list indices are left out, and keys in brackets lose their quotes.
func splitPath(path string) []string {
	var out []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			end := strings.IndexByte(path, ']')
			if strings.HasPrefix(path, `["`) {
				if q := strings.Index(path, `"]`); q >= 0 {
					out = append(out, path[2:q])
					end = q + 1
				}
			}
			if end < 0 {
				return out
			}
			path = path[end+1:]
		default:
			n := strings.IndexAny(path, ".[")
			if n < 0 {
				n = len(path)
			}
			out = append(out, path[:n])
			path = path[n:]
		}
	}
	return out
}

// order is a machine's effect: the most disruptive now first.
var order = []Effect{Reboot, Restart, Live, Install, None}

// Worst gives the most disruptive of effects now: reboot, restart, live, install; None of none.
func Worst(effects ...Effect) Effect {
	for _, e := range order {
		if slices.Contains(effects, e) {
			return e
		}
	}
	if len(effects) > 0 {
		return Reboot // an effect that nobody knows
	}
	return None
}

// NeedsReboot tells whether a v1alpha1 path takes effect only at a boot.
func NeedsReboot(minor int, document, path string) bool {
	e, _ := Of(minor, document, path)
	return e == Reboot
}

// AppliesImmediately tells whether a change is in force once the node has taken it: live, or by a restart that the
// node does by itself.
func AppliesImmediately(minor int, document, path string) bool {
	e, _ := Of(minor, document, path)
	return e == Live || e == Restart
}

// Disrupts tells whether an effect takes away what a cluster counts on: a reboot, or a restart of etcd, the API
// server, the kubelet, the container runtime or the network's agents. On a control plane such a change keeps the
// order and the gates of a rollout.
func Disrupts(e Effect, service string) bool {
	switch e {
	case Reboot:
		return true
	case Restart:
		switch service {
		case Etcd, APIServer, Kubelet, CRI, Containerd, CNI, Proxy:
			return true
		}
		return service == ""
	}
	return false
}
