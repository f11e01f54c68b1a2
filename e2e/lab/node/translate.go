package node

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	mtype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/meta"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	yaml "go.yaml.in/yaml/v3"
)

type certAndKey struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

func (c *certAndKey) pem() *x509.PEMEncodedCertificateAndKey {
	if c == nil || (c.Cert == "" && c.Key == "") {
		return nil
	}
	return &x509.PEMEncodedCertificateAndKey{Crt: []byte(c.Cert), Key: []byte(c.Key)}
}

// fields are those of the newer documents that change what the lab's node does.
type fields struct {
	// DiscoveryIdentityConfig
	ClusterID     string `yaml:"clusterID"`
	ClusterSecret string `yaml:"clusterSecret"`
	// KubeClusterConfig
	ClusterName string `yaml:"clusterName"`
	Endpoint    string `yaml:"endpoint"`
	// KubeAPIServerCAConfig, KubeAggregatorCAConfig
	IssuingCA   *certAndKey `yaml:"issuingCA"`
	AcceptedCAs []string    `yaml:"acceptedCAs"`
	// KubeServiceAccountConfig
	Issuer struct {
		PrivateKey string `yaml:"privateKey"`
	} `yaml:"issuer"`
	// KubeNodeConfig
	SkipNodeRegistration *bool             `yaml:"skipNodeRegistration"`
	Labels               map[string]string `yaml:"labels"`
	Annotations          map[string]string `yaml:"annotations"`
	Taints               map[string]string `yaml:"taints"`
	// KubeletConfig
	Image     string         `yaml:"image"`
	ExtraArgs map[string]any `yaml:"extraArgs"`
	Config    map[string]any `yaml:"config"`
	// UnattendedInstallConfig
	Installer struct {
		Image string `yaml:"image"`
	} `yaml:"installer"`
	Provisioning struct {
		DiskSelector struct {
			Match string `yaml:"match"`
		} `yaml:"diskSelector"`
	} `yaml:"provisioning"`
	// SecurityProfileConfig
	WorkloadIsolation bool `yaml:"workloadIsolation"`
}

// translate writes what a newer document says where the library has it.
func translate(cfg *v1alpha1.Config, d document) error {
	var f fields
	if err := yaml.Unmarshal([]byte(d.text), &f); err != nil {
		return err
	}
	if cfg.ClusterConfig == nil || cfg.MachineConfig == nil {
		return nil // the validation says so
	}
	c, m := cfg.ClusterConfig, cfg.MachineConfig
	switch d.Kind {
	case "DiscoveryIdentityConfig":
		c.ClusterID, c.ClusterSecret = f.ClusterID, f.ClusterSecret
	case "KubeClusterConfig":
		c.ClusterName = f.ClusterName
		return setEndpoint(c, f.Endpoint)
	case "KubeAPIServerCAConfig":
		c.ClusterCA = f.IssuingCA.pem()
		for _, ca := range f.AcceptedCAs {
			c.ClusterAcceptedCAs = append(c.ClusterAcceptedCAs, &x509.PEMEncodedCertificate{Crt: []byte(ca)})
		}
	case "KubeAggregatorCAConfig":
		c.ClusterAggregatorCA = f.IssuingCA.pem()
	case "KubeServiceAccountConfig":
		c.ClusterServiceAccount = &x509.PEMEncodedKey{Key: []byte(f.Issuer.PrivateKey)}
	case "KubeNodeConfig":
		m.MachineNodeLabels, m.MachineNodeAnnotations, m.MachineNodeTaints = f.Labels, f.Annotations, f.Taints
		kubelet(m).KubeletSkipNodeRegistration = f.SkipNodeRegistration
	case "KubeletConfig":
		k := kubelet(m)
		k.KubeletImage = f.Image
		k.KubeletExtraConfig = meta.Unstructured{Object: f.Config}
		if len(f.ExtraArgs) > 0 { // for comparing only: the lab's kubelet takes no arguments
			if k.KubeletExtraConfig.Object == nil {
				k.KubeletExtraConfig.Object = map[string]any{}
			}
			k.KubeletExtraConfig.Object["extraArgs"] = fmt.Sprint(f.ExtraArgs)
		}
	case "UnattendedInstallConfig":
		// The library wants an install section; which disk it is, the selector says at installation.
		m.MachineInstall = &v1alpha1.InstallConfig{InstallDisk: unattendedDisk, InstallImage: f.Installer.Image}
	}
	return nil
}

// unattendedDisk stands for the disk that the selector of an UnattendedInstallConfig finds.
const unattendedDisk = "/dev/unattended"

