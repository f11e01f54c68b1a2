package adopt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v3"
	yaml4 "go.yaml.in/yaml/v4"

	"ichor.maesh.dev/ichor/render/bundle"
	"ichor.maesh.dev/ichor/render/diff"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// Reader reads the files of a tool.
type Reader func(fs.FS, Hints) (*Source, error)

// talconfig is talhelper's talconfig.yaml (github.com/budimanjojo/talhelper, pkg/config). What Talos decodes itself is
// passed on as it is written.
type talconfig struct {
	ClusterName                    string    `yaml:"clusterName"`
	TalosVersion                   string    `yaml:"talosVersion"`
	KubernetesVersion              string    `yaml:"kubernetesVersion"`
	Endpoint                       string    `yaml:"endpoint"`
	Domain                         string    `yaml:"domain"`
	AllowSchedulingOnMasters       bool      `yaml:"allowSchedulingOnMasters"`
	AllowSchedulingOnControlPlanes bool      `yaml:"allowSchedulingOnControlPlanes"`
	AdditionalMachineCertSans      []string  `yaml:"additionalMachineCertSans"`
	AdditionalAPIServerCertSans    []string  `yaml:"additionalApiServerCertSans"`
	ClusterPodNets                 []string  `yaml:"clusterPodNets"`
	ClusterSvcNets                 []string  `yaml:"clusterSvcNets"`
	CNIConfig                      *talCNI   `yaml:"cniConfig"`
	Patches                        []string  `yaml:"patches"`
	Nodes                          []talNode `yaml:"nodes"`
	ImageFactory                   yaml.Node `yaml:"imageFactory"`
	ControlPlane                   talGroup  `yaml:"controlPlane"`
	Worker                         talGroup  `yaml:"worker"`
}

type talCNI struct {
	Name string   `yaml:"name"`
	URLs []string `yaml:"urls"`
}

type talNode struct {
	Hostname                string    `yaml:"hostname"`
	IPAddress               string    `yaml:"ipAddress"`
	ControlPlane            bool      `yaml:"controlPlane"`
	InstallDisk             string    `yaml:"installDisk"`
	InstallDiskSelector     yaml.Node `yaml:"installDiskSelector"`
	IgnoreHostname          bool      `yaml:"ignoreHostname"`
	OverridePatches         bool      `yaml:"overridePatches"`
	OverrideExtraManifests  bool      `yaml:"overrideExtraManifests"`
	OverrideMachineCertSans bool      `yaml:"overrideMachineCertSANs"`
	talGroup                `yaml:",inline"`
}

// talGroup is what a node and a group of nodes share.
type talGroup struct {
	NodeLabels          map[string]string `yaml:"nodeLabels"`
	NodeAnnotations     map[string]string `yaml:"nodeAnnotations"`
	NodeTaints          map[string]string `yaml:"nodeTaints"`
	CertSANs            []string          `yaml:"certSANs"`
	MachineDisks        yaml.Node         `yaml:"machineDisks"`
	MachineFiles        yaml.Node         `yaml:"machineFiles"`
	DisableSearchDomain bool              `yaml:"disableSearchDomain"`
	KernelModules       yaml.Node         `yaml:"kernelModules"`
	Nameservers         []string          `yaml:"nameservers"`
	NetworkInterfaces   yaml.Node         `yaml:"networkInterfaces"`
	ExtraManifests      []string          `yaml:"extraManifests"`
	Patches             []string          `yaml:"patches"`
	TalosImageURL       string            `yaml:"talosImageURL"`
	Schematic           yaml.Node         `yaml:"schematic"`
	NoSchematicValidate bool              `yaml:"noSchematicValidate"`
	MachineSpec         yaml.Node         `yaml:"machineSpec"`
	IngressFirewall     *talFirewall      `yaml:"ingressFirewall"`
	ExtensionServices   []yaml.Node       `yaml:"extensionServices"`
	Volumes             []yaml.Node       `yaml:"volumes"`
	UserVolumes         []yaml.Node       `yaml:"userVolumes"`
}

