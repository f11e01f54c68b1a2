// Package scaffold makes new repositories: the files of a first cluster, from a preset and a few facts.
package scaffold

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"

	"ichor.maesh.dev/ichor/cmd/internal/editor"
	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Versions that a new cluster begins with.
const (
	DefaultTalosVersion      = "v1.13.5"
	DefaultKubernetesVersion = "v1.36.1"
)

// preset says how many machines a cluster begins with.
type preset struct {
	about                  string
	controlPlanes, workers int
	// schedule lets workloads run on control planes.
	schedule bool
	endpoint string
}

var presets = map[string]preset{
	"single":          {"one machine that is everything; an outage of it is one of the cluster", 1, 0, true, "node"},
	"compact-ha":      {"three control planes that run workloads too; one may fail", 3, 0, true, "loadBalancer"},
	"ha-with-workers": {"three control planes and two workers; one control plane may fail", 3, 2, false, "loadBalancer"},
}

// Presets lists the names of the presets, with what each is.
func Presets() [][2]string {
	var out [][2]string
	for _, name := range []string{"single", "compact-ha", "ha-with-workers"} {
		out = append(out, [2]string{name, presets[name].about})
	}
	return out
}

// Options say what the repository is to hold. What is empty follows from the preset; an address that is not given
// becomes one of 192.0.2.0/24, which is reserved for documentation, and is listed by Placeholders.
type Options struct {
	Preset, Cluster                 string
	TalosVersion, KubernetesVersion string
	CNI, Tunnel                     string
	KubeProxy                       bool
	EndpointType, EndpointAddress   string
	EndpointPort                    int
	// Link is the network link that carries a virtual address (endpoint type vip).
	Link string
	// ControlPlanes and Workers: ADDRESS or NAME=ADDRESS; an address may have a port.
	ControlPlanes, Workers []string
	Disk                   string
	// Recipients are the age public keys that secrets are encrypted to.
	Recipients []string
}

// Machine is one machine of the new cluster.
type Machine struct {
	Name, Role, Address string
	// Placeholder: nobody gave the address.
	Placeholder bool
}

// File is one file of the new repository, by its path from the root.
type File struct {
	Path string
	Data []byte
	// About says what it is for, in a few words.
	About string
}

// Plan is what a repository will hold.
type Plan struct {
	Options  Options
	Contract string
	Machines []Machine
	Files    []File
	// Placeholders names what has to be replaced before anything is applied.
	Placeholders []string
	schedule     bool
}

// Valid says what is wrong with the options, the recipients aside: before anybody is asked for a key.
func (o Options) Valid() error {
	_, err := resolve(o)
	return err
}

// New makes the files of a repository. The secrets bundle is made and encrypted here; its plain text leaves no trace.
// An error is one of the options.
func New(o Options) (*Plan, error) {
	p, err := resolve(o)
	if err != nil {
		return nil, err
	}
	if len(o.Recipients) == 0 {
		return nil, errors.New("no age recipient to encrypt the secrets to")
	}
	if err := p.texts(); err != nil {
		return nil, err
	}
	shared, err := Shared(p.Options.Recipients, p.Contract)
	if err != nil {
		return nil, err
	}
	p.Files = append(p.Files, shared...)
	_, plain, err := bundle.Generate(p.Contract, secrets.NewClock())
	if err != nil {
		return nil, err
	}
	path := p.dir() + "/secrets.sops.yaml"
	sealed, err := bundle.Encrypt(plain, path, p.Options.Recipients, "")
	clear(plain)
	if err != nil {
		return nil, err
	}
	p.add(path, sealed, "the cluster's secrets bundle, new and encrypted")
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return p, nil
}

