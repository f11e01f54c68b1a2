package node

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

var kubernetesDetails = []detail{
	{[]string{k8s.KubeletConfigType, k8s.KubeletSpecType, k8s.KubeletLifecycleType, k8s.NodeIPConfigType}, (*boot).detailKubelet},
	{[]string{k8s.NodeLabelSpecType, k8s.NodeTaintSpecType, k8s.NodeAnnotationSpecType}, (*boot).detailNodeSpecs},
	{[]string{k8s.APIServerConfigType, k8s.ControllerManagerConfigType, k8s.SchedulerConfigType, k8s.AuditPolicyConfigType, k8s.AdmissionControlConfigType, k8s.AuthorizationConfigType}, (*boot).detailComponents},
	{[]string{k8s.StaticPodType, k8s.StaticPodServerStatusType, k8s.SecretsStatusType, k8s.ConfigStatusType}, (*boot).detailStaticPods},
	{[]string{k8s.BootstrapManifestsConfigType, k8s.ExtraManifestsConfigType, k8s.ManifestType, k8s.ManifestStatusType}, (*boot).detailManifests},
	{[]string{k8s.KubePrismConfigType, k8s.KubePrismEndpointsType, k8s.KubePrismStatusesType}, (*boot).detailKubePrism},
}

// clusterCIDRs are the pods' and services' networks of the configuration.
func (b *boot) clusterCIDRs() (pods, services []string) {
	cfg := b.config()
	if cfg == nil || cfg.K8sNetworkConfig() == nil {
		return nil, nil
	}
	text := func(list []netip.Prefix) []string {
		var out []string
		for _, p := range list {
			out = append(out, p.String())
		}
		return out
	}
	return text(cfg.K8sNetworkConfig().PodCIDRs()), text(cfg.K8sNetworkConfig().ServiceCIDRs())
}

func (b *boot) dnsDomain() string {
	if n := b.config().K8sNetworkConfig(); n != nil {
		return n.DNSDomain()
	}
	return constants.DefaultDNSDomain
}

// clusterDNS is the tenth address of each services' network, unless the configuration says otherwise.
func (b *boot) clusterDNS() []string {
	if dns := b.config().Machine().Kubelet().ClusterDNS(); len(dns) > 0 {
		return dns
	}
	return b.serviceAddress(10)
}

// serviceAddress is the n-th address of each services' network.
func (b *boot) serviceAddress(n int) []string {
	var out []string
	_, services := b.clusterCIDRs()
	for _, s := range services {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			continue
		}
		a := p.Masked().Addr()
		for range n {
			a = a.Next()
		}
		out = append(out, a.String())
	}
	return out
}

func argValues(in map[string][]string) map[string]k8s.ArgValues {
	out := map[string]k8s.ArgValues{}
	for k, v := range in {
		out[k] = k8s.ArgValues{Values: v}
	}
	return out
}

