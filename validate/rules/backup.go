package rules

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/backupstore"
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
		if len(cl.Backups) == 0 {
			continue
		}
		patched := asPatched(c, cl)
		for _, b := range cl.Backups {
			problems = append(problems, backupProblems(c, cl, patched, b)...)
		}
	}
	return problems
}

// backupProblems judges a store by what the cluster declares, and by what its patches make of that (nil: nothing).
func backupProblems(c *Context, cl, patched *fleet.Cluster, b *fleet.Backup) []fleet.Problem {
	const path = "spec.s3.endpoint"
	v := backupstore.Judge(cl, b.Manifest.Spec.S3.Endpoint)
	if patched != nil && v.Where != backupstore.Inside && v.Where != backupstore.Invalid {
		if p := backupstore.Judge(patched, b.Manifest.Spec.S3.Endpoint); p.Where == backupstore.Inside {
			v = p
		}
	}
	switch v.Where {
	case backupstore.Inside:
		p := problemAt(b.Object, path, "backup store in the cluster: "+v.Why+"; "+storeMust)
		p.Hint = "use a store elsewhere, by an address or a full public name"
		return []fleet.Problem{p}
	case backupstore.Invalid:
		p := problemAt(b.Object, path, v.Why)
		p.Hint = "write a URL, https://s3.example.com for example, or host:port"
		return []fleet.Problem{p}
	case backupstore.Outside, backupstore.Unclear:
	}
	if p, told := resolvedProblem(c, cl, b, v); told {
		return p
	}
	if v.Where == backupstore.Unclear {
		p := warningAt(b.Object, path, "backup store may be in the cluster: "+v.Why+"; "+storeMust)
		p.Hint = "use an address or a full public name, or run ichor check --resolve"
		return []fleet.Problem{p}
	}
	return nil
}

// resolvedProblem looks a name up where that is wanted. told is false where the look-up said nothing. What a name
// resolves to may change, so it is a warning, never part of the verdict.
func resolvedProblem(c *Context, cl *fleet.Cluster, b *fleet.Backup, v backupstore.Verdict) (problems []fleet.Problem, told bool) {
	if c.Resolve == nil || v.Host == "" || v.Address || v.Fixed {
		return nil, false
	}
	found, err := c.Resolve(c.Ctx, v.Host)
	if err != nil || len(found) == 0 {
		return nil, false
	}
	for _, addr := range found {
		r := backupstore.Judge(cl, bracketed(addr))
		if r.Where != backupstore.Outside {
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
