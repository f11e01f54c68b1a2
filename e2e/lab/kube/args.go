package kube

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/ichor/e2e/lab/node"
)

// flags of a program: several values are one flag each.
type flags map[string][]string

// list gives the flags in order, so that the same configuration gives the same command line.
func (f flags) list() []string {
	var res []string
	for name, values := range f {
		for _, v := range values {
			res = append(res, "--"+name+"="+v)
		}
	}
	slices.Sort(res)
	return res
}

// merge puts a configuration's extraArgs over the flags as Talos does: some are added to, some may not be touched.
func (f flags) merge(extra map[string][]string, additive, denied []string) error {
	for name, values := range extra {
		switch {
		case slices.Contains(denied, name):
			return fmt.Errorf("extra arg %q is not allowed to be overridden", name)
		case slices.Contains(additive, name) && len(f[name]) > 0:
			f[name] = []string{strings.Join(append(f[name], values...), ",")}
		default:
			f[name] = values
		}
	}
	return nil
}

// component is a static pod as the configuration has it: its command line and its image's version.
type component struct {
	pod   string
	path  string
	args  []string
	env   []string
	image string
}

// layout says where the parts of one control plane are.
type layout struct {
	dir    string         // keys, certificates, configuration files, logs
	local  netip.AddrPort // where the API server listens for the gate and for its neighbours on the machine
	etcd   netip.AddrPort // where the machine's own etcd member is reached
	timing timing
}

func (l layout) file(name string) string { return filepath.Join(l.dir, name) }

// apiServer is the API server's command line. Source: Talos's ControlPlaneStaticPodController (v1.13.5). What differs is
// said in docs/lab.md: addresses and files of the lab, no audit log, no record of itself as an endpoint of the service
// (Kubernetes refuses loopback addresses there).
func (l layout) apiServer(t Tools, cfg config.Provider, h *node.Host) (component, error) {
	s := cfg.K8sAPIServerConfig()
	endpoint := cfg.Cluster().Endpoint().String()
	f := flags{
		"admission-control-config-file":      {l.file("admission-control.json")},
		"advertise-address":                  {h.Spec().Address.String()},
		"allow-privileged":                   {"true"},
		"api-audiences":                      {endpoint},
		"authorization-config":               {l.file("authorization.json")},
		"bind-address":                       {l.local.Addr().String()},
		"client-ca-file":                     {l.file("ca.crt")},
		"enable-admission-plugins":           {"NodeRestriction"},
		"enable-bootstrap-token-auth":        {"true"},
		"encryption-provider-config":         {l.file("encryption.json")},
		"endpoint-reconciler-type":           {"none"},
		"etcd-cafile":                        {l.file("etcd-ca.crt")},
		"etcd-certfile":                      {l.file("etcd-client.crt")},
		"etcd-keyfile":                       {l.file("etcd-client.key")},
		"etcd-servers":                       {"https://" + l.etcd.String()},
		"kubelet-client-certificate":         {l.file("apiserver-kubelet-client.crt")},
		"kubelet-client-key":                 {l.file("apiserver-kubelet-client.key")},
		"kubelet-preferred-address-types":    {"InternalIP,ExternalIP,Hostname"},
		"profiling":                          {"false"},
		"proxy-client-cert-file":             {l.file("front-proxy-client.crt")},
		"proxy-client-key-file":              {l.file("front-proxy-client.key")},
		"requestheader-allowed-names":        {"front-proxy-client"},
		"requestheader-client-ca-file":       {l.file("aggregator-ca.crt")},
		"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		"requestheader-group-headers":        {"X-Remote-Group"},
		"requestheader-username-headers":     {"X-Remote-User"},
		"secure-port":                        {strconv.Itoa(int(l.local.Port()))},
		"service-account-issuer":             {endpoint},
		"service-account-key-file":           {l.file("service-account.pub")},
		"service-account-signing-key-file":   {l.file("service-account.key")},
		"service-cluster-ip-range":           {prefixes(serviceCIDRs(cfg))},
		"tls-cert-file":                      {l.file("apiserver.crt")},
		"tls-min-version":                    {"VersionTLS12"},
		"tls-private-key-file":               {l.file("apiserver.key")},
	}
	if cfg.K8sAuthenticationConfig() != nil {
		f["authentication-config"] = []string{l.file("authentication.json")}
	} else {
		f["anonymous-auth"] = []string{"false"}
	}
	err := f.merge(s.ExtraArgs(), []string{"enable-admission-plugins", "feature-gates"}, []string{
		"etcd-servers", "client-ca-file", "requestheader-client-ca-file", "proxy-client-cert-file", "proxy-client-key-file",
		"encryption-provider-config", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "kubelet-client-certificate",
		"kubelet-client-key", "service-account-key-file", "service-account-signing-key-file", "tls-cert-file",
		"tls-private-key-file", "authorization-config",
	})
	// Where the machine's own settings would collide with another machine of this host.
	f["bind-address"], f["secure-port"] = []string{l.local.Addr().String()}, []string{strconv.Itoa(int(l.local.Port()))}
	return component{pod: "kube-apiserver", path: t.APIServer, args: f.list(), env: env(s.Env()), image: s.Image()}, err
}