type talFirewall struct {
	DefaultAction string      `yaml:"defaultAction"`
	Rules         []yaml.Node `yaml:"rules"`
}

// helper is a talhelper folder that is being read.
type helper struct {
	fsys   fs.FS
	file   string
	config talconfig
	env    map[string]string
	bundle *secrets.Bundle
	src    *Source
	// uses lists the machines of each carried patch, by its name.
	uses  map[string][]string
	names map[string]string
}

// Talhelper reads a talhelper folder: talconfig.yaml, talsecret(.sops).yaml, talenv(.sops).yaml, the patches that they
// name, and clusterconfig/ where genconfig's output is there.
func Talhelper(fsys fs.FS, h Hints) (*Source, error) {
	t := &helper{fsys: fsys, src: &Source{}, uses: map[string][]string{}, names: map[string]string{}}
	if err := t.environment(h.Keys); err != nil {
		return nil, err
	}
	if err := t.talconfig(); err != nil {
		return nil, err
	}
	if err := t.secrets(h.Keys); err != nil {
		return nil, err
	}
	c := &t.config
	if h.TalosVersion != "" {
		c.TalosVersion = h.TalosVersion
	}
	if h.KubernetesVersion != "" {
		c.KubernetesVersion = h.KubernetesVersion
	}
	if h.Cluster != "" && h.Cluster != c.ClusterName {
		return nil, fmt.Errorf("%w: --cluster %s: the cluster is called %s in %s, and a cluster can't be renamed", ErrHint, h.Cluster, c.ClusterName, t.file)
	}
	for _, v := range [][2]string{{c.TalosVersion, "talos"}, {c.KubernetesVersion, "kubernetes"}} {
		if v[0] == "" {
			return nil, fmt.Errorf("%w: %s has no %sVersion, and talhelper's default changes with each release: give it with --%s-version", ErrHint, t.file, v[1], v[1])
		}
	}
	t.src.Cluster, t.src.TalosVersion, t.src.KubernetesVersion, t.src.Bundle = c.ClusterName, c.TalosVersion, c.KubernetesVersion, t.bundle
	for i := range c.Nodes {
		if err := t.node(&c.Nodes[i], i); err != nil {
			return nil, err
		}
	}
	t.selectors()
	return t.src, nil
}

// find reads the first of some files that is there.
func (t *helper) find(names ...string) (string, []byte, error) {
	for _, n := range names {
		data, err := fs.ReadFile(t.fsys, n)
		if err == nil {
			return n, data, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("read %s: %w", n, err)
		}
	}
	return "", nil, nil
}

// environment reads the variables that talhelper puts into talconfig.yaml and the patches.
func (t *helper) environment(keys bundle.Keys) error {
	t.env = map[string]string{}
	name, data, err := t.find("talenv.sops.yaml", "talenv.sops.yml", "talenv.yaml", "talenv.yml")
	if err != nil || name == "" {
		return err
	}
	if !sealed(data) {
		if err := yaml.Unmarshal(data, &t.env); err != nil {
			return fmt.Errorf("%s: it is no mapping of names to values", name)
		}
		t.src.Notes = append(t.src.Notes, name+": its values were filled in where they are used")
		return nil
	}
	if keys.Empty() {
		return fmt.Errorf("%w: %s is encrypted: set %s", ErrHint, name, bundle.EnvKeyFile)
	}
	leaves, err := keys.Open(&fleet.File{Path: name, Data: data})
	if err != nil {
		return err
	}
	for _, doc := range leaves {
		for key, value := range doc {
			t.env[key] = string(value.Reveal())
			// A short value stands in half of all texts.
			if len(t.env[key]) >= 4 {
				t.src.SecretValues = append(t.src.SecretValues, t.env[key])
			}
		}
	}
	t.src.Notes = append(t.src.Notes, name+": its values were filled in where they are used, encrypted again")
	return nil
}

