package rules

import (
	"fmt"

	"github.com/blang/semver/v4"

	"ichor.maesh.dev/ichor/schemas/fleet"
)

func versionsRule() Rule {
	return Rule{
		ID: "versions",
		Doc: "Talos supports the Kubernetes version (the machinery library's table), and neither version skips a minor " +
			"or goes back to a lower one.",
		Check: checkVersions,
	}
}

func checkVersions(c *Context) []fleet.Problem {
	var problems []fleet.Problem
	for _, cl := range c.Head.Clusters {
		if cl.Manifest == nil {
			continue
		}
		problems = append(problems, kubernetesSupport(cl)...)
		old := c.live(cl)
		if old == nil {
			continue
		}
		a, b := old.Manifest.Spec, cl.Manifest.Spec
		problems = append(problems, versionStep(cl, "spec.talosVersion", "Talos", a.TalosVersion, b.TalosVersion)...)
		problems = append(problems, versionStep(cl, "spec.kubernetesVersion", "Kubernetes", a.KubernetesVersion, b.KubernetesVersion)...)
	}
	return problems
}

// kubernetesSupport looks the two versions up in the library's table.
func kubernetesSupport(cl *fleet.Cluster) []fleet.Problem {
	spec := cl.Manifest.Spec
	talos, okTalos := parseVersion(spec.TalosVersion)
	kubernetes, okKubernetes := parseVersion(spec.KubernetesVersion)
	if !okTalos || !okKubernetes {
		return nil
	}
	row, known := supportOf(talos)
	if !known {
		p := warningAt(cl.Object, "spec.talosVersion", fmt.Sprintf(
			"Talos %s is not known to this Ichor, which can't tell what Kubernetes versions it supports", spec.TalosVersion))
		p.Hint = fmt.Sprintf("the library knows %s to %s; use a newer Ichor, or one of these",
			minorText(supported[0].talos), minorText(newestKnown()))
		return []fleet.Problem{p}
	}
	if row.has(kubernetes) {
		return nil
	}
	p := problemAt(cl.Object, "spec.kubernetesVersion", fmt.Sprintf(
		"Talos %s does not support Kubernetes %s", spec.TalosVersion, spec.KubernetesVersion))
	p.Hint = "it supports Kubernetes " + row.window()
	return []fleet.Problem{p}
}

// versionStep judges the way from one version to another.
func versionStep(cl *fleet.Cluster, path, what, before, after string) []fleet.Problem {
	a, okA := parseVersion(before)
	b, okB := parseVersion(after)
	if !okA || !okB || a.Equals(b) {
		return nil
	}
	minorDown := compareMinors([2]uint64{b.Major, b.Minor}, [2]uint64{a.Major, a.Minor}) < 0
	switch {
	case minorDown:
		p := problemAt(cl.Object, path, fmt.Sprintf("%s can't go back to a lower minor version: from %s to %s", what, before, after))
		p.Hint = "put the version back; data that a newer minor wrote can't be read by an older one"
		return []fleet.Problem{p}
	case b.LT(a):
		p := warningAt(cl.Object, path, fmt.Sprintf("%s goes back to an older version: from %s to %s", what, before, after))
		p.Hint = "keep the newer one unless it is broken"
		return []fleet.Problem{p}
	case b.Major != a.Major || b.Minor > a.Minor+1:
		p := problemAt(cl.Object, path, fmt.Sprintf("%s skips a minor version: from %s to %s", what, before, after))
		p.Hint = stepHint(a, b)
		return []fleet.Problem{p}
	case len(b.Pre) > 0 && len(a.Pre) == 0:
		p := warningAt(cl.Object, path, fmt.Sprintf("%s goes from a release to a pre-release: from %s to %s", what, before, after))
		p.Hint = "wait for the release, unless the cluster is there to try it"
		return []fleet.Problem{p}
	}
	return nil
}

func stepHint(a, b semver.Version) string {
	if a.Major != b.Major {
		return "upgrade to the last minor of the old major version first"
	}
	return fmt.Sprintf("upgrade to %d.%d first, in a commit of its own", a.Major, a.Minor+1)
}