// controllerManager is the command line of the controller manager. Source as above.
func (l layout) controllerManager(t Tools, cfg config.Provider) (component, error) {
	s := cfg.K8sControllerManagerConfig()
	f := flags{
		"allocate-node-cidrs":              {"true"},
		"authentication-kubeconfig":        {l.file("controller-manager.kubeconfig")},
		"authorization-kubeconfig":         {l.file("controller-manager.kubeconfig")},
		"cluster-cidr":                     {prefixes(podCIDRs(cfg))},
		"cluster-signing-cert-file":        {l.file("issuing-ca.crt")},
		"cluster-signing-key-file":         {l.file("issuing-ca.key")},
		"configure-cloud-routes":           {"false"},
		"controllers":                      {"*,tokencleaner"},
		"kubeconfig":                       {l.file("controller-manager.kubeconfig")},
		"leader-elect":                     {"true"},
		"leader-elect-lease-duration":      {l.timing.electionLease.String()},
		"leader-elect-renew-deadline":      {l.timing.electionRenew.String()},
		"leader-elect-retry-period":        {l.timing.electionRetry.String()},
		"node-monitor-grace-period":        {l.timing.monitorGrace.String()},
		"node-monitor-period":              {l.timing.monitorPeriod.String()},
		"profiling":                        {"false"},
		"root-ca-file":                     {l.file("ca.crt")},
		"secure-port":                      {"0"},
		"service-account-private-key-file": {l.file("service-account.key")},
		"service-cluster-ip-range":         {prefixes(serviceCIDRs(cfg))},
		"use-service-account-credentials":  {"true"},
	}
	err := f.merge(s.ExtraArgs(), []string{"service-cluster-ip-range", "controllers"}, []string{
		"cluster-signing-cert-file", "cluster-signing-key-file", "authentication-kubeconfig", "authorization-kubeconfig",
		"root-ca-file", "service-account-private-key-file",
	})
	f["secure-port"] = []string{"0"}
	return component{
		pod: "kube-controller-manager", path: t.ControllerManager, args: f.list(), image: s.Image(),
		env: append(l.timing.env(), env(s.Env())...),
	}, err
}

// scheduler is the command line of the scheduler. A scheduler's own configuration file is left out.
func (l layout) scheduler(t Tools, cfg config.Provider) (component, error) {
	s := cfg.K8sSchedulerConfig()
	f := flags{
		"authentication-kubeconfig":   {l.file("scheduler.kubeconfig")},
		"authorization-kubeconfig":    {l.file("scheduler.kubeconfig")},
		"kubeconfig":                  {l.file("scheduler.kubeconfig")},
		"leader-elect":                {"true"},
		"leader-elect-lease-duration": {l.timing.electionLease.String()},
		"leader-elect-renew-deadline": {l.timing.electionRenew.String()},
		"leader-elect-retry-period":   {l.timing.electionRetry.String()},
		"profiling":                   {"false"},
		"secure-port":                 {"0"},
	}
	err := f.merge(s.ExtraArgs(), nil, []string{"kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig", "config"})
	f["secure-port"] = []string{"0"}
	return component{pod: "kube-scheduler", path: t.Scheduler, args: f.list(), env: env(s.Env()), image: s.Image()}, err
}

// writeConfigs writes the API server's configuration files and the kubeconfigs of its neighbours.
func (l layout) writeConfigs(cfg config.Provider) error {
	files := map[string]any{
		"admission-control.json": admissionControl(cfg),
		"authorization.json":     authorization(cfg),
		"encryption.json":        encryption(cfg),
	}
	if a := cfg.K8sAuthenticationConfig(); a != nil {
		files["authentication.json"] = document("apiserver.config.k8s.io/v1", "AuthenticationConfiguration", a.Configuration())
	}
	for name, doc := range files {
		data, err := json.Marshal(doc)
		if err == nil {
			err = writeFile(l.file(name), data)
		}
		if err != nil {
			return fmt.Errorf("write %s of the control plane: %w", name, err)
		}
	}
	for name, user := range map[string]string{"controller-manager": controllerManagerUser, "scheduler": schedulerUser} {
		data, err := fileKubeconfig(cfg.Cluster().Name(), "https://"+l.local.String(), user, l.dir, name)
		if err == nil {
			err = writeFile(l.file(name+".kubeconfig"), data)
		}
		if err != nil {
			return fmt.Errorf("write kubeconfig of %s: %w", name, err)
		}
	}
	return nil
}

