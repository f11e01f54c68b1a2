// Package backupstore tells where a backup's S3 store lies, seen from the cluster that it backs up: a restore happens
// while that cluster's API is down, so a store inside it can't be read then (SPEC section 5). Nothing is looked up.
package backupstore

import (
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Where says where a backup store lies, seen from a cluster.
type Where string

// Answers. Unclear can't be told from outside; Invalid is no endpoint at all.
const (
	Outside Where = "outside"
	Inside  Where = "inside"
	Unclear Where = "unclear"
	Invalid Where = "invalid"
)

// Verdict is the verdict on one endpoint.
type Verdict struct {
	Where Where
	// Why is what is inside what, for people; "" where it is outside.
	Why string
	// Host without port, as it is dialled; Address tells that it is an address and not a name.
	Host    string
	Address bool
	// Fixed: looking the name up can't change the verdict.
	Fixed bool
}

// Judge tells where an S3 endpoint (a URL, or host[:port]) lies, seen from a cluster, without looking anything
// up. The daemon asks it again before a restore.
func Judge(cl *fleet.Cluster, endpoint string) Verdict {
	host, err := storeHost(endpoint)
	if err != nil {
		return Verdict{Where: Invalid, Why: err.Error()}
	}
	if addrs := hostAddrs(host); len(addrs) > 0 {
		for _, a := range addrs {
			if v := addrVerdict(cl, host, a); v.Where != Outside {
				return v
			}
		}
		return Verdict{Where: Outside, Host: host, Address: true}
	}
	return nameVerdict(cl, host)
}

// frontsOtherThings tells whether a cluster endpoint may be something else too: then it only warns.
func frontsOtherThings(e v1alpha1.ClusterEndpoint) bool {
	return e.Type == "loadBalancer" || e.Type == "dns"
}