func kubelet(m *v1alpha1.MachineConfig) *v1alpha1.KubeletConfig {
	if m.MachineKubelet == nil {
		m.MachineKubelet = &v1alpha1.KubeletConfig{}
	}
	return m.MachineKubelet
}

func setEndpoint(c *v1alpha1.ClusterConfig, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	if c.ControlPlane == nil {
		c.ControlPlane = &v1alpha1.ControlPlaneConfig{}
	}
	if endpoint != "" {
		c.ControlPlane.Endpoint = &v1alpha1.Endpoint{URL: u}
	}
	return nil
}

// complete adds what the library's validation insists on and 1.14's doesn't, when there is no cluster.
func complete(cfg *v1alpha1.Config) {
	c := cfg.ClusterConfig
	if c == nil || (c.ControlPlane != nil && c.ControlPlane.Endpoint != nil) {
		return
	}
	_ = setEndpoint(c, "https://localhost:6443")
	if c.ClusterSecretboxEncryptionSecret == "" {
		c.ClusterSecretboxEncryptionSecret = "none"
	}
}

// controlPlaneOnly are the kinds that a worker of 1.14 may not have (container-apply-modes/dryrun-all-modes.txt).
var controlPlaneOnly = set(
	"KubeAPIServerConfig", "KubeAdmissionControlConfig", "KubeAggregatorCAConfig", "KubeAuditPolicyConfig",
	"KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeControllerManagerConfig", "KubeCoreDNSConfig",
	"KubeEtcdEncryptionConfig", "KubeExternalManifestConfig", "KubeFlannelCNIConfig", "KubeInlineManifestConfig",
	"KubeProxyConfig", "KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeTalosAPIAccessConfig",
)

// misplaced refuses a worker's documents that only control planes may have.
func misplaced(cfg config.Provider, data []byte) []error {
	if cfg.Machine() == nil || cfg.Machine().Type() != mtype.TypeWorker {
		return nil
	}
	only := map[string]bool{}
	for _, d := range split(data) {
		if controlPlaneOnly[d.Kind] {
			only[d.Kind] = true
		}
	}
	if len(only) == 0 {
		return nil
	}
	kinds := strings.Join(slices.Sorted(maps.Keys(only)), " ")
	return []error{fmt.Errorf("the following document kinds are only allowed on control plane machines: [%s]", kinds)}
}

// deprecated are 1.14's warnings about sections of the v1alpha1 document.
func deprecated(cfg config.Provider) []string {
	raw := cfg.RawV1Alpha1()
	if raw == nil || raw.MachineConfig == nil {
		return nil
	}
	var out []string
	if len(raw.MachineConfig.MachineFiles) > 0 {
		out = append(out, ".machine.files is deprecated; use dedicated configuration documents instead")
	}
	if len(raw.MachineConfig.MachineBaseRuntimeSpecOverrides.Object) > 0 {
		out = append(out, ".machine.baseRuntimeSpecOverrides is deprecated; use a CRIBaseRuntimeSpecConfig document instead")
	}
	return out
}

// conflicts are the newer documents' quarrels with the v1alpha1 document, in 1.14's words.
func conflicts(cfg *v1alpha1.Config, newer []document) []error {
	var out []error
	say := func(bad bool, text string) {
		if bad {
			out = append(out, fmt.Errorf("%s", text))
		}
	}
	c, m := cfg.ClusterConfig, cfg.MachineConfig
	if c == nil || m == nil {
		return nil
	}
	for _, d := range newer {
		switch d.Kind {
		case "UnattendedInstallConfig":
			say(m.MachineInstall != nil, "UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)")
		case "KubeletConfig":
			say(m.MachineKubelet != nil, "kubelet config is already set in v1alpha1 config (.machine.kubelet)")
		case "KubeNodeConfig":
			say(len(m.MachineNodeLabels) > 0, ".machine.nodeLabels is already set in v1alpha1 config")
		case "KubeClusterConfig":
			say(c.ClusterName != "", "cluster name is already set in the v1alpha1 config (.cluster.clusterName). Please remove it and use only the new KubeClusterConfig document to avoid conflicts")
		case "DiscoveryIdentityConfig":
			say(c.ClusterID != "" || c.ClusterSecret != "", "cluster identity is already configured in .cluster.id/.cluster.secret of the v1alpha1 config")
		}
	}
	return out
}

// joinErrors adds errors to the library's list of them.
func joinErrors(err error, more ...error) error {
	var all *multierror.Error
	if err != nil {
		all = multierror.Append(all, err)
	}
	for _, e := range more {
		all = multierror.Append(all, e)
	}
	return all.ErrorOrNil()
}