// document is a configuration file: its content with its version and kind.
func document(version, kind string, content map[string]any) map[string]any {
	doc := map[string]any{}
	for k, v := range content {
		doc[k] = v
	}
	doc["apiVersion"], doc["kind"] = version, kind
	return doc
}

func admissionControl(cfg config.Provider) map[string]any {
	plugins := []any{}
	for _, p := range cfg.K8sAdmissionControlPluginConfigs() {
		plugins = append(plugins, map[string]any{"name": p.Name(), "configuration": p.Configuration()})
	}
	return document("apiserver.config.k8s.io/v1", "AdmissionConfiguration", map[string]any{"plugins": plugins})
}

// authorization is Node and RBAC unless the configuration has its own list, with what that adds behind them.
func authorization(cfg config.Provider) map[string]any {
	var list []any
	seen := map[string]bool{}
	add := func(kind, name string, webhook map[string]any) {
		if kind != "Webhook" && seen[kind] {
			return
		}
		seen[kind] = true
		a := map[string]any{"type": kind, "name": name}
		if len(webhook) > 0 {
			a["webhook"] = webhook
		}
		list = append(list, a)
	}
	own := cfg.K8sAuthorizerConfigs()
	has := func(kind string) bool {
		for _, a := range own {
			if a.Type() == kind {
				return true
			}
		}
		return false
	}
	for _, kind := range []string{"Node", "RBAC"} {
		if !has(kind) && cfg.K8sAPIServerConfig().InjectDefaultAuthorizers() {
			add(kind, strings.ToLower(kind), nil)
		}
	}
	for _, a := range own {
		add(a.Type(), a.Name(), a.Webhook())
	}
	return document("apiserver.config.k8s.io/v1", "AuthorizationConfiguration", map[string]any{"authorizers": list})
}

// encryption at rest: the document's since 1.14, else what the secrets bundle's key makes.
func encryption(cfg config.Provider) map[string]any {
	const version, kind = "apiserver.config.k8s.io/v1", "EncryptionConfiguration"
	if e := cfg.K8sEtcdEncryptionConfig(); e != nil {
		return document(version, kind, e.EtcdEncryptionConfig())
	}
	var providers []any
	key := func(name, secret string) map[string]any {
		return map[string]any{"keys": []any{map[string]any{"name": name, "secret": secret}}}
	}
	if s := cfg.Cluster().SecretboxEncryptionSecret(); s != "" {
		providers = append(providers, map[string]any{"secretbox": key("key2", s)})
	}
	if s := cfg.Cluster().AESCBCEncryptionSecret(); s != "" {
		providers = append(providers, map[string]any{"aescbc": key("key1", s)})
	}
	providers = append(providers, map[string]any{"identity": map[string]any{}})
	return document(version, kind, map[string]any{"resources": []any{
		map[string]any{"resources": []any{"secrets"}, "providers": providers},
	}})
}

func podCIDRs(cfg config.Provider) []netip.Prefix {
	if n := cfg.K8sNetworkConfig(); n != nil {
		return n.PodCIDRs()
	}
	return []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
}

func serviceCIDRs(cfg config.Provider) []netip.Prefix {
	if n := cfg.K8sNetworkConfig(); n != nil {
		return n.ServiceCIDRs()
	}
	return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
}

func prefixes(list []netip.Prefix) string {
	var res []string
	for _, p := range list {
		res = append(res, p.String())
	}
	return strings.Join(res, ",")
}

func env(vars map[string]string) []string {
	var res []string
	for k, v := range vars {
		res = append(res, k+"="+v)
	}
	slices.Sort(res)
	return res
}

// apiPort is the port on which the node's API server is reached.
func apiPort(cfg config.Provider) uint16 {
	if s := cfg.K8sAPIServerConfig(); s != nil && s.APIPort() != 0 {
		return uint16(s.APIPort())
	}
	return 6443
}

// versionOf an image: what follows the last colon.
func versionOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[i+1:]
	}
	return Version
}

// loopback gives the address of a host that is a loopback IPv4 address.
func loopback(host string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.Is4() || !addr.IsLoopback() || net.ParseIP(host) == nil {
		return netip.Addr{}, false
	}
	return addr, true
}
