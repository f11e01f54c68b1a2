package rules

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func backupInClusterRule() Rule {
	return Rule{
		ID: "backup-in-cluster",
		Doc: "A backup's store lies outside the cluster that it backs up: a restore happens while that cluster's API " +
			"is down.",
		Check: checkBackupInCluster,
	}
}

// storeMust ends every message about a store that is inside.
const storeMust = "the backup store must live outside the cluster being restored"

func checkBackupInCluster(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		for _, b := range cl.Backups {
			problems = append(problems, backupProblems(c, cl, b)...)
		}
	}
	return problems
}

func backupProblems(c *Context, cl *fleet.Cluster, b *fleet.Backup) []fleet.Problem {
	const path = "spec.s3.endpoint"
	v := StoreVerdict(cl, b.Manifest.Spec.S3.Endpoint)
	switch v.Where {
	case StoreInside:
		return []fleet.Problem{problemAt(b.Object, path, "backup store in the cluster: "+v.Why+"; "+storeMust)}
	case StoreInvalid:
		return []fleet.Problem{problemAt(b.Object, path, v.Why)}
	case StoreOutside, StoreUnclear:
	}
	if p, told := resolvedProblem(c, cl, b, v); told {
		return p
	}
	if v.Where == StoreUnclear {
		p := warningAt(b.Object, path, "backup store may be in the cluster: "+v.Why+"; "+storeMust)
		p.Hint = "use an address or a full public name, or run ichor check --resolve"
		return []fleet.Problem{p}
	}
	return nil
}

// resolvedProblem looks a name up where that is wanted. told is false where the look-up said nothing. What a name
// resolves to may change, so it is a warning, never part of the verdict.
func resolvedProblem(c *Context, cl *fleet.Cluster, b *fleet.Backup, v Store) (problems []fleet.Problem, told bool) {
	if c.Resolve == nil || v.Host == "" || v.Address || v.Fixed {
		return nil, false
	}
	found, err := c.Resolve(c.Ctx, v.Host)
	if err != nil || len(found) == 0 {
		return nil, false
	}
	for _, addr := range found {
		r := StoreVerdict(cl, bracketed(addr))
		if r.Where != StoreOutside {
			p := warningAt(b.Object, "spec.s3.endpoint", fmt.Sprintf(
				"backup store may be in the cluster: %s resolves to %s now, and %s; %s", v.Host, addr, r.Why, storeMust))
			return []fleet.Problem{p}, true
		}
	}
	return nil, true
}

func bracketed(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return addr
}

// StoreWhere says where a backup store lies, seen from a cluster.
type StoreWhere string

// Answers. StoreUnclear can't be told from outside; StoreInvalid is no endpoint at all.
const (
	StoreOutside StoreWhere = "outside"
	StoreInside  StoreWhere = "inside"
	StoreUnclear StoreWhere = "unclear"
	StoreInvalid StoreWhere = "invalid"
)

// Store is the verdict on one endpoint.
type Store struct {
	Where StoreWhere
	// Why is what is inside what, for people; "" where it is outside.
	Why string
	// Host without port, as it is dialled; Address tells that it is an address and not a name.
	Host    string
	Address bool
	// Fixed: looking the name up can't change the verdict.
	Fixed bool
}

// StoreVerdict tells where an S3 endpoint (a URL, or host[:port]) lies, seen from a cluster, without looking anything
// up. The daemon asks it again before a restore.
func StoreVerdict(cl *fleet.Cluster, endpoint string) Store {
	host, err := storeHost(endpoint)
	if err != nil {
		return Store{Where: StoreInvalid, Why: err.Error()}
	}
	if addrs := hostAddrs(host); len(addrs) > 0 {
		for _, a := range addrs {
			if v := addrVerdict(cl, host, a); v.Where != StoreOutside {
				return v
			}
		}
		return Store{Where: StoreOutside, Host: host, Address: true}
	}
	return nameVerdict(cl, host)
}

// frontsOtherThings tells whether a cluster endpoint may be something else too: then it only warns.
func frontsOtherThings(e v1alpha1.ClusterEndpoint) bool {
	return e.Type == "loadBalancer" || e.Type == "dns"
}
