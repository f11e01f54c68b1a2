package kube

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"
)

// Users of Kubernetes as Talos names them.
const (
	adminUser             = "admin"
	adminGroup            = "system:masters"
	controllerManagerUser = "system:kube-controller-manager"
	schedulerUser         = "system:kube-scheduler"
)

// Access is a cluster that a kubeconfig has a context for.
type Access struct {
	// Cluster is its name.
	Cluster string
	// Server is the API's URL, such as https://127.0.7.1:6443.
	Server string
	// CA is the cluster's Kubernetes authority, with its key.
	CA *pair
}

// AdminKubeconfig has an administrator's context admin@CLUSTER for each cluster, the first being the current one, with
// certificates made from the clusters' Kubernetes authorities, as Talos makes its kubeconfig.
func AdminKubeconfig(clusters []Access, life time.Duration) ([]byte, error) {
	cfg := configFile{APIVersion: "v1", Kind: "Config"}
	for _, c := range clusters {
		cert, err := issue(c.CA, identity{name: adminUser, organization: adminGroup, life: life})
		if err != nil {
			return nil, fmt.Errorf("make kubeconfig of cluster %s: %w", c.Cluster, err)
		}
		name := adminUser + "@" + c.Cluster
		cfg.add(c.Cluster, name, map[string]any{"server": c.Server, "certificate-authority-data": base64.StdEncoding.EncodeToString(c.CA.Crt)},
			map[string]any{"client-certificate-data": base64.StdEncoding.EncodeToString(cert.Crt), "client-key-data": base64.StdEncoding.EncodeToString(cert.Key)})
	}
	return yaml.Marshal(cfg)
}

// fileKubeconfig names the files of a control plane's folder.
func fileKubeconfig(cluster, server, user, dir, cert string) ([]byte, error) {
	cfg := configFile{APIVersion: "v1", Kind: "Config"}
	cfg.add(cluster, user, map[string]any{"server": server, "certificate-authority": filepath.Join(dir, "ca.crt")},
		map[string]any{"client-certificate": filepath.Join(dir, cert+".crt"), "client-key": filepath.Join(dir, cert+".key")})
	return yaml.Marshal(cfg)
}

// configFile is the file format of kubectl.
type configFile struct {
	APIVersion     string           `yaml:"apiVersion"`
	Kind           string           `yaml:"kind"`
	CurrentContext string           `yaml:"current-context"`
	Clusters       []map[string]any `yaml:"clusters"`
	Users          []map[string]any `yaml:"users"`
	Contexts       []map[string]any `yaml:"contexts"`
}

func (c *configFile) add(cluster, user string, server, credentials map[string]any) {
	c.Clusters = append(c.Clusters, map[string]any{"name": cluster, "cluster": server})
	c.Users = append(c.Users, map[string]any{"name": user, "user": credentials})
	c.Contexts = append(c.Contexts, map[string]any{"name": user, "context": map[string]any{"cluster": cluster, "user": user, "namespace": "default"}})
	if c.CurrentContext == "" {
		c.CurrentContext = user
	}
}