// Shared gives the files that every repository has, whatever its clusters: .sops.yaml, .gitignore and the schemas.
func Shared(recipients []string, contract string) ([]File, error) {
	out := []File{
		{".sops.yaml", fmt.Appendf(nil, sopsRules, strings.Join(recipients, ",")), "which files the sops command encrypts, and to whom"},
		{ignoreFile, []byte(Ignore), "keeps secrets in plain text out of commits"},
	}
	schemas, err := editor.Files([]string{contract})
	if err != nil {
		return nil, err
	}
	for name, data := range schemas {
		out = append(out, File{editor.Folder + "/" + name, data, "schema for editors"})
	}
	return out, nil
}

func (p *Plan) dir() string { return "clusters/" + p.Options.Cluster }

func (p *Plan) add(path string, data []byte, about string) {
	p.Files = append(p.Files, File{Path: path, Data: data, About: about})
}

// resolve fills in what follows from the preset.
func resolve(o Options) (*Plan, error) {
	pre, ok := presets[o.Preset]
	if !ok {
		return nil, fmt.Errorf("unknown preset %q; there are single, compact-ha and ha-with-workers", o.Preset)
	}
	p := &Plan{Options: o, schedule: pre.schedule}
	if p.Contract = (v1alpha1.TalosClusterSpec{TalosVersion: o.TalosVersion}).EffectiveContract(); p.Contract == "" {
		return nil, fmt.Errorf("--talos-version %q is no full version such as %s", o.TalosVersion, DefaultTalosVersion)
	}
	if _, err := editor.Nearest(p.Contract); err != nil {
		return nil, fmt.Errorf("--talos-version %q is no full version such as %s", o.TalosVersion, DefaultTalosVersion)
	}
	if o.Tunnel != "" && o.CNI != v1alpha1.CNICilium {
		return nil, errors.New("--cni-tunnel needs --cni cilium: no other CNI lets the tunnel be chosen")
	}
	if err := p.machines(pre); err != nil {
		return nil, err
	}
	return p, p.endpoint(pre)
}

// machines lists the machines, placeholders where none were given.
func (p *Plan) machines(pre preset) error {
	cps, err := machinesOf(v1alpha1.RoleControlPlane, "cp", p.Options.ControlPlanes, pre.controlPlanes, 11)
	if err != nil {
		return err
	}
	switch n := len(cps); {
	case p.Options.Preset == "single" && n != 1:
		return fmt.Errorf("preset single has one control plane, %d are given; compact-ha and ha-with-workers take three or five", n)
	case p.Options.Preset != "single" && n != 3 && n != 5:
		return fmt.Errorf("preset %s takes three or five control planes, %d are given: with an even number no more may fail than with one less",
			p.Options.Preset, n)
	}
	workers, err := machinesOf(v1alpha1.RoleWorker, "w", p.Options.Workers, pre.workers, 21)
	if err != nil {
		return err
	}
	p.Machines = append(cps, workers...)
	seen := map[string]bool{}
	for _, m := range p.Machines {
		if seen[m.Name] {
			return fmt.Errorf("two machines are called %s", m.Name)
		}
		seen[m.Name] = true
		if m.Placeholder {
			p.Placeholders = append(p.Placeholders, fmt.Sprintf("%s/machines/%s.yaml: the address %s", p.dir(), m.Name, m.Address))
		}
	}
	return nil
}

func machinesOf(role, prefix string, given []string, count, first int) ([]Machine, error) {
	var out []Machine
	for i, g := range given {
		name, address, named := strings.Cut(g, "=")
		if !named {
			name, address = prefix+strconv.Itoa(i+1), g
		}
		if _, err := v1alpha1.NormalizeEndpoint(address); err != nil {
			return nil, fmt.Errorf("%q is no machine: want ADDRESS or NAME=ADDRESS, the address being ip or ip:port (%w)", g, err)
		}
		if !label(name) {
			return nil, fmt.Errorf("%q can't be a machine's name: use small letters, digits and dashes, at most 63", name)
		}
		out = append(out, Machine{Name: name, Role: role, Address: address})
	}
	if len(given) > 0 {
		return out, nil
	}
	for i := range count {
		out = append(out, Machine{prefix + strconv.Itoa(i+1), role, "192.0.2." + strconv.Itoa(first+i), true})
	}
	return out, nil
}

