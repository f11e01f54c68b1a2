package plan

import (
	"fmt"
	"sort"
	"strings"
)

// disruptive services: a restart of one of them on a control plane disrupts (SPEC section 3).
var disruptiveServices = map[string]bool{"etcd": true, "kube-apiserver": true, "apiserver": true}

// restartDisrupts says what a restart of services on a machine disrupts, "" nothing. A restart of which it is not
// known what restarts counts.
func restartDisrupts(role string, services []string) string {
	if role != RoleControlPlane {
		return ""
	}
	if len(services) == 0 {
		return "a service of the control plane restarts"
	}
	var hit []string
	for _, s := range services {
		if s == "" {
			return "a service of the control plane restarts"
		}
		if disruptiveServices[s] {
			hit = append(hit, s)
		}
	}
	if len(hit) == 0 {
		return ""
	}
	sort.Strings(hit)
	return strings.Join(hit, " and ") + " restarts"
}

// rebootDisrupts names the outage of a reboot.
func rebootDisrupts(role string, controlPlanes int) string {
	switch {
	case role != RoleControlPlane:
		return "the worker and its pods are down until it is back"
	case controlPlanes <= 1:
		return "etcd and the Kubernetes API of the whole cluster are down until it is back"
	default:
		return "one etcd member and API server are down until it is back"
	}
}

func evenRefusal(n int) string {
	return fmt.Sprintf("an even number of control planes (%d): nothing that disrupts one until the count is odd", n)
}
