package adopt

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

// facts are what our kinds have fields for, as an original has it. The rest becomes patches.
type facts struct {
	role, cluster, hostname string
	endpoint                *url.URL
	pods, services          []string
	domain                  string
	cni                     string
	kubeProxy               bool
	disk, image             string
	selector                map[string]any
	wipe                    *bool
	kubernetes, talos       string
	docs                    []mask.Document
}

var (
	kubeletImage   = regexp.MustCompile(`/kubelet:(v\d+\.\d+\.\d+[^\s"']*)`)
	installerImage = regexp.MustCompile(`installer[a-z-]*(?:/[0-9a-f]{64})?:(v\d+\.\d+\.\d+[^\s"'@]*)`)
)

// normal writes a configuration as the library does. Its errors may quote values, so keys are left of them alone.
func normal(config []byte) ([]byte, error) {
	p, err := configloader.NewFromBytes(config)
	if err != nil {
		return nil, fmt.Errorf("no configuration that Talos reads: %s", keysOnly(err))
	}
	return p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
}

// metal is the mode that configurations are validated for.
type metal struct{}

func (metal) String() string        { return "metal" }
func (metal) RequiresInstall() bool { return true }
func (metal) InContainer() bool     { return false }

// valid tells whether Talos takes a configuration. Its reasons may quote values, so they are not passed on.
func valid(config []byte) (ok bool) {
	// The library falls over some nulls in lists.
	defer func() { ok = ok && recover() == nil }()
	p, err := configloader.NewFromBytes(config)
	if err != nil {
		return false
	}
	_, err = p.ValidateAsClient(metal{}, validation.WithLocal())
	return err == nil
}

// readFacts reads an original.
func readFacts(config []byte) (_ *facts, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("it makes the library of Talos panic: look for a null in a list")
		}
	}()
	text, err := normal(config)
	if err != nil {
		return nil, err
	}
	p, err := configloader.NewFromBytes(text)
	if err != nil {
		return nil, fmt.Errorf("no configuration that Talos reads: %s", keysOnly(err))
	}
	if p.Machine() == nil || p.Cluster() == nil {
		return nil, fmt.Errorf("it is no whole machine configuration: machine or cluster is missing")
	}
	f := &facts{role: v1alpha1.RoleWorker, cni: v1alpha1.CNIFlannel, kubeProxy: true}
	if p.Machine().Type() != machine.TypeWorker {
		f.role = v1alpha1.RoleControlPlane
	}
	if f.docs, err = mask.Decode(text); err != nil {
		return nil, err
	}
	f.cluster, f.endpoint = p.Cluster().Name(), p.Cluster().Endpoint()
	if m := kubeletImage.FindSubmatch(text); m != nil {
		f.kubernetes = string(m[1])
	}
	f.readMachine()
	f.readCluster()
	return f, nil
}

// field gives a value by document and path, nil where it is not there.
func (f *facts) field(document string, path ...string) any {
	for _, d := range f.docs {
		if d.ID != document {
			continue
		}
		var v any = d.Fields
		for _, key := range path {
			m, _ := v.(map[string]any)
			v = m[key]
		}
		return v
	}
	return nil
}

func (f *facts) text(document string, path ...string) string {
	s, _ := f.field(document, path...).(string)
	return s
}

func (f *facts) texts(document string, path ...string) []string {
	list, _ := f.field(document, path...).([]any)
	var out []string
	for _, v := range list {
		if s, ok := v.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

func (f *facts) readMachine() {
	f.hostname = f.text(mask.V1Alpha1, "machine", "network", "hostname")
	if h := f.text("HostnameConfig", "hostname"); h != "" {
		f.hostname = h
	}
	f.disk = f.text(mask.V1Alpha1, "machine", "install", "disk")
	f.selector, _ = f.field(mask.V1Alpha1, "machine", "install", "diskSelector").(map[string]any)
	f.image = f.text(mask.V1Alpha1, "machine", "install", "image")
	if w, ok := f.field(mask.V1Alpha1, "machine", "install", "wipe").(bool); ok {
		f.wipe = &w
	}
	if m := installerImage.FindStringSubmatch(f.image); m != nil {
		f.talos = m[1]
	}
}

// readCluster reads what lies in the v1alpha1 document, and from contract 1.14 on in documents of its own.
func (f *facts) readCluster() {
	f.pods = f.texts(mask.V1Alpha1, "cluster", "network", "podSubnets")
	f.services = f.texts(mask.V1Alpha1, "cluster", "network", "serviceSubnets")
	f.domain = f.text(mask.V1Alpha1, "cluster", "network", "dnsDomain")
	if name := f.text(mask.V1Alpha1, "cluster", "network", "cni", "name"); name != "" && name != v1alpha1.CNIFlannel {
		f.cni = v1alpha1.CNINone
	}
	if off, _ := f.field(mask.V1Alpha1, "cluster", "proxy", "disabled").(bool); off {
		f.kubeProxy = false
	}
	for _, d := range f.docs {
		if d.ID == "KubeNetworkConfig" {
			f.pods, f.services, f.domain = f.texts(d.ID, "podSubnets"), f.texts(d.ID, "serviceSubnets"), f.text(d.ID, "dnsDomain")
		}
	}
}

// endpointOf gives the cluster's endpoint out of its URL.
func (f *facts) endpointOf(controlPlanes []string) (v1alpha1.ClusterEndpoint, error) {
	e := v1alpha1.ClusterEndpoint{Type: "loadBalancer"}
	if f.endpoint == nil || f.endpoint.Hostname() == "" {
		return e, fmt.Errorf("it has no cluster.controlPlane.endpoint")
	}
	e.Address = f.endpoint.Hostname()
	if port := f.endpoint.Port(); port != "" && port != strconv.Itoa(v1alpha1.DefaultAPIPort) {
		e.Port, _ = strconv.Atoi(port)
	}
	if _, err := netip.ParseAddr(e.Address); err != nil {
		e.Type = "dns"
	}
	for _, cp := range controlPlanes {
		if cp == e.Address {
			e.Type = "node"
		}
	}
	for _, d := range f.docs {
		if strings.HasPrefix(d.ID, "Layer2VIPConfig/") && strings.TrimPrefix(d.ID, "Layer2VIPConfig/") == e.Address {
			e.Type = "vip"
		}
	}
	interfaces, _ := f.field(mask.V1Alpha1, "machine", "network", "interfaces").([]any)
	for _, i := range interfaces {
		m, _ := i.(map[string]any)
		if vip, _ := m["vip"].(map[string]any); vip["ip"] == e.Address {
			e.Type = "vip"
		}
	}
	return e, nil
}