// label tells a DNS label (RFC 1123).
func label(s string) bool {
	return s != "" && len(s) <= 63 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && s[0] != '-' && s[len(s)-1] != '-'
}

// endpoint settles where the Kubernetes API is reached.
func (p *Plan) endpoint(pre preset) error {
	o := &p.Options
	if o.EndpointType == "" {
		o.EndpointType = pre.endpoint
	}
	if !slices.Contains([]string{"node", "dns", "loadBalancer", "vip"}, o.EndpointType) {
		return fmt.Errorf("unknown --endpoint-type %q; there are node, dns, loadBalancer and vip", o.EndpointType)
	}
	if o.EndpointAddress == "" {
		switch o.EndpointType {
		case "node":
			ap, _ := v1alpha1.NormalizeEndpoint(p.Machines[0].Address)
			o.EndpointAddress = ap.Addr().String()
			return nil
		case "dns":
			o.EndpointAddress = "api." + o.Cluster + ".example.com"
		default:
			o.EndpointAddress = "192.0.2.10"
		}
		p.Placeholders = append(p.Placeholders, fmt.Sprintf("%s/cluster.yaml: the endpoint %s", p.dir(), o.EndpointAddress))
	}
	if _, err := netip.ParseAddr(o.EndpointAddress); err != nil && (strings.ContainsAny(o.EndpointAddress, ":/ ") || o.EndpointType == "vip") {
		return fmt.Errorf("--endpoint-address %q is no IP address or host name (the port goes into --endpoint-port)", o.EndpointAddress)
	}
	return nil
}

// texts makes every file that is not a schema or a secret.
func (p *Plan) texts() error {
	if !label(p.Options.Cluster) {
		return fmt.Errorf("--cluster %q can't be a cluster's name: use small letters, digits and dashes, at most 63", p.Options.Cluster)
	}
	cluster := p.dir() + "/cluster.yaml"
	data, err := p.execute(clusterText, map[string]any{"Header": editor.Header(v1alpha1.KindTalosCluster, "", cluster)})
	if err != nil {
		return err
	}
	p.add(cluster, data, "the cluster: versions, endpoint, network, rollout")
	for _, m := range p.Machines {
		file := p.dir() + "/machines/" + m.Name + ".yaml"
		data, err := p.execute(machineText, map[string]any{"Header": editor.Header(v1alpha1.KindTalosMachine, "", file), "M": m})
		if err != nil {
			return err
		}
		p.add(file, data, m.Role+" at "+m.Address)
	}
	return p.patches()
}

func (p *Plan) patches() error {
	near, err := editor.Nearest(p.Contract)
	if err != nil {
		return err
	}
	for name, when := range map[string]struct {
		text, about string
		want        bool
	}{
		"scheduling": {scheduleText, "lets workloads run on control planes", p.schedule},
		"vip":        {vipText, "the virtual address of the Kubernetes API", p.Options.EndpointType == "vip"},
	} {
		if !when.want {
			continue
		}
		file := p.dir() + "/patches/" + name + ".yaml"
		data, err := p.execute(when.text, map[string]any{"Header": editor.Header(v1alpha1.KindTalosConfigPatch, near, file)})
		if err != nil {
			return err
		}
		p.add(file, data, when.about)
	}
	if p.Options.EndpointType == "vip" {
		p.Placeholders = append(p.Placeholders, fmt.Sprintf("%s/patches/vip.yaml: the link %s, if your machines call it otherwise", p.dir(), p.Options.Link))
	}
	return nil
}

func (p *Plan) execute(text string, more map[string]any) ([]byte, error) {
	t, err := template.New("").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse template: %w", err)
	}
	count := 0
	for _, m := range p.Machines {
		if m.Role == v1alpha1.RoleControlPlane {
			count++
		}
	}
	data := map[string]any{"O": p.Options, "Contract": p.Contract, "Count": count}
	for k, v := range more {
		data[k] = v
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("fill in template: %w", err)
	}
	return b.Bytes(), nil
}
