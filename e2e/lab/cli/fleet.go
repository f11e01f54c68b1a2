package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"ichor.maesh.dev/ichor/render"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// talosPort is the one port that simulated nodes listen on, as real ones do.
const talosPort = 50000

// Machine is a TalosMachine of the repository as a node of the lab.
type Machine struct {
	// Node is its name in the lab: the machine's, with the cluster's and a dot in front where two clusters have a
	// machine of that name.
	Node    string
	Name    string
	Cluster string
	Role    string
	Address netip.Addr
	UUID    string
	// TalosVersion that it boots: its cluster's.
	TalosVersion string
	// Disk that it is installed on, "" where Selector finds it.
	Disk     string
	Selector map[string]any
}

// readFleet loads the folder. Problems of the content do not stop the lab (a rehearsal may be about them); they
// are given as text.
func readFleet(ctx context.Context, dir, state string) (*fleet.Fleet, []string, error) {
	st, err := os.Stat(dir)
	if err != nil || !st.IsDir() {
		return nil, nil, fmt.Errorf("read repository %s: not a folder; name the folder with the manifests with --repo", dir)
	}
	fl, problems, err := fleet.Load(ctx, without{os.DirFS(dir), stateIn(dir, state)}, fleet.Options{})
	if err != nil {
		return nil, nil, fmt.Errorf("read repository %s: %w", dir, err)
	}
	var said []string
	for _, p := range problems {
		said = append(said, fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Column, p.Severity, p.Message))
	}
	return fl, said, nil
}

// machines lists the nodes that the lab has to start, sorted by cluster and name. Every machine that can't be a
// node of the lab is named in the error.
func machines(fl *fleet.Fleet) ([]Machine, error) {
	var res []Machine
	var errs []error
	byName, byAddr := map[string]int{}, map[netip.Addr]string{}
	for _, c := range fl.Clusters {
		for _, m := range c.Machines {
			x, err := machine(c, m)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if other, taken := byAddr[x.Address]; taken {
				errs = append(errs, fmt.Errorf("machine %s of cluster %s has the address %s, which %s has already", x.Name, x.Cluster, x.Address, other))
				continue
			}
			byAddr[x.Address] = x.Name
			byName[x.Name]++
			res = append(res, x)
		}
	}
	if err := refused(errs); err != nil {
		return nil, fmt.Errorf("start nodes: %w", err)
	}
	if len(res) == 0 {
		return nil, errors.New("start nodes: the repository has no TalosMachine; see docs/kinds.md, or begin with a copy of examples/")
	}
	for i := range res {
		if byName[res[i].Name] > 1 {
			res[i].Node = res[i].Cluster + "." + res[i].Name
		}
	}
	slices.SortFunc(res, func(a, b Machine) int { return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name)) })
	return res, nil
}

// farError is a machine whose endpoint is no address of the lab.
type farError struct{ error }

// maxNamed is how many machines an error names.
const maxNamed = 10

// refused joins what is wrong with machines; a repository with real addresses has it with each, and one way out.
func refused(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	far := slices.ContainsFunc(errs, func(err error) bool { return errors.As(err, &farError{}) })
	if n := len(errs) - maxNamed; n > 0 {
		errs = append(errs[:maxNamed:maxNamed], fmt.Errorf("and %d more", n))
	}
	if far {
		errs = append(errs, errors.New("the lab has loopback addresses only, 127.10.0.11 for example; \"ichor-lab rehearse\" takes a repository with real addresses"))
	}
	return errors.Join(errs...)
}

// together are the machines of a state and those that a later one adds.
func together(now, later []Machine) []Machine {
	known := map[string]bool{}
	for _, m := range now {
		known[m.Address.String()], known[m.Cluster+"/"+m.Name], known[m.Node] = true, true, true
	}
	for _, m := range later {
		if known[m.Address.String()] || known[m.Cluster+"/"+m.Name] {
			continue
		}
		if known[m.Node] {
			m.Node = m.Cluster + "." + m.Name
		}
		now = append(now, m)
	}
	return now
}

func machine(c *fleet.Cluster, m *fleet.Machine) (Machine, error) {
	spec := m.Manifest.Spec
	x := Machine{Node: m.Name, Name: m.Name, Cluster: c.Name, Role: spec.Role, UUID: spec.UUID}
	if c.Manifest != nil {
		in := render.Install(&c.Manifest.Spec, m)
		x.Disk, x.Selector = in.Disk, in.DiskSelector
		x.TalosVersion = "v" + strings.TrimPrefix(c.Manifest.Spec.TalosVersion, "v")
	}
	addr, err := netip.ParseAddr(spec.Endpoint)
	if err != nil {
		var ap netip.AddrPort
		if ap, err = netip.ParseAddrPort(spec.Endpoint); err == nil && ap.Port() != talosPort {
			return x, fmt.Errorf("machine %s of cluster %s has the endpoint %s; simulated nodes listen on port %d", m.Name, c.Name, spec.Endpoint, talosPort)
		}
		addr = ap.Addr()
	}
	if err != nil || !addr.Is4() || !addr.IsLoopback() {
		return x, farError{fmt.Errorf("machine %s of cluster %s has the endpoint %q", m.Name, c.Name, spec.Endpoint)}
	}
	x.Address = addr
	return x, nil
}

// secretsPath resolves secretsRef of a cluster: relative to the root, or, with ./ or ../ in front, to the manifest.
func secretsPath(c *fleet.Cluster) (string, error) {
	p := c.Manifest.Spec.SecretsRef.Path
	if strings.HasPrefix(p, "./") || strings.HasPrefix(p, "../") {
		p = path.Join(path.Dir(c.Pos.File), p)
	}
	p = path.Clean(p)
	if path.IsAbs(p) || p == "." || p == ".." || strings.HasPrefix(p, "../") {
		return "", fmt.Errorf("find secrets of cluster %s: %q leaves the repository", c.Name, c.Manifest.Spec.SecretsRef.Path)
	}
	return p, nil
}

// controlPlanes gives the addresses of a cluster's control planes.
func controlPlanes(all []Machine, cluster string) []string {
	var res []string
	for _, m := range all {
		if m.Cluster == cluster && m.Role == v1alpha1.RoleControlPlane {
			res = append(res, m.Address.String())
		}
	}
	return res
}

// addresses gives the addresses of all of a cluster's machines.
func addresses(all []Machine, cluster string) []string {
	var res []string
	for _, m := range all {
		if m.Cluster == cluster {
			res = append(res, m.Address.String())
		}
	}
	return res
}

// stateIn gives the path of the state folder in the repository, with slashes; "" where it lies elsewhere.
func stateIn(dir, state string) string {
	rel, err := filepath.Rel(dir, state)
	if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return ""
	}
	return filepath.ToSlash(rel)
}

// without hides one folder of a file system: the lab's state is nothing that the repository holds.
type without struct {
	fs.FS
	hidden string
}

// ReadDir implements fs.ReadDirFS.
func (w without) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return path.Join(name, e.Name()) == w.hidden }), err
}