// sealed tells a SOPS file.
func sealed(data []byte) bool {
	_, err := bundle.Shape(data)
	return err == nil || errors.Is(err, bundle.ErrKeyService)
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}]*))?\}`)

// substitute fills in variables as envsubst does; one that nobody has is lost.
func (t *helper) substitute(file string, data []byte) []byte {
	return variable.ReplaceAllFunc(data, func(m []byte) []byte {
		parts := variable.FindSubmatch(m)
		if v, ok := t.env[string(parts[1])]; ok {
			return []byte(v)
		}
		if bytes.Contains(m, []byte("-")) {
			return parts[2]
		}
		t.lose("%s: ${%s} is in no talenv file", file, parts[1])
		return m
	})
}

func (t *helper) lose(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(t.src.Lost, line) {
		t.src.Lost = append(t.src.Lost, line)
	}
}

// talconfig reads the main file. A field that is not known is named with its line.
func (t *helper) talconfig() error {
	name, data, err := t.find("talconfig.yaml", "talconfig.yml")
	if err != nil {
		return err
	}
	if name == "" {
		return fmt.Errorf("%w: no talconfig.yaml is in the folder", ErrHint)
	}
	t.file = name
	data = t.substitute(name, data)
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	err = dec.Decode(&t.config)
	var typed *yaml.TypeError
	if errors.As(err, &typed) {
		for _, e := range typed.Errors {
			if !strings.Contains(e, "not found in type") {
				return fmt.Errorf("%s: %s", name, strings.SplitN(e, "`", 2)[0])
			}
			e, _, _ = strings.Cut(e, " in type")
			t.lose("%s: %s: Ichor does not know what it means", name, strings.TrimSuffix(e, " not found"))
		}
		// The strict decoder stops short of nothing but what it names.
		t.config = talconfig{}
		err = yaml.Unmarshal(data, &t.config)
	}
	if err != nil {
		return fmt.Errorf("%s: it is no talconfig that can be read", name)
	}
	if t.config.ClusterName == "" || t.config.Endpoint == "" || len(t.config.Nodes) == 0 {
		return fmt.Errorf("%s: clusterName, endpoint or nodes is missing", name)
	}
	return nil
}

// secrets reads the bundle.
func (t *helper) secrets(keys bundle.Keys) error {
	name, data, err := t.find("talsecret.sops.yaml", "talsecret.sops.yml", "talsecret.yaml", "talsecret.yml")
	switch {
	case err != nil:
		return err
	case name == "":
		return fmt.Errorf("%w: no talsecret.sops.yaml or talsecret.yaml is in the folder; without it the configurations can't be made again", ErrHint)
	case !sealed(data):
		t.bundle = &secrets.Bundle{Clock: secrets.NewClock()}
		if err := yaml4.NewDecoder(bytes.NewReader(data)).Decode(t.bundle); err != nil || bundle.Validate(t.bundle) != nil {
			return fmt.Errorf("%s: it is no secrets bundle that Talos takes", name)
		}
		t.src.Notes = append(t.src.Notes, name+": the secrets bundle, in plain text; delete it once its encrypted copy is safe")
		return nil
	case keys.Empty():
		return fmt.Errorf("%w: %s is encrypted: set %s to the file of the age key that opens it", ErrHint, name, bundle.EnvKeyFile)
	}
	sb, err := bundle.Open(data, name, keys)
	if err != nil {
		return err
	}
	t.bundle = sb.Secrets()
	return nil
}