func (b *boot) detailKubelet(l *detailList) {
	if !b.complete() {
		return
	}
	kubelet, host := b.config().Machine().Kubelet(), b.hostname()
	l.add("k8s.KubeletConfigController", with(k8s.NewKubeletConfig(k8s.NamespaceName, k8s.KubeletID), k8s.KubeletConfigSpec{
		Image: kubelet.Image(), ClusterDNS: b.clusterDNS(), ClusterDomain: b.dnsDomain(), ExtraArgs: argValues(kubelet.ExtraArgs()),
		ExtraConfig: kubelet.ExtraConfig(), DefaultRuntimeSeccompEnabled: kubelet.DefaultRuntimeSeccompProfileEnabled(),
		SkipNodeRegistration: kubelet.SkipNodeRegistration(), DisableManifestsDirectory: kubelet.DisableManifestsDirectory(),
		EnableFSQuotaMonitoring: true, AllowSchedulingOnControlPlane: b.config().Cluster().ScheduleOnControlPlanes(),
		StaticPodListURL: b.staticPodURL(),
	}))
	if host == "" {
		return
	}
	args := map[string]string{
		"bootstrap-kubeconfig": "/etc/kubernetes/bootstrap-kubeconfig", "cert-dir": "/var/lib/kubelet/pki", "config": "/etc/kubernetes/kubelet.yaml",
		"hostname-override": host, "kubeconfig": "/etc/kubernetes/kubeconfig-kubelet", "node-ip": b.node.Spec().Address.String(),
	}
	for k, v := range kubelet.ExtraArgs() {
		args[k] = strings.Join(v, ",")
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(args)) {
		list = append(list, "--"+k+"="+args[k])
	}
	l.add("k8s.KubeletSpecController", with(k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID), k8s.KubeletSpecSpec{
		Image: kubelet.Image(), Args: list, ExpectedNodename: host, Config: b.kubeletConfiguration(),
	}))
	l.add("k8s.KubeletServiceController", k8s.NewKubeletLifecycle(k8s.NamespaceName, k8s.KubeletLifecycleID))
	_, services := b.clusterCIDRs()
	pods, _ := b.clusterCIDRs()
	l.add("k8s.NodeIPConfigController", with(k8s.NewNodeIPConfig(k8s.NamespaceName, k8s.KubeletID), k8s.NodeIPConfigSpec{
		ValidSubnets: []string{"0.0.0.0/0"}, ExcludeSubnets: append(pods, services...),
	}))
}

// staticPodURL is where the kubelet fetches static pods; the port is another one on each boot.
func (b *boot) staticPodURL() string {
	return "http://127.0.0.1:" + strconv.Itoa(32768+int(b.id[0])*64+int(b.id[1])%64)
}

// kubeletConfiguration is the kubelet's file, with the fields that 1.13.5 shows and what the configuration adds.
func (b *boot) kubeletConfiguration() map[string]any {
	kubelet := b.config().Machine().Kubelet()
	toAny := func(in []string) []any {
		var out []any
		for _, s := range in {
			out = append(out, s)
		}
		return out
	}
	conf := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "address": "0.0.0.0", "port": 10250,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"cacheTTL": "0s", "enabled": true},
			"x509": map[string]any{"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
		},
		"authorization": map[string]any{"mode": "Webhook", "webhook": map[string]any{"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"}},
		"cgroupRoot":    "/", "kubeletCgroups": "/podruntime/kubelet", "systemCgroups": "/system",
		"clusterDNS": toAny(b.clusterDNS()), "clusterDomain": b.dnsDomain(),
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "failSwapOn": false, "oomScoreAdj": -450,
		"featureGates": map[string]any{"LocalStorageCapacityIsolationFSQuotaMonitoring": true},
		"logging":      map[string]any{"flushFrequency": 0, "format": "json", "verbosity": 0},
		"resolvConf":   "/system/resolved/resolv.conf", "rotateCertificates": true, "seccompDefault": kubelet.DefaultRuntimeSeccompProfileEnabled(),
		"serializeImagePulls": false, "shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s",
		"staticPodURL": b.staticPodURL(), "streamingConnectionIdleTimeout": "5m0s", "tlsMinVersion": "VersionTLS13",
		"systemReserved": map[string]any{"cpu": "50m", "ephemeral-storage": "256Mi", "memory": "512Mi", "pid": "100"},
	}
	if b.machineType().IsControlPlane() && !b.config().Cluster().ScheduleOnControlPlanes() {
		conf["registerWithTaints"] = []any{map[string]any{"effect": "NoSchedule", "key": constants.LabelNodeRoleControlPlane}}
	}
	maps.Copy(conf, kubelet.ExtraConfig())
	return conf
}

