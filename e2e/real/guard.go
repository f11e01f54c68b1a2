// Package real stands between the end-to-end suite and real nodes that it was given: it refuses to start unless it was
// told exactly what it may touch, names the context and the nodes in every call, refuses calls to any other node,
// deletes only what it made, in a namespace of its own and by name, and cleans up when it is interrupted.
package real

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Environment variables that the suite is told by. Lists are separated by commas or spaces.
const (
	// EnvKubeconfig is a kubeconfig file; EnvContext is the context of it that is used, always by name.
	EnvKubeconfig = "KUBECONFIG"
	EnvContext    = "ICHOR_E2E_KUBE_CONTEXT"
	// EnvNodes are the addresses of the nodes that the suite may talk to.
	EnvNodes = "ICHOR_E2E_NODES"
	// EnvDeny are addresses and networks that it must not talk to, whatever else is said.
	EnvDeny = "ICHOR_E2E_DENY"
	// EnvTalosconfig is a talosconfig file of the nodes' cluster.
	EnvTalosconfig = "TALOSCONFIG"
	// EnvDestructive are those of EnvNodes that may be written to, rebooted and reset.
	EnvDestructive = "ICHOR_E2E_DESTRUCTIVE"
)

// Namespace is the only one in which anything is made or deleted.
const Namespace = "ichor-e2e"

// ErrRefused marks what the guard does not let through.
var ErrRefused = errors.New("refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
}

// Guard knows what may be touched.
type Guard struct {
	kubeconfig, context, talosconfig string
	nodes, destructive               []netip.Addr
	deny                             []netip.Prefix
	// run executes a command with standard input and gives its output.
	run func(ctx context.Context, stdin []byte, name string, args ...string) (string, error)

	made cleanup
}

// FromEnv reads the variables through getenv (os.Getenv). Everything that is missing or wrong is in the error, which
// is ErrRefused.
func FromEnv(getenv func(string) string) (*Guard, error) {
	g := &Guard{kubeconfig: getenv(EnvKubeconfig), context: getenv(EnvContext), talosconfig: getenv(EnvTalosconfig), run: execute}
	var errs []error
	for _, v := range []struct{ name, what string }{
		{EnvKubeconfig, "the kubeconfig of the cluster that may be tested"},
		{EnvContext, "the context of that file; the current one is never taken"},
		{EnvNodes, "the addresses of the nodes that may be talked to"},
	} {
		if strings.TrimSpace(getenv(v.name)) == "" {
			errs = append(errs, refuse("$%s is not set: it names %s", v.name, v.what))
		}
	}
	if g.kubeconfig != "" && g.context != "" {
		errs = append(errs, hasContext(g.kubeconfig, g.context))
	}
	var err error
	if g.deny, err = prefixes(EnvDeny, getenv(EnvDeny)); err != nil {
		errs = append(errs, err)
	}
	if g.nodes, err = addresses(EnvNodes, getenv(EnvNodes)); err != nil {
		errs = append(errs, err)
	}
	if g.destructive, err = addresses(EnvDestructive, getenv(EnvDestructive)); err != nil {
		errs = append(errs, err)
	}
	for _, a := range g.nodes {
		if p, denied := g.denied(a); denied {
			errs = append(errs, refuse("$%s names %s, which $%s denies (%s)", EnvNodes, a, EnvDeny, p))
		}
	}
	for _, a := range g.destructive {
		if !slices.Contains(g.nodes, a) {
			errs = append(errs, refuse("$%s names %s, which $%s does not", EnvDestructive, a, EnvNodes))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return g, nil
}

// Nodes that may be talked to.
func (g *Guard) Nodes() []string { return texts(g.nodes) }

// Destructive are the nodes that may be changed.
func (g *Guard) Destructive() []string { return texts(g.destructive) }

// Talosconfig is the file of the nodes' cluster, "" where none was given.
func (g *Guard) Talosconfig() string { return g.talosconfig }

// Deny are the denied addresses and networks, for those who check by themselves too.
func (g *Guard) Deny() []string {
	out := make([]string, len(g.deny))
	for i, p := range g.deny {
		out[i] = p.String()
	}
	return out
}

func texts(list []netip.Addr) []string {
	out := make([]string, len(list))
	for i, a := range list {
		out[i] = a.String()
	}
	return out
}

// Node says whether a call to a node may be made, and gives its address in plain form.
func (g *Guard) Node(node string) (string, error) {
	a, err := address(node)
	if err != nil {
		return "", err
	}
	if p, denied := g.denied(a); denied {
		return "", refuse("node %s is denied (%s)", a, p)
	}
	if !slices.Contains(g.nodes, a) {
		return "", refuse("node %s is not among $%s", a, EnvNodes)
	}
	return a.String(), nil
}

// MayChange says whether a node may be written to.
func (g *Guard) MayChange(node string) error {
	plain, err := g.Node(node)
	if err != nil {
		return err
	}
	if !slices.Contains(texts(g.destructive), plain) {
		return refuse("node %s may not be changed: it is not among $%s", plain, EnvDestructive)
	}
	return nil
}

func (g *Guard) denied(a netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(g.deny, func(p netip.Prefix) bool { return p.Contains(a) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return g.deny[i], true
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

// address of one node. A name is refused: what it resolves to may be another machine tomorrow.
func address(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case text == "":
		return a, refuse("no node is named")
	case err != nil:
		return a, refuse("%q is no IP address: nodes are named by address, without port", text)
	}
	if a.Zone() != "" {
		return a, refuse("%q has a zone, which no network holds: $%s could not deny it", text, EnvDeny)
	}
	a = a.Unmap()
	if a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return a, refuse("%s is no address of one node", a)
	}
	return a, nil
}

func addresses(name, text string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, x := range list(text) {
		a, err := address(x)
		if err != nil {
			return nil, fmt.Errorf("$%s: %w", name, err)
		}
		if slices.Contains(out, a) {
			return nil, fmt.Errorf("$%s: %w", name, refuse("%s is named twice", a))
		}
		out = append(out, a)
	}
	return out, nil
}

// prefixes reads addresses and networks. One that can't be read denies everything: the suite does not start.
func prefixes(name, text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, x := range list(text) {
		if p, err := netip.ParsePrefix(x); err == nil {
			if p.Addr().Is4In6() {
				// Nodes are compared as the IPv4 addresses that they are; such a network would hold none of them.
				return nil, fmt.Errorf("$%s: %w", name, refuse("%q is an IPv4 network in IPv6 form: write it as IPv4", x))
			}
			out = append(out, p.Masked())
			continue
		}
		a, err := netip.ParseAddr(x)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("$%s: %w", name, refuse("%q is neither an address nor a network", x))
		}
		a = a.Unmap()
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out, nil
}

// hasContext looks the context up in the file (or files, as kubectl takes them).
func hasContext(kubeconfig, context string) error {
	var there []string
	for _, path := range filepath.SplitList(kubeconfig) {
		data, err := os.ReadFile(path)
		if err != nil {
			return refuse("$%s: %v", EnvKubeconfig, err)
		}
		var file struct {
			Contexts []struct {
				Name string `json:"name"`
			} `json:"contexts"`
		}
		if err := yaml.Unmarshal(data, &file); err != nil {
			return refuse("$%s: %s is no kubeconfig", EnvKubeconfig, path)
		}
		for _, c := range file.Contexts {
			there = append(there, c.Name)
		}
	}
	if slices.Contains(there, context) {
		return nil
	}
	return refuse("$%s: context %q is not in %s; there is %s", EnvContext, context, kubeconfig, cmp.Or(strings.Join(there, ", "), "none"))
}