// node makes the original of a node: what genconfig wrote where that is there, else what it would write.
func (t *helper) node(n *talNode, index int) error {
	place := fmt.Sprintf("%s: nodes[%d] (%s)", t.file, index, n.Hostname)
	address, _, more := strings.Cut(n.IPAddress, ",")
	if _, err := v1alpha1.NormalizeEndpoint(strings.TrimSpace(address)); err != nil {
		t.lose("%s: ipAddress %q is no IP address", place, n.IPAddress)
		return nil
	}
	if more {
		t.src.Notes = append(t.src.Notes, place+": of its addresses the first is the endpoint")
	}
	g := t.config.Worker
	if n.ControlPlane {
		g = t.config.ControlPlane
	}
	merged := n.merge(g)
	o := Original{Name: dnsLabel(n.Hostname), Address: strings.TrimSpace(address)}
	t.carry(o.Name, n, g)
	derived, whyNot := t.derive(n, merged)
	file, data, err := t.find("clusterconfig/" + t.config.ClusterName + "-" + n.Hostname + ".yaml")
	if err != nil {
		return err
	}
	switch {
	case file != "":
		o.File, o.Config = file, data
		if whyNot == nil {
			if changes, same, err := diff.Configs(data, derived); err == nil && !same {
				t.src.Notes = append(t.src.Notes, fmt.Sprintf("%s is not what %s would give now (%d fields, the first %s %s): the file counts; run talhelper genconfig if it is old",
					file, t.file, len(changes), changes[0].Document, changes[0].Path))
			}
		}
	case whyNot != nil:
		t.lose("%s: %s; run talhelper genconfig: adopt takes clusterconfig/%s-%s.yaml as the original", place, whyNot, t.config.ClusterName, n.Hostname)
		return nil
	default:
		o.File, o.Config = fmt.Sprintf("%s (%s)", t.file, n.Hostname), derived
		if merged.TalosImageURL == "" {
			t.src.Notes = append(t.src.Notes, place+": clusterconfig/ is not there, so the installer image is taken to be talhelper 3's (metal-installer)")
		}
	}
	t.src.Originals = append(t.src.Originals, o)
	return nil
}

// merge puts a node over its group as talhelper does: field by field, but lists of patches and the like add up.
func (n *talNode) merge(g talGroup) talGroup {
	out := n.talGroup
	if len(g.Patches) > 0 && (!n.OverridePatches || len(out.Patches) == 0) {
		out.Patches = slices.Concat(g.Patches, out.Patches)
	}
	if len(g.ExtraManifests) > 0 && (!n.OverrideExtraManifests || len(out.ExtraManifests) == 0) {
		out.ExtraManifests = slices.Concat(out.ExtraManifests, g.ExtraManifests)
	}
	if len(g.CertSANs) > 0 && (!n.OverrideMachineCertSans || len(out.CertSANs) == 0) {
		out.CertSANs = slices.Concat(out.CertSANs, g.CertSANs)
	}
	for _, f := range []struct{ own, group *yaml.Node }{
		{&out.MachineDisks, &g.MachineDisks},
		{&out.MachineFiles, &g.MachineFiles},
		{&out.KernelModules, &g.KernelModules},
		{&out.NetworkInterfaces, &g.NetworkInterfaces},
		{&out.Schematic, &g.Schematic},
		{&out.MachineSpec, &g.MachineSpec},
	} {
		if f.own.IsZero() {
			*f.own = *f.group
		}
	}
	out.DisableSearchDomain = out.DisableSearchDomain || g.DisableSearchDomain
	orGroup(&out.NodeLabels, g.NodeLabels, out.NodeLabels == nil)
	orGroup(&out.NodeAnnotations, g.NodeAnnotations, out.NodeAnnotations == nil)
	orGroup(&out.NodeTaints, g.NodeTaints, out.NodeTaints == nil)
	orGroup(&out.Nameservers, g.Nameservers, out.Nameservers == nil)
	orGroup(&out.TalosImageURL, g.TalosImageURL, out.TalosImageURL == "")
	orGroup(&out.IngressFirewall, g.IngressFirewall, out.IngressFirewall == nil)
	orGroup(&out.ExtensionServices, g.ExtensionServices, out.ExtensionServices == nil)
	orGroup(&out.Volumes, g.Volumes, out.Volumes == nil)
	orGroup(&out.UserVolumes, g.UserVolumes, out.UserVolumes == nil)
	return out
}

func orGroup[T any](own *T, group T, empty bool) {
	if empty {
		*own = group
	}
}