func (b *boot) detailNodeSpecs(l *detailList) {
	if !b.complete() {
		return
	}
	m := b.config().Machine()
	labels := maps.Clone(map[string]string(m.NodeLabels()))
	if labels == nil {
		labels = map[string]string{}
	}
	if b.machineType().IsControlPlane() {
		labels[constants.LabelNodeRoleControlPlane] = ""
		if !b.config().Cluster().ScheduleOnControlPlanes() {
			l.add("k8s.NodeTaintSpecController", with(k8s.NewNodeTaintSpec(constants.LabelNodeRoleControlPlane), k8s.NodeTaintSpecSpec{
				Key: constants.LabelNodeRoleControlPlane, Effect: "NoSchedule",
			}))
		}
	}
	for k, v := range labels {
		l.add("k8s.NodeLabelSpecController", with(k8s.NewNodeLabelSpec(k), k8s.NodeLabelSpecSpec{Key: k, Value: v}))
	}
	for k, v := range m.NodeTaints() {
		value, effect, found := strings.Cut(v, ":")
		if !found {
			value, effect = "", v
		}
		l.add("k8s.NodeTaintSpecController", with(k8s.NewNodeTaintSpec(k), k8s.NodeTaintSpecSpec{Key: k, Value: value, Effect: effect}))
	}
	for k, v := range m.NodeAnnotations() {
		l.add("k8s.NodeAnnotationSpecController", with(k8s.NewNodeAnnotationSpec(k), k8s.NodeAnnotationSpecSpec{Key: k, Value: v}))
	}
}

func (b *boot) detailComponents(l *detailList) {
	if !b.machineType().IsControlPlane() {
		return
	}
	const owner = "k8s.ControlPlaneConfigController"
	cfg := b.config()
	pods, services := b.clusterCIDRs()
	if api := cfg.K8sAPIServerConfig(); api != nil {
		endpoint := ""
		if u := cfg.Cluster().Endpoint(); u != nil {
			endpoint = u.String()
		}
		l.add("k8s.ControlPlaneAPIServerController", with(k8s.NewAPIServerConfig(k8s.APIServerConfigID), k8s.APIServerConfigSpec{
			Image: api.Image(), ControlPlaneEndpoint: endpoint, EtcdServers: []string{"https://" + net.JoinHostPort("localhost", "2379")},
			LocalPort: api.APIPort(), ServiceCIDRs: services, ExtraArgs: argValues(api.ExtraArgs()), EnvironmentVariables: api.Env(),
			AdvertisedAddress: "$(POD_IP)", UseAuthenticationConfig: api.UseAuthenticationConfig(), StartupProbesEnabled: api.StartupProbesEnabled(),
		}))
	}
	if cm := cfg.K8sControllerManagerConfig(); cm != nil {
		l.add("k8s.ControlPlaneControllerManagerController", with(k8s.NewControllerManagerConfig(k8s.ControllerManagerConfigID), k8s.ControllerManagerConfigSpec{
			Enabled: cm.Enabled(), Image: cm.Image(), PodCIDRs: pods, ServiceCIDRs: services, ExtraArgs: argValues(cm.ExtraArgs()), EnvironmentVariables: cm.Env(),
		}))
	}
	if s := cfg.K8sSchedulerConfig(); s != nil {
		l.add("k8s.ControlPlaneSchedulerController", with(k8s.NewSchedulerConfig(k8s.SchedulerConfigID), k8s.SchedulerConfigSpec{
			Enabled: s.Enabled(), Image: s.Image(), ExtraArgs: argValues(s.ExtraArgs()), EnvironmentVariables: s.Env(), Config: s.Config(),
		}))
	}
	if a := cfg.K8sAuditPolicyConfig(); a != nil {
		l.add(owner, with(k8s.NewAuditPolicyConfig(), k8s.AuditPolicyConfigSpec{Config: a.Configuration()}))
	}
	var plugins []k8s.AdmissionPluginSpec
	for _, p := range cfg.K8sAdmissionControlPluginConfigs() {
		plugins = append(plugins, k8s.AdmissionPluginSpec{Name: p.Name(), Configuration: p.Configuration()})
	}
	l.add(owner, with(k8s.NewAdmissionControlConfig(), k8s.AdmissionControlConfigSpec{Config: plugins}))
	var authorizers []k8s.AuthorizationAuthorizersSpec
	for _, a := range cfg.K8sAuthorizerConfigs() {
		authorizers = append(authorizers, k8s.AuthorizationAuthorizersSpec{Type: a.Type(), Name: a.Name(), Webhook: a.Webhook()})
	}
	l.add(owner, with(k8s.NewAuthorizationConfig(), k8s.AuthorizationConfigSpec{Config: authorizers}))
}

