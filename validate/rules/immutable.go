package rules

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/validate/backupstore"
)

func immutableRule() Rule {
	return Rule{
		ID: "immutable",
		Doc: "A live cluster keeps its name, its pod and service subnets, its DNS domain and its secrets bundle; a live " +
			"machine keeps its role and its cluster.",
		AgainstBase: true,
		Check:       checkImmutable,
	}
}

// hintImmutable says what to do about a value that was changed.
const hintImmutable = "put the old value back; another value needs another cluster"

func checkImmutable(c *Context) []fleet.Problem {
	if c.Base == nil {
		return nil
	}
	var problems []fleet.Problem
	for _, old := range c.Base.Clusters {
		if old.Manifest == nil {
			continue
		}
		now := c.Head.Cluster(old.Name)
		if renamed := renamedCluster(c, old); renamed != nil {
			p := problemAt(renamed.Object, "metadata.name", fmt.Sprintf(
				"the name of a live cluster can't change: it was %s (%s on base)", old.Name, place(old.Pos)))
			p.Hint = hintImmutable
			problems = append(problems, p)
			continue
		}
		if now != nil && now.Manifest != nil {
			changes := clusterChanges(old, now)
			var told []string
			for _, p := range changes {
				told = append(told, p.Path)
			}
			problems = append(append(problems, changes...), patchedNetwork(c, old, now, told)...)
		}
		for _, m := range old.Machines {
			problems = append(problems, machineChanges(c, m)...)
		}
	}
	return problems
}

// renamedCluster finds the cluster of head that an old one lives on in under another name: the old name is gone, and
// a new one has its endpoint or its secrets bundle. nil where there is none.
func renamedCluster(c *Context, old *fleet.Cluster) *fleet.Cluster {
	if now := c.Head.Cluster(old.Name); (now != nil && now.Manifest != nil) || mayBe(c.Head, old.Object) {
		return nil
	}
	for _, n := range c.Head.Clusters {
		if n.Manifest == nil {
			continue
		}
		if was := c.Base.Cluster(n.Name); was != nil && was.Manifest != nil {
			continue
		}
		sameSecrets := old.Secrets != nil && n.Secrets != nil && bytes.Equal(old.Secrets.Data, n.Secrets.Data)
		if sameSecrets || sameEndpoint(old, n) {
			return n
		}
	}
	return nil
}

// sameEndpoint tells whether two clusters have one endpoint, or both none.
func sameEndpoint(a, b *fleet.Cluster) bool {
	x, hasX := clusterEndpointClaim(a)
	y, hasY := clusterEndpointClaim(b)
	return hasX == hasY && x.value == y.value
}

func clusterChanges(old, now *fleet.Cluster) []fleet.Problem {
	var problems []fleet.Problem
	changed := func(path, what, before, after string) {
		if before != after {
			p := problemAt(now.Object, path, fmt.Sprintf("%s of a live cluster can't change: from %s to %s", what, before, after))
			p.Hint = hintImmutable
			problems = append(problems, p)
		}
	}
	a, b := backupstore.NetworkOf(old), backupstore.NetworkOf(now)
	changed("spec.network.podSubnets", "the pod subnets", subnetList(a.Pods), subnetList(b.Pods))
	changed("spec.network.serviceSubnets", "the service subnets", subnetList(a.Services), subnetList(b.Services))
	changed("spec.network.dnsDomain", "the DNS domain", a.Domain, b.Domain)
	if old.Secrets != nil && now.Secrets != nil && !SameCiphertext(old.Secrets.Data, now.Secrets.Data) {
		p := problemAt(now.Object, "spec.secretsRef.path",
			"the secrets bundle of a live cluster can't change: "+now.Secrets.Path+" holds other encrypted values than "+
				old.Secrets.Path+" on base")
		p.Hint = "put the file back as it was; certificate authorities are rotated by a TalosOperation with rotateCA"
		problems = append(problems, p)
	}
	return problems
}

func machineChanges(c *Context, old *fleet.Machine) []fleet.Problem {
	if !isApproved(old) {
		return nil
	}
	if now := successor(c, old); now != nil {
		if now.Manifest.Spec.Role == old.Manifest.Spec.Role {
			return nil
		}
		p := problemAt(now.Object, "spec.role", fmt.Sprintf("the role of a live machine can't change: from %s to %s",
			old.Manifest.Spec.Role, now.Manifest.Spec.Role))
		p.Hint = "remove the machine, then add it again with the other role"
		return []fleet.Problem{p}
	}
	if moved := movedTo(c, old); moved != nil {
		p := problemAt(moved.Object, "spec.clusterRef.name", fmt.Sprintf(
			"the cluster of a live machine can't change: from %s to %s", old.Cluster, moved.Cluster))
		p.Hint = "remove the machine from its cluster, then add it to the other"
		return []fleet.Problem{p}
	}
	return nil
}

// successor finds a base machine in its cluster at head: by name, else renamed, with the same UUID. nil where it is
// not there.
func successor(c *Context, old *fleet.Machine) *fleet.Machine {
	cl := c.headCluster
	if cl == nil || cl.Name != old.Cluster { // who asks for all machines asks cluster by cluster
		cl = c.Head.Cluster(old.Cluster)
		c.headCluster = cl
	}
	if cl == nil {
		return nil
	}
	if m := c.machine(cl, old.Name); m != nil {
		return m
	}
	return sameUUID(c, cl, old)
}

// sameUUID finds a machine of the cluster that is the old one under a name that base does not have there.
func sameUUID(c *Context, cl *fleet.Cluster, old *fleet.Machine) *fleet.Machine {
	uuid := canonicalUUID(old.Manifest.Spec.UUID)
	if repeatedUUID(uuid) {
		return nil
	}
	was := c.Base.Cluster(cl.Name)
	for _, m := range cl.Machines {
		if canonicalUUID(m.Manifest.Spec.UUID) != uuid {
			continue
		}
		if was == nil || c.machine(was, m.Name) == nil {
			return m
		}
	}
	return nil
}

// movedTo finds a base machine in another cluster of head: a machine that base does not have there, and with the same
// UUID, or the same name and endpoint. nil where it was not moved.
func movedTo(c *Context, old *fleet.Machine) *fleet.Machine {
	for _, cl := range c.Head.Clusters {
		if cl.Name == old.Cluster {
			continue
		}
		if m := sameUUID(c, cl, old); m != nil {
			return m
		}
		was := c.Base.Cluster(cl.Name)
		m := c.machine(cl, old.Name)
		if m == nil || (was != nil && c.machine(was, m.Name) != nil) {
			continue
		}
		if canonicalEndpoint(m.Manifest.Spec.Endpoint) == canonicalEndpoint(old.Manifest.Spec.Endpoint) {
			return m
		}
	}
	return nil
}

func subnetList(list []netip.Prefix) string {
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = p.String()
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// SameCiphertext compares two SOPS files without their metadata: a new recipient changes that alone and leaves every
// encrypted value as it is. Files without metadata are compared as they are.
func SameCiphertext(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errA := sealedLeaves(a)
	y, errB := sealedLeaves(b)
	if errA != nil || errB != nil || len(x) == 0 {
		return false
	}
	return slices.Equal(x, y)
}