// text gives a patch's text, variables filled in: of the file that it names, or inline.
func (t *helper) text(p string) (file string, data []byte, err error) {
	name, isFile := strings.CutPrefix(p, "@")
	if !isFile {
		return "", []byte(p), nil
	}
	file = path.Clean(name)
	data, err = fs.ReadFile(t.fsys, file)
	if err != nil {
		return file, nil, fmt.Errorf("the patch %s can't be read: %w", file, err)
	}
	return file, t.substitute(file, data), nil
}

// carry notes which patches a machine has, to take them over as they are written.
func (t *helper) carry(machine string, n *talNode, g talGroup) {
	add := func(where string, list []string) {
		for i, p := range list {
			t.carryOne(machine, where, i, p)
		}
	}
	group := "worker"
	if n.ControlPlane {
		group = v1alpha1.RoleControlPlane
	}
	if !n.OverridePatches || len(n.Patches) == 0 {
		add(group, g.Patches)
	}
	add(machine, n.Patches)
	add("all", t.config.Patches)
}

func (t *helper) carryOne(machine, where string, index int, p string) {
	file, data, err := t.text(p)
	if err != nil {
		t.lose("%s", err)
		return
	}
	id := fmt.Sprint(where, "\x00", index, "\x00", p)
	if name, ok := t.names[id]; ok {
		t.uses[name] = append(t.uses[name], machine)
		return
	}
	var docs []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var d yaml.Node
		if err := dec.Decode(&d); errors.Is(err, io.EOF) {
			break
		} else if err != nil || len(d.Content) == 0 {
			return
		}
		if d.Content[0].Kind != yaml.MappingNode || len(d.Content[0].Content) == 0 {
			// A JSON patch: what it does is taken over, not how it is written.
			return
		}
		docs = append(docs, d.Content[0])
	}
	if len(docs) == 0 {
		return
	}
	name := dnsLabel(fmt.Sprintf("%s-%d", where, index+1))
	from := fmt.Sprintf("%s (patch %d of %s)", t.file, index+1, where)
	if file != "" {
		name, from = dnsLabel(where+"-"+strings.TrimSuffix(path.Base(file), path.Ext(file))), file
	}
	for _, c := range t.src.Patches {
		if c.Name == name {
			name = dnsLabel(fmt.Sprintf("%s-%d", name, index+1))
		}
	}
	t.names[id] = name
	t.uses[name] = append(t.uses[name], machine)
	t.src.Patches = append(t.src.Patches, Carried{Name: name, File: from, Documents: docs})
}

// selectors makes the selectors of carried patches: by role where that says the same as the machines' names. They are
// ordered as talhelper puts them on: the groups', the nodes', those for all.
func (t *helper) selectors() {
	members := map[string][]string{}
	for i := range t.config.Nodes {
		n := &t.config.Nodes[i]
		role := v1alpha1.RoleWorker
		if n.ControlPlane {
			role = v1alpha1.RoleControlPlane
		}
		members[role] = append(members[role], dnsLabel(n.Hostname))
		members[""] = append(members[""], dnsLabel(n.Hostname))
	}
	for i := range t.src.Patches {
		p := &t.src.Patches[i]
		switch used := t.uses[p.Name]; {
		case len(used) == 1 && strings.HasPrefix(p.Name, used[0]+"-"):
			// A node's own patch stays its own, be it the only one of its role.
			p.Machines = used
		case slices.Equal(used, members[""]):
		case slices.Equal(used, members[v1alpha1.RoleControlPlane]):
			p.Roles = []string{v1alpha1.RoleControlPlane}
		case slices.Equal(used, members[v1alpha1.RoleWorker]):
			p.Roles = []string{v1alpha1.RoleWorker}
		default:
			p.Machines = used
		}
	}
	rank := func(c Carried) int {
		switch {
		case strings.HasPrefix(c.Name, "all-"):
			return 2
		case strings.HasPrefix(c.Name, v1alpha1.RoleControlPlane+"-"), strings.HasPrefix(c.Name, v1alpha1.RoleWorker+"-"):
			return 0
		}
		return 1
	}
	slices.SortStableFunc(t.src.Patches, func(a, b Carried) int { return rank(a) - rank(b) })
}