// podImages are what the control plane's pods run.
func (b *boot) podImages() map[string]string {
	cfg, out := b.config(), map[string]string{}
	if cfg == nil || !b.complete() {
		return out
	}
	if c := cfg.K8sAPIServerConfig(); c != nil {
		out["kube-apiserver"] = c.Image()
	}
	if c := cfg.K8sControllerManagerConfig(); c != nil && c.Enabled() {
		out["kube-controller-manager"] = c.Image()
	}
	if c := cfg.K8sSchedulerConfig(); c != nil && c.Enabled() {
		out["kube-scheduler"] = c.Image()
	}
	return out
}

func (b *boot) detailStaticPods(l *detailList) {
	if b.complete() {
		l.add("k8s.StaticPodServerController", with(k8s.NewStaticPodServerStatus(k8s.NamespaceName, k8s.StaticPodServerStatusResourceID), k8s.StaticPodServerStatusSpec{URL: b.staticPodURL()}))
	}
	if !b.machineType().IsControlPlane() {
		return
	}
	l.add("k8s.RenderSecretsStaticPodController", with(k8s.NewSecretsStatus(k8s.ControlPlaneNamespaceName, k8s.StaticPodSecretsStaticPodID), k8s.SecretsStatusSpec{Ready: true, Version: "1"}))
	l.add("k8s.RenderConfigsStaticPodController", with(k8s.NewConfigStatus(k8s.ControlPlaneNamespaceName, k8s.ConfigStatusStaticPodID), k8s.ConfigStatusSpec{Ready: true, Version: "1"}))
	if up, _ := b.svc.is("etcd"); !up {
		return // the pods are rendered once etcd runs
	}
	b.mu.Lock()
	version := fmt.Sprint(b.podVersion + 1)
	b.mu.Unlock()
	for name, image := range b.podImages() {
		l.add("k8s.ControlPlaneStaticPodController", with(k8s.NewStaticPod(k8s.NamespaceName, name), k8s.StaticPodSpec{Pod: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{
				"name": name, "namespace": "kube-system",
				"annotations": map[string]any{
					constants.AnnotationStaticPodSecretsVersion: "1", constants.AnnotationStaticPodConfigFileVersion: "1",
					constants.AnnotationStaticPodConfigVersion: version,
				},
				"labels": map[string]any{"tier": "control-plane", "k8s-app": name, "component": name},
			},
			"spec": map[string]any{
				"containers":  []any{map[string]any{"name": name, "image": image}},
				"hostNetwork": true, "priorityClassName": "system-cluster-critical",
			},
		}}))
	}
	for _, p := range b.config().Machine().Pods() {
		if md, ok := p["metadata"].(map[string]any); ok {
			l.add("k8s.ExtraStaticPodController", with(k8s.NewStaticPod(k8s.NamespaceName, fmt.Sprintf("%v-%v", md["namespace"], md["name"])), k8s.StaticPodSpec{Pod: p}))
		}
	}
}

// bootstrapManifests are the manifests that 1.13 applies with the default CNI, in their order.
var bootstrapManifests = []string{
	"00-kubelet-bootstrapping-token", "01-csr-approver-role-binding", "01-csr-node-bootstrap", "01-csr-renewal-role-binding",
	"05-flannel", "10-kube-proxy", "11-core-dns", "11-core-dns-svc", "11-kube-config-in-cluster",
}

func (b *boot) detailManifests(l *detailList) {
	if !b.machineType().IsControlPlane() {
		return
	}
	cfg := b.config()
	pods, _ := b.clusterCIDRs()
	spec := k8s.BootstrapManifestsConfigSpec{
		ClusterDomain: b.dnsDomain(), PodCIDRs: pods, CoreDNSEnabled: cfg.Cluster().CoreDNS().Enabled(), CoreDNSImage: cfg.Cluster().CoreDNS().Image(),
		FlannelEnabled: cfg.K8sFlannelCNIConfig() != nil, CNIName: "none",
	}
	if u := cfg.Cluster().Endpoint(); u != nil {
		spec.Server = u.String()
	}
	if p := cfg.K8sProxyConfig(); p != nil {
		spec.ProxyEnabled, spec.ProxyImage = p.Enabled(), p.Image()
	}
	if dns := b.serviceAddress(10); len(dns) > 0 {
		spec.DNSServiceIP = dns[0]
	}
	if spec.FlannelEnabled {
		spec.CNIName, spec.FlannelImage = "flannel", "ghcr.io/siderolabs/flannel:"+constants.FlannelVersion
	}
	l.add("k8s.ControlPlaneBootstrapManifestsController", with(k8s.NewBootstrapManifestsConfig(), spec))
	l.add("k8s.ControlPlaneExtraManifestsController", k8s.NewExtraManifestsConfig())
	var names []string
	for _, m := range bootstrapManifests {
		if (m == "05-flannel" && !spec.FlannelEnabled) || (m == "10-kube-proxy" && !spec.ProxyEnabled) || (strings.HasPrefix(m, "11-core-dns") && !spec.CoreDNSEnabled) {
			continue
		}
		names = append(names, m)
		l.add("k8s.ManifestController", k8s.NewManifest(k8s.ControlPlaneNamespaceName, m))
	}
	if up, healthy := b.svc.is("etcd"); up && healthy {
		l.add("k8s.ManifestApplyController", with(k8s.NewManifestStatus(k8s.ControlPlaneNamespaceName), k8s.ManifestStatusSpec{ManifestsApplied: names}))
	}
}

func (b *boot) detailKubePrism(l *detailList) {
	if !b.complete() || !b.config().Machine().Features().KubePrism().Enabled() {
		return
	}
	var list []k8s.KubePrismEndpoint
	if u := b.config().Cluster().Endpoint(); u != nil {
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			port = 443
		}
		list = append(list, k8s.KubePrismEndpoint{Host: u.Hostname(), Port: uint32(port)})
	}
	if b.machineType().IsControlPlane() {
		list = append(list, k8s.KubePrismEndpoint{Host: "localhost", Port: 6443})
	}
	for _, a := range b.endpoints() {
		e := k8s.KubePrismEndpoint{Host: a.String(), Port: 6443}
		if !slices.Contains(list, e) {
			list = append(list, e)
		}
	}
	port := b.config().Machine().Features().KubePrism().Port()
	l.add("k8s.KubePrismEndpointsController", with(k8s.NewKubePrismEndpoints(k8s.NamespaceName, k8s.KubePrismEndpointsID), k8s.KubePrismEndpointsSpec{Endpoints: list}))
	l.add("k8s.KubePrismConfigController", with(k8s.NewKubePrismConfig(k8s.NamespaceName, k8s.KubePrismConfigID), k8s.KubePrismConfigSpec{
		Host: "127.0.0.1", Port: port, Endpoints: list,
	}))
	l.add("k8s.KubePrismController", with(k8s.NewKubePrismStatuses(k8s.NamespaceName, k8s.KubePrismStatusesID), k8s.KubePrismStatusesSpec{
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Healthy: b.kubeReachable(),
	}))
}
